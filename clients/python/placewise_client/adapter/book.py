"""One record per gang of the host: the last look, the question to the service, the placement that was applied.

Nothing is kept on disk: after a restart the host and the service fill the book again. It never talks to either.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field

from placewise.v1.job_pb2 import Shape
from placewise_client.adapter.native import End, HostState, NativeJob, Placed, Placement, Stage, Undecided, Verdict


@dataclass(frozen=True, slots=True)
class Admitted:
    """Leave to start. `order`: the number of the admission, and the gang's rank in it. `shape`: of an elastic gang."""

    order: tuple[int, int]
    shape: Shape | None = None


@dataclass(slots=True)
class Record:
    """One gang. Its stage is that of `job`; only the `mark_…` methods change it. Times are monotonic seconds.

    `verdict`, `admitted`, `asked_at_s` and `failing_since_s` belong to the question that is open while the gang waits.
    `decided` is the placement that was applied. `left_because`: why the gang was left to the host, "" if it was not.
    """

    job: NativeJob
    verdict: Verdict | None = None
    admitted: Admitted | None = None
    asked_at_s: float = -math.inf
    failing_since_s: float | None = None
    decided: Placement | None = None
    applied_at_s: float | None = None
    explained: str = ""
    left_because: str = ""

    @property
    def key(self) -> str:
        return self.job.key

    @property
    def stage(self) -> Stage:
        return self.job.stage

    def mark_seen(self, job: NativeJob, now_s: float) -> None:
        """The host shows the job like this."""
        self.job = job
        if job.stage is Stage.APPLIED:
            self.applied_at_s = now_s if self.applied_at_s is None else self.applied_at_s
        elif job.stage is Stage.WAITING:
            self.applied_at_s = None

    def mark_vanished(self) -> None:
        """The host does not show the job any more."""
        if self.stage is not Stage.ENDED:
            end = End.FINISHED if self.stage is Stage.RUNNING else End.CANCELLED
            self.job = dataclasses.replace(
                self.job, stage=Stage.ENDED, end=end, end_reason="no longer known to the host"
            )

    def mark_answered(self, verdict: Verdict, now_s: float) -> None:
        """The service has answered."""
        self.verdict, self.asked_at_s, self.failing_since_s = verdict, now_s, None

    def mark_failed(self, reason: str, now_s: float, release_after_s: float) -> None:
        """The service has not answered. `release_after_s` below 0: the host never gets the gang for that."""
        if self.failing_since_s is None:
            self.failing_since_s = now_s
        self.verdict = Undecided(reason, 0 <= release_after_s <= now_s - self.failing_since_s)

    def mark_applied(self, placement: Placement, now_s: float) -> None:
        """The adapter has applied the placement."""
        self.close_question()
        self.decided, self.applied_at_s = placement, now_s
        self.job = dataclasses.replace(self.job, stage=Stage.APPLIED)

    def mark_taken_over(self) -> bool:
        """The host shows that a placement was applied. True if that is news, because the host's answer was lost."""
        found = self.verdict.placement if isinstance(self.verdict, Placed) else None
        self.close_question()
        if self.decided is not None or found is None:
            return False
        self.decided = found
        return True

    def mark_released(self, because: str) -> None:
        """The adapter has left the gang to the host."""
        self.close_question()
        self.applied_at_s, self.left_because = None, because
        self.job = dataclasses.replace(self.job, stage=Stage.RELEASED)

    def mark_withdrawn(self) -> None:
        """The adapter has taken the placement back."""
        self.decided = self.applied_at_s = None
        self.job = dataclasses.replace(self.job, stage=Stage.WAITING)

    def close_question(self) -> None:
        """Forgets the service's answers; the next question begins with the admission."""
        self.verdict, self.admitted, self.asked_at_s, self.failing_since_s = None, None, -math.inf, None


@dataclass(frozen=True, slots=True)
class News:
    """A job that is new or has another stage than at the last look, or that runs and holds other places."""

    record: Record
    before: Stage | None


@dataclass(slots=True)
class Book:
    """All jobs of the host that have not ended, and the ended ones the host still shows."""

    records: dict[str, Record] = field(default_factory=dict)
    _open: dict[str, Record] = field(default_factory=dict)
    """Managed jobs that have yet to start: looking for those that wait must not pass over thousands that run."""

    def update(self, state: HostState, now_s: float) -> list[News]:
        """Takes a look in; returns the news in the host's order, jobs that have vanished last."""
        news = [item for job in state.jobs if (item := self._take(job, now_s)) is not None]
        if state.is_complete:
            seen = {job.key for job in state.jobs}
            news += [self._vanish(key) for key in list(self.records) if key not in seen]
        return news

    def _take(self, job: NativeJob, now_s: float) -> News | None:
        record = self.records.get(job.key)
        before, held = (record.stage, record.job.placement) if record else (None, ())
        if before is Stage.ENDED:
            return None
        has_moved = job.can_move and before is Stage.RUNNING and held != job.placement
        record = self.put(job, now_s)
        return News(record, before) if before is not job.stage or has_moved else None

    def _vanish(self, key: str) -> News:
        record = self.records.pop(key)
        self._open.pop(key, None)
        before = record.stage
        record.mark_vanished()
        return News(record, before)

    def put(self, job: NativeJob, now_s: float) -> Record:
        """The record of the job as it is seen now."""
        record = self.records.setdefault(job.key, Record(job))
        record.mark_seen(job, now_s)
        if job.is_managed and job.stage in (Stage.WAITING, Stage.APPLIED):
            self._open[job.key] = record
        else:
            self._open.pop(job.key, None)
        return record

    def find_waiting(self, key: str) -> Record | None:
        """The record of a job that waits for us."""
        record = self._open.get(key)
        return record if record is not None and record.stage is Stage.WAITING else None

    def waiting(self) -> list[Record]:
        """Managed jobs that wait for us, in the order they came."""
        return [record for record in self._open.values() if record.stage is Stage.WAITING]

    def wake(self) -> None:
        """Something changed (a job ended, a node came): every gang that waits may be asked about at once."""
        for record in self.waiting():
            record.asked_at_s = -math.inf

    def overdue(self, now_s: float, start_timeout_s: float) -> list[Record]:
        """Applied placements that have not started in time."""
        return [record for at_s, record in self._applied() if now_s - at_s > start_timeout_s]

    def undecided(self) -> list[Record]:
        """Gangs that the host would start on nodes which are of no decision."""
        return [record for _, record in self._applied() if record.decided is None]

    def blocked(self) -> list[Record]:
        """Applied placements that a rule of the host's own, or jobs that it prefers, keep from starting."""
        return [record for _, record in self._applied() if record.job.blocked_by or record.job.is_outranked]

    def next_overdue_s(self, start_timeout_s: float) -> float:
        """When the first of the applied placements will be overdue; infinity if there is none."""
        return min((at_s + start_timeout_s for at_s, _ in self._applied()), default=math.inf)

    def _applied(self) -> list[tuple[float, Record]]:
        return [
            (record.applied_at_s, record)
            for record in self._open.values()
            if record.stage is Stage.APPLIED and record.applied_at_s is not None
        ]
