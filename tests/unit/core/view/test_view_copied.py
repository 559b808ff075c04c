"""A copy of a view takes events of its own: they do not show on the view, nor the view's on the copy."""

import math
from collections.abc import Sequence

import pytest
from tests.unit.core.view.test_view_digest import CHANGES, Walk, apply, sharing

from placewise_core.domain.cluster import ClusterSettings, HeadReservation, QueueState
from placewise_core.domain.events import Change, JobsChanged, JobsEnded, QueueAdvanced, SettingsChanged, SubtaskProfiled
from placewise_core.domain.job import JobId
from placewise_core.speed.learned.pairs import HALVING_S, PairGroup
from placewise_core.speed.learned.sums import sums_of
from placewise_core.view.view import ClusterView

LEARNING = ClusterSettings(learn_co_runs=True)
HEAD = HeadReservation(JobId("a"), ("n0",), 1.0, 2.0, 3.0, 4.0)


def pair_row(group: PairGroup, per_second: float) -> SubtaskProfiled:
    return SubtaskProfiled(group.kind, sums_of({}).added(math.log(per_second), 0.0, HALVING_S).row)


EARLIER: Sequence[Change] = [
    SettingsChanged(LEARNING),
    JobsChanged((sharing("a"),)),
    QueueAdvanced(QueueState("p", seq=1)),
]
LATER: Sequence[Change] = [
    *(change() for change in CHANGES.values()),
    pair_row(PairGroup("lm", "v100", 64), 100.0),
    pair_row(PairGroup("lm", "v100", 64, "resnet50"), 50.0),
    QueueAdvanced(QueueState("q", seq=1, head=HEAD)),
    QueueAdvanced(QueueState("p", seq=2, backlog_s=3.0)),
    JobsEnded((JobId("a"),)),
]


def content(view: ClusterView) -> tuple[object, ...]:
    """All that policies read, not by the digest alone."""
    known = view.co_runs.known_with(())
    return (
        view.digest(),
        {kind: dict(view.estimates.row(kind)) for kind in view.estimates.kinds},
        {kind: dict(row) for kind, row in view.subtask_profiles.items()},
        dict(view.overheads),
        dict(view.queues),
        dict(view.heads),
        list(view.jobs),
        {model: known.of(model, gpu) for model in sorted(known.models) for gpu in ("v100",)},
    )


def changed(view: ClusterView, changes: Sequence[Change]) -> ClusterView:
    for change in changes:
        apply(view, change)
    return view


def begun() -> ClusterView:
    return changed(Walk(0).view, EARLIER)


@pytest.mark.parametrize("count", range(1, len(LATER) + 1))
def test_events_of_a_copy_are_those_of_a_view_and_do_not_show_on_the_other(count: int) -> None:
    view = begun()
    copy = view.copied()
    before = content(view)
    assert content(copy) == before
    changed(copy, LATER[:count])
    assert content(copy) == content(changed(begun(), LATER[:count]))
    assert content(view) == before
    kept = content(copy)
    changed(view, LATER)
    assert content(copy) == kept


@pytest.mark.parametrize("seed", range(20))
def test_a_copy_goes_on_alone_from_anywhere(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(30):
        walk.step()
    copy = walk.view.copied()
    kept = content(copy)
    for _ in range(10):
        walk.step()
    assert content(copy) == kept
