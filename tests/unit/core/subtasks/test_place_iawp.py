"""Node scope: Algorithm 2 step by step as written, and what our own rules do otherwise."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tests.fakes.place_cases import view_of

from placewise_core.domain.cluster import Assignment, Gpu, Node, NodeState, NodeTelemetry, RunningJob
from placewise_core.domain.decision import JobDecision, Outcome, Reason
from placewise_core.domain.errors import InvalidRequestError
from placewise_core.domain.events import SubtaskProfiled
from placewise_core.domain.job import Job, JobId, NodeId, Resources, Role, Subtask, SubtaskState
from placewise_core.subtasks.iawp import AsWritten, IawpSettings, SubtaskScheduler, subtask_schedulers
from placewise_core.subtasks.metrics import GPU_METRICS, KnownMetrics, column_scales, cosine, gpu_vector
from placewise_core.view.view import ClusterView


def host(cores: int = 2, gpus: int = 1, util: float = 0.0, memory_util: float = 0.0, **more: object) -> Node:
    fields: dict[str, object] = {"max_jobs_per_gpu": 4, **more}
    return Node(
        NodeId("n"),
        Resources(cores, gpus, 64, 16 * gpus, 10),
        tuple(Gpu(g, "P4", 16, util, memory_util) for g in range(gpus)),
        **fields,  # type: ignore[arg-type]
    )


def subtask(name: str, speedup: float | None = None, after: tuple[str, ...] = (), **more: object) -> Subtask:
    """With a speedup it has a GPU version; further keywords are metrics or, capitalised by name, fields."""
    fields = {key: more.pop(key) for key in ("size", "state", "unit", "kind") if key in more}
    profile = dict(more)
    if speedup is not None:
        profile["speedup"] = speedup
    return Subtask(name, after=after, has_gpu_version=speedup is not None, profile=profile, **{"kind": name, **fields})  # type: ignore[arg-type]


def pipeline(*subtasks: Subtask, name: str = "job") -> Job:
    return Job(JobId(name), subtasks=subtasks)


def assign(view: ClusterView, *jobs: Job, **settings: float) -> list[JobDecision]:
    """Algorithm 2 as written."""
    return SubtaskScheduler(IawpSettings(**settings), AsWritten).assign(jobs, "n", view, 0.0)  # type: ignore[arg-type]


def shared(view: ClusterView, *jobs: Job, **settings: float) -> list[JobDecision]:
    """By contention, as the service does."""
    return SubtaskScheduler(IawpSettings(**settings)).assign(jobs, "n", view, 0.0)  # type: ignore[arg-type]


def units(decision: JobDecision) -> dict[str, str]:
    return {a.subtask: a.cpu_unit for a in decision.assignments}


def blocked(decision: JobDecision) -> list[tuple[Reason, int]]:
    return [(b.reason, b.nodes) for b in decision.blockers]


def test_least_speedup_to_the_core_and_largest_to_the_gpu() -> None:
    (decision,) = assign(view_of([host(cores=1)]), pipeline(subtask("slow", 1.5), subtask("fast", 20.0)))
    assert units(decision) == {"slow": "cpu0", "fast": "gpu0"}
    assert decision.outcome is Outcome.PLACED
    assert {a.subtask: a.gpu_indices for a in decision.assignments} == {"slow": (), "fast": (0,)}


def test_cpu_only_subtasks_never_get_a_gpu() -> None:
    job = pipeline(subtask("a"), subtask("b"), subtask("c"), subtask("g", 2.0))
    (decision,) = assign(view_of([host(cores=2)]), job)
    assert units(decision) == {"a": "cpu0", "b": "cpu1", "g": "gpu0"}
    assert blocked(decision) == [(Reason.CPU_ONLY, 1)]


@pytest.mark.parametrize("rules", [assign, shared], ids=["as written", "shared"])
def test_equal_speedups_are_taken_oldest_first(rules: Callable[..., list[JobDecision]]) -> None:
    job = pipeline(*(subtask(f"s{i}", 2.0, sm=1.0) for i in range(5)))
    (decision,) = rules(view_of([host(cores=1)]), job)
    assert units(decision) == {"s0": "gpu0", "s1": "cpu0"}


@pytest.mark.parametrize("rules", [assign, shared], ids=["as written", "shared"])
def test_of_equal_speedups_the_job_submitted_first_is_older(rules: Callable[..., list[JobDecision]]) -> None:
    young = replace(pipeline(subtask("a", 10.0, sm=1.0), name="young"), submit_time_s=20.0)
    old = replace(pipeline(subtask("a", 10.0, sm=1.0), name="old"), submit_time_s=10.0)
    decisions = rules(view_of([host(cores=0)]), young, old)
    assert [len(d.assignments) for d in decisions] == [0, 1]


def test_a_subtask_that_waits_beside_idle_cores_is_told_why() -> None:
    job = pipeline(*(subtask(f"s{i}", 40.0, sm=0.3) for i in range(2)))
    (decision,) = shared(view_of([host(cores=2, max_jobs_per_gpu=1)]), job, max_per_gpu=1)
    assert units(decision) == {"s0": "gpu0"}
    assert "no idle core" not in decision.blockers[0].message
    assert "longer on an idle core" in decision.blockers[0].message


@pytest.mark.parametrize("rules", [assign, shared], ids=["as written", "shared"])
def test_idle_cores_take_subtasks_if_no_gpu_can(rules: Callable[..., list[JobDecision]]) -> None:
    """A node without GPUs: a wait for one would never end."""
    (decision,) = rules(view_of([host(cores=2, gpus=0)]), pipeline(subtask("a", 40.0), subtask("b", 20.0)))
    assert sorted(units(decision).values()) == ["cpu0", "cpu1"]


def test_only_ready_subtasks_are_assigned() -> None:
    done = subtask("decode", state=SubtaskState.DONE)
    job = pipeline(done, subtask("track", 3.0, after=("decode",)), subtask("draw", after=("decode", "track")))
    (decision,) = assign(view_of([host()]), job)
    assert units(decision) == {"track": "gpu0"}
    assert blocked(decision) == [(Reason.PREDECESSOR_PENDING, 1)]
    assert decision.blockers[0].shortfall == 1.0


def test_a_job_with_nothing_ready_waits() -> None:
    running = subtask("decode", state=SubtaskState.RUNNING, unit="cpu0")
    (decision,) = assign(view_of([host()]), pipeline(running, subtask("track", after=("decode",))))
    assert (decision.outcome, blocked(decision)) == (Outcome.WAIT, [(Reason.PREDECESSOR_PENDING, 1)])


def test_a_core_in_use_is_not_given_again() -> None:
    running = subtask("decode", state=SubtaskState.RUNNING, unit="cpu0")
    (decision,) = assign(view_of([host(cores=2)]), pipeline(running, subtask("a"), subtask("b")))
    assert units(decision) == {"a": "cpu1"}


def test_cores_held_by_whole_jobs_are_not_idle() -> None:
    demand = Resources(cpu_cores=3.0)
    held = RunningJob(Job(JobId("other")), (Assignment("worker-0", Role.WORKER, NodeId("n"), demand=demand),))
    (decision,) = assign(view_of([host(cores=4)], [held]), pipeline(subtask("a"), subtask("b")))
    assert units(decision) == {"a": "cpu0"}


def test_the_queue_is_of_fixed_length_and_the_rest_waits_for_a_unit() -> None:
    job = pipeline(*(subtask(f"s{i}", 10.0 + i) for i in range(6)))
    (decision,) = assign(view_of([host(cores=1)]), job, queue_length=2, max_per_gpu=8)
    assert set(units(decision)) == {"s5", "s4", "s0"}
    assert blocked(decision) == [(Reason.UNIT_BUSY, 3)]


def test_a_gpu_at_its_limit_takes_nothing_more() -> None:
    for busy in (host(cores=0, util=0.95), host(cores=0, memory_util=0.95)):
        (decision,) = assign(view_of([busy]), pipeline(subtask("g", 5.0)))
        assert decision.outcome is Outcome.WAIT
        assert blocked(decision) == [(Reason.UTILISATION_LIMIT, 1)]


def test_what_was_just_dispatched_counts_towards_the_limit() -> None:
    job = pipeline(subtask("x", 9.0, sm=0.6), subtask("y", 8.0, sm=0.6), subtask("z", 7.0, sm=0.6))
    (decision,) = assign(view_of([host(cores=0)]), job)
    assert set(units(decision)) == {"x", "y"}
    assert blocked(decision) == [(Reason.UTILISATION_LIMIT, 1)]


def test_the_least_alike_goes_beside_a_running_one() -> None:
    on_gpu = subtask("now", 3.0, sm=0.9, dram=0.1, state=SubtaskState.RUNNING, unit="gpu0")
    alike, unlike = subtask("alike", 9.0, sm=0.8, dram=0.1), subtask("unlike", 2.0, sm=0.05, dram=0.3)
    view = view_of([host(cores=0, util=0.3, memory_util=0.1)])
    (decision,) = assign(view, pipeline(on_gpu, alike, unlike), max_per_gpu=2)
    assert units(decision) == {"unlike": "gpu0"}


def test_gpus_fill_evenly_by_their_utilisation() -> None:
    job = pipeline(subtask("a", 9.0, sm=0.2), subtask("b", 8.0, sm=0.2))
    (decision,) = assign(view_of([host(cores=0, gpus=2)]), job)
    assert sorted(units(decision).values()) == ["gpu0", "gpu1"]


def test_an_exclusive_gpu_takes_subtasks_of_one_job_only() -> None:
    jobs = [pipeline(subtask("a", 9.0), name="one"), pipeline(subtask("b", 8.0), name="two")]
    first, second = assign(view_of([host(cores=0, max_jobs_per_gpu=1)]), *jobs)
    assert units(first) == {"a": "gpu0"}
    assert (second.outcome, blocked(second)) == (Outcome.WAIT, [(Reason.UNIT_BUSY, 1)])


def test_slower_on_a_gpu_stays_on_a_core() -> None:
    decide = subtask_schedulers()["iawp"].assign
    jobs = [pipeline(subtask("a", 0.4), subtask("b", 0.6))]
    (decision,) = decide(jobs, "n", view_of([host(cores=2)]), 0.0)
    assert units(decision) == {"a": "cpu0", "b": "cpu1"}


def test_as_printed_the_gpu_queue_takes_the_largest_speedup_whatever_it_is() -> None:
    """Lines 10 to 12 know no least speedup: nothing waits beside an idle GPU."""
    waiting = pipeline(subtask("a", 0.5), subtask("b", 0.8), subtask("c", 0.9))
    (decision,) = assign(view_of([host(cores=1)]), waiting)
    assert (units(decision)["c"], units(decision)["a"]) == ("gpu0", "cpu0")
    assert set(units(decision)) == {"a", "b", "c"}


def test_a_node_without_the_unit_kind_can_never_take_it() -> None:
    (decision,) = assign(view_of([host(cores=0)]), pipeline(subtask("a")))
    assert (decision.outcome, blocked(decision)) == (Outcome.NO_FIT, [(Reason.CPU_ONLY, 1)])


def test_metrics_of_the_store_fill_what_the_request_lacks() -> None:
    view = view_of([host(cores=1)])
    view.apply_change(SubtaskProfiled("edge", {"speedup": 12.0}))
    view.apply_change(SubtaskProfiled("blur", {"speedup": 1.2}))
    known = [Subtask("e", "edge", has_gpu_version=True), Subtask("b", "blur", has_gpu_version=True)]
    (decision,) = assign(view, pipeline(*known))
    assert units(decision) == {"e": "gpu0", "b": "cpu0"}
    overridden = Subtask("b", "blur", has_gpu_version=True, profile={"speedup": 99.0})
    (decision,) = assign(view, pipeline(known[0], overridden))
    assert units(decision) == {"b": "gpu0", "e": "cpu0"}


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (host(state=NodeState.DOWN), Reason.NODE_DOWN),
        (host(state=NodeState.DRAINING), Reason.NODE_DRAINING),
        (host(telemetry=NodeTelemetry(cpu_celsius=91, limit_celsius=90, observe_time_s=999)), Reason.THERMAL_LIMIT),
        (host(telemetry=NodeTelemetry(observe_time_s=1)), Reason.STALE_TELEMETRY),
    ],
)
def test_an_unusable_node_takes_nothing_and_says_why(node: Node, reason: Reason) -> None:
    (decision,) = SubtaskScheduler().assign([pipeline(subtask("a"))], "n", view_of([node]), 1000.0)
    assert (decision.outcome, blocked(decision)) == (Outcome.WAIT, [(reason, 1)])


@pytest.mark.parametrize(
    ("subtasks", "field"),
    [
        ((subtask("a"), subtask("a")), "jobs[0].subtasks[1].id"),
        ((subtask("a"), subtask("b", after=("z",))), "jobs[0].subtasks[1].after"),
        ((subtask("a", after=("b",)), subtask("b", after=("a",))), "jobs[0].subtasks"),
        ((subtask("a", after=("a",)),), "jobs[0].subtasks"),
    ],
    ids=["twice", "unknown", "cycle", "itself"],
)
def test_what_is_no_dag_is_refused(subtasks: tuple[Subtask, ...], field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        assign(view_of([host()]), pipeline(*subtasks))
    assert caught.value.metadata["field"] == field


def test_size_does_not_dominate_the_cosine() -> None:
    """The paper's (6) is of raw values: raw sizes of thousands would make any two subtasks alike."""
    profile = dict.fromkeys(GPU_METRICS, 0.0)
    metrics = KnownMetrics({})
    a = gpu_vector(subtask("a", 1.0, **{**profile, "sm": 0.9}, size=5000.0), metrics)
    b = gpu_vector(subtask("b", 1.0, **{**profile, "dram": 0.9}, size=4000.0), metrics)
    assert cosine(a, b) > 0.999
    scales = column_scales([a, b])
    assert cosine(a / scales, b / scales) == pytest.approx(0.8 / (np.sqrt(2.0) * np.sqrt(1 + 0.64)))


