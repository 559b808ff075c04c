"""EASY backfill: how often jobs, nodes and points in time are looked at."""

from dataclasses import replace

import numpy as np
import pytest
from tests.fakes.backfill import BOUND_S, NOW_S, POLICIES, admitted, ask, busy, job, start, tell
from tests.fakes.proteus_queue import cluster_of, gpu_nodes

from placewise_core.admit.head import Releases
from placewise_core.admit.policy import AdmitContext
from placewise_core.admit.pool import Pool
from placewise_core.admit.shapes import Options
from placewise_core.basics.arrays import FloatArray
from placewise_core.domain.cluster import HeadReservation, QueueSettings, QueueState, RunningJob
from placewise_core.domain.job import Job, JobId, Resources, Role, TaskGroup
from placewise_core.view import held
from placewise_core.view.view import ClusterView


def test_jobs_that_are_passed_over_unseen_would_not_have_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside heads of other queues, some past their bounds: the same starts and head as with a close look at every
    job."""
    rng = np.random.default_rng(5)
    starts = kept = 0
    for case in range(200):
        view = cluster_of(gpu_nodes(4, 4))
        nodes = [node.id for node in view.nodes.records]
        for i in range(6):
            start(view, job(f"runs {i}", int(rng.integers(1, 4)), float(rng.integers(100, 900))), NOW_S)
        jobs = [
            replace(
                job(
                    f"waits {i}", int(rng.integers(1, 5)), float(rng.integers(50, 2000)), tasks=int(rng.integers(1, 3))
                ),
                submit_time_s=NOW_S - float(rng.integers(0, 2 * BOUND_S)),
            )
            for i in range(6)
        ]
        for queue in "xyz":
            on = tuple(str(name) for name in rng.choice(nodes, 2, replace=False))
            passes = tuple(each.id for each in jobs if rng.random() < 0.3)
            since_s = NOW_S - float(rng.integers(0, 2 * BOUND_S))
            ends_s, bound_s = NOW_S + float(rng.integers(0, 900)), since_s + BOUND_S
            head_job = queue if rng.random() < 0.6 else jobs[int(rng.integers(6))].id
            head = HeadReservation(head_job, on, ends_s, since_s, bound_s, NOW_S + 600.0, passes)
            tell(view, QueueState(queue, head=head, seq=1))
        known = HeadReservation(jobs[case % 6].id, (nodes[0],), NOW_S, NOW_S - BOUND_S / 2, NOW_S, NOW_S + 600.0)
        queue_q = QueueState("q", head=known if case % 3 else None, seq=1)
        tell(view, queue_q)
        found = []
        for is_close in (False, True):
            with monkeypatch.context() as patched:
                if is_close:
                    patched.setattr(Pool, "is_on_idle", lambda pool, asked: False)
                settings, is_quick = QueueSettings(bound_s=BOUND_S), not is_close
                context = AdmitContext(NOW_S, 0, settings, 0, starts_only=is_quick)
                plan = POLICIES["fifo"].admit(jobs, view, queue_q, context)
            found.append((admitted(plan), plan.queue.head))
        assert found[0] == found[1], case
        starts, kept = starts + len(found[0][0]), kept + (found[0][1] is not None)
    assert starts > 100
    assert kept > 100


def test_a_job_past_its_bound_that_starts_at_once_needs_no_look_at_expected_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(releases: Releases, time_s: float) -> Pool:
        raise AssertionError(time_s)

    monkeypatch.setattr(Releases, "pool", never)
    late = replace(job("late", 4), submit_time_s=NOW_S - 2 * BOUND_S)
    context = AdmitContext(NOW_S, 0, QueueSettings(bound_s=BOUND_S), 0, starts_only=True)
    plan = POLICIES["fifo"].admit([late], busy(), QueueState("q"), context)
    assert admitted(plan) == {"late"}
    assert plan.queue.head is not None
    assert (plan.queue.head.job, plan.queue.head.start_s) == ("late", NOW_S)
    assert plan.queue.head.since_s == late.submit_time_s


def test_a_running_job_is_read_once_however_many_queues_and_events_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    parts = held._parts

    def counted(running: RunningJob, view: ClusterView) -> tuple[dict[int, FloatArray], list[int]]:
        read.append(running.id)
        return parts(running, view)

    monkeypatch.setattr(held, "_parts", counted)
    view = busy()
    assert start(view, job("runs too", 4, 400.0), NOW_S)
    for now_s in (NOW_S, NOW_S + 10.0):
        for queue in ("a", "b", "c"):
            ask([job(f"gang of {queue} at {now_s}", 4, tasks=2)], view, QueueState(queue), now_s)
    assert sorted(read) == ["runs", "runs too"]


def test_queues_asked_at_one_event_try_a_kind_of_job_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    options = Pool._options

    def counted(pool: Pool, asked: Job) -> Options:
        if not pool._is_whole:
            tried.append(asked.id)
        return options(pool, asked)

    monkeypatch.setattr(Pool, "_options", counted)
    view = busy()
    assert start(view, job("runs too", 3, 400.0), NOW_S)
    for now_s in (NOW_S, NOW_S + 10.0):
        context = AdmitContext(now_s, 0, QueueSettings(bound_s=BOUND_S), 0, starts_only=True)
        for queue in ("a", "b", "c"):
            waiting = [job(f"{queue}{i} at {now_s}", 3) for i in range(5)]  # as many as are idle, on two nodes
            POLICIES["fifo-strict"].admit(waiting, view, QueueState(queue), context)
    assert tried == [f"a0 at {NOW_S}"], "and nothing came or went until the next event"


def test_jobs_that_need_more_gpus_than_are_idle_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(pool: Pool, asked: Job) -> Options:
        raise AssertionError(asked.id)

    view = busy()
    assert start(view, job("runs too", 3, 400.0), NOW_S)
    whole = Pool.whole(view)
    waiting = [job("four", 4), job("two and two", 2, tasks=2)]
    assert all(len(whole.options(each)) for each in waiting)
    monkeypatch.setattr(Pool, "_options", never)
    pool = Pool.free(view, NOW_S)
    assert not any(len(pool.options(each)) for each in waiting)
    half = Job(JobId("half"), groups=(TaskGroup(Role.WORKER, 9, Resources(gpus=0.5)),))
    with pytest.raises(AssertionError, match="half"):  # a GPU in use may have room for it
        pool.options(half)


def test_the_start_of_a_head_is_found_with_one_look_at_each_point_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[float] = []
    pool = Releases.pool

    def counted(releases: Releases, time_s: float) -> Pool:
        looked.append(time_s)
        return pool(releases, time_s)

    monkeypatch.setattr(Releases, "pool", counted)
    view = busy()
    assert start(view, job("runs too", 4, 400.0), NOW_S)
    queue = ask([job("gang", 4, tasks=2)], view, QueueState("q")).queue
    assert queue.head is not None
    assert queue.head.start_s == NOW_S + 500.0
    assert sorted(looked) == sorted(set(looked))
