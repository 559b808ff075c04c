"""What every state store must do: the same tests on memory, on one Redis and on a Redis Cluster of three nodes."""

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import msgspec
import pytest
import redis
from redis.cluster import RedisCluster as SyncRedisCluster
from tests.fakes.redis_server import RedisClusterServers, RedisServer
from tests.fakes.state import (
    CLUSTER,
    Harness,
    demand,
    ended,
    job,
    memory_harness,
    node,
    position,
    progress,
    records,
    redis_harness,
    same,
    started,
    task,
)

from placewise_core.cluster import (
    ClusterSettings,
    Gpu,
    NodeState,
    QueueSettings,
    QueueState,
    RunningJob,
    RunState,
    Telemetry,
)
from placewise_core.errors import NotFoundError, StaleSnapshotError
from placewise_core.events import (
    ClusterDeleted,
    Event,
    JobsChanged,
    JobsEnded,
    NodesReported,
    QueueAdvanced,
    SettingsChanged,
)
from placewise_core.view import ClusterView
from placewise_service.state.options import StoreOptions
from placewise_service.state.store import (
    BundleChoice,
    Conflict,
    JobReport,
    Repeated,
    Reserved,
    ReserveRequest,
    StateStore,
)

OPTIONS = StoreOptions(answer_ttl_s=0.2, ended_ttl_s=0.3, outcome_ttl_s=0.3, ring_records=5, ring_bytes=1000)


@pytest.fixture(scope="module")
def one_server() -> Iterator[RedisServer]:
    server = RedisServer().start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def three_servers() -> Iterator[RedisClusterServers]:
    servers = RedisClusterServers().start()
    yield servers
    servers.stop()


@pytest.fixture(params=["memory", "redis", "cluster"])
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    if request.param == "memory":
        made = memory_harness(OPTIONS)
    elif request.param == "redis":
        server = request.getfixturevalue("one_server")
        raw: redis.Redis = server.client()
        raw.flushall()
        made = redis_harness("redis", server.url, raw, OPTIONS)
    else:
        servers = request.getfixturevalue("three_servers")
        cluster = SyncRedisCluster(host="127.0.0.1", port=servers.nodes[0].port)
        cluster.flushall(target_nodes=SyncRedisCluster.PRIMARIES)
        made = redis_harness("cluster", servers.url, cluster, OPTIONS)
    yield made
    await made.close()


@pytest.fixture
async def store(harness: Harness) -> StateStore:
    """A store with two nodes, n0 exclusive and s0 with up to three jobs per GPU."""
    await harness.store.report_nodes(CLUSTER, [node("n0"), node("s0", max_jobs_per_gpu=3)], full=True)
    return harness.store


async def hold(store: StateStore, *jobs: object, ttl_s: float = 60.0, **more: object) -> object:
    return await store.reserve(CLUSTER, ReserveRequest(jobs, ttl_s, **more))  # type: ignore[arg-type]


# -- clusters and nodes -------------------------------------------------------------------------------------------


async def test_the_store_has_a_clock(harness: Harness) -> None:
    first = await harness.store.ping()
    await harness.advance(0.01)
    assert await harness.store.ping() >= first + 0.01 > 0


async def test_a_cluster_begins_with_its_first_report(harness: Harness) -> None:
    assert await harness.store.load(CLUSTER) is None
    assert await harness.store.clusters() == []
    await harness.store.report_nodes(CLUSTER, [node()], full=False)
    await harness.store.update_settings("alps", ClusterSettings())
    assert await harness.store.clusters() == ["alps", CLUSTER]


async def test_nodes_come_back_as_reported(harness: Harness) -> None:
    telemetry = Telemetry(cpu_util=0.25, gpu_celsius=71.5, observe_time_s=1_700_000_000.125)
    reported = replace(
        node(), telemetry=telemetry, labels={"zone": "é"}, rack="r1", gpus=(Gpu(0, "T4", 16.0, util=0.5), Gpu(2, "T4"))
    )
    result = await harness.store.report_nodes(CLUSTER, [reported], full=False)
    loaded = await records(harness.store)
    assert same(loaded.nodes, (reported,))
    assert math.isnan(loaded.nodes[0].telemetry.power_watts)
    assert loaded.version == result.version == 1
    assert same(result.events, (Event(1, loaded.epoch, NodesReported((reported,))),))


