"""Harmony's policy around a net: its inputs, its choices, and no failure reaches the caller."""

import dataclasses
import itertools
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from tests.fakes.cluster import make_job, make_node
from tests.fakes.net_policies import FirstIsBest, Spreads
from tests.fakes.quick.examples import examples

from placewise_core.basics.arrays import Float32
from placewise_core.domain.cluster import Assignment, NodeTelemetry, RunningJob
from placewise_core.domain.events import ClusterRecords
from placewise_core.domain.job import GpuSharing, Job, JobId, NodeId, Resources, Role, TaskGroup
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import Proposal
from placewise_core.inputs.cluster import JOB_COLUMNS, Observation
from placewise_core.inputs.shortlist import MOST_NODES, shortlist
from placewise_core.policies import explore
from placewise_core.policies.consolidate import Consolidate
from placewise_core.policies.explore import Exploration, Explorer
from placewise_core.policies.explorers.harmony_draw import HarmonyDraw
from placewise_core.policies.harmony import CHUNK, ClusterState, Harmony, HarmonySample, PolicyState
from placewise_core.policies.load_balance import LoadBalance
from placewise_core.policies.registry import harmony_policy, placement_policies, search_policy
from placewise_core.speed.interference import GpuInterference
from placewise_core.view.view import ClusterView


@dataclass
class Broken:
    answer: object

    def look(self, seen: Observation) -> ClusterState:
        if self.answer == "look":
            raise MemoryError
        return ClusterState(seen.nodes, ())

    def read(self, cluster: ClusterState, jobs: Float32) -> PolicyState:
        if self.answer == "read":
            raise MemoryError
        return PolicyState(cluster.nodes, jobs)

    def decode(self, state: PolicyState, job: int, step: Float32) -> Float32:
        if isinstance(self.answer, Exception):
            raise self.answer
        size = 2 * len(step) - (self.answer == "shape")
        return np.full(size, np.nan if self.answer == "nan" else np.inf, dtype=np.float32)


def a_view(nodes: int = 4, gpus: int = 4, **changes: object) -> ClusterView:
    inventory = tuple(make_node(f"n{i}", gpus, **changes) for i in range(nodes))
    return ClusterView(ClusterRecords("c", 0, "e", nodes=inventory))


def context(**changes: object) -> PlaceContext:
    return PlaceContext(0.0, 0, **changes)  # type: ignore[arg-type]


def with_servers(name: str) -> Job:
    worker, server = Resources(cpu_cores=2, gpus=1, memory_gib=4), Resources(cpu_cores=1, memory_gib=1)
    groups = (TaskGroup(Role.WORKER, 3, worker), TaskGroup(Role.PARAMETER_SERVER, 2, server))
    return Job(JobId(name), model="ResNet-50", groups=groups)


def nodes_of(proposal: Proposal | None) -> list[str]:
    assert proposal is not None
    return [assignment.node for assignment in proposal.assignments]


def test_the_likeliest_action_is_taken_task_by_task() -> None:
    view, net = a_view(), Spreads()
    free = view.usage.free.copy()
    proposal = Harmony(net, Consolidate()).propose(with_servers("a"), view, context())
    assert nodes_of(proposal) == ["n0", "n1", "n2", "n3", "n3"]  # a parameter server weighs less than a worker
    assert proposal is not None
    assert [a.task for a in proposal.assignments] == ["worker-0", "worker-1", "worker-2", "ps-0", "ps-1"]
    assert (proposal.propensity, proposal.is_fallback) == (1.0, False)
    assert (len(net.encoded), len(net.decoded)) == (1, 5)
    np.testing.assert_array_equal(view.usage.free, free)


@pytest.mark.parametrize("answer", [RuntimeError("torn"), "look", "read", "nan"])
def test_where_the_net_fails_nothing_stays_claimed(answer: object) -> None:
    view = a_view()
    proposal = Harmony(Broken(answer), Consolidate()).propose(with_servers("a"), view, context())
    assert proposal is not None
    assert proposal.is_fallback
    np.testing.assert_array_equal(view.usage.free, a_view().usage.free)


def test_explain_gives_the_likeliest_actions_of_each_task() -> None:
    proposal = Harmony(Spreads(), Consolidate()).propose(with_servers("a"), a_view(), context(is_explaining=True))
    assert proposal is not None
    chosen = [candidate for candidate in proposal.candidates if candidate.is_chosen]
    assert [candidate.task for candidate in chosen] == ["worker-0", "worker-1", "worker-2", "ps-0", "ps-1"]
    assert [candidate.node for candidate in chosen] == nodes_of(proposal)


