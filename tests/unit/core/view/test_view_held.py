"""The resources that running jobs hold, followed from change to change, and the start of a head found on them."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.proteus_queue import cluster_of, gpu_nodes

from placewise_core.admit.head import Releases, reserved
from placewise_core.admit.pool import Pool
from placewise_core.admit.shapes import Options
from placewise_core.domain.cluster import Assignment, RunningJob
from placewise_core.domain.job import Job, JobId, NodeId, Resources, Role, TaskGroup
from placewise_core.view.heads import end_of_start_s
from placewise_core.view.held import HeldAmounts, Holdings

NOW_S = 1000.0
GPUS = 4


def running(name: str, node: int, gpus: Sequence[int], told_s: float, start_s: float, speed: float) -> RunningJob:
    demand = Resources(cpu_cores=2.0, gpus=float(len(gpus)))
    groups = (TaskGroup(Role.WORKER, 1, demand),)
    job = Job(JobId(name), groups=groups, single_gpu_s=told_s, total_epochs=10.0)
    task = Assignment("worker-0", Role.WORKER, NodeId(f"n{node}"), tuple(gpus), demand=demand)
    return RunningJob(job, (task,), start_time_s=start_s, speed=speed, epochs_done=2.0)


jobs = st.builds(
    running,
    st.sampled_from("abcdef"),
    st.integers(0, 2),
    st.sets(st.integers(0, GPUS - 1), min_size=1).map(sorted),
    st.sampled_from([0.0, 50.0, 500.0, 5000.0]),
    st.sampled_from([0.0, 400.0, 990.0]),
    st.sampled_from([0.0, 0.1]),
)
changes = st.lists(st.one_of(jobs, st.sampled_from("abcdef").map(JobId)), max_size=12)


def rows(held: HeldAmounts) -> list[tuple[float, int, tuple[float, ...]]]:
    """Sorted: jobs that end together come in any order. Rows that never end are no parts."""
    found = zip(held.ends.tolist(), held.rows.tolist(), map(tuple, held.demands.tolist()), strict=True)
    return sorted(row for row in found if row[0] < math.inf)


@given(changes)
def test_resources_followed_change_by_change_are_those_read_anew(steps: Sequence[RunningJob | JobId]) -> None:
    view, followed = cluster_of(gpu_nodes(3, GPUS)), Holdings()
    for i, step in enumerate(steps):
        if isinstance(step, RunningJob):
            view.add_job(step)
        else:
            view.remove_job(step)
        held, anew = followed.at(view, NOW_S + i), Holdings().at(view, NOW_S + i)
        assert rows(held) == rows(anew)
        assert held.gpu_end.tolist() == anew.gpu_end.tolist()


@pytest.mark.parametrize(("told_s", "start_s"), [(0.0, 0.0), (0.0, 400.0), (50.0, 990.0), (50.0, 400.0), (500.0, 0.0)])
def test_a_job_is_expected_to_end_by_its_word_or_by_its_age(told_s: float, start_s: float) -> None:
    view = cluster_of(gpu_nodes(1, GPUS))
    job = running("a", 0, [0], told_s, start_s, 0.0)
    view.add_job(job)
    held = Holdings().at(view, NOW_S)
    assert [end_s for end_s, _, _ in rows(held)] == [end_of_start_s(job.job, 1, start_s or NOW_S, NOW_S)]


def test_a_shared_gpu_is_idle_after_the_last_of_its_jobs() -> None:
    view = cluster_of(gpu_nodes(1, GPUS))
    view.add_job(running("short", 0, [0, 1], 0.0, 900.0, 0.1))  # 8 of 10 epochs are left
    view.add_job(running("long", 0, [1], 0.0, 900.0, 0.01))
    assert Holdings().at(view, NOW_S).gpu_end.tolist() == [[1080.0, 1800.0, 0.0, 0.0]]


def worker(name: str, tasks: int, gpus: int) -> Job:
    return Job(JobId(name), groups=(TaskGroup(Role.WORKER, tasks, Resources(gpus=float(gpus))),))


@given(
    st.lists(jobs, min_size=1, max_size=9),
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 2), st.sampled_from([NOW_S + 30.0, NOW_S + 400.0])), max_size=3
    ),
    st.integers(1, 3),
    st.integers(1, GPUS),
)
def test_a_heads_start_is_the_first_point_in_time_at_which_it_fits(
    there: Sequence[RunningJob], coming: Sequence[tuple[int, int, float]], tasks: int, gpus: int
) -> None:
    """`coming` start now: their tasks, GPUs a task, and ends."""
    view = cluster_of(gpu_nodes(3, GPUS))
    for job in there:
        view.add_job(job)
    pool, starting = Pool.free(view, NOW_S), []
    for i, (count, each, end_s) in enumerate(coming):
        start = worker(f"start-{i}", count, each)
        if len(options := pool.options(start)):
            starting.append((pool.takes(start, options, 0), end_s))
            pool.apply(starting[-1][0])
    head = worker("head", tasks, gpus)
    releases = Releases(view, np.ones(3, dtype=np.bool_), starting, NOW_S)

    def first(options: Options) -> int:
        return 0

    ends_s = [end_s for end_s, _, _ in rows(Holdings().at(view, NOW_S))]
    times_s = sorted({NOW_S, *ends_s, *[end_s for _, end_s in starting]})
    fitting = [time_s for time_s in times_s if len(releases.pool(time_s).options(head))]
    found = reserved(head, NOW_S, releases, first, NOW_S, 60.0)
    assert (None if found is None else found.start_s) == (fitting[0] if fitting else None)