async def test_a_full_report_removes_the_other_nodes(store: StateStore) -> None:
    result = await store.report_nodes(CLUSTER, [node("n1")], full=True)
    assert [n.id for n in (await records(store)).nodes] == ["n1"]
    change = result.events[0].change
    assert isinstance(change, NodesReported)
    assert set(change.removed) == {"n0", "s0"}


async def test_a_partial_report_keeps_the_other_nodes(store: StateStore) -> None:
    await store.report_nodes(CLUSTER, [node("n0", state=NodeState.DOWN), node("n1")], full=False)
    assert {n.id: n.state for n in (await records(store)).nodes} == {
        "n0": NodeState.DOWN,
        "n1": NodeState.READY,
        "s0": NodeState.READY,
    }


async def test_a_large_report_is_one_event(harness: Harness) -> None:
    many = [node(f"n{i}") for i in range(600)]
    await harness.store.update_settings(CLUSTER, ClusterSettings())
    start = await position(harness.store)
    result = await harness.store.report_nodes(CLUSTER, many, full=True)
    assert result.version == 2
    events = await collect(harness.store, start, 1)
    assert same(events[0].change, NodesReported(tuple(many)))


async def test_clusters_do_not_touch_each_other(store: StateStore) -> None:
    await store.report_nodes("alps", [node("n0")], full=True)
    assert isinstance(await hold(store, job("a")), Reserved)
    assert isinstance(await store.reserve("alps", ReserveRequest((job("a"),), 60.0)), Reserved)
    await store.delete_cluster("alps")
    assert [j.id for j in (await records(store)).jobs] == ["a"]


# -- reserving ----------------------------------------------------------------------------------------------------


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
    with pytest.raises(ValueError, match="a job comes twice"):
        await hold(store, job("a"), job("a"))
    with pytest.raises(ValueError, match="names a GPU twice"):
        await hold(store, job("a", task(gpus=(0, 0))))


async def test_an_unknown_cluster_holds_nothing(harness: Harness) -> None:
    assert await hold(harness.store, job("a")) == Conflict("", "CLUSTER_UNKNOWN")
    assert harness.leftover_keys() == set()


async def test_a_repeated_request_gets_the_first_answer(harness: Harness, store: StateStore) -> None:
    first = await hold(store, job("a"), request_id="q1", answer=b"\x00first")
    assert isinstance(first, Reserved)
    again = await hold(harness.other(), job("b", task(gpus=(1,))), request_id="q1", answer=b"second")
    assert again == Repeated(b"\x00first", pytest.approx(first.expire_time_s, abs=2e-6))
    assert await harness.other().remember(CLUSTER, "q1", b"third") == again
    assert len((await records(store)).jobs) == 1
    await harness.advance(0.25)
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
    assert same(result.running, (running["b"], running["a"])), "what runs is told as it runs"
    assert running.keys() == {"a", "b"}


# -- sharing ------------------------------------------------------------------------------------------------------


def third(name: str, gpu: int = 0) -> object:
    return job(name, task("s0", (gpu,), demand(gpus=1 / 3)))


async def test_fractions_fill_a_gpu_exactly(store: StateStore) -> None:
    seen: tuple[str, ...] = ()
    for name in ("a", "b", "c"):
        assert isinstance(await hold(store, third(name), expected_tenants={"s0/0": seen}), Reserved)
        seen = (*seen, name)
    assert await hold(store, third("d"), expected_tenants={"s0/0": seen}) == Conflict("s0", "GPU_SHARE_FULL")


async def test_a_gpu_takes_no_more_jobs_than_it_may(store: StateStore) -> None:
    small = [job(name, task("s0", (0,), demand(gpus=0.125))) for name in "abcd"]
    for i in range(3):
        assert isinstance(await hold(store, small[i], expected_tenants={"s0/0": tuple("abc"[:i])}), Reserved)
    assert await hold(store, small[3], expected_tenants={"s0/0": ("a", "b", "c")}) == Conflict("s0", "GPU_SHARE_FULL")