@pytest.mark.parametrize("count", [1, CHUNK, CHUNK + 1, 40])
def test_a_job_sees_those_of_its_request_that_were_placed_before_it_as_jobs(count: int) -> None:
    view, net, asked = a_view(12, 8), Spreads(), context()
    harmony = Harmony(net, Consolidate())
    jobs = [make_job(f"j{i}", workers=2) for i in range(count)]
    for job in harmony.order(jobs, view, asked):
        proposal = harmony.propose(job, view, asked)
        assert proposal is not None
        assert not proposal.is_fallback
        view.add_job(RunningJob(job, proposal.assignments))
    assert [len(seen.jobs) for seen in net.looked] == list(range(count))
    for_order = -(-count // CHUNK) if count > 1 else 0
    assert [len(jobs) for jobs in net.encoded[for_order:]] == [1] * count
    assert net.decoded == [0] * 2 * count
    assert (view.usage.free >= 0).all()


def test_a_new_request_is_encoded_anew() -> None:
    view, net = a_view(), Spreads()
    harmony = Harmony(net, Consolidate())
    jobs = [make_job("a"), make_job("b")]
    for _ in range(2):
        asked = context()
        harmony.order(jobs, view, asked)
        for _ in range(2):
            harmony.propose(jobs[0], view, asked)
    assert [len(jobs) for jobs in net.encoded] == [2, 1, 2, 1]


def _ask(harmony: Harmony, view: ClusterView, now_s: float = 0.0) -> None:
    proposal = harmony.propose(make_job("new"), view, PlaceContext(now_s, 0))
    assert proposal is not None
    assert not proposal.is_fallback


def _placed(name: str, speed: float = 0.0) -> RunningJob:
    job = make_job(name)
    task = Assignment("worker-0", Role.WORKER, NodeId("n1"), (0,), job.groups[0].demand)
    return RunningJob(job, (task,), speed=speed)


def test_a_cluster_is_looked_at_again_only_where_something_changed() -> None:
    view, net = a_view(), Spreads()
    harmony = Harmony(net, Consolidate())
    _ask(harmony, view)
    _ask(harmony, view)
    assert len(net.looked) == 1
    view.add_job(_placed("a"))
    _ask(harmony, view)
    assert len(net.looked) == 2
    view.add_job(dataclasses.replace(view.jobs[JobId("a")], speed=0.5))  # nothing moves, but its host reported
    _ask(harmony, view)
    _ask(harmony, view)
    assert len(net.looked) == 3


def test_who_claims_and_gives_back_changed_nothing() -> None:
    view, net = a_view(), Spreads()
    harmony = Harmony(net, Consolidate())
    _ask(harmony, view)
    for job in (make_job("a", workers=3), make_job("b", workers=2)):
        assert Consolidate().propose(job, view, context()) is not None
    view.add_job(_placed("c"))
    view.remove_job(JobId("c"))
    _ask(harmony, view)
    assert len(net.looked) == 1


def test_a_node_whose_reports_are_late_is_looked_at_again() -> None:
    nodes = (make_node("n0"), dataclasses.replace(make_node("n1"), telemetry=NodeTelemetry(observe_time_s=1.0)))
    view, net = ClusterView(ClusterRecords("c", 0, "e", nodes=nodes)), Spreads()
    harmony = Harmony(net, Consolidate())
    for now_s, looks in ((2.0, 1), (3.0, 1), (2.0 + view.stale_after_s, 2)):
        _ask(harmony, view, now_s)
        assert len(net.looked) == looks


def test_who_prepared_need_not_look_when_asked() -> None:
    view, net = a_view(), Spreads()
    harmony = Harmony(net, Consolidate())
    harmony.prepare(view, 0.0)
    assert not net.looked  # nobody asked about that cluster yet
    _ask(harmony, view)
    view.add_job(_placed("a"))
    harmony.prepare(view, 0.0)
    assert [len(seen.jobs) for seen in net.looked] == [0, 1]
    _ask(harmony, view)
    assert len(net.looked) == 2
    view.remove_job(JobId("a"))
    _ask(harmony, view)
    assert len(net.looked) == 3


def test_preparing_never_raises() -> None:
    view = a_view()
    broken = Broken("read")
    harmony = Harmony(broken, Consolidate())
    harmony.propose(make_job("new"), view, context())
    broken.answer = "look"
    view.add_job(_placed("a"))
    harmony.prepare(view, 0.0)


def test_a_job_that_gets_its_shape_late_is_encoded_with_it() -> None:
    view, net, asked = a_view(), Spreads(), context()
    harmony = Harmony(net, Consolidate())
    jobs = [make_job("a"), make_job("b")]
    harmony.order(jobs, view, asked)
    shaped = dataclasses.replace(jobs[0], groups=make_job("a", workers=3).groups)
    proposal = harmony.propose(shaped, view, asked)
    assert len(nodes_of(proposal)) == 3
    assert len(net.encoded) == 2
    workers = [column.name for column in JOB_COLUMNS].index("workers")
    assert net.encoded[-1][0, workers] == 3 * JOB_COLUMNS[workers].scale


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (RuntimeError("torn"), "RuntimeError"),
        ("look", "MemoryError"),
        ("read", "MemoryError"),
        ("nan", "PolicyNetError"),
        ("inf", "PolicyNetError"),
        ("shape", "PolicyNetError"),
    ],
)
def test_a_net_that_fails_leaves_the_heuristic(answer: object, reason: str) -> None:
    view, job = a_view(), with_servers("a")
    free = view.usage.free.copy()
    proposal = Harmony(Broken(answer), Consolidate()).propose(job, view, context())
    assert nodes_of(proposal) == nodes_of(Consolidate().propose(job, view, context()))
    assert proposal is not None
    assert (proposal.is_fallback, proposal.fallback_reason) == (True, f"harmony: {reason}")
    np.testing.assert_array_equal(view.usage.free, free)