def test_cosine_is_the_definition_over_what_both_know() -> None:
    a, b = np.array([1.0, 2.0, np.nan]), np.array([2.0, 1.0, 5.0])
    assert cosine(a, b) == pytest.approx(4.0 / 5.0)
    assert cosine(a, np.full(3, np.nan)) == 1.0


def test_the_queue_compares_normalised_metrics() -> None:
    """By raw numbers both are all size, and alike; normalised, only one uses the running one's resources."""
    profile = dict.fromkeys(GPU_METRICS, 0.0)
    on_gpu = subtask(
        "now", 3.0, state=SubtaskState.RUNNING, unit="gpu0", **{**profile, "sm": 0.3, "l2": 0.01}, size=9000.0
    )
    alike = subtask("alike", 9.0, **{**profile, "sm": 0.3, "l2": 0.01}, size=1000.0)
    unlike = subtask("unlike", 2.0, **{**profile, "l1": 0.3, "l2": 0.0}, size=9000.0)
    view = view_of([host(cores=0, util=0.3, memory_util=0.1)])
    (decision,) = assign(view, pipeline(on_gpu, alike, unlike), max_per_gpu=2)
    assert units(decision) == {"unlike": "gpu0"}


# -- by contention ----------------------------------------------------------------------------------------------------