async def test_fractions_never_add_up_to_more_than_a_gpu(store: StateStore) -> None:
    def part(name: str) -> RunningJob:
        return job(name, task("s0", (0,), demand(gpus=0.6)))

    assert isinstance(await hold(store, part("a")), Reserved)
    assert await hold(store, part("b"), expected_tenants={"s0/0": ("a",)}) == Conflict("s0", "GPU_SHARE_FULL")


async def test_exclusive_and_sharing_jobs_do_not_mix(store: StateStore) -> None:
    await hold(store, job("a", task("s0", (0,))), job("b", task("s0", (1,)), sharing=True))
    assert await hold(store, third("c", 0), expected_tenants={"s0/0": ("a",)}) == Conflict("s0", "GPU_TAKEN")
    assert await hold(store, job("c", task("s0", (1,)))) == Conflict("s0", "GPU_TAKEN")
    whole = job("c", task("s0", (1,)), sharing=True)
    assert isinstance(await hold(store, whole, expected_tenants={"s0/1": ("b",)}), Reserved)


async def test_shared_gpu_memory_is_counted_per_gpu(store: StateStore) -> None:
    def ask(name: str) -> object:
        return job(name, task("s0", (0, 1), demand(gpus=2.0, gpu_memory_gib=20.0)), sharing=True)

    assert isinstance(await hold(store, ask("a")), Reserved)
    seen = {"s0/0": ("a",), "s0/1": ("a",)}
    assert await hold(store, ask("b"), expected_tenants=seen) == Conflict("s0", "INSUFFICIENT_GPU_MEMORY")


@pytest.mark.parametrize("seen", [{}, {"s0/0": ()}, {"s0/0": ("b",)}, {"s0/0": ("a", "b")}])
async def test_other_tenants_than_the_decision_saw_conflict(
    store: StateStore, seen: dict[str, tuple[str, ...]]
) -> None:
    await hold(store, third("a"))
    result = await hold(store, third("x"), expected_tenants=seen)
    assert result == Conflict("s0", "GPU_TENANTS_CHANGED")


async def test_a_tenant_that_left_conflicts_too(store: StateStore) -> None:
    assert await hold(store, third("x"), expected_tenants={"s0/0": ("a",)}) == Conflict("s0", "GPU_TENANTS_CHANGED")


async def test_jobs_of_one_request_are_no_surprise_to_each_other(store: StateStore) -> None:
    await hold(store, third("a"))
    seen = {"s0/0": ("a", "b")}
    assert isinstance(await hold(store, third("b"), third("c"), expected_tenants=seen), Reserved)


# -- giving back --------------------------------------------------------------------------------------------------


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


# -- what hosts report --------------------------------------------------------------------------------------------


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


# -- queues, settings, learning -----------------------------------------------------------------------------------


async def test_a_queue_moves_once_per_seq(harness: Harness, store: StateStore) -> None:
    queue = QueueState("q", backlog_s=3.5, slot=7, waiting={"a": 1.0}, admitted={"b": (1, 2, 7)})
    event = await store.commit_queue(CLUSTER, queue, 0)
    assert event is not None
    assert event.change == QueueAdvanced(replace(queue, seq=1))
    assert await harness.other().commit_queue(CLUSTER, replace(queue, slot=8), 0) is None
    assert await store.commit_queue(CLUSTER, replace(queue, slot=8), 1) is not None
    assert (await records(store)).queues == {"q": replace(queue, slot=8, seq=2)}


async def test_of_many_commits_of_one_seq_one_wins(harness: Harness, store: StateStore) -> None:
    stores = [harness.other() for _ in range(8)]
    results = await asyncio.gather(*(s.commit_queue(CLUSTER, QueueState("q", slot=i), 0) for i, s in enumerate(stores)))
    assert sum(result is not None for result in results) == 1


async def test_settings_are_replaced(store: StateStore) -> None:
    settings = ClusterSettings("tetris", "qos", 0.1, {"q": QueueSettings(v=2.0)})
    event = await store.update_settings(CLUSTER, settings)
    assert event.change == SettingsChanged(settings)
    assert (await records(store)).settings == settings


