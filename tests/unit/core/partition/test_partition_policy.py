"""Partition on whole clusters: who is used, who is left out and why, heat, overhead, rescheduling."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.fakes.proteus_queue import bundled, cluster_of

from placewise_core.domain.cluster import (
    Assignment,
    Gpu,
    Hardware,
    Node,
    NodeState,
    NodeTelemetry,
    RunningJob,
)
from placewise_core.domain.decision import Outcome, PartitionPlan, Reason
from placewise_core.domain.divisible import DivisibleTask, ShareProgress
from placewise_core.domain.events import NodesReported, OverheadLearned
from placewise_core.domain.job import Job, JobId, NodeId, Resources, Role
from placewise_core.partition.capability import Weights, node_capabilities
from placewise_core.partition.heat_island import HeatIsland
from placewise_core.partition.policy import PartitionContext
from placewise_core.partition.registry import partition_policy
from placewise_core.partition.reschedule import ShareState, is_late, rescheduled
from placewise_core.partition.thermal import ThermalModel, allowed_s, peak_celsius, thermal_state
from placewise_core.view.view import ClusterView

ROOT = Path(__file__).parents[4]
CAPABILITY = bundled("capability.json")
POLICY = partition_policy(CAPABILITY)
OF_GPU = CAPABILITY["weights"]["gpu"] + CAPABILITY["weights"]["gpu_memory"]  # among equal nodes
NOW_S = 1000.0
STRONG = Hardware(3.0, 20.0, 1.5)


def node(name: str, gpus: int = 1, hardware: Hardware = STRONG, **telemetry: float) -> Node:
    return Node(
        NodeId(name),
        Resources(cpu_cores=16, gpus=gpus, memory_gib=64),
        tuple(Gpu(g, "V100", 16) for g in range(gpus)),
        hardware=hardware,
        telemetry=NodeTelemetry(**{"observe_time_s": NOW_S - 1.0, **telemetry}),
    )


@pytest.mark.parametrize(
    ("coefficient", "path"),
    [
        *((f"k_{name}", ("weights", name)) for name in ("cpu", "memory", "cache", "gpu", "gpu_memory")),
        ("R of a GPU, K/W", ("thermal", "gpu", "resistance_k_per_w")),
        ("ambient, °C", ("thermal", "gpu", "ambient_celsius")),
        ("P of a GPU, W", ("thermal", "gpu", "load_watts")),
        ("R·C of a GPU, s", ("thermal", "gpu", "time_constant_s")),
        ("R of a CPU, K/W", ("thermal", "cpu", "resistance_k_per_w")),
        ("R·C of a CPU, s", ("thermal", "cpu", "time_constant_s")),
        ("P of a CPU, W", ("thermal", "cpu", "load_watts")),
        ("Q without a report, s", ("default_overhead_s",)),
    ],
)
def test_the_document_gives_each_coefficient_and_its_source(coefficient: str, path: tuple[str, ...]) -> None:
    value = CAPABILITY
    for key in path:
        value = value[key]
    rows = (ROOT / "docs/partition.md").read_text("utf-8").splitlines()
    (row,) = (row for row in rows if row.startswith(f"| {coefficient} |"))
    shown, source = (cell.strip() for cell in row.strip("|").split("|")[1:])
    assert float(shown) == value
    is_stated = any(".".join(path).startswith(name) for name in CAPABILITY["provenance"]["stated_not_fitted"])
    assert source.startswith(("stated", "not fitted")) == is_stated


def split(
    view: ClusterView, scale: float, overhead_s: float = 1.0, units: tuple[str, ...] = (), **task: float
) -> PartitionPlan:
    """Over the GPUs, and the CPUs of nodes without any, unless `units` names others."""
    wanted = DivisibleTask("t", parallel_scale=scale, overhead_s=overhead_s, **task)  # type: ignore[arg-type]
    return POLICY.partition(wanted, view, PartitionContext(NOW_S, units or gpus_of(view), is_explaining=True))


def gpus_of(view: ClusterView) -> tuple[str, ...]:
    return tuple(
        f"{n.id}/{unit}" for n in view.nodes.records for unit in ([f"gpu{g.index}" for g in n.gpus] or ["cpu"])
    )


def occupy(view: ClusterView, name: str, gpus: tuple[int, ...]) -> None:
    held = Assignment("worker-0", Role.WORKER, NodeId(name), gpus, Resources(gpus=len(gpus), cpu_cores=1))
    view.add_job(RunningJob(Job(JobId(f"on-{name}")), (held,)))


def reasons(plan: PartitionPlan) -> dict[str, Reason]:
    return {f"{e.node}/{e.unit}": e.reason for e in plan.excluded}


def test_equal_units_get_equal_shares() -> None:
    plan = split(cluster_of(tuple(node(f"n{i}") for i in range(4))), scale=400.0)
    assert plan.outcome is Outcome.PLACED
    assert [s.scale for s in plan.shares] == pytest.approx([100.0] * 4)
    assert [s.capability for s in plan.shares] == pytest.approx([OF_GPU] * 4)
    assert plan.threshold_scale == pytest.approx(4.0 * OF_GPU)  # n·C_p·Q
    assert plan.predicted_s == pytest.approx(1.0 + 100.0 / OF_GPU)


def test_the_cpu_of_a_gpu_node_is_a_unit_of_its_own() -> None:
    view = cluster_of((node("a"), node("b")))
    occupy(view, "a", (0,))
    plan = split(view, 1000.0, units=("a", "b"))
    assert {(s.node, s.unit) for s in plan.shares} == {("a", "cpu"), ("b", "cpu"), ("b", "gpu0")}
    assert len({round(s.predicted_s, 9) for s in plan.shares}) == 1
    held = Assignment("server-0", Role.PARAMETER_SERVER, NodeId("b"), (), Resources(cpu_cores=1))
    view.add_job(RunningJob(Job(JobId("servers")), (held,)))
    assert {(s.node, s.unit) for s in split(view, 1000.0, units=("a", "b")).shares} == {("a", "cpu"), ("b", "gpu0")}
    view.remove_job(JobId("servers"))
    assert split(view, 1000.0, units=("a", "b")).shares == plan.shares


def test_a_cpu_and_a_gpu_of_a_node_are_forecast_by_their_own_temperatures() -> None:
    reported = {"cpu_celsius": 30.0, "gpu_celsius": 80.0, "limit_celsius": 80.0}
    plan = split(cluster_of((node("a", **reported), node("b"))), 1000.0, units=("a", "b"))
    assert reasons(plan) == {"a/gpu0": Reason.THERMAL_LIMIT}
    assert {(s.node, s.unit) for s in plan.shares} == {("a", "cpu"), ("b", "cpu"), ("b", "gpu0")}


def test_a_small_task_goes_whole_to_the_strongest_idle_unit() -> None:
    nodes = (node("weak", hardware=Hardware(2.0, 20.0, 1.0)), node("strong"), node("busy", cpu_util=0.9, gpu_util=0.9))
    plan = split(cluster_of(nodes), scale=0.5)
    assert [(s.node, s.unit, s.scale) for s in plan.shares] == [("strong", "gpu0", 0.5)]
    assert set(reasons(plan).values()) == {Reason.SHARE_BELOW_THRESHOLD}


def test_the_stronger_and_the_idler_get_more() -> None:
    nodes = (
        node("strong"),
        node("weak", hardware=Hardware(2.0, 20.0, 0.8)),
        node("loaded", gpu_util=0.5, cpu_util=0.5),
    )
    by_node = {s.node: s for s in split(cluster_of(nodes), scale=100.0).shares}
    assert by_node["strong"].scale > by_node["weak"].scale
    assert by_node["strong"].scale > by_node["loaded"].scale
    assert len({round(s.predicted_s, 9) for s in by_node.values()}) == 1


def test_capabilities_are_equation_6_and_sum_to_one() -> None:
    nodes = (node("a", cpu_util=0.5), node("b", hardware=Hardware(2.0, 10.0, 1.0), gpu_util=0.25))
    view = cluster_of(nodes)
    weights = Weights.from_mapping(CAPABILITY["weights"])
    parts = node_capabilities(view, np.full(2, 16.0), np.ones(2, dtype=np.bool_), weights)
    assert parts.sum() == pytest.approx(1.0)
    present = weights.as_array().sum()
    cpu = np.array([3.0 * 0.5, 2.0])
    assert parts[0] == pytest.approx(weights.cpu / present * cpu / cpu.sum())
    gpu = np.array([1.5, 1.0 * 0.75])
    assert parts[3] == pytest.approx(weights.gpu / present * gpu / gpu.sum())


def test_unknown_hardware_counts_as_the_mean_of_the_known() -> None:
    nodes = (node("a"), node("unknown", hardware=Hardware()), node("c"))
    shares = split(cluster_of(nodes), scale=300.0).shares
    assert [s.scale for s in shares] == pytest.approx([100.0] * 3)


def test_clock_rates_whose_sum_is_no_number_are_compared_all_the_same() -> None:
    huge = Hardware(1.7e308, 30.0, 1.7e308)
    nodes = (node("a", hardware=huge), node("b", hardware=huge), node("c", hardware=Hardware()))
    plan = split(cluster_of(nodes), 8.0)
    assert np.isfinite([share.capability for share in plan.shares]).all()
    assert sum(share.scale for share in plan.shares) == pytest.approx(8.0)


def test_clock_rates_whose_inverse_is_no_number_are_compared_all_the_same() -> None:
    tiny = Hardware(5e-324, 30.0)
    plan = split(cluster_of((node("a", hardware=tiny), node("b", hardware=tiny, cpu_util=1.0))), 8.0)
    assert np.isfinite([share.capability for share in plan.shares]).all()
    assert sum(share.scale for share in plan.shares) == pytest.approx(8.0)


def test_weights_that_are_no_weights_are_refused() -> None:
    with pytest.raises(ValueError, match="sum to 1"):
        Weights(0.5, 0.5, 0.5, 0.0, 0.0)
    with pytest.raises(ValueError, match=r"placewise\.capability/1"):
        HeatIsland({"schema": "else"})


def test_excluded_units_are_named_with_their_reason() -> None:
    nodes = (
        replace(node("down"), state=NodeState.DOWN),
        replace(node("draining"), state=NodeState.DRAINING),
        node("stale", observe_time_s=NOW_S - 500.0),
        node("hot", gpu_celsius=80.0, limit_celsius=80.0),
        node("busy", gpus=2),
        node("free", gpus=2),
    )
    view = cluster_of(nodes)
    occupy(view, "busy", (1,))
    plan = split(view, scale=100.0)
    assert reasons(plan) == {
        "down/gpu0": Reason.NODE_DOWN,
        "draining/gpu0": Reason.NODE_DRAINING,
        "stale/gpu0": Reason.STALE_TELEMETRY,
        "hot/gpu0": Reason.THERMAL_LIMIT,
        "busy/gpu1": Reason.UNIT_BUSY,
    }
    assert {(s.node, s.unit) for s in plan.shares} == {("busy", "gpu0"), ("free", "gpu0"), ("free", "gpu1")}
    assert (plan.blockers[0].reason, plan.blockers[0].nodes) == (Reason.NODE_DOWN, 1)


def test_units_can_be_named_and_wrong_names_are_said() -> None:
    view = cluster_of((node("a", gpus=2), node("b", gpus=2), node("cpu", gpus=0)))
    plan = split(view, 100.0, units=("a/gpu1", "b", "cpu/cpu", "a/gpu7", "nowhere"))
    assert {f"{s.node}/{s.unit}" for s in plan.shares} == {"a/gpu1", "b/gpu0", "b/gpu1", "b/cpu", "cpu/cpu"}
    assert reasons(plan) == {"a/gpu7": Reason.SELECTOR_MISMATCH, "nowhere/": Reason.SELECTOR_MISMATCH}
    nothing = split(view, 100.0, units=("nowhere",))
    assert nothing.outcome is Outcome.NO_FIT


def test_nothing_idle_means_wait_and_no_nodes_no_fit() -> None:
    view = cluster_of((node("a"),))
    occupy(view, "a", (0,))
    assert split(view, 10.0).outcome is Outcome.WAIT
    empty = split(cluster_of(()), 10.0)
    assert (empty.outcome, empty.blockers[0].reason) == (Outcome.NO_FIT, Reason.EMPTY_CLUSTER)


def test_a_cpu_node_is_one_unit_that_is_idle_without_jobs() -> None:
    view = cluster_of((node("c1", gpus=0), node("c2", gpus=0)))
    held = Assignment("worker-0", Role.WORKER, NodeId("c1"), (), Resources(cpu_cores=1))
    view.add_job(RunningJob(Job(JobId("x")), (held,)))
    plan = split(view, 100.0)
    assert [(s.node, s.unit) for s in plan.shares] == [("c2", "cpu")]
    assert reasons(plan) == {"c1/cpu": Reason.UNIT_BUSY}


def test_a_share_asks_for_what_the_task_says() -> None:
    view = cluster_of((node("a", gpus=4), node("c", gpus=0)))
    demand = Resources(cpu_cores=8, gpus=1)
    task = DivisibleTask("t", 100.0, overhead_s=0.1, demand=demand)
    plan = POLICY.partition(task, view, PartitionContext(NOW_S, is_explaining=True))
    assert [(s.node, s.unit) for s in plan.shares] == [("a", "gpu0"), ("a", "gpu1")]  # 16 cores: two of eight
    assert reasons(plan) == {
        "a/gpu2": Reason.INSUFFICIENT_CPU,
        "a/gpu3": Reason.INSUFFICIENT_CPU,
        "a/cpu": Reason.INSUFFICIENT_GPU,
        "c/cpu": Reason.INSUFFICIENT_GPU,
    }


def test_overhead_comes_from_the_request_then_history_then_the_default() -> None:
    view = cluster_of((node("a"), node("b")))
    assert split(view, 100.0, overhead_s=3.0).overhead_s == 3.0
    kind = DivisibleTask("t", 100.0, kind="merge")
    assert POLICY.partition(kind, view, PartitionContext(NOW_S)).overhead_s == CAPABILITY["default_overhead_s"]
    view.overheads["merge"] = OverheadLearned("merge", 4, 7.5)
    assert POLICY.partition(kind, view, PartitionContext(NOW_S)).overhead_s == 7.5


def test_what_is_kept_from_question_to_question_follows_the_cluster() -> None:
    kept = HeatIsland(CAPABILITY)
    view = cluster_of((node("a", gpus=2), node("b", observe_time_s=NOW_S - 80.0), node("c", gpu_util=0.5)))
    hot = node("a", gpus=2, gpu_celsius=70.0, limit_celsius=70.0)
    changes: tuple[tuple[float, Callable[[], object]], ...] = (
        (NOW_S, lambda: None),
        (NOW_S, lambda: occupy(view, "a", (1,))),
        (NOW_S + 10.0, lambda: None),
        (NOW_S + 10.5, lambda: None),  # b has been silent for longer than 90 s
        (NOW_S + 9.0, lambda: None),  # the store's clock was set back
        (NOW_S + 9.0, lambda: view.remove_job(JobId("on-a"))),
        (NOW_S + 9.0, lambda: view.apply_change(NodesReported((hot,)))),
        (NOW_S + 9.0, lambda: view.apply_change(NodesReported((replace(hot, state=NodeState.DRAINING),)))),
        (NOW_S + 9.0, lambda: view.apply_change(NodesReported((node("d"),), removed=(NodeId("c"),)))),
    )
    answers = []
    for now_s, change in changes:
        change()
        for is_explaining in (False, True):
            asked = DivisibleTask("t", 100.0, overhead_s=1.0), view, PartitionContext(now_s, (), is_explaining)
            answers.append(kept.partition(*asked))
            assert answers[-1] == kept.partition(*asked) == HeatIsland(CAPABILITY).partition(*asked)
    reported = [tuple(sorted(reasons(plan).items())) for plan in answers[::2]]
    assert len(set(reported)) == 5  # free, busy, stale, hot, draining


def test_hundreds_are_named_one_by_one_only_when_explained() -> None:
    view = cluster_of(tuple(replace(node(f"n{i}"), state=NodeState.DOWN) for i in range(300)))
    for is_explaining, named in ((False, 256), (True, 600), (False, 256)):
        asked = DivisibleTask("t", 100.0), view, PartitionContext(NOW_S, (), is_explaining)
        plan = POLICY.partition(*asked)
        assert (len(plan.excluded), plan.blockers[0].nodes) == (named, 600)


# -- heat -----------------------------------------------------------------------------------------------------------


def test_a_warm_node_gets_less_and_the_rest_takes_over() -> None:
    cool = {"gpu_celsius": 30.0, "limit_celsius": 60.0, "ambient_celsius": 22.0}
    nodes = (node("warm", **{**cool, "gpu_celsius": 58.0}), node("cool1", **cool), node("cool2", **cool))
    plan = split(cluster_of(nodes), scale=90.0)
    by_node = {s.node: s for s in plan.shares}
    assert by_node["warm"].scale < by_node["cool1"].scale
    assert sum(s.scale for s in plan.shares) == pytest.approx(90.0)
    assert all(s.predicted_peak_celsius <= 60.0 + 1e-6 for s in plan.shares)
    assert by_node["warm"].predicted_peak_celsius == pytest.approx(60.0)


def test_more_units_join_where_heat_caps_the_few_the_threshold_asks_for() -> None:
    warm = {"gpu_celsius": 59.0, "limit_celsius": 60.0, "ambient_celsius": 22.0}
    view = cluster_of(tuple(node(f"n{i}", **warm) for i in range(30)))
    cold = cluster_of(tuple(node(f"n{i}") for i in range(30)))
    few = split(cold, scale=60.0, overhead_s=19.0 / OF_GPU)
    more = split(view, scale=60.0, overhead_s=19.0 / OF_GPU)
    assert len(few.shares) == 3
    assert len(more.shares) > 3
    assert max(s.predicted_peak_celsius for s in more.shares) <= 60.0 + 1e-6


def test_the_serial_part_goes_where_it_overheats_nobody() -> None:
    hot = {"gpu_celsius": 59.5, "limit_celsius": 60.0, "ambient_celsius": 22.0}
    weak = Hardware(2.0, 10.0, 1.0)
    nodes = (node("strong", **hot), node("cool", hardware=weak, **{**hot, "gpu_celsius": 30.0}))
    plan = split(cluster_of(nodes), scale=5.0, serial_scale=20.0)
    assert plan.outcome is Outcome.PLACED
    assert plan.shares[0].node == "cool"
    assert all(share.predicted_peak_celsius <= 60.0 + 1e-6 for share in plan.shares)
    too_much = split(cluster_of(nodes[:1]), scale=0.01, serial_scale=200.0)
    assert too_much.outcome in (Outcome.WAIT, Outcome.NO_FIT)
    assert too_much.blockers[0].reason is Reason.THERMAL_LIMIT
    assert too_much.blockers[0].shortfall > 0


def test_too_hot_for_all_of_it_waits_and_says_how_much_is_too_much() -> None:
    hot = {"gpu_celsius": 59.0, "limit_celsius": 60.0, "ambient_celsius": 22.0}
    view = cluster_of(tuple(node(f"n{i}", **hot) for i in range(2)))
    plan = split(view, scale=40.0)
    assert plan.outcome is Outcome.WAIT
    assert plan.blockers[0].reason is Reason.THERMAL_LIMIT
    assert plan.blockers[0].shortfall > 0
    assert not plan.shares
    hopeless = split(view, scale=1e6)
    assert hopeless.outcome is Outcome.NO_FIT


def test_a_node_with_nothing_left_does_not_hide_that_waiting_would_help() -> None:
    hot = {"gpu_celsius": 59.0, "limit_celsius": 60.0, "ambient_celsius": 22.0}
    spent = node("spent", cpu_util=1.0, memory_util=1.0, gpu_util=1.0, gpu_memory_util=1.0, cache_util=1.0)
    # It has no capability, and no limit to how long it may work.
    assert split(cluster_of((node("n0", **hot), node("n1", **hot), spent)), scale=60.0).outcome is Outcome.WAIT


def test_prediction_solves_the_rc_equation() -> None:
    model = ThermalModel(resistance_k_per_w=0.2, time_constant_s=50.0, load_watts=300.0, ambient_celsius=20.0)
    state = thermal_state(model, np.array([40.0]), np.array([70.0]), np.array([np.nan]), np.array([np.nan]))
    temperature, dt = 40.0, 1e-3
    for _ in range(int(30 / dt)):
        temperature += dt * (300.0 * 0.2 - (temperature - 20.0)) / 50.0
    assert float(peak_celsius(state, np.array([30.0]))[0]) == pytest.approx(temperature, abs=1e-3)
    until = float(allowed_s(state)[0])
    assert float(peak_celsius(state, np.array([until]))[0]) == pytest.approx(70.0)


@pytest.mark.parametrize(
    ("celsius", "limit", "expected"),
    [(np.nan, 70.0, np.inf), (40.0, np.nan, np.inf), (40.0, 0.0, np.inf), (40.0, 90.0, np.inf), (70.0, 70.0, 0.0)],
)
def test_who_is_never_or_already_too_hot(celsius: float, limit: float, expected: float) -> None:
    model = ThermalModel(0.2, 50.0, 300.0, 20.0)  # ends at 80 °C
    state = thermal_state(model, np.array([celsius]), np.array([limit]), np.array([20.0]), np.array([np.nan]))
    assert float(allowed_s(state)[0]) == expected


def test_reported_power_above_the_model_heats_more() -> None:
    model = ThermalModel(0.2, 50.0, 300.0, 20.0)
    now, limit, ambient = np.full(2, 40.0), np.full(2, 75.0), np.full(2, 20.0)
    state = thermal_state(model, now, limit, ambient, np.array([100.0, 500.0]))
    assert state.steady.tolist() == [80.0, 120.0]
    assert allowed_s(state)[1] < allowed_s(state)[0]


def test_new_telemetry_is_seen() -> None:
    view = cluster_of((node("a"), node("b")))
    assert len(split(view, 100.0).shares) == 2
    view.apply_change(NodesReported((node("a", gpu_celsius=90.0, limit_celsius=80.0),)))
    assert [s.node for s in split(view, 100.0).shares] == ["b"]


def test_only_so_many_are_named_unless_explained() -> None:
    view = cluster_of(tuple(node(f"n{i}", gpus=4) for i in range(200)))
    task = DivisibleTask("t", 0.1, overhead_s=1.0)  # 1000 units, one of which takes it
    short = POLICY.partition(task, view, PartitionContext(NOW_S))
    assert len(short.excluded) == 256
    assert short.blockers[0].nodes == 999
    full = POLICY.partition(task, view, PartitionContext(NOW_S, is_explaining=True))
    assert len(full.excluded) == 999


def test_a_job_may_split_its_own_work_over_the_units_it_holds() -> None:
    view = cluster_of((node("n0", gpus=2), node("n1", gpus=1)))
    held = Assignment("worker-0", Role.WORKER, NodeId("n0"), (0, 1), Resources(cpu_cores=1, gpus=2))
    view.add_job(RunningJob(Job(JobId("mine")), (held,)))
    own = POLICY.partition(DivisibleTask("mine", 100.0, overhead_s=1.0), view, PartitionContext(NOW_S, ("n0",)))
    other = POLICY.partition(DivisibleTask("other", 100.0, overhead_s=1.0), view, PartitionContext(NOW_S, ("n0",)))
    assert [(s.node, s.unit) for s in own.shares] == [("n0", "gpu0"), ("n0", "gpu1"), ("n0", "cpu")]
    assert other.outcome is Outcome.PLACED
    assert [(s.node, s.unit) for s in other.shares] == [("n0", "cpu")]
    assert {e.reason for e in other.excluded} == {Reason.UNIT_BUSY}


# -- rescheduling ---------------------------------------------------------------------------------------------------


def planned() -> PartitionPlan:
    return split(cluster_of(tuple(node(f"n{i}") for i in range(4))), scale=400.0)


def progress_of(plan: PartitionPlan, **changes: dict[str, object]) -> list[ShareProgress]:
    """The plan's shares as a host would report them; `changes` by node."""
    return [
        replace(ShareProgress(s.node, s.unit, s.scale, s.predicted_s, s.capability), **changes.get(s.node, {}))  # type: ignore[arg-type]
        for s in plan.shares
    ]


