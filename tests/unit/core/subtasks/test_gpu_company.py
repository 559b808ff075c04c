"""NODE scope: how many pipelines share a GPU, its memory, and the other jobs on it."""

import pytest
from tests.fakes.place_cases import running, view_of

from placewise_core.domain.cluster import Assignment, Gpu, Node, RunningJob
from placewise_core.domain.decision import JobDecision, Reason
from placewise_core.domain.job import GpuSharing, Job, JobId, NodeId, Resources, Role, Subtask, SubtaskState
from placewise_core.subtasks.iawp import IawpSettings, SubtaskScheduler, subtask_schedulers
from placewise_core.subtasks.metrics import GPU_METRICS
from placewise_core.subtasks.units import PIPELINES_PER_GPU

IAWP = ("iawp", "iawp-paper")


def host(most: int = 0, util: float = 0.0, memory_util: float = 0.0) -> Node:
    gpus = (Gpu(0, "P4", 16, util, memory_util),)
    return Node(NodeId("n"), Resources(0, 1, 64, 16, 10), gpus, max_jobs_per_gpu=most)


def small(name: str, share: float = 0.02, **more: float) -> Job:
    """A pipeline of one subtask, which wants so much of everything."""
    profile = dict.fromkeys(GPU_METRICS, share) | {"speedup": 9.0, **more}
    return Job(JobId(name), subtasks=(Subtask(name, "k", has_gpu_version=True, profile=profile),))


def placed(policy: str, node: Node, *jobs: Job, held: tuple[RunningJob, ...] = ()) -> list[JobDecision]:
    rules = subtask_schedulers()[policy].rules
    scheduler = SubtaskScheduler(IawpSettings(max_per_gpu=20, queue_length=20), rules)
    return scheduler.assign(jobs, "n", view_of([node], held), 0.0)


def count(decisions: list[JobDecision]) -> int:
    return sum(len(decision.assignments) for decision in decisions)


@pytest.mark.parametrize("policy", IAWP)
def test_pipelines_share_a_gpu_up_to_the_stated_number_unless_told_otherwise(policy: str) -> None:
    jobs = [small(f"p{i}") for i in range(PIPELINES_PER_GPU + 2)]
    assert count(placed(policy, host(), *jobs)) == PIPELINES_PER_GPU
    assert count(placed(policy, host(most=3), *jobs)) == 3


@pytest.mark.parametrize("policy", ["iawp", "iawp-paper", "ect", "pats", "random"])
def test_an_explicit_one_stays_exclusive(policy: str) -> None:
    assert count(placed(policy, host(most=1), small("a"), small("b"))) == 1


@pytest.mark.parametrize("policy", ["ect", "pats", "random"])
def test_the_baselines_do_not_share(policy: str) -> None:
    assert count(placed(policy, host(), small("a"), small("b"))) == 1


@pytest.mark.parametrize("policy", IAWP)
def test_memory_comes_first(policy: str) -> None:
    """16 GiB: two subtasks of 10 GiB do not fit together, nor one beside 9 GiB in use."""
    first, second = placed(policy, host(), small("a", gpu_memory_gib=10.0), small("b", gpu_memory_gib=10.0))
    assert count([first, second]) == 1
    (blocker,) = second.blockers
    assert blocker.reason is Reason.INSUFFICIENT_GPU_MEMORY
    assert count(placed(policy, host(memory_util=9 / 16), small("a", gpu_memory_gib=10.0))) == 0
    tenant = running("t", "n", [0], Resources(0, 0.5, 0, 9, 0), gpu_sharing=GpuSharing(True, 8.0))
    assert count(placed(policy, host(), small("a", gpu_memory_gib=10.0), held=(tenant,))) == 0
    assert count(placed(policy, host(), small("a", gpu_memory_gib=5.0), held=(tenant,))) == 1


@pytest.mark.parametrize("policy", IAWP)
def test_other_jobs_keep_the_slowdown_that_they_allow(policy: str) -> None:
    """At 80 % use one subtask that wants half of the GPU slows everybody down by 1.3."""
    for most_slowdown, expected in ((1.2, 0), (1.4, 1)):
        tenant = running("t", "n", [0], gpu_sharing=GpuSharing(True, most_slowdown))
        assert count(placed(policy, host(util=0.8), small("a", 0.5), held=(tenant,))) == expected


@pytest.mark.parametrize("policy", IAWP)
def test_without_telemetry_a_job_counts_with_its_part_of_the_gpu(policy: str) -> None:
    silent = host(util=float("nan"))
    tenant = running("t", "n", [0], Resources(0, 0.5, 0, 0, 0), gpu_sharing=GpuSharing(True, 1.2))
    assert count(placed(policy, silent, small("a", 0.6), held=(tenant,))) == 1
    assert count(placed(policy, silent, small("a", 0.8), held=(tenant,))) == 0


@pytest.mark.parametrize("policy", IAWP)
def test_a_job_that_shares_with_nobody_keeps_its_gpu(policy: str) -> None:
    assert count(placed(policy, host(), small("a"), held=(running("t", "n", [0]),))) == 0


@pytest.mark.parametrize("policy", IAWP)
def test_a_reported_subtask_leaves_its_gpu_open_to_other_pipelines(policy: str) -> None:
    first = small("first")
    on_gpu = Subtask("first", "k", has_gpu_version=True, state=SubtaskState.RUNNING, unit="gpu0")
    job = Job(first.id, subtasks=(on_gpu,))
    at = Assignment("first", Role.WORKER, NodeId("n"), (0,), cpu_unit="gpu0", subtask="first")
    assert count(placed(policy, host(), small("a"), held=(RunningJob(job, (at,)),))) == 1
    assert count(placed(policy, host(most=1), small("a"), held=(RunningJob(job, (at,)),))) == 0
