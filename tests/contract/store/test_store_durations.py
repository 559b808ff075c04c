"""Decayed sums of lengths: as core computes them, on every store (conftest.py)."""

import math

import pytest
from tests.fakes.state import CLUSTER, Harness, records

from placewise_core.domain.cluster import ClusterSettings
from placewise_core.domain.errors import NotFoundError
from placewise_core.domain.events import SubtaskProfiled
from placewise_core.domain.job import Job, JobId
from placewise_core.speed.durations import HALVING_S, DurationSums, kinds_of, sums_of
from placewise_core.view.view import ClusterView
from placewise_service.state.store import StateStore

KINDS = kinds_of(Job(JobId("j"), "Réseau 50", user="Ånn"))


async def test_lengths_are_added_to_sums_as_core_adds_them(harness: Harness, store: StateStore) -> None:
    await store.update_settings(CLUSTER, ClusterSettings(host_clock=True))
    expected = {kind: DurationSums() for kind in KINDS[:2]}
    history = ((1000.0, 5.25), (1000.0, 0.1), (1000.0 + HALVING_S / 3, 7.0), (1000.0 + 9 * HALVING_S, -1.5))
    for i, (now_s, x) in enumerate(history):
        await store.expire(CLUSTER, now_s)
        taught = KINDS[: 1 + i % 2]
        events = await (store if i % 2 else harness.other()).add_durations(CLUSTER, [(kind, x) for kind in taught])
        for kind, event in zip(taught, events, strict=True):
            expected[kind] = expected[kind].added(x, now_s)
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
    await store.add_durations(CLUSTER, [(KINDS[0], 1.0), (KINDS[0], math.pi)])
    row = (await records(store)).subtask_profiles[KINDS[0]]
    assert (row["count"], row["sum"]) == (pytest.approx(2.0), pytest.approx(1.0 + math.pi))


async def test_rows_of_durations_are_forgotten_as_profiles_are(store: StateStore) -> None:
    await store.add_durations(CLUSTER, [(kind, 1.0) for kind in KINDS])
    assert len(await store.forget_profiles(CLUSTER, KINDS[:1], 100.0)) == 0
    assert len(await store.forget_profiles(CLUSTER, KINDS[:1], -1.0)) >= len(KINDS) - 1


async def test_an_unknown_cluster_learns_nothing(harness: Harness) -> None:
    with pytest.raises(NotFoundError):
        await harness.store.add_durations(CLUSTER, [(KINDS[0], 1.0)])
    assert harness.leftover_keys() == set()