def test_a_job_may_split_its_work_over_its_own_node_where_no_node_has_a_gpu() -> None:
    view = cluster_of((node("c0", gpus=0), node("c1", gpus=0)))
    held = Assignment("worker-0", Role.WORKER, NodeId("c0"), (), Resources(cpu_cores=1))
    view.add_job(RunningJob(Job(JobId("mine")), (held,)))
    own = POLICY.partition(DivisibleTask("mine", 100.0, overhead_s=1.0), view, PartitionContext(NOW_S, ("c0",)))
    assert [(s.node, s.unit) for s in own.shares] == [("c0", "cpu")]


def test_a_late_share_is_noticed() -> None:
    share = progress_of(planned())[0]
    late_s = 2.0 * (share.predicted_s + 1.0) + 1.0
    assert not is_late(replace(share, elapsed_s=late_s - 2.0), overhead_s=1.0)
    assert is_late(replace(share, elapsed_s=late_s), overhead_s=1.0)
    assert not is_late(replace(share, elapsed_s=late_s, done=1.0), overhead_s=1.0)


def test_the_policy_moves_late_and_unwilling_shares_to_the_units_at_work() -> None:
    view = cluster_of(tuple(node(f"n{i}") for i in range(4)))
    plan = split(view, scale=400.0)
    task = DivisibleTask("t", 400.0, overhead_s=1.0)
    progress = progress_of(
        plan,
        n0={"done": 0.2, "elapsed_s": 900.0},
        n1={"done": 0.5, "is_move_requested": True},
        n2={"done": 0.5},
        n3={"done": 1.0},
    )
    after = POLICY.reschedule(task, progress, view, PartitionContext(NOW_S))
    assert after.outcome is Outcome.PLACED
    assert [s.node for s in after.shares] == ["n2"], "n3 has finished: new units are a matter of asking again"
    assert sum(s.scale for s in after.shares) == pytest.approx(80.0 + 50.0 + 50.0)


