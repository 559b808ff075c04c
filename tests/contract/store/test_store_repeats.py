"""Answers remembered by request id: whose they are, and when one gives way. On every store (conftest.py)."""

import msgspec
import pytest
from tests.fakes.state import CLUSTER, Harness, demand, ended, hold, job, node, progress, records, started, task, third

from placewise_core.domain.cluster import RunState
from placewise_core.domain.job import JobId, NodeId
from placewise_service.state.keys import keys_of
from placewise_service.state.store import JobReport, Overcommit, Repeated, Reserved, Reused, StateStore

GONE = 0.0  # a time to live that is over at once


def late_start(name: str) -> JobReport:
    return JobReport(JobId(name), "STARTED", 130.0)


async def test_an_id_belongs_to_its_question(harness: Harness, store: StateStore) -> None:
    assert isinstance(await hold(store, job("a"), request_id="q", answer=b"1", fingerprint=b"f"), Reserved)
    other = harness.other()
    wanted = job("b", task(gpus=(1,)))
    assert await hold(other, wanted, request_id="q", answer=b"2", fingerprint=b"g") == Reused()
    assert await other.remember(CLUSTER, "q", b"2", b"g") == await other.recall(CLUSTER, "q", b"g") == Reused()
    assert [held.id for held in (await records(store)).jobs] == ["a"]
    again = await other.recall(CLUSTER, "q", b"f")
    assert isinstance(again, Repeated)
    assert again.answer == b"1"
    assert await other.recall(CLUSTER, "r", b"f") is None


async def test_an_answer_without_a_fingerprint_is_anybodys(store: StateStore) -> None:
    await store.remember(CLUSTER, "old", b"1")
    assert await store.remember(CLUSTER, "old", b"2", b"g") == Repeated(b"1")
    await store.remember(CLUSTER, "new", b"1", b"f")
    assert await store.remember(CLUSTER, "new", b"2") == Repeated(b"1")


async def test_answers_are_read_as_the_release_before_wrote_them_and_written_as_it_reads_them(harness: Harness) -> None:
    if harness.raw is None:
        pytest.skip("memory has one release only")
    keys, store = keys_of(CLUSTER), harness.store
    await store.remember(CLUSTER, "q", b"new", b"f")
    expire_s, answer = msgspec.msgpack.decode(harness.raw.hget(keys.answers, "q"))[:2]  # as answers.lua of 0.1 does
    assert (expire_s, answer) == ("0", "new")
    harness.raw.hset(keys.answers, "q", msgspec.msgpack.encode(["0", "old"]))
    assert await store.remember(CLUSTER, "q", b"mine", b"f") == Repeated(b"old")


async def test_an_answer_that_holds_no_more_gives_way_once(harness: Harness, store: StateStore) -> None:
    await hold(store, job("a"), ttl_s=GONE, request_id="q", answer=b"1", fingerprint=b"f")
    mine = {"request_id": "q", "fingerprint": b"f", "over": b"1"}
    assert isinstance(await hold(store, job("a"), answer=b"2", **mine), Reserved)
    again = await hold(harness.other(), job("a"), answer=b"3", **mine)
    assert isinstance(again, Repeated)
    assert again.answer == b"2", "somebody else was first"
    assert (await store.remember(CLUSTER, "q", b"4", b"f", over=b"2")).answer == b"4"  # type: ignore[union-attr]


async def test_looking_up_tells_what_holds_what_ended_and_nothing_of_the_rest(store: StateStore) -> None:
    await hold(store, job("held"))
    await hold(store, job("late", task(gpus=(1,))), ttl_s=GONE)
    await store.report_jobs(CLUSTER, [started(job("runs", task(gpus=(2,)))), progress("runs", 2.0, 1.0), ended("over")])
    names = [JobId(name) for name in ("held", "late", "runs", "over", "never")]
    found = await store.look_up(CLUSTER, names)
    assert set(found) == {"held", "runs", "over"}
    assert found[JobId("over")] is None
    by_id = {held.id: held for held in (await records(store)).jobs}
    assert found[JobId("held")] == by_id[JobId("held")]
    assert found[JobId("runs")] == by_id[JobId("runs")]
    assert await store.look_up("nowhere", names) == {}


@pytest.mark.parametrize("word", [late_start("a"), progress("a", 2.0, 1.0)], ids=["start", "progress"])
async def test_a_late_start_restores_what_was_reserved(store: StateStore, word: JobReport) -> None:
    await hold(store, job("a", task(gpus=(1, 2))), ttl_s=GONE)
    before = (await records(store)).jobs[0]
    await store.expire(CLUSTER)
    result = await store.report_jobs(CLUSTER, [word])
    assert (result.applied, result.ignored, result.overcommits) == (1, 0, ())
    (now,) = (await records(store)).jobs
    assert (now.assignments, now.decision_id) == (before.assignments, before.decision_id)
    assert (now.state, now.expire_time_s, now.start_time_s) == (RunState.RUNNING, 0.0, word.event_time_s)
    assert (await store.report_jobs(CLUSTER, [late_start("a")])).ignored == 1


