"""The log of views: events copied once, whoever asks, and bounded as the other log. On every store (conftest.py)."""

from tests.fakes.state import CLUSTER, Harness, collect, ended, hold, job, node, position, progress, same

from placewise_core.domain.cluster import ClusterSettings, QueueState
from placewise_log.logs import Log
from placewise_log.views import Events, decode_view_entry, heading_of
from placewise_service.state.store import StateStore


async def copied(store: StateStore) -> list[Events]:
    found = [decode_view_entry(record) for _, record in await store.read_decisions(CLUSTER, "0", 100, Log.VIEWS)]
    return [entry for entry in found if isinstance(entry, Events)]


async def test_every_event_is_copied_once_and_reads_as_in_the_stream(harness: Harness, store: StateStore) -> None:
    start = await position(store)
    await store.copy_events(CLUSTER)  # of the nodes
    await hold(store, job("a"))
    await store.report_jobs(CLUSTER, [progress("a", 2.0, 0.5)])
    await store.profile_subtask(CLUSTER, "scan", {"cpu_s": 1.5})
    await store.commit_queue(CLUSTER, QueueState("q", 5.0), 0)
    await store.update_settings(CLUSTER, ClusterSettings(place_policy="tetris"))
    await store.learn_overhead(CLUSTER, "o", "fft", 0.25)
    await store.report_jobs(CLUSTER, [ended("a")])
    wanted = await collect(store, start, 7)
    for replica in (store, harness.other(), store):
        assert await replica.copy_events(CLUSTER) == (False, 0)
    found = [event for entry in (await copied(store))[1:] for event in entry.events]
    assert same(found, wanted)
    assert (await copied(store))[-1].epoch == wanted[0].epoch


async def test_an_entry_says_which_versions_it_covers(store: StateStore) -> None:
    await store.copy_events(CLUSTER)
    await hold(store, job("a"))
    await store.report_nodes(CLUSTER, [node("n9")], full=False)
    await store.copy_events(CLUSTER)
    _, record = (await store.read_decisions(CLUSTER, "0", 9, Log.VIEWS))[-1]
    entry = decode_view_entry(record)
    assert isinstance(entry, Events)
    entry_id, heading = heading_of(record)
    assert (heading.kind, heading.name, heading.first_version, heading.last_version) == ("events", entry.epoch, 2, 3)
    assert entry_id.startswith(f"{entry.epoch}:2-")


async def test_events_that_are_no_longer_kept_leave_a_gap(harness: Harness, store: StateStore) -> None:
    await store.copy_events(CLUSTER)
    for i in range(3):
        await store.report_nodes(CLUSTER, [node(f"m{i}")], full=False)
    await harness.trim()
    await store.copy_events(CLUSTER)
    assert [event.version for entry in await copied(store) for event in entry.events] == [1, 4]


async def test_the_logs_have_positions_and_bounds_of_their_own(store: StateStore) -> None:
    await store.append_decisions(CLUSTER, [b"a" * 900])
    assert await store.append_decisions(CLUSTER, [b"v" * 9000], Log.VIEWS) == 0
    ((place, _),) = await store.read_decisions(CLUSTER, "0", 9, Log.VIEWS)
    await store.mark_exported(CLUSTER, place, Log.VIEWS)
    assert [(await store.log_state(CLUSTER, log)).exported for log in Log] == ["0", place]
    assert await store.append_decisions(CLUSTER, [b"w" * 19_000], Log.VIEWS) == 0, "the exported one fell off"
    assert await store.append_decisions(CLUSTER, [b"x" * 19_000], Log.VIEWS) == 1
    assert len(await store.read_decisions(CLUSTER, "0", 9)) == 1


async def test_a_cluster_that_is_gone_leaves_no_log_of_views(harness: Harness, store: StateStore) -> None:
    await store.copy_events(CLUSTER)
    await store.delete_cluster(CLUSTER)
    assert await store.copy_events(CLUSTER) == (False, 0)
    assert await store.append_decisions(CLUSTER, [b"1"], Log.VIEWS) == 1
    assert harness.leftover_keys() == set()
