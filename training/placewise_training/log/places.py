"""Jobs of the Place decisions of a log, each with its run and its outcome; counts those that are left out.

An unfinished job is never left out: its run says up to when it is known. An override keeps the placement that was
answered, and is marked.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeVar

import pyarrow.compute as pc

from placewise_core.domain.commands import Scope
from placewise_core.domain.decision import JobDecision
from placewise_core.domain.job import Job
from placewise_core.speed.linear_speed import linear_speed, workers_of
from placewise_log.record import PLACE, CorruptEntryError, DecisionRecord, decode
from placewise_log.store import LogStore
from placewise_training.log.index import Declared, JobOutcome, Logged, LogIndex

NOT_HELD: Final = "NOT_HELD"
_ROWS: Final = 64  # records may hold observations, of tens of kilobytes each
_COLUMNS: Final = ("rpc", "is_dry_run", "shadow_of", "record")


class Placed(NamedTuple):
    """One job that Place put somewhere. `run` is None if it never started, as far as the log knows."""

    record: DecisionRecord
    job: Job
    decided: JobDecision
    outcome: JobOutcome
    run: Logged | None


class Bound(Protocol):
    """A row of a log. With `is_bound` its job took at least so long."""

    @property
    def is_bound(self) -> bool: ...


RowT = TypeVar("RowT", bound=Bound)


@dataclass(slots=True)
class Places:
    """`counts` has, after an iteration, the rows that it gave (`placed`, of which `overridden`, `unfinished` and
    `dangling`) and those that it left out, by reason."""

    store: LogStore
    index: LogIndex
    counts: Counter[str] = field(default_factory=Counter)

    def __iter__(self) -> Iterator[Placed]:
        """Raises LogError."""
        self.counts.clear()
        for record in self._records():
            if record.is_dry_run or record.shadow_of:
                self.counts["dry run" if record.is_dry_run else "shadow"] += len(record.jobs)
                continue
            if record.scope == Scope.NODE or record.place is None:
                continue
            yield from self._placed(record)

    def rows(self, row_of: Callable[[Placed], RowT | str]) -> Iterator[RowT]:
        """What `row_of` makes of each job. Those of which it makes none count by the reason that it gives, rows that
        are bounds as `bounds`."""
        for placed in self:
            found = row_of(placed)
            if isinstance(found, str):
                self.counts[found] += 1
            else:
                self.counts["bounds"] += found.is_bound
                yield found

    def read_declared(self) -> None:
        """One pass over the decisions, so that the index knows what each job declares."""
        for record in self._records():
            rows = ((record.decision_id, job.id, _declared(job)) for job in record.jobs)
            self.index.remember_declared(row for row in rows if row[2].linear > 0)

    def _placed(self, record: DecisionRecord) -> Iterator[Placed]:
        assert record.place is not None
        jobs = {job.id: job for job in record.jobs}
        for decided in record.place.decisions:
            outcome = self.index.outcome(record.decision_id, decided.job_id)
            if not decided.assignments or outcome is None or outcome.status == NOT_HELD:
                self.counts["not held"] += 1
                continue
            run = self.index.run(record.decision_id, decided.job_id)
            self.counts["placed"] += 1
            self.counts["overridden"] += outcome.is_overridden
            self.counts["dangling"] += outcome.status == "DANGLING"
            self.counts["unfinished"] += run is not None and not run.end
            yield Placed(record, jobs[decided.job_id], decided, outcome, run)

    def _records(self) -> Iterator[DecisionRecord]:
        yield from records(self.store, PLACE)


def _declared(job: Job) -> Declared:
    linear = linear_speed(job, workers_of(job))
    step_s = job.batch_size / job.dataset_size / linear if linear > 0 and job.dataset_size > 0 else 0.0
    return Declared(linear, job.model, float(job.batch_size), step_s)


def records(store: LogStore, rpc: str) -> Iterator[DecisionRecord]:
    """Every decision of one call, dry runs and shadows too, file by file. Raises LogError."""
    for batch in store.batches("decisions", _COLUMNS, pc.field("rpc") == rpc, rows=_ROWS):
        for data in batch.column("record"):
            try:
                yield decode(data.as_py())
            except CorruptEntryError as error:
                raise store.error(error) from error
