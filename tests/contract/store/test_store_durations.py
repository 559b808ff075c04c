"""Decayed sums of lengths and speeds: as core computes them, on every store (conftest.py)."""

import math
from collections.abc import Sequence

import pytest
from tests.fakes.state import CLUSTER, Harness, records

from placewise_core.domain.cluster import ClusterSettings
from placewise_core.domain.errors import NotFoundError
from placewise_core.domain.events import SubtaskProfiled
from placewise_core.domain.job import Job, JobId
from placewise_core.speed.learned import throughputs
from placewise_core.speed.learned.durations import HALVING_S, kinds_of
from placewise_core.speed.learned.sums import Addition, Sums, sums_of
from placewise_core.speed.learned.throughputs import Row
from placewise_core.view.view import ClusterView
from placewise_service.state.store import StateStore

KINDS = kinds_of(Job(JobId("j"), "Réseau 50", user="Ånn"))


def reports(x: float, kinds: Sequence[str]) -> list[Addition]:
    return [Addition(kind, x) for kind in kinds]


async def test_lengths_are_added_to_sums_as_core_adds_them(harness: Harness, store: StateStore) -> None:
    await store.update_settings(CLUSTER, ClusterSettings(host_clock=True))
    expected = {kind: Sums() for kind in KINDS[:2]}
    history = ((1000.0, 5.25), (1000.0, 0.1), (1000.0 + HALVING_S / 3, 7.0), (1000.0 + 9 * HALVING_S, -1.5))
    for i, (now_s, x) in enumerate(history):
        await store.expire(CLUSTER, now_s)
        taught = KINDS[: 1 + i % 2]
        events = await (store if i % 2 else harness.other()).add_sums(CLUSTER, reports(x, taught), HALVING_S)
        for kind, event in zip(taught, events, strict=True):
            expected[kind] = expected[kind].added(x, now_s, HALVING_S)
            assert isinstance(event.change, SubtaskProfiled)
            assert event.change.kind == kind
            assert event.change.metrics == pytest.approx(expected[kind].row, rel=1e-12)
    loaded = await records(store)
    assert {kind: sums_of(row).row for kind, row in loaded.subtask_profiles.items()} == {
        kind: pytest.approx(sums.row, rel=1e-12) for kind, sums in expected.items()
    }
    view = ClusterView(loaded)
    assert set(view.estimates.durations.kinds) == expected.keys()
    assert not view.subtask_profiles


async def test_of_a_kind_that_comes_twice_both_lengths_count(store: StateStore) -> None:
    await store.add_sums(CLUSTER, [Addition(KINDS[0], 1.0), Addition(KINDS[0], math.pi)], HALVING_S)
    row = (await records(store)).subtask_profiles[KINDS[0]]
    assert (row["count"], row["sum"]) == (pytest.approx(2.0), pytest.approx(1.0 + math.pi))


async def test_an_addition_with_an_id_counts_once(harness: Harness, store: StateStore) -> None:
    share = Addition(KINDS[0], 1.0, once="capability t/n0/gpu0/3.0")
    other = Addition(KINDS[0], 5.0, once="capability u/n0/gpu0/3.0")
    assert len(await store.add_sums(CLUSTER, [share, other, share], HALVING_S)) == 2
    assert await harness.other().add_sums(CLUSTER, [share, other], HALVING_S) == []
    row = (await records(store)).subtask_profiles[KINDS[0]]
    assert (row["count"], row["sum"]) == (pytest.approx(2.0), pytest.approx(6.0))
    assert await store.learn_overhead(CLUSTER, "t/n0/gpu0/3.0", "sort", 1.0) is not None


async def test_a_report_counts_as_it_weighs(harness: Harness, store: StateStore) -> None:
    kind = Row("réseau50", "Tesla T4", 64, 2, 8).kind
    await store.update_settings(CLUSTER, ClusterSettings(host_clock=True))
    expected = Sums()
    for now_s, x, weight in ((1000.0, 5.25, 1.0), (1500.0, 0.1, 0.5), (90_000.0, 7.0, 1 / 3)):
        await store.expire(CLUSTER, now_s)
        await store.add_sums(CLUSTER, [Addition(kind, x, weight)], throughputs.HALVING_S)
        expected = expected.added(x, now_s, throughputs.HALVING_S, weight)
    loaded = await records(store)
    assert sums_of(loaded.subtask_profiles[kind]).row == pytest.approx(expected.row, rel=1e-12)
    view = ClusterView(loaded)
    assert list(view.estimates.throughputs.kinds) == [kind]
    assert not view.subtask_profiles
    assert len(await harness.other().forget_profiles(CLUSTER, [], -1.0)) == 1


async def test_rows_of_durations_are_forgotten_as_profiles_are(store: StateStore) -> None:
    await store.add_sums(CLUSTER, reports(1.0, KINDS), HALVING_S)
    assert len(await store.forget_profiles(CLUSTER, KINDS[:1], 100.0)) == 0
    assert len(await store.forget_profiles(CLUSTER, KINDS[:1], -1.0)) >= len(KINDS) - 1


async def test_an_unknown_cluster_learns_nothing(harness: Harness) -> None:
    with pytest.raises(NotFoundError):
        await harness.store.add_sums(CLUSTER, reports(1.0, KINDS[:1]), HALVING_S)
    assert harness.leftover_keys() == set()
