"""The preferences of each placement policy, on clusters small enough to see them."""

import inspect
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.fakes.most_memory import MostMemory
from tests.fakes.place_cases import context, gang, node, running, view_of
from tests.fakes.slices import Counting

from placewise_core.domain.cluster import Hardware, Node, NodeState, NodeTelemetry
from placewise_core.domain.job import GpuSharing, Job, Resources
from placewise_core.gang.greedy import RESCUED
from placewise_core.gang.policy import Proposal
from placewise_core.policies.profiled.lif import LeastInterference
from placewise_core.policies.profiled.tables import LifCoefficients, packaged_tables
from placewise_core.policies.profiled.tiresias import Tiresias
from placewise_core.policies.registry import DEFAULT_POLICY, placement_policies
from placewise_core.view.view import CPU, NETWORK, ClusterView

POLICIES = placement_policies()


def placed(name: str, job: Job, view: ClusterView) -> Proposal:
    proposal = POLICIES[name].propose(job, view, context())
    assert proposal is not None
    return proposal


def nodes_of(name: str, job: Job, view: ClusterView) -> list[str]:
    return [a.node for a in placed(name, job, view).assignments]


def test_the_registry_names_every_policy_as_itself() -> None:
    assert {name: policy.name for name, policy in POLICIES.items()} == {name: name for name in POLICIES}
    assert {
        "load-balance", "tetris", "tiresias", "lif-linear", "lif-quadratic", "consolidate", "random", "ect", "pats",
        "bin-packing", "consolidate-apart", DEFAULT_POLICY,
    } == set(POLICIES)  # fmt: skip


def test_load_balance_takes_the_least_loaded_and_spreads() -> None:
    view = view_of([node("a"), node("b"), node("c")], [running("r", "a", [0, 1])])
    assert nodes_of("load-balance", gang(workers=2), view) == ["b", "c"]


def test_consolidate_uses_the_fewest_nodes_and_the_tightest() -> None:
    view = view_of([node("big", gpus=8), node("tight", gpus=4), node("small", gpus=2)])
    assert nodes_of("consolidate", gang(workers=4), view) == ["tight"] * 4


def test_consolidate_fills_the_largest_first_where_no_node_takes_all() -> None:
    view = view_of([node("a", gpus=2), node("b", gpus=4), node("c", gpus=3), node("d", gpus=2)])
    assert sorted(nodes_of("consolidate", gang(workers=6), view)) == ["a", "a", "b", "b", "b", "b"]


def test_consolidate_keeps_a_gang_in_one_rack() -> None:
    view = view_of([node("a", gpus=2, rack="r1"), node("b", gpus=2, rack="r2"), node("c", gpus=2, rack="r2")])
    assert set(nodes_of("consolidate", gang(workers=4), view)) == {"b", "c"}


def test_consolidate_counts_parameter_servers_too() -> None:
    """Node a has the GPUs and not the cores for the servers as well."""
    view = view_of([node("a", gpus=2, cpu=8), node("b", gpus=3, cpu=32)])
    assert nodes_of("consolidate", gang(workers=2, servers=2), view) == ["b"] * 4


def test_tetris_fills_a_node_in_use_before_it_opens_one() -> None:
    view = view_of([node("a"), node("b"), node("c")], [running("r", "b", [0])])
    assert nodes_of("tetris", gang(workers=3), view) == ["b"] * 3


def test_tetris_takes_the_better_aligned_of_two_in_use() -> None:
    """Equal GPUs free; a has CPU to spare, which the task asks for."""
    busy_cpu = Resources(24, 1, 8, 0, 1)
    view = view_of([node("b"), node("a")], [running("r1", "a", [0]), running("r2", "b", [0], busy_cpu)])
    assert nodes_of("tetris", gang(workers=1), view) == ["a"]


def test_bin_packing_leaves_the_least() -> None:
    view = view_of([node("a"), node("b"), node("c")], [running("r1", "b", [0, 1]), running("r2", "c", [0])])
    assert nodes_of("bin-packing", gang(workers=2), view) == ["b", "b"]


@pytest.mark.parametrize(("model", "consolidates"), [("VGG-16", True), ("AlexNet", True), ("ResNet-50", False)])
def test_tiresias_consolidates_by_skew(model: str, consolidates: bool) -> None:
    view = view_of([node("a"), node("b")])
    assert len(set(nodes_of("tiresias", gang(workers=2, model=model), view))) == (1 if consolidates else 2)


def test_tiresias_takes_the_nearest_size_for_an_unknown_name_and_consolidates_without_one() -> None:
    tiresias = Tiresias(packaged_tables().skew)
    assert tiresias.is_consolidated(gang(model="mystery", params_millions=140))
    assert not tiresias.is_consolidated(gang(model="mystery", params_millions=25))
    assert tiresias.is_consolidated(gang(model="mystery"))