def test_a_core_leaves_to_the_gpu_what_is_done_there_sooner() -> None:
    """As written the core takes the lesser of two; a moment later the GPU would have done it ten times as fast."""
    job = pipeline(subtask("less", 10.0, sm=1.0), subtask("more", 20.0, sm=1.0))
    view = view_of([host(cores=1)])
    (written,), (ours,) = assign(view, job), shared(view, job)
    assert units(written) == {"less": "cpu0", "more": "gpu0"}
    assert units(ours) == {"more": "gpu0"}
    assert blocked(ours) == [(Reason.UTILISATION_LIMIT, 1)]


def test_a_core_helps_where_the_gpus_would_come_to_it_later() -> None:
    job = pipeline(*(subtask(f"s{i}", 2.0 + i / 10, sm=1.0) for i in range(5)))
    (ours,) = shared(view_of([host(cores=1)]), job)
    assert units(ours) == {"s4": "gpu0", "s0": "cpu0"}


def test_cores_serve_first_what_only_they_can_do() -> None:
    job = pipeline(subtask("only", None), subtask("slower", 0.5), subtask("fast", 9.0))
    (ours,) = shared(view_of([host(cores=1)]), job)
    assert units(ours) == {"only": "cpu0", "fast": "gpu0"}


def test_a_gpu_takes_company_that_wants_other_resources() -> None:
    now = subtask("now", 9.0, sm=0.9, dram=0.1, l1=0, l2=0, texture=0, load_throughput=0, store_throughput=0)
    running = replace(now, unit="gpu0", state=SubtaskState.RUNNING)
    rest = dict.fromkeys(("l1", "l2", "texture", "load_throughput", "store_throughput"), 0.0)
    alike, other = subtask("alike", 9.0, sm=0.9, dram=0.1, **rest), subtask("other", 2.0, sm=0.1, dram=0.8, **rest)
    (ours,) = shared(view_of([host(cores=0)]), pipeline(running, alike, other))
    assert units(ours) == {"other": "gpu0"}  # the third would halve the others and bring nothing


def test_what_is_unknown_counts_as_half_a_gpu() -> None:
    job = pipeline(*(subtask(f"s{i}", 9.0) for i in range(4)))
    (ours,) = shared(view_of([host(cores=0)]), job)
    assert len(units(ours)) == 2


def test_the_larger_gain_comes_first_and_empty_gpus_fill_evenly() -> None:
    job = pipeline(subtask("a", 9.0, sm=0.2), subtask("b", 8.0, sm=0.2))
    (ours,) = shared(view_of([host(cores=0, gpus=2)]), job)
    assert sorted(units(ours).values()) == ["gpu0", "gpu1"]


def test_starts_are_the_assignments() -> None:
    job = pipeline(subtask("only", None), subtask("fast", 9.0))
    view, scheduler = view_of([host(cores=1)]), SubtaskScheduler()
    (decision,) = scheduler.assign([job], "n", view, 0.0)
    assert scheduler.starts([job], "n", view, 0.0) == [("job", a.subtask, a.cpu_unit) for a in decision.assignments]
    assert scheduler.starts([job], "n", view_of([host(state=NodeState.DOWN)]), 0.0) == []
