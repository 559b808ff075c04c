"""Queues, settings, the choice of bundles, and learned values. On every store (conftest.py)."""

import asyncio
import math
from dataclasses import replace

import pytest
from msgspec import msgpack
from tests.fakes.state import CLUSTER, Harness, collect, ended, node, position, records, same

from placewise_core.domain.cluster import ClusterSettings, HeadReservation, QueueSettings, QueueState
from placewise_core.domain.errors import NotFoundError
from placewise_core.domain.events import QueueAdvanced, SettingsChanged, SubtaskForgotten
from placewise_core.domain.job import CoRun
from placewise_core.speed.co_runs import CoRunBook, PairSpeeds, rows_of
from placewise_core.view.view import ClusterView
from placewise_service.state.errors import CorruptStateError
from placewise_service.state.keys import keys_of
from placewise_service.state.store import (
    MOST_CHANGES,
    MOST_FORGOTTEN,
    ActiveChoice,
    BundleChange,
    BundleChoice,
    CanaryChoice,
    ChangeKind,
    ShadowChoice,
    StateStore,
)


async def test_a_queue_moves_once_per_seq(harness: Harness, store: StateStore) -> None:
    head = HeadReservation("a", ("n0", "n1"), 1.5, 2.5, 3.5, 4.5, passes=("b",))
    queue = QueueState("q", backlog_s=3.5, slot=7, waiting={"a": 1.0}, admitted={"b": (1, 2, 7)}, head=head)
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


async def test_co_runs_lie_beside_profiles(store: StateStore) -> None:
    await store.profile_subtask(CLUSTER, "decode", {"a": 1.0})
    for co_run in (CoRun("LM", 0.5, 0.75), CoRun("Réseau 50", 0.25, 0.5, "V100", 0.125)):
        for kind, row in rows_of([("Our Net", (co_run,))]).items():
            await store.profile_subtask(CLUSTER, kind, row)
    loaded = await records(store)
    known = CoRunBook(loaded.subtask_profiles, ()).known_with(()).of("ournet", "v100")
    assert known == {"lm": PairSpeeds(0.5, 0.75), "rseau50": PairSpeeds(0.25, 0.5, 0.125)}
    assert ClusterView(loaded).subtask_profiles == {"decode": {"a": 1.0}}


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


async def test_the_choice_of_bundles_is_one_for_all(harness: Harness) -> None:
    store = harness.store
    assert await store.bundles() == BundleChoice()
    assert await store.choose_bundles(BundleChoice(0, "a", "", ""))
    assert not await harness.other().choose_bundles(BundleChoice(0, "b", "", "")), "decided on an old choice"
    assert await harness.other().choose_bundles(BundleChoice(1, "é", "a", "c"))
    assert await store.bundles() == BundleChoice(2, "é", "a", "c")
    assert await store.choose_bundles(BundleChoice(2, "a"))
    assert await harness.other().bundles() == BundleChoice(3, "a", "", "")
    digests = BundleChoice(3, "a", "b", "c", "1" * 64, "2" * 64, "3" * 64)
    assert await store.choose_bundles(digests)
    assert await harness.other().bundles() == replace(digests, seq=4)


async def test_shadows_of_clusters_are_part_of_the_choice(harness: Harness) -> None:
    store = harness.store
    lab = ShadowChoice("b", "1" * 64, "harmony")
    choice = BundleChoice(0, "a", shadow_policy="search").with_shadow("lab", lab)
    assert await store.choose_bundles(choice)
    kept = await harness.other().bundles()
    assert kept == replace(choice, seq=1)
    assert kept.all_shadows == {"": ShadowChoice(policy="search"), "lab": lab}
    assert kept.digest_of("b") == "1" * 64
    ended = kept.with_shadow("lab", ShadowChoice()).with_shadow("", ShadowChoice())
    assert await store.choose_bundles(ended)
    assert await harness.other().bundles() == BundleChoice(2, "a")


async def test_bundles_of_single_clusters_are_part_of_the_choice(harness: Harness) -> None:
    store = harness.store
    choice = BundleChoice(0, "a").with_active("lab", "b", "1" * 64).with_active("farm", "c", "")
    assert await store.choose_bundles(choice)
    kept = await harness.other().bundles()
    assert kept == replace(choice, seq=1)
    assert kept.actives == {"lab": ActiveChoice("b", "1" * 64), "farm": ActiveChoice("c")}
    later = kept.with_active("lab", "d", "2" * 64).with_active("farm", "", "")
    assert await store.choose_bundles(later)
    kept = await harness.other().bundles()
    assert kept.actives == {"lab": ActiveChoice("d", "2" * 64, "b", "1" * 64)}
    assert [kept.digest_of(name) for name in ("d", "b", "c")] == ["2" * 64, "1" * 64, ""]
    if harness.raw is not None:  # a process that knows none of them keeps them
        harness.raw.hset("pw:bundles", mapping={"seq": 3, "active": "e"})
        assert await store.bundles() == BundleChoice(3, "e", actives=kept.actives)
        harness.raw.hset("pw:bundles", "actives", b"[]")
        with pytest.raises(CorruptStateError):
            await store.bundles()