def test_tiresias_orders_by_attained_service_and_first_come_within_a_class() -> None:
    jobs = [
        gang("old", attained_gpu_s=90_000, submit_time_s=1),
        gang("late", attained_gpu_s=3_000, submit_time_s=9),
        gang("early", attained_gpu_s=3_500, submit_time_s=2),
    ]
    ordered = POLICIES["tiresias"].order(jobs, view_of([node("a")]), context())
    assert [job.id for job in ordered] == ["early", "late", "old"]


def test_lif_keeps_a_cpu_hungry_job_away_from_cpu_users() -> None:
    cpu_users = [running("r1", "a", [0], Resources(28, 1, 8, 0, 1), model="transformer")]
    wire_users = [running("r2", "b", [0], Resources(1, 1, 8, 0, 45), model="transformer")]
    view = view_of([node("a"), node("b")], cpu_users + wire_users)
    for name in ("lif-linear", "lif-quadratic"):
        assert nodes_of(name, gang(workers=1, model="alexnet", network_gbps=0), view) == ["b"]
        assert nodes_of(name, gang(workers=1, model="bert", network_gbps=0), view) == ["a"]


def test_lif_sums_the_slowdown_of_every_task_on_the_node() -> None:
    """Against the definition, task by task, after the view has changed under the kept sums."""
    lif = LeastInterference("lif", LifCoefficients({"alexnet": (0.5, 0.25, 2.0, 1.0)}, (1.0, 0.5, 0.25, 0.125)))
    view = view_of([node("a"), node("b")], [running("r1", "a", [0], model="alexnet")])
    job = gang(workers=1, cpu=6, network_gbps=10)
    for extra in (None, running("r2", "a", [1], Resources(5, 1, 8, 0, 20), model="mystery")):
        if extra:
            view.add_job(extra)
        proposal = lif.propose(job, view, context(is_explaining=True))
        assert proposal is not None
        terms = {c.node: dict(c.terms)["interference"] for c in proposal.candidates}
        assert terms["a"] == pytest.approx(_interference(lif, view, job))
        assert terms["b"] == pytest.approx(0.0)


def _interference(lif: LeastInterference, view: ClusterView, job: Job) -> float:
    shares = [(model, d.cpu_cores / 32, d.network_gbps / 50) for model, d in view.usage.tasks_at(0)]
    demand = job.groups[0].demand
    shares.append((job.model, demand.cpu_cores / 32, demand.network_gbps / 50))
    cpu, wire = sum(s[1] for s in shares), sum(s[2] for s in shares)
    return sum(lif.slowdown(model, cpu - p, wire - q) - 1.0 for model, p, q in shares)


def test_ect_takes_the_faster_gpu_unless_it_is_slower_for_this_model() -> None:
    view = view_of([node("old", model="Tesla-K80"), node("new", model="Tesla-V100")])
    assert nodes_of("ect", gang(workers=1, model="resnet50"), view) == ["new"]
    assert nodes_of("ect", gang(workers=1, model="recommendation"), view) == ["old"]  # measured: input-bound there


def test_ect_and_pats_take_the_idle_one_of_equals() -> None:
    hot_cpu = NodeTelemetry(cpu_util=0.9, gpu_util=0.9, observe_time_s=999)
    view = view_of([node("a", telemetry=hot_cpu), node("b", telemetry=NodeTelemetry(cpu_util=0.0, observe_time_s=999))])
    assert nodes_of("ect", gang(workers=1), view) == ["b"]
    view = view_of([node("a"), node("b")], [running("r", "a", [0, 1])])
    assert nodes_of("pats", gang(workers=1), view) == ["b"]


def test_ect_compares_clocks_for_cpu_tasks() -> None:
    view = view_of([node("a", hardware=Hardware(cpu_ghz=2.0)), node("b", hardware=Hardware(cpu_ghz=3.0))])
    assert nodes_of("ect", gang(workers=1, gpus=0), view) == ["b"]


def test_ect_sees_claims_and_telemetry_that_came_later() -> None:
    view = view_of([node("a"), node("b")])
    assert nodes_of("ect", gang(workers=1), view) == ["a"]
    view.add_job(running("r", "a", [0, 1]))
    assert nodes_of("ect", gang(workers=1), view) == ["b"]


