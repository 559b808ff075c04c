"""Reservations that end: by their time, or because they are given back. On every store (conftest.py)."""

import asyncio

from tests.fakes.state import CLUSTER, Harness, demand, hold, job, records, started, task

from placewise_core.domain.events import JobsEnded
from placewise_service.state.store import Reserved, StateStore


async def test_expiry_gives_everything_back_once(harness: Harness, store: StateStore) -> None:
    whole = task(gpus=(0, 1, 2, 3), ask=demand(16.0, 4.0, 64.0))
    await hold(store, job("a", whole), ttl_s=0.05)
    await hold(store, job("b", task("s0")), ttl_s=60.0)
    assert (await store.expire(CLUSTER)).applied == 0
    await harness.advance(0.06)
    results = await asyncio.gather(store.expire(CLUSTER), harness.other().expire(CLUSTER))
    assert sorted(result.applied for result in results) == [0, 1]
    (event,) = [event for result in results for event in result.events]
    assert event.change == JobsEnded(("a",), is_expiry=True)  # type: ignore[arg-type]
    assert isinstance(await hold(store, job("c", whole)), Reserved)
    assert {j.id for j in (await records(store)).jobs} == {"b", "c"}


async def test_nothing_is_left_of_what_expired(harness: Harness, store: StateStore) -> None:
    before = harness.leftover_keys()
    for i in range(20):
        await hold(store, job(f"j{i}", third_task(i)), ttl_s=0.0, request_id=f"q{i}", answer=b"a")
        await store.expire(CLUSTER)
    assert (await records(store)).jobs == ()
    assert harness.leftover_keys() == before


def third_task(i: int) -> object:
    return task("s0", (i % 4,), demand(gpus=1 / 3, extended={"licence": 0.1}, gpu_memory_gib=1 / 7))


async def test_release_gives_back_only_what_was_not_confirmed(store: StateStore) -> None:
    await hold(store, job("a"), job("b", task(gpus=(1,))))
    await hold(store, job("c", task(gpus=(2,))), job("d", task(gpus=(3,)), reservation="r-c"))
    await store.report_jobs(CLUSTER, [started(job("a"))])
    result = await store.release(CLUSTER, ["r-a", "r-b", "r-c", "nonsense"])
    assert (result.applied, result.ignored) == (2, 2)
    assert isinstance(result.events[0].change, JobsEnded)
    assert set(result.events[0].change.job_ids) == {"b", "c", "d"}
    assert not result.events[0].change.is_expiry
    assert [j.id for j in (await records(store)).jobs] == ["a"]
    again = await store.release(CLUSTER, ["r-b", "r-c"])
    assert (again.applied, again.events) == (0, ())


async def test_giving_back_in_an_unknown_cluster_does_nothing(harness: Harness) -> None:
    assert (await harness.store.release(CLUSTER, ["r"])).events == ()
    assert (await harness.store.expire(CLUSTER)).events == ()