async def test_a_process_that_knows_no_policies_of_shadows_chooses_another_bundle(harness: Harness) -> None:
    if harness.raw is None:
        pytest.skip("no replica shares a memory")
    store, lab = harness.store, ShadowChoice("b", "1" * 64)
    choice = BundleChoice(0, shadow="c", shadow_policy="search", shadows={"lab": lab})
    assert await store.choose_bundles(choice)
    harness.raw.hset("pw:bundles", mapping={"seq": 2, "shadow": "d"})
    assert await store.bundles() == BundleChoice(2, shadow="d", shadows={"lab": lab})


@pytest.mark.parametrize("text", [b"{", b"\xff", b'{"lab": 3}', b"[]"])
async def test_damaged_shadows_are_no_shadows(harness: Harness, text: bytes) -> None:
    if harness.raw is None:
        pytest.skip("nothing can be damaged")
    assert await harness.store.choose_bundles(BundleChoice(0, "a", shadow="c", shadows={"lab": ShadowChoice("b")}))
    harness.raw.hset("pw:bundles", "shadows", text)
    assert await harness.store.bundles() == BundleChoice(1, "a", shadow="c")


async def test_digests_end_with_the_choice_they_belong_to(harness: Harness) -> None:
    """A replica of 0.1.0 stores names alone, and leaves the other fields of the hash as they are."""
    if harness.raw is None:
        pytest.skip("no replica shares a memory")
    store = harness.store
    assert await store.choose_bundles(BundleChoice(0, "a", "b", "c", "1" * 64, "2" * 64, "3" * 64))
    harness.raw.hset("pw:bundles", mapping={"seq": 2, "active": "a", "previous": "", "shadow": "c"})
    assert await store.bundles() == BundleChoice(2, "a", "", "c")
    assert await store.choose_bundles(BundleChoice(2, "a", "b", "", "4" * 64))
    assert await store.bundles() == BundleChoice(3, "a", "b", "", "4" * 64)


async def test_a_queue_is_forgotten_unless_somebody_moved_it(harness: Harness, store: StateStore) -> None:
    kept = QueueState("kept", slot=5)
    await store.commit_queue(CLUSTER, kept, 0)
    await store.commit_queue(CLUSTER, QueueState("idle", slot=5), 0)
    loaded = await store.load(CLUSTER)
    assert loaded is not None
    view = ClusterView(loaded[0])
    assert await store.forget_queue(CLUSTER, "idle", 2) is None
    assert await store.forget_queue(CLUSTER, "unknown", 1) is None
    event = await store.forget_queue(CLUSTER, "idle", 1)
    assert event is not None
    assert (event.version, event.change) == (view.version + 1, QueueAdvanced(QueueState("idle")))
    view.apply(event)
    reloaded = await store.load(CLUSTER)
    assert reloaded is not None
    assert set(reloaded[0].queues) == set(view.queues) == {"kept"}
    assert await store.commit_queue(CLUSTER, QueueState("idle", slot=9), 0) is not None, "it may begin again"
    with pytest.raises(NotFoundError):
        await store.forget_queue("elsewhere", "idle", 1)


async def test_rows_of_profiles_that_nobody_uses_are_forgotten(harness: Harness, store: StateStore) -> None:
    co_runs = rows_of([("net", (CoRun("LM", 0.5),))])
    for kind, row in ({"idle": {"a": 1.0}, "used": {"b": 2.0}} | co_runs).items():
        await store.profile_subtask(CLUSTER, kind, row)
    view, start = ClusterView(await records(store)), await position(store)
    await harness.advance(0.01)
    assert await store.forget_profiles(CLUSTER, {"used"}, 3600.0) == []
    events = await store.forget_profiles(CLUSTER, {"used", "unknown"}, 0.0)
    assert {event.change for event in events} == {SubtaskForgotten(kind) for kind in ("idle", *co_runs)}
    assert await collect(harness.other(), start, 2) == events, "every replica hears the same"
    for event in events:
        view.apply(event)
    left = (await records(store)).subtask_profiles
    assert view.subtask_profiles == left == {"used": {"b": 2.0}}
    assert view.co_runs.is_empty
    await store.profile_subtask(CLUSTER, "idle", {"c": 3.0})
    assert (await records(store)).subtask_profiles["idle"] == {"c": 3.0}, "it begins again"
    with pytest.raises(NotFoundError):
        await store.forget_profiles("elsewhere", (), 0.0)


async def test_many_idle_rows_are_forgotten_in_portions(harness: Harness, store: StateStore) -> None:
    for i in range(MOST_FORGOTTEN + 1):
        await store.profile_subtask(CLUSTER, f"k{i}", {"a": 1.0})
    await harness.advance(0.01)
    assert [len(await store.forget_profiles(CLUSTER, (), 0.0)) for _ in range(3)] == [MOST_FORGOTTEN, 1, 0]