def test_pats_lets_the_job_with_most_to_gain_choose_first() -> None:
    view = view_of([node("old", model="K80"), node("new", model="V100")])
    jobs = [gang("reco", model="recommendation"), gang("gan", model="cyclegan")]
    assert [job.id for job in POLICIES["pats"].order(jobs, view, context())] == ["gan", "reco"]


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_candidates_explain_the_choice(name: str) -> None:
    view = view_of([node("a"), node("b"), node("c")], [running("r", "b", [0], model="lm")])
    proposal = POLICIES[name].propose(gang(workers=2, model="vgg16"), view, context(is_explaining=True))
    assert proposal is not None
    chosen = {c.task: c for c in proposal.candidates if c.is_chosen}
    assert {task: c.node for task, c in chosen.items()} == {a.task: a.node for a in proposal.assignments}
    assert all(c.terms for c in proposal.candidates)
    if name != "random":
        for candidate in proposal.candidates:
            assert candidate.score <= chosen[candidate.task].score


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_tasks_keep_the_names_and_order_of_the_request(name: str) -> None:
    view = view_of([node("a", gpus=4, cpu=64)])
    job = gang(workers=2, servers=2)
    job = replace(job, groups=(job.groups[1], job.groups[0]))
    assert [a.task for a in placed(name, job, view).assignments] == ["ps-0", "ps-1", "worker-0", "worker-1"]


def test_best_fit_rescues_a_gang_that_spreading_leads_into_a_dead_end() -> None:
    """The single-GPU tasks go first and take one GPU of each node; then no node has two left for the pair."""
    pair = gang(workers=1, gpus=2, cpu=1)
    singles = gang(workers=2, gpus=1, cpu=16)
    job = replace(singles, groups=(singles.groups[0], pair.groups[0]))
    view = view_of([node("a", gpus=2), node("b", gpus=2), node("c", gpus=8, state=NodeState.DOWN)])
    proposal = placed("load-balance", job, view)
    assert len(proposal.assignments) == 3
    assert proposal.info.get(RESCUED) == 1.0


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_an_empty_cluster_takes_nothing(name: str) -> None:
    assert POLICIES[name].propose(gang(), view_of([]), context()) is None


def test_a_fraction_joins_the_fullest_gpu_that_tolerates_it() -> None:
    share = GpuSharing(True, 10.0)
    busy = running("r", "a", [2], Resources(1, 0.25, 1), gpu_sharing=share)
    view = view_of([node("a", max_jobs_per_gpu=4)], [busy])
    assert placed("load-balance", gang(workers=1, gpus=0.5, sharing=share), view).assignments[0].gpu_indices == (2,)
    strict = gang("strict", workers=1, gpus=0.5, sharing=GpuSharing(True, 1.0))
    assert placed("load-balance", strict, view).assignments[0].gpu_indices == (0,)


def test_a_gpu_model_is_kept_to() -> None:
    mixed = Node(
        node("a").id, Resources(32, 2, 64, 32, 10), (node("x", 1).gpus[0], replace(node("x", 2, "K80").gpus[1]))
    )
    view = view_of([mixed])
    job = gang(workers=1, group={"gpu_model": "K80"})
    assert placed("load-balance", job, view).assignments[0].gpu_indices == (1,)
    assert POLICIES["load-balance"].propose(gang(workers=2, group={"gpu_model": "K80"}), view, context()) is None


@pytest.mark.parametrize("name", ["lif-linear", "lif-quadratic"])
def test_many_nodes_counted_together_are_counted_as_one_by_one(name: str) -> None:
    nodes = [node(f"n{i}", cpu=float(7 + i % 13)) for i in range(200)]
    demands = [Resources(0.1 + 0.3 * (i % 7), 1, 1, 0, 0.7 * (i % 3)) for i in range(500)]
    jobs = [
        running(f"r{i}", f"n{i * i % 150}", [i % 4], demand, model=("resnet50", "lm", "x")[i % 3])
        for i, demand in enumerate(demands)
    ]
    view, policy = view_of(nodes, jobs), LeastInterference(name, getattr(packaged_tables(), name.replace("-", "_")))
    together = policy._columns(view, np.arange(200))
    inverse = view.nodes.inverse_capacity
    one_by_one = [
        policy._column(
            view, m, (*view.nodes.capacity[[CPU, NETWORK], m].tolist(), *inverse[[CPU, NETWORK], m].tolist())
        )
        for m in range(200)
    ]
    assert np.array_equal(together, np.array(one_by_one).T)


def test_a_first_count_of_many_nodes_takes_few_steps() -> None:
    """A small request is not decided in slices: it makes its first count in one go."""
    view = view_of([node(f"n{i}") for i in range(4000)])
    policy = LeastInterference("lif-linear", packaged_tables().lif_linear)
    pauses = Counting()
    assert policy.propose(gang(workers=2), view, context(slices=pauses)) is not None
    assert pauses.pauses < 50


def test_a_policy_of_ones_own_is_one_short_file_with_a_name_of_its_own() -> None:
    source = Path(inspect.getfile(MostMemory)).read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 30
    assert "most-memory" in placement_policies(others=[MostMemory()])
    with pytest.raises(ValueError, match="the same name"):
        placement_policies(others=[MostMemory(), MostMemory()])
