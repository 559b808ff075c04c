"""What hosts report of jobs: started, progress, ended, in any order and repeated. On every store (conftest.py)."""

import pytest
from tests.fakes.state import CLUSTER, Harness, demand, ended, hold, job, node, progress, records, same, started, task

from placewise_core.domain.cluster import RunState
from placewise_core.domain.events import JobsChanged, JobsEnded
from placewise_service.state.store import Conflict, JobReport, Reserved, StateStore


async def test_started_confirms_a_reservation(harness: Harness, store: StateStore) -> None:
    await hold(store, job("a"), ttl_s=0.01)
    result = await store.report_jobs(CLUSTER, [started(job("a"), at_s=123.5)])
    assert (result.applied, result.ignored) == (1, 0)
    await harness.advance(0.02)
    assert (await store.expire(CLUSTER)).applied == 0
    (running,) = (await records(store)).jobs
    assert (running.state, running.expire_time_s, running.start_time_s) == (RunState.RUNNING, 0.0, 123.5)
    assert same(result.events[0].change, JobsChanged((running,)))


async def test_started_as_reserved_needs_no_placement(store: StateStore) -> None:
    await hold(store, job("a"))
    result = await store.report_jobs(CLUSTER, [JobReport("a", "STARTED", 77.0), JobReport("b", "STARTED", 77.0)])
    assert (result.applied, result.ignored) == (1, 1)
    (running,) = (await records(store)).jobs
    assert (running.assignments, running.state, running.start_time_s) == (job("a").assignments, RunState.RUNNING, 77.0)


async def test_started_elsewhere_moves_what_is_held(store: StateStore) -> None:
    await hold(store, job("a", task("n0", (0,))))
    await store.report_jobs(CLUSTER, [started(job("a", task("s0", (2,))))])
    assert isinstance(await hold(store, job("b", task("n0", (0,)))), Reserved)
    assert await hold(store, job("c", task("s0", (2,)))) == Conflict("s0", "GPU_TAKEN")


async def test_the_host_is_right_even_when_it_overcommits(store: StateStore) -> None:
    everything = task(gpus=(0, 1, 2, 3), ask=demand(16.0, 4.0, 64.0))
    await hold(store, job("a", everything))
    assert (await store.report_jobs(CLUSTER, [started(job("b", everything)), ended("a")])).applied == 2
    assert isinstance(await hold(store, job("c")), Conflict)
    await store.report_jobs(CLUSTER, [ended("b")])
    assert isinstance(await hold(store, job("c", everything)), Reserved)


async def test_a_repeated_start_is_ignored(store: StateStore) -> None:
    await hold(store, job("a"))
    result = await store.report_jobs(CLUSTER, [started(job("a")), started(job("a"))])
    assert (result.applied, result.ignored, len(result.events)) == (1, 1, 1)


async def test_progress_is_kept_beside_the_job(store: StateStore) -> None:
    await store.report_jobs(CLUSTER, [started(job("a"), at_s=5.0)])
    result = await store.report_jobs(CLUSTER, [progress("a", 0.5, 2.0), progress("a", 0.5, 2.0), progress("x", 1, 1)])
    assert (result.applied, result.ignored) == (1, 2)
    (running,) = (await records(store)).jobs
    assert (running.speed, running.epochs_done, running.start_time_s) == (0.5, 2.0, 5.0)
    assert same(result.events[0].change, JobsChanged((running,)))


async def test_progress_of_a_reserved_job_confirms_it(store: StateStore) -> None:
    await hold(store, job("a"), ttl_s=0.0)
    await store.report_jobs(CLUSTER, [progress("a", 0.5, 2.0)])
    assert (await store.expire(CLUSTER)).applied == 0
    assert (await records(store)).jobs[0].state is RunState.RUNNING
    assert (await store.release(CLUSTER, ["r-a"])).applied == 0


@pytest.mark.parametrize("kind", ["FINISHED", "FAILED", "CANCELLED"])
async def test_an_end_frees_and_what_comes_later_is_ignored(store: StateStore, kind: str) -> None:
    await store.report_jobs(CLUSTER, [started(job("a"))])
    late = [ended("a", kind), ended("a", kind), started(job("a")), progress("a", 1.0, 1.0)]
    result = await store.report_jobs(CLUSTER, late)
    assert (result.applied, result.ignored) == (1, 3)
    assert result.events[0].change == JobsEnded(("a",))  # type: ignore[arg-type]
    assert (await records(store)).jobs == ()
    assert isinstance(await hold(store, job("b")), Reserved)


async def test_the_end_of_a_reserved_job_ends_its_reservation(store: StateStore) -> None:
    await hold(store, job("a"), ttl_s=0.0)
    await store.report_jobs(CLUSTER, [ended("a", "CANCELLED")])
    assert (await store.expire(CLUSTER)).applied == 0
    assert (await store.release(CLUSTER, ["r-a"])).applied == 0
    assert isinstance(await hold(store, job("b")), Reserved)


async def test_an_end_that_overtakes_its_start_wins(store: StateStore) -> None:
    result = await store.report_jobs(CLUSTER, [ended("a"), started(job("a"))])
    assert (result.applied, result.ignored) == (1, 1)
    assert (await records(store)).jobs == ()


async def test_a_job_may_come_back_through_a_new_reservation(store: StateStore) -> None:
    await store.report_jobs(CLUSTER, [started(job("a")), ended("a", "FAILED")])
    assert isinstance(await hold(store, job("a", reservation="second")), Reserved)
    result = await store.report_jobs(CLUSTER, [ended("a", "FAILED", reservation="first")])
    assert (result.applied, result.ignored) == (0, 1)
    assert (await store.report_jobs(CLUSTER, [started(job("a", reservation="second"))])).applied == 1


async def test_ended_jobs_are_forgotten_after_a_while(harness: Harness, store: StateStore) -> None:
    await store.report_jobs(CLUSTER, [ended("a")])
    await harness.advance(0.35)
    assert (await store.report_jobs(CLUSTER, [started(job("a"))])).applied == 1


async def test_a_batch_gives_one_event_per_run_of_changes(store: StateStore) -> None:
    names = [f"j{i}" for i in range(20)]
    reports = [started(job(name, task(gpus=(), ask=demand(0.25, 0.0, 0.25)))) for name in names]
    result = await store.report_jobs(
        CLUSTER, [*reports, *(ended(name) for name in names[:3]), progress("j9", 1.0, 1.0)]
    )
    kinds = [(type(e.change).__name__, e.version) for e in result.events]
    assert kinds == [("JobsChanged", 2), ("JobsEnded", 3), ("JobsChanged", 4)]
    assert len((await records(store)).jobs) == 17
    other = await store.report_jobs(CLUSTER, [JobReport("j9", "SUBMITTED", 1.0)])
    assert (other.applied, other.ignored, other.events) == (0, 1, ())


async def test_what_is_held_on_a_node_survives_the_nodes_absence(store: StateStore) -> None:
    await store.report_jobs(CLUSTER, [started(job("a")), started(job("b", task(gpus=(1,))))])
    await store.report_nodes(CLUSTER, [node("s0")], full=True)
    await store.report_jobs(CLUSTER, [ended("b")])
    await store.report_nodes(CLUSTER, [node("n0")], full=False)
    assert await hold(store, job("c", task(gpus=(0,)))) == Conflict("n0", "GPU_TAKEN")
    assert isinstance(await hold(store, job("c", task(gpus=(1,)))), Reserved)
