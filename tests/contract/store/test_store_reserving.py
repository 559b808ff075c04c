"""Reserving: all of it or nothing, checked against the real holdings; repeats. On every store (conftest.py)."""

import pytest
from tests.fakes.state import CLUSTER, Harness, demand, hold, job, node, progress, records, same, started, task

from placewise_core.domain.cluster import NodeState, RunState
from placewise_core.domain.events import JobsChanged
from placewise_service.state.store import Conflict, Repeated, Reserved, StateStore


async def test_a_reservation_is_held_until_its_time(store: StateStore) -> None:
    now_s = await store.ping()
    result = await hold(store, job("a", task(gpus=(0, 1)), task("s0", (3,), id_="w1")))
    assert isinstance(result, Reserved)
    assert now_s + 60 <= result.expire_time_s <= now_s + 70
    loaded = await records(store)
    assert same(JobsChanged(loaded.jobs), result.event.change)
    assert (loaded.jobs[0].state, loaded.jobs[0].expire_time_s) == (RunState.RESERVED, result.expire_time_s)
    assert (loaded.version, loaded.epoch) == (result.event.version, result.event.epoch)


CONFLICTS = [
    ("NODE_UNKNOWN", task("nowhere")),
    ("NODE_NOT_READY", task("down")),
    ("INSUFFICIENT_CPU", task(ask=demand(cpu=16.5))),
    ("INSUFFICIENT_MEMORY", task(ask=demand(memory=64.5))),
    ("INSUFFICIENT_GPU_MEMORY", task(ask=demand(gpu_memory_gib=65.0))),
    ("INSUFFICIENT_GPU_MEMORY", task(ask=demand(gpu_memory_gib=16.5))),
    ("INSUFFICIENT_NETWORK", task(ask=demand(network_gbps=10.5))),
    ("INSUFFICIENT_EXTENDED", task(ask=demand(extended={"licence": 5.0}))),
    ("INSUFFICIENT_EXTENDED", task(ask=demand(extended={"unicorn": 1.0}))),
    ("GPU_UNKNOWN", task(gpus=(4,))),
    ("GPU_TAKEN", task("s0", (2, 1))),
]


@pytest.mark.parametrize(("reason", "wrong"), CONFLICTS, ids=[f"{i}-{row[0]}" for i, row in enumerate(CONFLICTS)])
async def test_what_does_not_fit_conflicts_and_leaves_nothing(store: StateStore, reason: str, wrong: object) -> None:
    await store.report_nodes(CLUSTER, [node("down", state=NodeState.DRAINING)], full=False)
    before = await records(store)
    result = await hold(store, job("a", task("s0", (1,)), wrong), request_id="q", answer=b"x")  # type: ignore[arg-type]
    assert isinstance(result, Conflict)
    assert (result.node, result.reason) == (wrong.node, reason)  # type: ignore[attr-defined]
    assert same(await records(store), before)
    assert isinstance(await hold(store, job("b", task("s0", (1,))), request_id="q", answer=b"y"), Reserved)


async def test_exactly_what_is_there_fits(store: StateStore) -> None:
    everything = demand(16.0, 4.0, 64.0, gpu_memory_gib=64.0, network_gbps=10.0, extended={"licence": 4.0})
    assert isinstance(await hold(store, job("a", task(gpus=(0, 1, 2, 3), ask=everything))), Reserved)
    for ask in (demand(cpu=0.01, gpus=0.0, memory=0.0), demand(0.0, 0.0, 0.0, extended={"licence": 1.0})):
        assert isinstance(await hold(store, job("b", task(gpus=(), ask=ask))), Conflict)
    assert isinstance(await hold(store, job("b", task(gpus=(), ask=demand(0.0, 0.0, 0.0)))), Reserved)


async def test_jobs_of_one_request_stand_or_fall_together(store: StateStore) -> None:
    assert isinstance(await hold(store, job("a", task(gpus=(2,)))), Reserved)
    result = await hold(store, job("b", task(gpus=(0,))), job("c", task(gpus=(1,))), job("d", task(gpus=(2,))))
    assert result == Conflict("n0", "GPU_TAKEN")
    assert [j.id for j in (await records(store)).jobs] == ["a"]
    result = await hold(store, job("b", task(gpus=(0,))), job("c", task(gpus=(1,))))
    assert isinstance(result, Reserved)
    assert [j.id for j in result.event.change.jobs] == ["b", "c"]  # type: ignore[union-attr]


