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


def rebuilt(
    read: ViewRead,
    snapshot: Snapshot,
    events: Mapping[int, Event],
    gang_of: Callable[[str], RunningJob | None],
) -> ClusterView:
    """The view that was read. `events` by version, of the snapshot's epoch; `gang_of` knows gangs by reservation, also
    those that were assumed only. Raises NotRebuiltError if one is missing, or if the digest is another."""
    view = snapshot.shown()
    assumed: list[tuple[str, int]] = [each for each in read.assumed if each not in snapshot.assumed]
    unsettled = {name for name, _ in snapshot.assumed if (name, _) not in read.assumed}
    for version in range(view.version, read.version + 1):
        _assume(view, [name for name, at in assumed if at == version], gang_of)
        if version < read.version:
            event = _event(events, version + 1)
            _forget(unsettled, event)
            view.apply(event)
    if read.moved:
        _move(view, _event(events, read.version + 1), read.moved)
    for job in [job for job in view.jobs.values() if job.reservation_id in unsettled]:
        view.remove_job(job.id)
    if any(at < snapshot.records.version for _, at in assumed):
        raise NotRebuiltError("the snapshot lacks a gang that the view had")
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


def _forget(unsettled: set[str], event: Event) -> None:
    """Gangs that an event names were held."""
    if isinstance(event.change, JobsChanged):
        unsettled -= {job.reservation_id for job in event.change.jobs}


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