async def test_overheads_are_averaged_each_outcome_once(store: StateStore) -> None:
    for outcome, value in (("o1", 1.0), ("o2", 2.0), ("o2", 9.0), ("o3", 6.0)):
        await store.learn_overhead(CLUSTER, outcome, "sort", value)
    assert await store.learn_overhead(CLUSTER, "o3", "sort", 1.0) is None
    learned = (await records(store)).overheads["sort"]
    assert (learned.count, learned.mean_overhead_s) == (3, pytest.approx(3.0))


async def test_profiles_are_merged(store: StateStore) -> None:
    await store.profile_subtask(CLUSTER, "decode", {})
    await store.profile_subtask(CLUSTER, "decode", {"a": 1.0, "b": 2.25})
    await store.profile_subtask(CLUSTER, "decode", {"b": math.nan, "c": 3.0})
    row = (await records(store)).subtask_profiles["decode"]
    assert (row["a"], math.isnan(row["b"]), row["c"]) == (1.0, True, 3.0)


async def test_mutations_of_an_unknown_cluster_say_so(harness: Harness) -> None:
    store = harness.store
    with pytest.raises(NotFoundError):
        await store.report_jobs(CLUSTER, [ended("a")])
    with pytest.raises(NotFoundError):
        await store.commit_queue(CLUSTER, QueueState("q"), 0)
    with pytest.raises(NotFoundError):
        await store.learn_overhead(CLUSTER, "o", "k", 1.0)
    with pytest.raises(NotFoundError):
        await store.profile_subtask(CLUSTER, "k", {"a": 1.0})
    assert not await store.delete_cluster(CLUSTER)
    assert harness.leftover_keys() == set()


@pytest.mark.parametrize("name", ["", "a{b", "a}b"])
async def test_names_that_break_the_key_schema_are_refused(harness: Harness, name: str) -> None:
    with pytest.raises(ValueError, match="braces"):
        await harness.store.report_nodes(name, [node()], full=True)


# -- remembering --------------------------------------------------------------------------------------------------


async def test_the_first_answer_stands(harness: Harness, store: StateStore) -> None:
    assert await store.remember(CLUSTER, "q", b"one") == Repeated(b"one")
    assert await harness.other().remember(CLUSTER, "q", b"two") == Repeated(b"one")
    assert await hold(store, job("a"), request_id="q", answer=b"three") == Repeated(b"one")
    await harness.advance(0.25)
    assert await store.remember(CLUSTER, "q", b"four") == Repeated(b"four")


# -- bundles ------------------------------------------------------------------------------------------------------


async def test_the_choice_of_bundles_is_one_for_all(harness: Harness) -> None:
    store = harness.store
    assert await store.bundles() == BundleChoice()
    assert await store.choose_bundles(BundleChoice(0, "a", "", ""))
    assert not await harness.other().choose_bundles(BundleChoice(0, "b", "", "")), "decided on what is past"
    assert await harness.other().choose_bundles(BundleChoice(1, "é", "a", "c"))
    assert await store.bundles() == BundleChoice(2, "é", "a", "c")
    assert await store.choose_bundles(BundleChoice(2, "a"))
    assert await harness.other().bundles() == BundleChoice(3, "a", "", "")


# -- deleting -----------------------------------------------------------------------------------------------------


async def test_a_deleted_cluster_leaves_nothing_and_may_begin_anew(harness: Harness, store: StateStore) -> None:
    await store.report_jobs(CLUSTER, [started(job("a")), ended("z")])
    await hold(store, job("b", task(gpus=(1,))), request_id="q", answer=b"x")
    await store.commit_queue(CLUSTER, QueueState("q"), 0)
    await store.learn_overhead(CLUSTER, "o", "k", 1.0)
    await store.profile_subtask(CLUSTER, "k", {"a": 1.0})
    await store.append_decisions(CLUSTER, [b"r"])
    await store.mark_exported(CLUSTER, "1-0")
    old = await records(store)
    assert await store.delete_cluster(CLUSTER)
    assert await store.load(CLUSTER) is None
    assert await store.clusters() == []
    assert harness.leftover_keys() == set()
    await store.report_nodes(CLUSTER, [node()], full=True)
    new = await records(store)
    assert new.epoch != old.epoch
    assert new.version == 1
    assert new.jobs == ()
    assert new.queues == {}
    assert isinstance(await hold(store, job("a"), request_id="q", answer=b"y"), Reserved)


