"""Random histories on Redis and on the reference in memory: the same answers, the same state, and no oversubscription.

Each history also builds a ClusterView from the events alone, and adds up what every GPU and node gives away.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fakes.servers.redis_server import RedisServer
from tests.fakes.state import CLUSTER, demand, ended, job, node, progress, records, started, task

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import NodeState, RunningJob, RunState
from placewise_core.domain.events import ClusterRecords, Event
from placewise_core.view.view import ClusterView
from placewise_service.state.holdings import Hold, holds_of
from placewise_service.state.keys import keys_of
from placewise_service.state.redis.connection import RedisOptions
from placewise_service.state.redis.redis_store import RedisStore
from placewise_service.state.reference.memory import MemoryStore
from placewise_service.state.store import Conflict, JobReport, ReportResult, Reserved, ReserveRequest, StateStore

NODES = ["n0", "n1", "s0"]
NAMES = [f"j{i}" for i in range(6)]
LATE = 0.0  # a time to live that is over at once
LONG = 3600.0

amounts = st.sampled_from([0.0, 1 / 3, 1.0, 2.7, 8.0, 16.0])


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    started_server = RedisServer().start()
    yield started_server
    started_server.stop()


@st.composite
def whole_tasks(draw: st.DrawFn) -> Any:
    gpus = draw(st.lists(st.integers(0, 3), max_size=3, unique=True).map(tuple))
    ask = demand(
        draw(amounts),
        float(len(gpus)),
        draw(amounts),
        gpu_memory_gib=draw(st.sampled_from([0.0, 5.3, 16.0])) if gpus else 0.0,
        extended=draw(st.sampled_from([{}, {"licence": 1.5}])),
    )
    return task(draw(st.sampled_from(NODES)), gpus, ask)


@st.composite
def fraction_tasks(draw: st.DrawFn) -> Any:
    """Tasks that meet on two GPUs of the node that shares."""
    share, memory = draw(st.sampled_from([1 / 3, 0.5, 0.6, 0.125])), draw(st.sampled_from([0.0, 5.0, 7.0]))
    ask = demand(0.0, share, 0.0, gpu_memory_gib=memory)
    return task("s0", (draw(st.integers(0, 1)),), ask)


tasks = st.one_of(whole_tasks(), fraction_tasks(), fraction_tasks())


@st.composite
def jobs(draw: st.DrawFn) -> RunningJob:
    made = draw(st.lists(tasks, min_size=1, max_size=2))
    named = [replace(one, task=f"w{i}") for i, one in enumerate(made)]
    return job(draw(st.sampled_from(NAMES)), *named, sharing=draw(st.booleans()))


reservations = st.tuples(
    st.just("reserve"),
    st.lists(jobs(), min_size=1, max_size=2, unique_by=lambda j: j.id),
    st.sampled_from([LONG, LONG, LATE]),
    st.sampled_from(["", "", "q1", "q2"]),
    st.sampled_from([True, True, True, False]),
)
reports = st.one_of(
    jobs().map(started),
    st.builds(progress, st.sampled_from(NAMES), st.sampled_from([0.5, 1.0]), st.just(1.0)),
    st.builds(ended, st.sampled_from(NAMES), st.just("FAILED"), st.sampled_from(["", "r-j1"])),
    st.builds(JobReport, st.sampled_from(NAMES), st.just("STARTED"), st.just(7.0)),
)
steps = st.one_of(
    reservations,
    reservations,
    st.tuples(st.just("report"), st.lists(reports, min_size=1, max_size=4)),
    st.tuples(st.just("release"), st.lists(st.sampled_from([f"r-{name}" for name in NAMES]), max_size=3, unique=True)),
    st.tuples(st.just("expire")),
    st.tuples(st.just("node"), st.sampled_from(NODES), st.sampled_from(list(NodeState)), st.booleans()),
)


async def expected_tenants(store: StateStore, wanted: Sequence[RunningJob]) -> dict[str, tuple[str, ...]]:
    """Who is on the GPUs that are asked for, as an honest decision sees it."""
    view = ClusterView(await records(store))
    seen = {}
    for one in wanted:
        for assignment in one.assignments:
            m = view.nodes.index.get(assignment.node)
            for gpu in assignment.gpu_indices if m is not None else ():
                seen[f"{assignment.node}/{gpu}"] = tuple(tenant.job_id for tenant in view.usage.tenants(m, gpu))
    return seen


async def perform(store: StateStore, step: Sequence[Any]) -> Any:
    match step:
        case ["reserve", wanted, ttl_s, request_id, is_honest]:
            seen = await expected_tenants(store, wanted) if is_honest else {}
            return await store.reserve(CLUSTER, ReserveRequest(tuple(wanted), ttl_s, request_id, b"answer", seen))
        case ["report", sent]:
            return await store.report_jobs(CLUSTER, sent)
        case ["release", ids]:
            return await store.release(CLUSTER, ids)
        case ["expire"]:
            return await store.expire(CLUSTER)
        case ["node", name, state, is_full]:
            reported = replace(node(name, max_jobs_per_gpu=3 if name == "s0" else 1), state=state)
            return await store.report_nodes(CLUSTER, [reported], full=is_full)


def plain(value: Any) -> Any:
    """What two stores must agree on: everything but the life's name, the expiry's exact time and the order of sets."""
    data = msgspec.to_builtins(value, str_keys=True)

    def cleaned(part: Any) -> Any:
        if isinstance(part, dict):
            kept = {key: cleaned(item) for key, item in part.items() if key != "epoch"}
            return kept | {key: part[key] > 0 for key in ("expire_time_s",) if key in kept}
        if isinstance(part, list | tuple):
            items = [cleaned(item) for item in part]
            return sorted(items, key=repr) if all(isinstance(item, str) for item in items) else items
        return repr(float(part)) if isinstance(part, int | float) else repr(part)

    return cleaned(data)


def events_of(result: Any) -> Sequence[Event]:
    if isinstance(result, Reserved):
        return (result.event,)
    return result.events if isinstance(result, ReportResult) else ()


def totals(held: Sequence[RunningJob]) -> tuple[dict[str, float], dict[tuple[str, int], list[Hold]]]:
    """CPU by node and holds by GPU, added up from the jobs alone."""
    cpu: dict[str, float] = {}
    gpus: dict[tuple[str, int], list[Hold]] = {}
    for one in held:
        for hold in holds_of(one):
            cpu[hold.node] = cpu.get(hold.node, 0.0) + hold.cpu_cores
            for gpu in hold.gpus:
                gpus.setdefault((hold.node, gpu), []).append(hold)
    return cpu, gpus


def assert_nothing_given_twice(loaded: ClusterRecords) -> None:
    cpu, gpus = totals(loaded.jobs)
    assert all(amount <= 16.0 for amount in cpu.values())
    for holds in gpus.values():
        is_shared = all(hold.is_sharing for hold in holds)
        assert len(holds) == 1 or (is_shared and len(holds) <= 3)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.lists(steps, max_size=25))
def test_redis_does_what_the_reference_does(server: RedisServer, history: Sequence[Sequence[Any]]) -> None:
    asyncio.run(compare(server, history))


@asynccontextmanager
async def emptied(server: RedisServer) -> AsyncIterator[RedisStore]:
    """A store on the server, with nothing in it."""
    raw = server.client()
    raw.flushall()
    raw.close()
    store = RedisStore(RedisOptions(server.url))
    try:
        yield store
    finally:
        await store.close()


async def compare(server: RedisServer, history: Sequence[Sequence[Any]]) -> None:
    clock = ManualClock(1_000_000.0)
    memory = MemoryStore(clock)
    async with emptied(server) as on_redis:
        first = ["node", "s0", NodeState.READY, True]
        await perform(memory, first)
        await perform(on_redis, first)
        view = ClusterView(await records(on_redis))
        for step in history:
            clock.advance(0.001)
            expected, got = await perform(memory, step), await perform(on_redis, step)
            assert plain(got) == plain(expected), step
            for event in events_of(got):
                view.apply(event)
        await agree(memory, on_redis, view)


async def agree(memory: StateStore, on_redis: StateStore, view: ClusterView) -> None:
    """The stores hold the same; the view that followed the events equals a new one."""
    expected, got = await records(memory), await records(on_redis)
    assert plain(sorted(got.jobs, key=lambda j: j.id)) == plain(sorted(expected.jobs, key=lambda j: j.id))
    assert plain(replace(got, jobs=())) == plain(replace(expected, jobs=()))
    anew = ClusterView(got)
    for name, m in anew.nodes.index.items():
        assert (view.usage.free[:, view.nodes.index[name]] == anew.usage.free[:, m]).all()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.lists(st.one_of(reservations, reservations, reservations, st.tuples(st.just("expire"))), max_size=40))
def test_decisions_alone_never_oversubscribe(server: RedisServer, history: Sequence[Sequence[Any]]) -> None:
    asyncio.run(reserve_only(server, history))


async def reserve_only(server: RedisServer, history: Sequence[Sequence[Any]]) -> None:
    async with emptied(server) as store:
        nodes = [node(name, max_jobs_per_gpu=3 if name == "s0" else 1) for name in NODES]
        await store.report_nodes(CLUSTER, nodes, full=True)
        for step in history:
            before = await records(store)
            result = await perform(store, step)
            after = await records(store)
            assert_nothing_given_twice(after)
            if isinstance(result, Conflict):
                assert plain(after) == plain(before)
        held = (await records(store)).jobs
        assert all(one.state is RunState.RESERVED for one in held)
        await store.release(CLUSTER, [one.reservation_id for one in held])
        assert (await records(store)).jobs == ()
    raw = server.client()
    assert raw.hlen(keys_of(CLUSTER).used) == 0, "taking and giving back leaves no residue"
    raw.close()
