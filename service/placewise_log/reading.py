"""Reads an exported log: its decisions by id, and the view that each of them read. Writes nothing.

log = ExportedLog("DIR")  # or a URL, as LogStore takes it
view = log.view_at(decision_id)
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Final

import pyarrow.compute as pc

from placewise_core.basics.bounded import Bounded, Latest
from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import RunningJob
from placewise_core.domain.commands import Scope
from placewise_core.domain.events import Event, JobsChanged
from placewise_core.view.view import ClusterView
from placewise_log.rebuilding import NotRebuiltError, SnapshotViews, assumed_as
from placewise_log.record import PLACE, CorruptEntryError, DecisionRecord, ViewRead, decode
from placewise_log.repeating import before
from placewise_log.store import LogStore
from placewise_log.views import EVENTS, GANGS, SNAPSHOT, Events, Gangs, Snapshot, ViewEntry, decode_view_entry

_KEPT_FILES: Final = 4
_KEPT_ENTRIES: Final = 512
_KEPT_VIEWS: Final = 4  # of replicas whose decisions alternate
_MOST_AHEAD: Final = 4096  # versions after a decision in which the event of a gang that it saw is looked for
_COLUMNS: Final = ("kind", "cluster", "name", "first_version", "last_version")
_RECORD: Final = ("record",)


@frozen
class _ViewRow:
    """A row of the table of views."""

    path: str
    number: int
    first: int
    last: int


class ExportedLog:
    """The log in one folder or store, as it was when it was opened. Decoded entries are kept for the next question.

    Every method raises LogError for a file that cannot be read."""

    def __init__(self, where: str | Path) -> None:
        self._store = LogStore(where)
        self._rows: dict[tuple[str, str, str], list[_ViewRow]] = {}  # by cluster, kind and name, in order of versions
        self._files: Bounded[str, list[bytes]] = Bounded(_KEPT_FILES)
        self._entries: Bounded[tuple[str, int], ViewEntry] = Bounded(_KEPT_ENTRIES)
        self._views: Latest[tuple[str, int], SnapshotViews] = Latest(_KEPT_VIEWS)
        for path in self._store.paths("views"):
            rows_of_file = (row for batch in self._store.batches_of(path, _COLUMNS) for row in batch.to_pylist())
            for number, row in enumerate(rows_of_file):
                found = self._rows.setdefault((row["cluster"], row["kind"], row["name"]), [])
                found.append(_ViewRow(path, number, row["first_version"], row["last_version"]))
        for rows in self._rows.values():
            rows.sort(key=lambda row: row.first)

    def records(self) -> Iterator[DecisionRecord]:
        """Every decision, day by day."""
        for path in self._store.paths("decisions"):
            for batch in self._store.batches_of(path, _RECORD):
                yield from (self._decoded(path, data.as_py()) for data in batch.column(0))

    def record(self, decision_id: str) -> DecisionRecord:
        """A decision. Raises KeyError."""
        for path in self._store.paths("decisions"):
            for batch in self._store.batches_of(path, ("id", *_RECORD), pc.field("id") == decision_id):
                for data in batch.column("record"):
                    return self._decoded(path, data.as_py())
        raise KeyError(f"no decision {decision_id!r} in {self._store.where}")

    def view_at(self, decision: str | DecisionRecord, job_id: str = "") -> ClusterView:
        """The view that a decision read, as the caller's own. With `job_id`: as that job found it, the earlier jobs of
        the request on it.

        Raises KeyError for an unknown decision, ValueError for a job that it placed nowhere, NotRebuiltError if the log
        lacks a part or if the digest of the view differs.
        """
        record = self.record(decision) if isinstance(decision, str) else decision
        read = next((read for read in record.reads if read.job_id == job_id), None)
        is_own = read is not None and bool(job_id)  # decided in slices: each job read a view of its own
        read = read or next(iter(record.reads), None)
        if read is None:
            raise NotRebuiltError("the record does not say which view it read")
        view = self._rebuilt(record, read)
        if record.is_dry_run and record.rpc == PLACE and record.scope != Scope.NODE:
            # Asks "where would it go", as though its jobs held nothing.
            for job in record.jobs:
                view.remove_job(job.id)
        return view if is_own or not job_id else before(record, view, job_id)

    def views_of(self, record: DecisionRecord) -> Iterator[ClusterView]:
        """The views that the decision read, in their order: one, or, if it was decided in slices, the one that it began
        with and one for each job. A dry run's jobs are still on its view: the decision reads their co-runs before it
        takes them off. Raises as view_at."""
        yield from (self._rebuilt(record, read) for read in record.reads)

    def _rebuilt(self, record: DecisionRecord, read: ViewRead) -> ClusterView:
        snapshots = self._rows.get((record.cluster, SNAPSHOT, read.view), [])
        at = bisect_right(snapshots, read.version, key=lambda row: row.first) - 1
        if at < 0:
            raise NotRebuiltError(f"no snapshot of the view {read.view} from before version {read.version}")
        row = snapshots[at]
        snapshot = self._entry(row)
        assert isinstance(snapshot, Snapshot)
        events = _EventsOf(self, record.cluster, snapshot.records.epoch)
        views = self._views.get((row.path, row.number))
        if views is None:
            views = self._views[row.path, row.number] = SnapshotViews(snapshot)
        return views.view(read, events, lambda name: self._gang(name, record.cluster, read, events))

    def _gang(self, name: str, cluster: str, read: ViewRead, events: "_EventsOf") -> RunningJob | None:
        """A gang that a view assumed: from the store's refusal, or from the event that came later. If the view was
        loaded again before the refusal, that is under its new name."""
        own = (cluster, GANGS, read.view)
        if (found := self._refused(name, self._rows.get(own, []))) is not None:
            return found
        for event in events.after(read.version, _MOST_AHEAD):
            if isinstance(event.change, JobsChanged):
                for job in event.change.jobs:
                    if job.reservation_id == name:
                        return assumed_as(job)
        others = [rows for key, rows in self._rows.items() if key[:2] == own[:2] and key != own]
        return self._refused(name, chain.from_iterable(others))

    def _refused(self, name: str, rows: Iterable[_ViewRow]) -> RunningJob | None:
        for row in rows:
            entry = self._entry(row)
            assert isinstance(entry, Gangs)
            if (found := next((gang for gang in entry.gangs if gang.reservation_id == name), None)) is not None:
                return found
        return None

    def _entry(self, row: _ViewRow) -> ViewEntry:
        key = (row.path, row.number)
        found = self._entries.get(key)
        if found is None:
            try:
                found = self._entries[key] = decode_view_entry(self._file(row.path)[row.number])
            except CorruptEntryError as error:
                raise self._store.error(error, row.path) from error
        return found

    def _file(self, path: str) -> list[bytes]:
        found = self._files.get(path)
        if found is None:
            batches = self._store.batches_of(path, _RECORD)
            found = self._files[path] = [data for batch in batches for data in batch.column(0).to_pylist()]
        return found

    def _decoded(self, path: str, data: bytes) -> DecisionRecord:
        try:
            return decode(data)
        except CorruptEntryError as error:
            raise self._store.error(error, path) from error


class _EventsOf(Mapping[int, Event]):
    """The events of one epoch by version, read as they are asked for."""

    def __init__(self, log: ExportedLog, cluster: str, epoch: str) -> None:
        self._log = log
        self._rows = log._rows.get((cluster, EVENTS, epoch), [])

    def __getitem__(self, version: int) -> Event:
        at = bisect_left(self._rows, version, key=lambda row: row.last)
        if at < len(self._rows):
            for event in self._events(at):
                if event.version == version:
                    return event
        raise KeyError(version)

    def __iter__(self) -> Iterator[int]:
        return (event.version for at in range(len(self._rows)) for event in self._events(at))

    def __len__(self) -> int:
        return sum(len(self._events(at)) for at in range(len(self._rows)))

    def after(self, version: int, most: int) -> Iterator[Event]:
        """The events after a version, `most` versions at most."""
        for at in range(bisect_left(self._rows, version, key=lambda row: row.last), len(self._rows)):
            if self._rows[at].first > version + most:
                return
            yield from (event for event in self._events(at) if event.version > version)

    def _events(self, at: int) -> tuple[Event, ...]:
        entry = self._log._entry(self._rows[at])
        assert isinstance(entry, Events)
        return entry.events


def view_at(where: str | Path, decision_id: str, job_id: str = "") -> ClusterView:
    """As ExportedLog.view_at, for one question."""
    return ExportedLog(where).view_at(decision_id, job_id)