def test_rescheduling_waits_where_nobody_stays() -> None:
    view = cluster_of((node("n0"),))
    share = ShareProgress("n0", "gpu0", 10.0, 10.0, 1.0, is_move_requested=True)
    task = DivisibleTask("t", 10.0, overhead_s=1.0)
    after = POLICY.reschedule(task, [share], view, PartitionContext(NOW_S))
    assert after.outcome is Outcome.WAIT
    assert after.blockers[0].reason is Reason.UNIT_BUSY


def test_what_a_leaving_unit_had_left_goes_to_the_others_by_what_they_have_left() -> None:
    plan = planned()
    progress = {
        ("n0", "gpu0"): ShareState(done=0.25),
        ("n1", "gpu0"): ShareState(done=0.9),
        ("n2", "gpu0"): ShareState(done=0.5),
        ("n3", "gpu0"): ShareState(done=0.5),
    }
    after = rescheduled(plan, [("n0", "gpu0")], progress)
    left = {s.node: s.scale for s in after.shares}
    assert sum(left.values()) == pytest.approx(75.0 + 10.0 + 50.0 + 50.0)
    assert left == pytest.approx({"n1": 185.0 / 3, "n2": 185.0 / 3, "n3": 185.0 / 3})


def test_heat_bounds_what_others_take_over() -> None:
    plan = planned()
    progress = {("n1", "gpu0"): ShareState(allowed_s=110.0 / OF_GPU)}
    after = rescheduled(plan, [("n0", "gpu0")], progress)
    left = {s.node: s.scale for s in after.shares}
    assert left == pytest.approx({"n1": 110.0, "n2": 145.0, "n3": 145.0})
    tight = {(f"n{i}", "gpu0"): ShareState(allowed_s=101.0 / OF_GPU) for i in range(4)}
    assert rescheduled(plan, [("n0", "gpu0")], tight).outcome is Outcome.WAIT
    everyone = [(s.node, s.unit) for s in plan.shares]
    assert rescheduled(plan, everyone, {}).outcome is Outcome.WAIT
