"""Bytes that changed in place: a real Redis' records and events are damaged, cut and swapped by hand."""

from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import redis
from tests.fakes.servers.redis_server import RedisServer
from tests.fakes.state import CLUSTER, ended, job, node, position, progress, records, same, started, tailed

from placewise_core.domain.cluster import ClusterSettings, QueueState
from placewise_service.state import codec
from placewise_service.state.errors import CorruptStateError
from placewise_service.state.keys import keys_of
from placewise_service.state.redis.connection import RedisOptions
from placewise_service.state.redis.redis_store import RedisStore
from placewise_service.state.store import Reserved, ReserveRequest

pytestmark = pytest.mark.e2e
KEYS = keys_of(CLUSTER)
RECORDS = {"nodes": "n0", "jobs": "a", "queues": "q", "meta": "settings"}


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    made = RedisServer().start()
    yield made
    made.stop()


@pytest.fixture
def raw(server: RedisServer) -> Iterator["redis.Redis[bytes]"]:
    client = server.client()
    client.flushall()
    yield client
    client.close()


@pytest.fixture
async def store(server: RedisServer, raw: "redis.Redis[bytes]") -> AsyncIterator[RedisStore]:
    made = RedisStore(RedisOptions(server.url))
    await made.report_nodes(CLUSTER, [node("n0"), node("n1")], full=True)
    await made.update_settings(CLUSTER, ClusterSettings(place_policy="best-fit"))
    await made.commit_queue(CLUSTER, QueueState("q", seq=1), 0)
    assert isinstance(await made.reserve(CLUSTER, ReserveRequest((job("a"),), 60.0)), Reserved)
    yield made
    await made.close()