# -- following ----------------------------------------------------------------------------------------------------


async def collect(store: StateStore, start: str, count: int) -> list[Event]:
    """The next `count` events."""
    found: list[Event] = []
    async with asyncio.timeout(10):
        async for _, events in store.tail(CLUSTER, start):
            found += events
            if len(found) >= count:
                break
    return found


async def test_a_tail_gives_every_later_event_in_order(harness: Harness, store: StateStore) -> None:
    start = await position(store)
    made = []
    reserved = await hold(store, job("a"))
    assert isinstance(reserved, Reserved)
    made.append(reserved.event)
    made += (await store.report_jobs(CLUSTER, [started(job("a")), progress("a", 1.0, 2.0), ended("a")])).events
    made.append(await store.update_settings(CLUSTER, ClusterSettings("lif")))
    made += (await store.report_nodes(CLUSTER, [node("n9")], full=True)).events
    assert same(await collect(harness.other(), start, len(made)), made)
    assert [e.version for e in made] == list(range(2, 2 + len(made)))


async def test_a_tail_goes_on_from_any_position(store: StateStore) -> None:
    start = await position(store)
    for i in range(3):
        await store.update_settings(CLUSTER, ClusterSettings(f"p{i}"))
    places = []
    async for place, events in store.tail(CLUSTER, start):
        places.append(place)
        if events:
            break
    await store.update_settings(CLUSTER, ClusterSettings("last"))
    (event,) = await collect(store, places[-1], 1)
    assert event.change == SettingsChanged(ClusterSettings("last"))


async def test_a_quiet_tail_tells_that_the_store_is_alive(store: StateStore) -> None:
    start = await position(store)
    async with asyncio.timeout(5):
        async for place, events in store.tail(CLUSTER, start):
            assert (place, list(events)) == (start, [])
            break


async def test_a_tail_hears_at_once(harness: Harness, store: StateStore) -> None:
    waiting = asyncio.create_task(collect(harness.other(), await position(store), 1))
    await asyncio.sleep(0.05)
    await store.update_settings(CLUSTER, ClusterSettings("now"))
    assert len(await waiting) == 1


async def test_a_tail_that_fell_behind_says_so(harness: Harness, store: StateStore) -> None:
    start = await position(store)
    for i in range(3):
        await store.update_settings(CLUSTER, ClusterSettings(f"p{i}"))
    await harness.trim()
    with pytest.raises(StaleSnapshotError):
        await collect(store, start, 1)
    assert await collect_nothing(store, await position(store))


async def collect_nothing(store: StateStore, start: str) -> bool:
    async for _, events in store.tail(CLUSTER, start):
        return not events
    return False


async def test_a_tail_of_another_life_says_so(harness: Harness, store: StateStore) -> None:
    start = await position(store)
    await store.delete_cluster(CLUSTER)
    await store.report_nodes(CLUSTER, [node()], full=True)
    with pytest.raises(StaleSnapshotError):
        await collect(store, start, 1)


async def test_a_tail_ends_with_the_cluster(harness: Harness, store: StateStore) -> None:
    start = await position(store)
    other = harness.other()

    async def follow() -> list[Event]:
        return [event async for _, events in other.tail(CLUSTER, start) for event in events]

    following = asyncio.create_task(follow())
    await asyncio.sleep(0.05)
    await store.delete_cluster(CLUSTER)
    async with asyncio.timeout(5):
        events = await following
    assert [event.change for event in events] == [ClusterDeleted()]


