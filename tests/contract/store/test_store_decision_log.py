"""The ring of the decision log. On every store (conftest.py)."""

import re

import msgspec
import pytest
from tests.fakes.state import CLUSTER, Harness

from placewise_core.domain.asked import Asked, AskedJob, JobLinks
from placewise_core.domain.cluster import ClusterSettings
from placewise_log.logs import Log, LogState
from placewise_service.state.store import MOST_LINKED, StateStore


async def test_the_ring_keeps_the_last_and_counts_what_fell_off(store: StateStore) -> None:
    assert await store.append_decisions(CLUSTER, [b"1", b"2", b"3"]) == 0
    assert await store.append_decisions(CLUSTER, [b"4", b"5", b"6"]) == 1
    entries = await store.read_decisions(CLUSTER, "0", 100)
    assert [record for _, record in entries] == [b"2", b"3", b"4", b"5", b"6"]
    await store.mark_exported(CLUSTER, entries[1][0])
    assert await store.append_decisions(CLUSTER, [b"7", b"8", b"9"]) == 1
    later = await store.read_decisions(CLUSTER, entries[-1][0], 2)
    assert [record for _, record in later] == [b"7", b"8"]
    assert (await store.log_state(CLUSTER)).dropped == 2


async def test_the_ring_counts_what_was_lost_on_the_way(store: StateStore) -> None:
    assert await store.append_decisions(CLUSTER, [b"1"], lost=3) == 0
    assert await store.append_decisions(CLUSTER, [], lost=2) == 0
    assert await store.append_decisions(CLUSTER, [b"2"], Log.VIEWS, lost=1) == 0
    dropped = [(await store.log_state(CLUSTER, log)).dropped for log in (Log.DECISIONS, Log.VIEWS)]
    assert dropped == [5, 1]
    assert [record for _, record in await store.read_decisions(CLUSTER, "0", 9)] == [b"1"]
    await store.delete_cluster(CLUSTER)
    assert await store.log_state(CLUSTER) == LogState()


async def test_the_state_of_a_log_has_the_time_that_the_host_tells(harness: Harness) -> None:
    await harness.store.update_settings("hosted", ClusterSettings(host_clock=True))
    assert (await harness.store.log_state("hosted")).host_time_s == 0.0
    await harness.store.expire("hosted", 77.5)
    assert (await harness.store.log_state("hosted")).host_time_s == 77.5


async def test_the_ring_is_bounded_in_bytes_too(store: StateStore) -> None:
    assert await store.append_decisions(CLUSTER, [b"a" * 600, b"b" * 300]) == 0
    assert await store.append_decisions(CLUSTER, [b"c" * 200]) == 1
    assert await store.append_decisions(CLUSTER, [b"d" * 2000]) == 2, "the newest is kept, however large"
    assert [record for _, record in await store.read_decisions(CLUSTER, "0", 9)] == [b"d" * 2000]
    assert await store.append_decisions(CLUSTER, [b"e"]) == 1
    assert await store.append_decisions(CLUSTER, [b"f" * 999]) == 0


async def test_the_exported_position_never_moves_back(store: StateStore) -> None:
    assert (await store.log_state(CLUSTER)).exported == "0"
    await store.append_decisions(CLUSTER, [b"1", b"2"])
    (first, _), (second, _) = await store.read_decisions(CLUSTER, "0", 2)
    await store.mark_exported(CLUSTER, second)
    await store.mark_exported(CLUSTER, first)
    assert (await store.log_state(CLUSTER)).exported == second


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
    assert await harness.store.append_decisions(CLUSTER, [b"1", b"2"], lost=1) == 2
    await harness.store.mark_exported(CLUSTER, "1-0")
    assert harness.leftover_keys() == set()


async def test_closing_twice_is_fine(harness: Harness) -> None:
    await harness.store.ping()
    await harness.store.close()
    await harness.store.close()


def admits(job: str, decision: str) -> AskedJob:
    return AskedJob(Asked.ADMITTED, job, decision)


def waits(job: str, decision: str) -> AskedJob:
    return AskedJob(Asked.WAITS, job, decision)