async def test_rows_of_a_replica_that_keeps_no_times_are_dated_when_seen(harness: Harness, store: StateStore) -> None:
    if harness.raw is None:
        pytest.skip("no replica shares a memory")
    keys = keys_of(CLUSTER)
    await store.profile_subtask(CLUSTER, "k", {"a": 1.0})
    harness.raw.delete(keys.profile_times)
    harness.raw.zadd(keys.profile_times, {"gone with a cluster that it deleted": 1.0, "as well": 2.0})
    assert await store.forget_profiles(CLUSTER, (), 0.0) == []
    assert harness.raw.zrange(keys.profile_times, 0, -1) == [b"k"]
    await harness.advance(0.01)
    assert [e.change for e in await store.forget_profiles(CLUSTER, (), 0.0)] == [SubtaskForgotten("k")]
    entry = harness.raw.xrevrange(keys.events, count=1)[0][1]
    assert (entry[b"kind"], msgpack.decode(entry[b"body"], type=dict[str, float])) == (b"profile", {}), "merges nothing"


async def test_asking_whether_it_takes_changes_changes_nothing(store: StateStore) -> None:
    before = await records(store)
    await store.check_writable()
    assert same(await records(store), before)
    assert await store.clusters() == [CLUSTER]


async def test_canaries_and_kill_switches_are_part_of_the_choice(harness: Harness) -> None:
    store = harness.store
    lab = CanaryChoice("b", "1" * 64, 0.1, "salt", "time", 600.0, 30.0, 1000.0)
    choice = BundleChoice(0, "a").with_canary("lab", lab).with_canary("", replace(lab, bundle="c", digest=""))
    assert await store.choose_bundles(choice.with_kill("farm", "consolidate").with_kill("", "tetris"))
    kept = await harness.other().bundles()
    assert kept.canaries == {"lab": lab, "": replace(lab, bundle="c", digest="")}
    assert kept.kills == {"farm": "consolidate", "": "tetris"}
    assert [kept.digest_of(name) for name in ("b", "c")] == ["1" * 64, ""]
    ended = kept.with_canary("lab", None).with_canary("", None).with_kill("farm", "").with_kill("", "")
    assert await store.choose_bundles(ended)
    assert await harness.other().bundles() == BundleChoice(2, "a")


async def test_damaged_canaries_are_none_and_damaged_kill_switches_are_an_error(harness: Harness) -> None:
    if harness.raw is None:
        pytest.skip("nothing can be damaged")
    choice = BundleChoice(0, "a").with_canary("lab", CanaryChoice("b", "", 0.1, "salt"))
    assert await harness.store.choose_bundles(choice)
    harness.raw.hset("pw:bundles", "canaries", b'{"lab": 3}')
    assert await harness.store.bundles() == BundleChoice(1, "a")
    harness.raw.hset("pw:bundles", "kills", b"[]")
    with pytest.raises(CorruptStateError):
        await harness.store.bundles()


async def test_the_history_has_a_change_with_each_choice_that_was_stored(harness: Harness) -> None:
    store = harness.store
    first = BundleChange(1.0, "", ChangeKind.ACTIVATED, "a", "1" * 64, "z", caller="ops")
    second = BundleChange(2.0, "lab", ChangeKind.CANARY_ROLLED_BACK, "b", share=0.1, reason="NO_FIT + é")
    assert not await store.bundle_history()
    assert await store.choose_bundles(BundleChoice(0, "a"), first)
    assert not await store.choose_bundles(BundleChoice(0, "b"), second)
    assert list(await harness.other().bundle_history()) == [first]
    assert await store.choose_bundles(BundleChoice(1, "a"))
    assert await store.choose_bundles(BundleChoice(2, "a"), second)
    assert list(await harness.other().bundle_history()) == [second, first]
    for seq in range(3, 3 + MOST_CHANGES):
        assert await store.choose_bundles(BundleChoice(seq, "a"), replace(first, time_s=float(seq)))
    kept = [change.time_s for change in await store.bundle_history()]
    assert kept == [float(seq) for seq in range(2 + MOST_CHANGES, 2, -1)]
    if harness.raw is not None:  # of a later version, or torn
        harness.raw.lpush("{pw:bundles}:history", b'{"time_s": 1, "cluster": "", "kind": "DREAMT"}', b"{")
        assert len(await store.bundle_history()) == MOST_CHANGES - 2


async def test_the_evidence_of_a_canary_is_summed_over_all_processes(harness: Harness) -> None:
    store = harness.store
    assert await store.add_evidence("salt", {}) == {}
    assert await store.add_evidence("salt", {"0.1|NO_FIT|canary": 2, "é": 1}) == {"0.1|NO_FIT|canary": 2, "é": 1}
    assert await harness.other().add_evidence("salt", {"0.1|NO_FIT|canary": 3}) == {"0.1|NO_FIT|canary": 5, "é": 1}
    assert await store.add_evidence("other", {"a": 1}) == {"a": 1}
    if harness.raw is not None:
        assert 2_500_000 < harness.raw.ttl("{pw:bundles}:evidence:salt") <= 2_592_000
