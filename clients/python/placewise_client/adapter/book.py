"""What an adapter knows about the jobs of its host: the last look, what was decided, what has been said.

Nothing here is kept on disk: after a restart it is filled from the host and the service. It never talks to either.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field

from placewise_client.adapter.native import End, HostState, NativeJob, Placement, Stage


@dataclass(slots=True)
class Entry:
    """One job, and what was decided and done about it. Times are monotonic seconds."""

    job: NativeJob
    decided: Placement | None = None
    applied_at_s: float | None = None
    explained: str = ""


@dataclass(frozen=True, slots=True)
class News:
    """A job that is new or has another stage than at the last look."""

    entry: Entry
    before: Stage | None


@dataclass(slots=True)
class Book:
    """All jobs of the host that are not over, and the ended ones the host still shows."""

    entries: dict[str, Entry] = field(default_factory=dict)
    _open: dict[str, Entry] = field(default_factory=dict)
    """Managed jobs that have yet to start: a look at what waits must not pass over thousands that run."""

    def update(self, state: HostState, now_s: float) -> list[News]:
        """Takes a look in; returns what is new, in the host's order, jobs that have vanished last."""
        news = [item for job in state.jobs if (item := self._take(job, now_s)) is not None]
        if state.is_complete:
            seen = {job.key for job in state.jobs}
            news += [self._vanish(key) for key in list(self.entries) if key not in seen]
        return news

    def _take(self, job: NativeJob, now_s: float) -> News | None:
        entry = self.entries.get(job.key)
        before = entry.job.stage if entry else None
        if before is Stage.ENDED:
            return None
        if entry is None:
            entry = self.entries[job.key] = Entry(job)
        self._put(entry, job)
        if job.stage is Stage.APPLIED:
            entry.applied_at_s = now_s if entry.applied_at_s is None else entry.applied_at_s
        elif job.stage is Stage.WAITING:
            entry.applied_at_s = None
        return News(entry, before) if before is not job.stage else None

    def _vanish(self, key: str) -> News:
        entry = self.entries.pop(key)
        self._open.pop(key, None)
        before = entry.job.stage
        if before is not Stage.ENDED:
            end = End.FINISHED if before is Stage.RUNNING else End.CANCELLED
            entry.job = dataclasses.replace(
                entry.job, stage=Stage.ENDED, end=end, end_reason="no longer known to the host"
            )
        return News(entry, before)

    def _put(self, entry: Entry, job: NativeJob) -> None:
        entry.job = job
        if job.is_managed and job.stage in (Stage.WAITING, Stage.APPLIED):
            self._open[job.key] = entry
        else:
            self._open.pop(job.key, None)

    def waiting(self) -> list[Entry]:
        """Managed jobs that wait for us, in the order they came."""
        return [entry for entry in self._open.values() if entry.job.stage is Stage.WAITING]

    def overdue(self, now_s: float, start_timeout_s: float) -> list[Entry]:
        """Applied placements that have not started in time."""
        return [
            entry
            for entry in self._open.values()
            if entry.job.stage is Stage.APPLIED
            and entry.applied_at_s is not None
            and now_s - entry.applied_at_s > start_timeout_s
        ]

    def next_overdue_s(self, start_timeout_s: float) -> float:
        """When the first of the applied placements will be overdue; infinity where there is none."""
        applied = (entry.applied_at_s for entry in self._open.values() if entry.job.stage is Stage.APPLIED)
        return min((at_s + start_timeout_s for at_s in applied if at_s is not None), default=math.inf)

    def move(self, entry: Entry, stage: Stage, now_s: float) -> None:
        """Notes a change the adapter has made itself, before the next look shows it."""
        self._put(entry, dataclasses.replace(entry.job, stage=stage))
        entry.applied_at_s = now_s if stage is Stage.APPLIED else None