async def test_what_no_decision_may_ask_is_a_mistake(store: StateStore) -> None:
    with pytest.raises(ValueError, match="names none"):
        await hold(store, job("a", task(gpus=(), ask=demand(gpus=1.0))))
    with pytest.raises(ValueError, match="must not name a job twice"):
        await hold(store, job("a"), job("a"))
    with pytest.raises(ValueError, match="names a GPU twice"):
        await hold(store, job("a", task(gpus=(0, 0))))


async def test_an_unknown_cluster_holds_nothing(harness: Harness) -> None:
    assert await hold(harness.store, job("a")) == Conflict("", "CLUSTER_UNKNOWN")
    assert harness.leftover_keys() == set()


async def test_a_repeated_request_gets_the_first_answer(harness: Harness, store: StateStore) -> None:
    other = harness.other()
    await records(other)  # connected: an answer is remembered for a second alone
    first = await hold(store, job("a"), request_id="q1", answer=b"\x00first")
    assert isinstance(first, Reserved)
    again = await hold(other, job("b", task(gpus=(1,))), request_id="q1", answer=b"second")
    assert again == Repeated(b"\x00first", pytest.approx(first.expire_time_s, abs=2e-6))
    assert await other.remember(CLUSTER, "q1", b"third") == again
    assert len((await records(store)).jobs) == 1
    await harness.advance(1.05)
    assert isinstance(await hold(store, job("b", task(gpus=(1,))), request_id="q1", answer=b"second"), Reserved)


async def test_requests_without_an_id_are_not_repeats(store: StateStore) -> None:
    assert isinstance(await hold(store, job("a"), answer=b"1"), Reserved)
    assert isinstance(await hold(store, job("b", task(gpus=(1,))), answer=b"2"), Reserved)


async def test_a_reserved_job_may_be_decided_anew(store: StateStore) -> None:
    await hold(store, job("a", task(gpus=(0, 1)), reservation="r1"))
    assert isinstance(await hold(store, job("a", task(gpus=(1, 2)), reservation="r2")), Reserved)
    assert isinstance(await hold(store, job("b", task(gpus=(0,)))), Reserved)
    assert (await store.release(CLUSTER, ["r1"])).applied == 0
    assert (await store.release(CLUSTER, ["r2"])).applied == 1
    assert [j.id for j in (await records(store)).jobs] == ["b"]


async def test_a_job_decided_anew_keeps_what_it_had_on_conflict(store: StateStore) -> None:
    await hold(store, job("a", task(gpus=(0,))), job("b", task(gpus=(1,))))
    assert await hold(store, job("a", task(gpus=(1,)))) == Conflict("n0", "GPU_TAKEN")
    assert await hold(store, job("c", task(gpus=(0,)))) == Conflict("n0", "GPU_TAKEN")


async def test_a_running_job_is_not_reserved_again(store: StateStore) -> None:
    await store.report_jobs(CLUSTER, [started(job("a"))])
    await store.report_jobs(CLUSTER, [started(job("b", task("s0")), 90.0), progress("b", 2.5, 3.0)])
    wanted = [job("new", task(gpus=(2,))), job("b", task(gpus=(3,))), job("a", task(gpus=(1,)))]
    result = await hold(store, *wanted)
    assert isinstance(result, Conflict)
    assert (result.node, result.reason) == ("", "JOB_RUNNING")
    running = {held.id: held for held in (await records(store)).jobs}
    assert same(result.running, (running["b"], running["a"])), "running jobs are reported as they run"
    assert running.keys() == {"a", "b"}


async def test_the_first_answer_stands(harness: Harness, store: StateStore) -> None:
    assert await store.remember(CLUSTER, "q", b"one") == Repeated(b"one")
    assert await harness.other().remember(CLUSTER, "q", b"two") == Repeated(b"one")
    assert await hold(store, job("a"), request_id="q", answer=b"three") == Repeated(b"one")
    await harness.advance(1.05)
    assert await store.remember(CLUSTER, "q", b"four") == Repeated(b"four")