async def test_a_view_that_follows_equals_a_view_built_anew(harness: Harness, store: StateStore) -> None:
    loaded = await store.load(CLUSTER)
    assert loaded is not None
    view = ClusterView(loaded[0])
    await hold(store, job("a", task(gpus=(0, 3), ask=demand(2.5, 2.0, 3.0))), third("b"))
    await hold(store, third("c"), ttl_s=0.0, expected_tenants={"s0/0": ("b",)})
    await store.expire(CLUSTER)
    await store.report_jobs(CLUSTER, [started(job("a", task("s0", (3,)))), progress("a", 1.0, 1.0)])
    await store.report_nodes(CLUSTER, [node("n2"), node("n0", state=NodeState.DOWN)], full=False)
    anew = ClusterView(await records(store))
    for event in await collect(harness.other(), loaded[1], anew.version - view.version):
        view.apply(event)
    assert view.version == anew.version
    assert set(view.index) == set(anew.index)
    for name, m in view.index.items():
        assert (view.free[:, m] == anew.free[:, anew.index[name]]).all()
        assert (view.gpu_fraction_free[m] == anew.gpu_fraction_free[anew.index[name]]).all()
    assert same(sorted(view.jobs.values(), key=lambda j: j.id), sorted(anew.jobs.values(), key=lambda j: j.id))


# -- decision log -------------------------------------------------------------------------------------------------


async def test_the_ring_keeps_the_last_and_counts_what_fell_off(store: StateStore) -> None:
    assert await store.append_decisions(CLUSTER, [b"1", b"2", b"3"]) == 0
    assert await store.append_decisions(CLUSTER, [b"4", b"5", b"6"]) == 1
    entries = await store.read_decisions(CLUSTER, "0", 100)
    assert [record for _, record in entries] == [b"2", b"3", b"4", b"5", b"6"]
    await store.mark_exported(CLUSTER, entries[1][0])
    assert await store.append_decisions(CLUSTER, [b"7", b"8", b"9"]) == 1
    later = await store.read_decisions(CLUSTER, entries[-1][0], 2)
    assert [record for _, record in later] == [b"7", b"8"]


async def test_the_ring_is_bounded_in_bytes_too(store: StateStore) -> None:
    assert await store.append_decisions(CLUSTER, [b"a" * 600, b"b" * 300]) == 0
    assert await store.append_decisions(CLUSTER, [b"c" * 200]) == 1
    assert await store.append_decisions(CLUSTER, [b"d" * 2000]) == 2, "the newest is kept, however large"
    assert [record for _, record in await store.read_decisions(CLUSTER, "0", 9)] == [b"d" * 2000]
    assert await store.append_decisions(CLUSTER, [b"e"]) == 1
    assert await store.append_decisions(CLUSTER, [b"f" * 999]) == 0


async def test_the_exported_position_never_moves_back(store: StateStore) -> None:
    assert await store.exported(CLUSTER) == "0"
    await store.append_decisions(CLUSTER, [b"1", b"2"])
    (first, _), (second, _) = await store.read_decisions(CLUSTER, "0", 2)
    await store.mark_exported(CLUSTER, second)
    await store.mark_exported(CLUSTER, first)
    assert await store.exported(CLUSTER) == second


async def test_a_decision_is_found_by_its_id(harness: Harness, store: StateStore) -> None:
    now_ms = int(await store.ping() * 1000)
    ids = [f"{now_ms:012x}"[:8] + "-" + f"{now_ms:012x}"[8:] + f"-7000-8000-00000000000{i}" for i in range(3)]
    outcome = msgspec.msgpack.encode((1, "outcome", ids[0], {}))
    entries = [outcome, *(msgspec.msgpack.encode((1, "decision", name, {"n": name})) for name in ids[:2])]
    await store.append_decisions(CLUSTER, [*entries, b"nonsense"])
    assert await store.find_decision(CLUSTER, ids[0]) == entries[1]
    assert await store.find_decision(CLUSTER, ids[1]) == entries[2]
    assert await store.find_decision(CLUSTER, ids[2]) is None
    assert await store.find_decision(CLUSTER, "no-uuid") is None


async def test_decisions_of_an_unknown_cluster_are_counted_as_lost(harness: Harness) -> None:
    assert await harness.store.append_decisions(CLUSTER, [b"1", b"2"]) == 2
    await harness.store.mark_exported(CLUSTER, "1-0")
    assert harness.leftover_keys() == set()


async def test_closing_twice_is_fine(harness: Harness) -> None:
    await harness.store.ping()
    await harness.store.close()
    await harness.store.close()