def test_no_time_left_means_the_heuristic_and_says_so() -> None:
    net = Spreads()
    harmony = Harmony(net, Consolidate(), monotonic_s=lambda: 10.0)
    proposal = harmony.propose(make_job("a"), a_view(), context(deadline_s=10.001))
    assert proposal is not None
    assert proposal.fallback_reason == "harmony: deadline"
    assert not net.encoded


def test_a_dead_end_means_the_heuristic_and_says_so() -> None:
    """Spreading the small ones first leaves no room for the large one, which best fit would have placed."""
    view = a_view(2, 4)
    small, large = Resources(cpu_cores=1, gpus=1), Resources(cpu_cores=1, gpus=4)
    job = Job(JobId("a"), groups=(TaskGroup(Role.WORKER, 2, small), TaskGroup(Role.WORKER, 1, large)))
    proposal = Harmony(Spreads(), Consolidate()).propose(job, view, context())
    assert proposal is not None
    assert proposal.fallback_reason == "harmony: dead end"
    assert len(set(nodes_of(proposal))) == 2


def test_what_does_not_fit_is_not_even_encoded() -> None:
    net = Spreads()
    assert Harmony(net, Consolidate()).propose(make_job("a", workers=1, gpus=5), a_view(), context()) is None
    assert not net.encoded


def test_gpus_too_slow_to_share_are_masked() -> None:
    view = a_view(2, 1, max_jobs_per_gpu=4)
    asked = context(interference=_NeverTogether())
    sharing = GpuSharing(allowed=True, max_slowdown=1.2)
    for name, expected in (("a", 0), ("b", 1)):
        job = make_job(name, gpu_sharing=sharing)
        proposal = Harmony(Spreads(sharpness=-10.0), Consolidate()).propose(job, view, asked)
        assert nodes_of(proposal) == [f"n{expected}"]
        assert proposal is not None
        view.add_job(RunningJob(job, proposal.assignments))
    assert Harmony(Spreads(), Consolidate()).propose(make_job("c", gpu_sharing=sharing), view, asked) is None


class _NeverTogether(GpuInterference):
    def __init__(self) -> None:
        pass

    def relative_speed(self, model: str, others: object, gpu_model: str) -> float:
        return 0.1 if others else 1.0


# -- the shortlist --------------------------------------------------------------------------------------------------


