"""Rebuilds the view that a decision read, from a snapshot of it and the events since. Reads no file.

The steps are those of the replica: its gangs stand on the view from their assumption on, and move to their place in the
order of events when their own event comes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from placewise_core.domain.cluster import RunningJob
from placewise_core.domain.events import Event, JobsChanged, JobsEnded
from placewise_core.view.view import ClusterView
from placewise_log.record import ViewRead
from placewise_log.views import Snapshot


class NotRebuiltError(Exception):
    """The view cannot be rebuilt. The message says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"cannot be rebuilt: {reason}")


class SnapshotViews:
    """The views that were read behind one snapshot. Asked in the order of their versions, each costs the events since
    the one before; any other order costs those since the snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._start()

    def _start(self) -> None:
        self._base = self._snapshot.shown()  # with events alone: no gang that was assumed since
        self._named: set[str] = set()  # reservations that these events name

    def view(
        self, read: ViewRead, events: Mapping[int, Event], gang_of: Callable[[str], RunningJob | None]
    ) -> ClusterView:
        """The view that was read, as the caller's own. `events` by version, of the snapshot's epoch; `gang_of` knows
        gangs by reservation, also those that were assumed only. Raises NotRebuiltError if one is missing, or if the
        digest is another."""
        snapshot = self._snapshot
        assumed = [each for each in read.assumed if each not in snapshot.assumed]
        if any(at < snapshot.records.version for _, at in assumed):
            raise NotRebuiltError("the snapshot lacks a gang that the view had")
        first = min([read.version, *(at for _, at in assumed)])
        if first < self._base.version:
            self._start()
        for version in range(self._base.version, first):
            _apply(self._base, _event(events, version + 1), self._named)
        view, named = self._base.copied(), set(self._named)
        for version in range(first, read.version + 1):
            _assume(view, [name for name, at in assumed if at == version], gang_of)
            if version < read.version:
                _apply(view, _event(events, version + 1), named)
        if read.moved:
            _move(view, _event(events, read.version + 1), read.moved)
        unsettled = {name for name, at in snapshot.assumed if (name, at) not in read.assumed} - named
        for job in [job for job in view.jobs.values() if job.reservation_id in unsettled]:
            view.remove_job(job.id)
        if view.digest() != read.digest:
            raise NotRebuiltError("the view differs from the one that was read")
        return view


def _event(events: Mapping[int, Event], version: int) -> Event:
    event = events.get(version)
    if event is None:
        raise NotRebuiltError(f"the event of version {version} was dropped")
    return event


def _assume(view: ClusterView, names: Sequence[str], gang_of: Callable[[str], RunningJob | None]) -> None:
    for name in names:
        gang = gang_of(name)
        if gang is None:
            raise NotRebuiltError(f"the gang of reservation {name} was dropped")
        view.add_job(gang)


def _apply(view: ClusterView, event: Event, named: set[str]) -> None:
    """Adds to `named` the reservations that the event names: gangs that were held."""
    if isinstance(event.change, JobsChanged):
        named.update(job.reservation_id for job in event.change.jobs)
    view.apply(event)


def _move(view: ClusterView, event: Event, count: int) -> None:
    """The first part of a change that was taking its turns."""
    if isinstance(event.change, JobsChanged):
        for job in event.change.jobs[:count]:
            view.add_job(job)
    elif isinstance(event.change, JobsEnded):
        for job_id in event.change.job_ids[:count]:
            view.remove_job(job_id)


def assumed_as(job: RunningJob) -> RunningJob:
    """A gang as a view assumed it, from the event of its reservation."""
    return replace(job, expire_time_s=0.0)