async def test_a_late_start_that_overcommits_is_taken_and_named(store: StateStore) -> None:
    await hold(store, job("a", task(gpus=(0, 1, 2))), ttl_s=GONE)
    await store.expire(CLUSTER)
    await hold(store, job("b", task(gpus=(2,))), job("c", task(gpus=(0,))))
    result = await store.report_jobs(CLUSTER, [late_start("a")])
    (found,) = result.overcommits
    assert (found.job_id, found.node, found.reason, found.gpus) == ("a", "n0", "GPU_TAKEN", (0, 2))
    assert sorted(found.others) == ["b", "c"]
    assert sorted(held.id for held in (await records(store)).jobs) == ["a", "b", "c"]


async def test_where_a_host_moves_a_job_to_is_named_when_it_does_not_fit(store: StateStore) -> None:
    place = NodeId("n0")
    await store.report_jobs(CLUSTER, [started(job("a", task(ask=demand(cpu=10.0))))])
    result = await store.report_jobs(CLUSTER, [started(job("b", task(gpus=(1,), ask=demand(cpu=10.0))))])
    assert result.overcommits == (Overcommit(JobId("b"), place, "INSUFFICIENT_CPU"),)
    shared = [started(third(f"t{i}")) for i in range(3)]
    assert (await store.report_jobs(CLUSTER, shared)).overcommits == ()
    (full,) = (await store.report_jobs(CLUSTER, [started(third("t3"))])).overcommits
    assert (full.reason, full.gpus, sorted(full.others)) == ("GPU_SHARE_FULL", (0,), ["t0", "t1", "t2"])
    again = await store.report_jobs(CLUSTER, [started(third("t3"))])
    assert (again.ignored, again.overcommits) == (1, ())


async def test_ended_jobs_and_those_decided_anew_are_not_restored(store: StateStore) -> None:
    await hold(store, job("a"), job("b", task(gpus=(1,)), reservation="r1"), ttl_s=GONE)
    await store.expire(CLUSTER)
    await store.report_jobs(CLUSTER, [ended("a")])
    assert (await store.report_jobs(CLUSTER, [late_start("a")])).ignored == 1
    await hold(store, job("b", task(gpus=(2,)), reservation="r2"))
    await store.report_jobs(CLUSTER, [late_start("b")])
    (held,) = (await records(store)).jobs
    assert held.assignments[0].gpu_indices == (2,), "the newer decision counts"


async def test_a_reservation_that_was_given_back_leaves_nothing_to_restore(store: StateStore) -> None:
    await hold(store, job("a", reservation="r1"), ttl_s=GONE)
    await store.expire(CLUSTER)
    await hold(store, job("a", task(gpus=(1,)), reservation="r2"))
    await store.release(CLUSTER, ["r2"])
    assert (await store.report_jobs(CLUSTER, [late_start("a")])).ignored == 1


async def test_a_start_whose_decision_is_not_known_is_named(harness: Harness, store: StateStore) -> None:
    """Of a job that nobody decided; of one whose decision is forgotten; not of one that runs, or has ended."""
    await hold(store, job("old"), ttl_s=GONE)
    await store.expire(CLUSTER)
    await harness.advance(1.05)
    await store.report_jobs(CLUSTER, [started(job("runs")), ended("over")])
    names = ("old", "never", "runs", "over")
    result = await store.report_jobs(CLUSTER, [late_start(name) for name in names])
    assert (result.applied, result.ignored, result.unknown) == (0, 4, ("old", "never"))
    assert (await store.report_jobs(CLUSTER, [progress("never", 1.0, 1.0)])).unknown == ()


async def test_what_expired_is_kept_for_a_while_and_within_bounds(harness: Harness, store: StateStore) -> None:
    for name in ("first", "second", "third"):
        await hold(store, job(name), ttl_s=GONE)
        await store.expire(CLUSTER)
    results = [(await store.report_jobs(CLUSTER, [late_start(name)])).applied for name in ("first", "third")]
    assert results == [0, 1], "the oldest gave way"
    await harness.advance(1.05)
    assert (await store.report_jobs(CLUSTER, [late_start("second")])).applied == 0


async def test_another_life_of_the_cluster_inherits_no_placement(harness: Harness, store: StateStore) -> None:
    await hold(store, job("a"), ttl_s=GONE)
    await store.expire(CLUSTER)
    if harness.raw is not None:  # a replica of the release before deletes the keys that it knows
        k = keys_of(CLUSTER)
        harness.raw.delete(*(key for key in k.all if key not in (k.lapsed, k.lapsed_times)))
    else:
        await store.delete_cluster(CLUSTER)
    await store.report_nodes(CLUSTER, [node("n0")], full=True)
    assert (await store.report_jobs(CLUSTER, [late_start("a")])).applied == 0