def busy(nodes: int, seed: int = 0) -> ClusterView:
    view = a_view(nodes, 8)
    rng = np.random.default_rng(seed)
    for i in range(nodes * 2 // 3):
        job = make_job(f"running-{i}", workers=int(rng.integers(1, 9)))
        proposal = (Consolidate(), LoadBalance())[i % 2].propose(job, view, context())
        if proposal is not None:
            view.add_job(RunningJob(job, proposal.assignments))
    return view


def test_the_net_sees_a_shortlist_of_many_nodes() -> None:
    view, net = busy(300), Spreads()
    proposal = Harmony(net, Consolidate()).propose(make_job("a", workers=4), view, context())
    assert nodes_of(proposal)
    (seen,) = net.looked
    assert seen.nodes.shape[0] == seen.placement.shape[1] == MOST_NODES


def test_a_shortlist_holds_what_the_heuristics_would_take() -> None:
    view = busy(300)
    for workers in (1, 4, 8):
        job = make_job("a", workers=workers)
        rows = set(shortlist([job], view, context()).tolist())
        assert len(rows) == MOST_NODES
        for policy in (Consolidate(), LoadBalance()):
            assert {view.nodes.index[node] for node in nodes_of(policy.propose(job, view, context()))} <= rows


def test_a_wide_gang_has_a_long_shortlist() -> None:
    """Fifty tasks that must not meet: a fallback would mean that the net did not see enough nodes."""
    view, demand = a_view(200), Resources(cpu_cores=1, gpus=1)
    job = Job(JobId("wide"), groups=(TaskGroup(Role.WORKER, 50, demand, max_per_node=1),))
    proposal = Harmony(Spreads(), Consolidate()).propose(job, view, context())
    assert len(set(nodes_of(proposal))) == 50
    assert proposal is not None
    assert not proposal.is_fallback


def test_a_shortlist_has_room_for_every_job_of_the_batch_and_none_for_full_nodes() -> None:
    view = busy(300)
    jobs = [make_job("a", workers=4), make_job("b", gpus=6.0)]
    rows = shortlist(jobs, view, context())
    free = view.usage.free_gpus[rows]
    assert (free > 0).all()
    assert (free >= 6).any()
    assert not len(shortlist([make_job("c", gpus=9.0)], view, context()))


def test_jobs_beyond_the_shortlist_get_another_one() -> None:
    """A hundred gangs fill the first nodes: those after them are placed all the same, by the net."""
    view, net, asked = a_view(200, 4), Spreads(), context()
    harmony = Harmony(net, Consolidate())
    jobs = [make_job(f"j{i}", workers=4) for i in range(100)]
    used: Counter[str] = Counter()
    for job in harmony.order(jobs, view, asked):
        proposal = harmony.propose(job, view, asked)
        assert proposal is not None
        assert not proposal.is_fallback
        used.update(nodes_of(proposal))
        view.add_job(RunningJob(job, proposal.assignments))
    assert sum(used.values()) == 400
    assert max(used.values()) <= 4
    assert len(used) >= 100


# -- samples --------------------------------------------------------------------------------------------------------


def test_samples_differ_and_are_the_same_again() -> None:
    view, job = a_view(), with_servers("a")
    harmony = Harmony(Spreads(sharpness=0.1), Consolidate())
    first = [nodes_of(HarmonySample(harmony, seed).propose(job, view, context())) for seed in range(6)]
    again = [nodes_of(HarmonySample(harmony, seed).propose(job, view, context())) for seed in range(6)]
    assert first == again
    assert len({tuple(nodes) for nodes in first}) > 1


def test_the_propensity_of_a_sample_is_its_probability() -> None:
    """Over all placements there are, propensities add up to 1, and each is about as frequent as it says."""
    view = a_view(2, 2)
    job = Job(
        JobId("a"),
        groups=(
            TaskGroup(Role.WORKER, 2, Resources(cpu_cores=1, gpus=1)),
            TaskGroup(Role.PARAMETER_SERVER, 1, Resources(cpu_cores=1)),
        ),
    )
    harmony = Harmony(Spreads(sharpness=0.7), Consolidate())
    drawn: Counter[tuple[str, ...]] = Counter()
    propensity: dict[tuple[str, ...], float] = {}
    for seed in range(600):
        proposal = HarmonySample(harmony, seed).propose(job, view, context())
        key = tuple(nodes_of(proposal))
        assert proposal is not None
        assert propensity.setdefault(key, proposal.propensity) == proposal.propensity
        drawn[key] += 1
    assert sum(propensity.values()) == pytest.approx(1.0)
    for key, count in drawn.items():
        assert count / 600 == pytest.approx(propensity[key], abs=4 * (propensity[key] / 600) ** 0.5)


@pytest.mark.parametrize("answer", [RuntimeError("torn"), "nan"])
def test_a_sample_of_a_broken_net_proposes_nothing(answer: object) -> None:
    sample = HarmonySample(Harmony(Broken(answer), Consolidate()), 1)
    assert sample.propose(make_job("a"), a_view(), context()) is None


@pytest.mark.parametrize(
    ("workers", "servers", "gpus"), [(1, 0, 1), (2, 0, 1), (3, 0, 2), (4, 0, 2), (2, 1, 1), (2, 2, 1)]
)
def test_draws_sum_to_one_and_never_fail(workers: int, servers: int, gpus: int) -> None:
    """Every assignment of tasks to four nodes is asked for its probability; draws fit these."""
    groups = [TaskGroup(Role.WORKER, workers, Resources(cpu_cores=1, gpus=1))]
    if servers:
        groups.append(TaskGroup(Role.PARAMETER_SERVER, servers, Resources(cpu_cores=1)))
    view, job = a_view(4, gpus), Job(JobId("a"), groups=tuple(groups))
    policy = HarmonyDraw(Harmony(Spreads(sharpness=0.7), Consolidate()))
    first = policy.propose(job, view, context())
    assert first is not None
    expected: dict[tuple[str, ...], float] = {}
    for nodes in itertools.product(["n0", "n1", "n2", "n3"], repeat=workers + servers):
        tasks = [dataclasses.replace(a, node=NodeId(n)) for a, n in zip(first.assignments, nodes, strict=True)]
        expected[nodes] = policy.probability(tasks, job, view, context())
    assert sum(expected.values()) == pytest.approx(1.0, abs=1e-9)
    asked = PlaceContext(0.0, 3)
    drawn: Counter[tuple[str, ...]] = Counter()
    draws = examples(300)
    for _ in range(draws):
        proposal = policy.propose(job, view, asked)
        assert proposal is not None
        key = tuple(nodes_of(proposal))
        assert proposal.propensity == pytest.approx(expected[key], abs=1e-9)
        drawn[key] += 1
    for key, p in expected.items():
        assert drawn[key] / draws == pytest.approx(p, abs=5 * (p * (1 - p) / draws) ** 0.5 + 0.02)


@dataclass
class FailsAt(Spreads):
    """Fails whenever it is asked for the nth time."""

    nth: int = 1

    def decode(self, state: PolicyState, job: int, step: Float32) -> Float32:
        if len(self.decoded) + 1 == self.nth:
            raise RuntimeError("torn")
        return super().decode(state, job, step)


@pytest.mark.parametrize("answer", [RuntimeError("torn"), "look", "read", "nan", "shape"])
def test_a_net_that_fails_before_anything_is_drawn_leaves_its_share_to_the_policy(answer: object) -> None:
    """Whatever the draws: so P(a) is known."""
    sample, policy = HarmonyDraw(Harmony(Broken(answer), Consolidate())), LoadBalance()
    assert sample.propose(make_job("a", workers=3), a_view(), context()) is None
    exploration = Exploration(1.0, [Explorer(sample), Explorer(Consolidate())])
    for seed in range(20):
        drawn = explore.propose(policy, exploration, make_job("a", workers=3), a_view(), PlaceContext(0.0, seed))
        assert drawn is not None
        assert drawn.proposal.propensity == 0.5
        assert drawn.explorer in ("", "consolidate")


@pytest.mark.parametrize("nth", [2, 3, 4, 5])
def test_a_net_that_fails_once_something_is_drawn_leaves_no_probability(nth: int) -> None:
    """At the second task, at the third, and when the probability of the whole is worked out."""
    view, job = a_view(), make_job("a", workers=3)
    net = FailsAt(nth=nth)
    exploration = Exploration(1e-9, [Explorer(HarmonyDraw(Harmony(net, Consolidate())))])
    with pytest.raises(RuntimeError, match="torn"):
        explore.propose(LoadBalance(), exploration, job, view, PlaceContext(0.0, 3))
    assert len(net.decoded) == nth - 1


@pytest.mark.parametrize(("samples", "most", "decoded"), [(0, 8, 2), (2, 8, 6), (2, 2, 2)])
def test_a_search_asks_the_net_and_its_draws_after_the_first_heuristic(samples: int, most: int, decoded: int) -> None:
    policies, net = placement_policies(), Spreads()
    search = search_policy(FirstIsBest(), policies, most, harmony_policy(net, policies), samples)
    view, job = a_view(), make_job("a", workers=2)
    proposal = search.propose(job, view, context())
    assert nodes_of(proposal) == nodes_of(Consolidate().propose(job, view, context()))
    assert proposal is not None
    assert not proposal.is_fallback
    assert (len(net.decoded), len(net.encoded)) == (decoded, 1)