def places(job: str, decision: str) -> AskedJob:
    return AskedJob(Asked.PLACED, job, decision)


async def test_the_store_links_a_place_with_the_admission_and_the_first_place(store: StateStore) -> None:
    assert await store.link_jobs(CLUSTER, [admits("a", "1"), admits("a", "2"), waits("b", "2")]) == [
        JobLinks("1", ""),
        JobLinks("1", "", first_admit="1"),
        JobLinks("", ""),
    ]
    first = [places("a", "3"), places("b", "3"), places("a", "4"), places("a", "3")]
    found = [JobLinks("1", "", "", "1"), JobLinks("", "", "", "2"), *[JobLinks("1", "3", "", "1")] * 2]
    assert await store.link_jobs(CLUSTER, first) == found
    assert await store.link_jobs(CLUSTER, [waits("a", "5"), places("a", "6")]) == [JobLinks("", "3", "", "1")] * 2
    assert await store.link_jobs(CLUSTER, [places("b", "2"), places("b", "7")]) == [
        JobLinks("", "3", "", "2"),
        JobLinks("", "2", "", "2"),
    ]
    assert await store.link_jobs(CLUSTER, [waits("a", "0"), waits("a", "8")]) == [
        JobLinks("", "3", "", "1"),
        JobLinks("", "3", "", "0"),
    ]


async def test_the_store_knows_the_first_of_unchanged_refusals(store: StateStore) -> None:
    def refused(job: str, decision: str, refusal: str) -> AskedJob:
        return AskedJob(Asked.WAITS, job, decision, refusal)

    nothing, first = JobLinks("", "", "", "1"), JobLinks("", "", "1", "1")
    new = [refused("a", "1", "x"), refused("b", "1", "x")]
    assert await store.link_jobs(CLUSTER, new) == [JobLinks("", "")] * 2
    again = [refused("a", "2", "x"), refused("a", "3", "x"), refused("b", "3", "y")]
    assert await store.link_jobs(CLUSTER, again) == [first, first, nothing]
    assert await store.link_jobs(CLUSTER, [refused("b", "4", "y"), refused("b", "5", "x"), refused("b", "6", "y")]) == [
        JobLinks("", "", "3", "1"),
        nothing,
        nothing,
    ]
    assert await store.link_jobs(CLUSTER, [admits("a", "7"), refused("a", "8", "x")]) == [
        JobLinks("7", "", "", "1"),
        nothing,
    ]
    assert await store.link_jobs(CLUSTER, [refused("a", "9", "x"), waits("a", "10"), waits("a", "11")]) == [
        JobLinks("", "", "8", "1"),
        nothing,
        nothing,
    ]


async def test_links_are_bounded_and_go_with_the_cluster(store: StateStore) -> None:
    await store.link_jobs(CLUSTER, [admits("old", "1"), admits("asked", "1")])
    for begin in range(0, 2 * MOST_LINKED + 2, 2048):
        await store.link_jobs(CLUSTER, [admits("asked", "2"), *(admits(f"j{begin + i}", "1") for i in range(2048))])
    asked = [places("old", "3"), places("asked", "3")]
    assert await store.link_jobs(CLUSTER, asked) == [JobLinks("", ""), JobLinks("1", "", "", "1")]
    await store.delete_cluster(CLUSTER)
    assert await store.link_jobs(CLUSTER, asked) == []


async def test_a_full_log_is_read_no_further_than_entries_fall_off(harness: Harness, store: StateStore) -> None:
    """An entry may have a quarter of a MiB: 64 of them stopped Redis for ten milliseconds at each append."""
    if harness.kind != "redis":
        pytest.skip("what a script reads is seen on one Redis")
    await store.append_decisions(CLUSTER, [b"x" * 10] * 5)
    with harness.raw.monitor() as monitor:
        assert await store.append_decisions(CLUSTER, [b"x" * 10]) == 1
        harness.raw.ping()
        seen = list[str]()
        while not seen or seen[-1] != "PING":
            seen.append(str(monitor.next_command()["command"]))
    read = [int(found[1]) for command in seen if (found := re.search(r"XRANGE .* COUNT (\d+)", command))]
    assert read == [1]