def flipped(record: bytes, at: int) -> bytes:
    return record[:at] + bytes((record[at] ^ 0x01,)) + record[at + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "its number of fields": lambda record: flipped(record, 0),
    "its middle": lambda record: flipped(record, len(record) // 2),
    "the name of its sum": lambda record: flipped(record, len(record) - 7),
    "its sum": lambda record: flipped(record, len(record) - 1),
    "cut": lambda record: record[:-1],
    "cut before its sum": lambda record: record[:-9],
}


@pytest.mark.parametrize("key", RECORDS)
@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_record_is_refused_by_its_name(
    store: RedisStore, raw: "redis.Redis[bytes]", key: str, damage: str
) -> None:
    name = RECORDS[key]
    record = raw.hget(getattr(KEYS, key), name)
    assert record
    raw.hset(getattr(KEYS, key), name, DAMAGES[damage](record))
    with pytest.raises(CorruptStateError, match=f"cluster '{CLUSTER}' cannot be read") as refused:
        await store.load(CLUSTER)
    assert f"'{name}' in {getattr(KEYS, key)} is damaged" in refused.value.message
    assert "docs/state.md" in refused.value.message


@pytest.mark.parametrize("key", ["nodes", "jobs", "queues"])
async def test_a_record_under_anothers_name_is_refused(store: RedisStore, raw: "redis.Redis[bytes]", key: str) -> None:
    record = raw.hget(getattr(KEYS, key), RECORDS[key])
    assert record
    raw.hset(getattr(KEYS, key), "other", record)
    with pytest.raises(CorruptStateError, match="'other' in"):
        await store.load(CLUSTER)


async def test_a_damaged_job_is_not_looked_up(store: RedisStore, raw: "redis.Redis[bytes]") -> None:
    record = raw.hget(KEYS.jobs, "a")
    assert record
    raw.hset(KEYS.jobs, "a", DAMAGES["its middle"](record))
    with pytest.raises(CorruptStateError, match="'a' in"):
        await store.look_up(CLUSTER, [job("a").id])


async def test_a_damaged_job_is_not_passed_on_by_a_report(
    store: RedisStore, server: RedisServer, raw: "redis.Redis[bytes]"
) -> None:
    """A script puts the stored record into the event, and sums the event as it is."""
    record, place = raw.hget(KEYS.jobs, "a"), await position(store)
    assert record
    raw.hset(KEYS.jobs, "a", flipped(record, record.index(b"cpu_cores\xcb") + len(b"cpu_cores\xcb") + 2))
    with pytest.raises(CorruptStateError, match="'a' in"):
        await store.report_jobs(CLUSTER, [progress("a", 2.0, 1.0)])
    with pytest.raises(CorruptStateError, match="'a' in"):
        await anext(tailed(store, CLUSTER, place))


async def test_settings_and_queues_are_repaired_as_the_page_says(store: RedisStore, raw: "redis.Redis[bytes]") -> None:
    raw.hset(KEYS.meta, "settings", b"damaged")
    raw.hset(KEYS.queues, "q", b"damaged")
    with pytest.raises(CorruptStateError):
        await store.load(CLUSTER)
    await store.update_settings(CLUSTER, ClusterSettings())
    raw.hdel(KEYS.queues, "q")
    raw.hdel(KEYS.queue_seqs, "q")
    assert not (await records(store)).queues
    assert await store.commit_queue(CLUSTER, QueueState("q", seq=1), 0)


async def test_other_clusters_go_on(store: RedisStore, raw: "redis.Redis[bytes]") -> None:
    await store.report_nodes("other", [node("n0")], full=True)
    raw.hset(KEYS.nodes, "n0", flipped(codec.encode_record(node("n0")), 20))
    assert await store.load("other")


async def test_a_node_that_is_reported_anew_is_repaired(store: RedisStore, raw: "redis.Redis[bytes]") -> None:
    raw.hset(KEYS.nodes, "n0", flipped(codec.encode_record(node("n0")), 20))
    await store.report_nodes(CLUSTER, [node("n0")], full=False)
    assert (await records(store)).nodes


async def test_records_without_sums_are_read(store: RedisStore, raw: "redis.Redis[bytes]") -> None:
    before = await records(store)
    for key, name in (*RECORDS.items(), ("nodes", "n1")):
        record = raw.hget(getattr(KEYS, key), name)
        assert record
        raw.hset(getattr(KEYS, key), name, bytes((record[0] - 1,)) + record[1:-9])
    assert same(await records(store), before)


# -- rows that scripts compute --------------------------------------------------------------------------------------

ROWS = {"progress": "a", "overheads": "reduce", "profiles": "blast"}
EARLIER = {
    "progress": codec.encode((7.0, 2.5, 1.5)),
    "overheads": codec.encode(("reduce", 1, 0.5)),
    "profiles": codec.encode({"share": 2.0}),
}


async def add_to_rows(store: RedisStore, outcome: str = "o1") -> None:
    await store.report_jobs(CLUSTER, [progress("a", 2.5, 1.5)])
    await store.learn_overhead(CLUSTER, outcome, "reduce", 0.5)
    await store.profile_subtask(CLUSTER, "blast", {"share": 2.0})


@pytest.mark.parametrize("key", ROWS)
async def test_any_byte_of_a_row_that_changed_is_refused_by_its_name(
    store: RedisStore, raw: "redis.Redis[bytes]", key: str
) -> None:
    await add_to_rows(store)
    row = raw.hget(getattr(KEYS, key), ROWS[key])
    assert row
    for damaged in (*(flipped(row, at) for at in range(len(row))), row[:-1]):
        raw.hset(getattr(KEYS, key), ROWS[key], damaged)
        with pytest.raises(CorruptStateError, match=f"'{ROWS[key]}' in {getattr(KEYS, key)} is damaged"):
            await store.load(CLUSTER)


@pytest.mark.parametrize("key", ROWS)
async def test_a_row_under_anothers_name_or_without_its_sum_is_refused(
    store: RedisStore, raw: "redis.Redis[bytes]", key: str
) -> None:
    await add_to_rows(store)
    row = raw.hget(getattr(KEYS, key), ROWS[key])
    assert row
    raw.hset(getattr(KEYS, key), "other", row)
    with pytest.raises(CorruptStateError, match="'other' in"):
        await store.load(CLUSTER)
    raw.hdel(getattr(KEYS, key), "other")
    assert raw.hdel(KEYS.row_sums, f"{key}:{ROWS[key]}") == 1
    with pytest.raises(CorruptStateError, match=f"'{ROWS[key]}' in"):
        await store.load(CLUSTER)


async def test_rows_of_earlier_replicas_are_read_beside_the_sums_of_rows_that_they_replaced(
    store: RedisStore, raw: "redis.Redis[bytes]"
) -> None:
    await add_to_rows(store)
    for key, name in ROWS.items():
        raw.hset(getattr(KEYS, key), name, EARLIER[key])
    read = await records(store)
    assert (read.jobs[0].start_time_s, read.jobs[0].speed, read.jobs[0].epochs_done) == (7.0, 2.5, 1.5)
    assert read.overheads["reduce"].mean_overhead_s == 0.5
    assert read.subtask_profiles == {"blast": {"share": 2.0}}


async def test_nothing_is_added_to_a_damaged_row(store: RedisStore, raw: "redis.Redis[bytes]") -> None:
    """The next report writes it anew, and the cluster can be loaded."""
    await add_to_rows(store)
    for key, name in ROWS.items():
        row = raw.hget(getattr(KEYS, key), name)
        assert row
        raw.hset(getattr(KEYS, key), name, flipped(row, len(row) - 1))
    await add_to_rows(store, "o2")
    read = await records(store)
    assert (read.overheads["reduce"].count, read.subtask_profiles) == (1, {"blast": {"share": 2.0}})


async def test_sums_go_with_their_rows(store: RedisStore, raw: "redis.Redis[bytes]") -> None:
    """Also those of rows that an earlier replica removed, which knows no sums."""
    await add_to_rows(store)
    assert raw.hlen(KEYS.row_sums) == 3
    await store.report_jobs(CLUSTER, [ended("a")])
    assert raw.hkeys(KEYS.row_sums) == [b"overheads:reduce", b"profiles:blast"]
    raw.delete(KEYS.overheads)
    await store.forget_profiles(CLUSTER, (), 1e9)
    assert raw.hkeys(KEYS.row_sums) == [b"profiles:blast"]
    raw.delete(KEYS.profiles)
    await store.forget_profiles(CLUSTER, (), 1e9)
    assert not raw.exists(KEYS.row_sums)


# -- events -------------------------------------------------------------------------------------------------------


async def written(store: RedisStore, raw: "redis.Redis[bytes]") -> tuple[str, list[tuple[bytes, dict[bytes, bytes]]]]:
    """A reader's position, and the two events after it, taken out of the stream to be written again."""
    place = await position(store)
    await store.report_jobs(CLUSTER, [started(job("a"))])
    await store.report_nodes(CLUSTER, [node("n0")], full=False)
    events = raw.xrevrange(KEYS.events, count=2)[::-1]
    raw.xdel(KEYS.events, *(entry_id for entry_id, _ in events))
    return place, events


def write(server: RedisServer, raw: "redis.Redis[bytes]", events: list[tuple[bytes, dict[bytes, bytes]]]) -> None:
    """Puts the events under the ids that they had: Redis lets nobody add below the last id unless it is set."""
    raw.execute_command("XSETID", KEYS.events, raw.xinfo_stream(KEYS.events)["last-entry"][0])
    for entry_id, fields in events:
        raw.xadd(KEYS.events, fields, id=entry_id)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", [b"kind", b"body", b"args", b"sum"])
async def test_a_damaged_event_is_refused_by_its_version(
    store: RedisStore, server: RedisServer, raw: "redis.Redis[bytes]", field: bytes
) -> None:
    place, events = await written(store, raw)
    events[0][1][field] = flipped(events[0][1][field], len(events[0][1][field]) // 2)
    write(server, raw, events)
    with pytest.raises(CorruptStateError, match=f"'{events[0][0].decode()}' in {KEYS.events} is damaged"):
        await anext(tailed(store, CLUSTER, place))


async def test_a_damaged_name_of_the_sum_is_noticed(
    store: RedisStore, server: RedisServer, raw: "redis.Redis[bytes]"
) -> None:
    place, events = await written(store, raw)
    events[0][1][b"rum"] = events[0][1].pop(b"sum")
    write(server, raw, events)
    with pytest.raises(CorruptStateError, match="is damaged"):
        await anext(tailed(store, CLUSTER, place))


async def test_bodies_that_are_swapped_are_noticed(
    store: RedisStore, server: RedisServer, raw: "redis.Redis[bytes]"
) -> None:
    place, ((first, one), (second, other)) = await written(store, raw)
    write(server, raw, [(first, other), (second, one)])
    with pytest.raises(CorruptStateError, match="is damaged"):
        await anext(tailed(store, CLUSTER, place))


async def test_a_cluster_with_a_damaged_event_can_be_loaded_anew(
    store: RedisStore, server: RedisServer, raw: "redis.Redis[bytes]"
) -> None:
    place, events = await written(store, raw)
    events[0][1][b"body"] = b""
    write(server, raw, events)
    with pytest.raises(CorruptStateError):
        await anext(tailed(store, CLUSTER, place))
    assert (await records(store)).jobs


async def test_events_without_sums_are_read(store: RedisStore, server: RedisServer, raw: "redis.Redis[bytes]") -> None:
    place, events = await written(store, raw)
    for _, fields in events:
        del fields[b"sum"]
    write(server, raw, events)
    _, read = await anext(tailed(store, CLUSTER, place))
    assert len(read) == 2
