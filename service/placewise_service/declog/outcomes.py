"""What became of the jobs, shares and subtasks of decisions. Pure: knows no file and no store.

Status of a row:

    OBSERVED   the host reported an end, not from before the decision
    OPEN       no end yet, and the time-out has not passed since the last word of the job
    DANGLING   no end, and the time-out has passed: the host forgot, or was never able, to report
    NOT_HELD   nothing to wait for: the answer was WAIT or NO_FIT, a dry run, a shadow's, or a repeat of an earlier
               decision for the job (outcomes reported under the repeat count for the earlier one)
"""

import enum
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import Assignment
from placewise_core.domain.commands import JobEventKind
from placewise_core.domain.decision import Outcome, Verdict
from placewise_core.domain.realised import mean_speed_of, points_of

_ENDS = frozenset(
    {
        JobEventKind.FINISHED,
        JobEventKind.FAILED,
        JobEventKind.CANCELLED,
        JobEventKind.SHARE_FINISHED,
        JobEventKind.SUBTASK_FINISHED,
    }
)
CLOCK_S = 1.0  # by which clocks may disagree, as those of hosts that tell whole seconds do
_HELD = frozenset({Outcome.PLACED.value, Verdict.ADMIT.value})


class Status(enum.StrEnum):
    OBSERVED = "OBSERVED"
    OPEN = "OPEN"
    DANGLING = "DANGLING"
    NOT_HELD = "NOT_HELD"


@frozen
class Key:
    """One row of a decision: a job, or its share or subtask on `unit` ("node/unit")."""

    decision_id: str
    job_id: str
    unit: str = ""
    subtask: str = ""

    @property
    def job(self) -> "Key":
        """That of the whole job."""
        return Key(self.decision_id, self.job_id)


@frozen
class Decided:
    """One row as the join reads it. `planned` and `nodes` name the GPU ("node/gpu") and the node of each task.

    `is_tried` marks dry runs and shadows. `admit_decision_id` is the AdmitOrWait decision that admitted the job, "" if
    unknown. `alternative_nodes` are the nodes of any alternative, None if these were not worked out. `first_refusal` is
    the decision that this one repeats, "" if it is no repeated refusal. Times in epoch seconds, 0 if unknown, as are
    epochs; speeds in epochs per second.
    """

    key: Key
    rpc: str
    cluster: str
    time_s: float
    outcome: str
    is_tried: bool = False
    reservation_id: str = ""
    admit_decision_id: str = ""
    planned: Sequence[str] = ()
    nodes: Sequence[str] = ()
    submit_time_s: float = 0.0
    predicted_epochs_per_s: float | None = None
    total_epochs: float = 0.0
    alternative_nodes: Sequence[str] | None = None
    first_refusal: str = ""

    @property
    def is_place(self) -> bool:
        """True for a whole job of a Place decision."""
        return self.rpc == "Place" and not self.key.subtask


@frozen
class Report:
    """One event that a host reported. `actual_s` is the time that a share or subtask took, `file` the number of the
    file that has the report."""

    key: Key
    kind: str
    time_s: float
    placement: Sequence[str] = ()
    nodes: Sequence[str] = ()
    speed: float | None = None
    epochs_done: float | None = None
    actual_s: float | None = None
    file: int = 0


@dataclass(slots=True)
class Fate:
    """Reports about one row, in any order. Times in epoch seconds, 0 = never.

    Of several starts, or ends, the first counts, since a host repeats its reports. `progress` has the time, the speed
    in epochs per second and the epochs done of each report that gives one of them, None for the other. `first_time_s`
    and `file` are those of the earliest report.
    """

    first_time_s: float = math.inf
    file: int = 0
    last_heard_time_s: float = 0.0
    start_time_s: float = 0.0
    end_time_s: float = 0.0
    end: str = ""
    placement: Sequence[str] = ()
    nodes: Sequence[str] = ()
    progress: list[tuple[float, float | None, float | None]] = field(default_factory=list)
    actual_s: float | None = None

    def add(self, report: Report, decided_s: float = 0.0) -> None:
        """Folds one report in. An end from before the decision is that of an earlier run."""
        time_s = report.time_s
        if time_s < self.first_time_s:
            self.first_time_s, self.file = time_s, report.file
        self.last_heard_time_s = max(self.last_heard_time_s, time_s)
        if report.kind == JobEventKind.STARTED and not 0 < self.start_time_s <= time_s:
            self.start_time_s = time_s
            self.placement, self.nodes = report.placement, report.nodes
        elif report.kind in _ENDS and time_s >= decided_s - CLOCK_S:
            if not self.end or (time_s, report.kind) < (self.end_time_s, self.end):
                self.end_time_s, self.end = time_s, report.kind
            self.actual_s = report.actual_s or self.actual_s
            if report.key.subtask and not report.key.unit.startswith("/"):
                self.placement = (report.key.unit,)
        if report.speed or report.epochs_done:
            self.progress.append((time_s, report.speed, report.epochs_done))

    def after(self, decided_s: float) -> "Fate":
        """The same, with no start or end before the decision: the host's clock is behind then."""
        start_s, end_s = (max(time_s, decided_s) if time_s else 0.0 for time_s in (self.start_time_s, self.end_time_s))
        return replace(self, start_time_s=start_s, end_time_s=end_s)

    def epochs_done(self, decided_s: float) -> float | None:
        """The most epochs reported as done after the decision; None if none were."""
        return max([epochs or 0.0 for time_s, _, epochs in self.progress if time_s > decided_s], default=0.0) or None

    def mean_speed(self, decided_s: float) -> float | None:
        """Mean of the reported speeds from the decision or the start on, weighted by time; None without a speed. If no
        time lies between the reports, all count alike."""
        start_s = max(decided_s, self.start_time_s)
        speeds = [speed for time_s, speed, _ in self.progress if speed and time_s > decided_s]
        if not speeds:
            return None
        points = points_of(start_s, None, 0.0, self.progress, has_finished=False)
        return mean_speed_of(points) or sum(speeds) / len(speeds)


@frozen
class RowOutcome:
    """What became of one row. Times in epoch seconds, None if nobody reported them. `epochs_done` and the mean speed
    are of reports after the decision."""

    status: Status
    fate: Fate
    epochs_done: float | None
    speed_epochs_per_s: float | None
    is_overridden: bool
    queueing_s: float | None
    jct_s: float | None
    slowdown: float | None
    place_decision_id: str | None


class Fates:
    """The fates of all jobs of some rows, which hold all rows of each of their jobs.

    A job asked about again has one placement: reports under the repeat count for the first answer, as do those under an
    unchanged refusal that another replica had logged. A report about a
    subtask that names the decision of its job counts for the subtask's own row.
    """

    def __init__(self, rows: Iterable[Decided]) -> None:
        rows = tuple(rows)
        self.orphans: list[Report] = []
        self._known = {row.key.job for row in rows}
        self._decided_s = {row.key: row.time_s for row in rows}
        refused = {row.key: Key(row.first_refusal, row.key.job_id) for row in rows if row.first_refusal}
        self._repeats = {**repeats(rows), **refused}
        self._by_key: dict[Key, Fate] = {}
        self._subtasks: dict[tuple[str, str, str], Key] = {}
        for row in sorted((row for row in rows if row.key.subtask), key=lambda row: row.time_s):
            for decision_id in (row.key.decision_id, ""):
                self._subtasks[decision_id, row.key.job_id, row.key.subtask] = row.key
        self._placed: dict[Key, Decided] = {}
        for row in sorted((row for row in rows if row.is_place), key=lambda row: row.time_s):
            if row.admit_decision_id and row.outcome in _HELD and not row.is_tried:
                self._placed.setdefault(Key(row.admit_decision_id, row.key.job_id), row)

    def add(self, report: Report) -> None:
        """Folds one report in; it is an orphan, too, if none of the rows is meant, unless it says that a job was
        submitted: its decision is still to come. A repeated report would change means of speeds, so the caller removes
        repeats first."""
        key = report.key
        if key.subtask:
            latest = self._subtasks.get(("", key.job_id, key.subtask), key)
            key = self._subtasks.get((key.decision_id, key.job_id, key.subtask), latest)
        if key.job not in self._known and (key.decision_id or report.kind != JobEventKind.SUBMITTED):
            self.orphans.append(report)
        key = self._repeats.get(key, key)
        self._by_key.setdefault(key, Fate()).add(report, self._decided_s.get(key, 0.0))

    def found(self, row: Decided, now_s: float, dangling_after_s: float) -> RowOutcome:
        """What became of a row."""
        placed = self._placed.get(row.key)
        known = self._by_key.get(row.key) or self._by_key.get(placed.key if placed else row.key) or Fate()
        fate = known.after(row.time_s)
        is_repeat = row.is_place and (not row.reservation_id or row.key in self._repeats)
        speed = fate.mean_speed(row.time_s)
        predicted = row.predicted_epochs_per_s
        has_finished = fate.end == JobEventKind.FINISHED
        is_one_clock = row.submit_time_s <= known.start_time_s
        return RowOutcome(
            status=_status(row, fate, now_s, dangling_after_s, is_repeat=is_repeat),
            fate=fate,
            epochs_done=fate.epochs_done(row.time_s),
            speed_epochs_per_s=speed,
            is_overridden=is_override(row, fate),
            queueing_s=_between(row.submit_time_s, fate.start_time_s) if is_one_clock else None,
            jct_s=_between(row.submit_time_s, fate.end_time_s) if has_finished else None,
            slowdown=predicted / speed if predicted and speed else None,
            place_decision_id=placed.key.decision_id if placed else None,
        )


def repeats(rows: Iterable[Decided]) -> Mapping[Key, Key]:
    """Jobs whose answer repeats an earlier decision, each with the row of that decision.

    A host that asks again for a job gets the placement it has, under a new decision id and the old reservation.
    """
    holders: dict[tuple[str, str, str], Decided] = {}
    held = [row for row in rows if row.is_place and row.reservation_id and not row.is_tried]
    for row in held:
        first = holders.get(_holding(row))
        if first is None or (row.time_s, row.key.decision_id) < (first.time_s, first.key.decision_id):
            holders[_holding(row)] = row
    return {row.key: holders[_holding(row)].key for row in held if holders[_holding(row)].key != row.key}


def _holding(row: Decided) -> tuple[str, str, str]:
    return row.cluster, row.key.job_id, row.reservation_id


def spots(assignments: Iterable[Assignment]) -> tuple[str, ...]:
    """ "node/gpu" for every GPU of every task, "node" for a task without one; sorted, so that the order of tasks,
    which hosts number as they like, makes no difference."""
    return tuple(sorted(_spots(assignments)))


def _spots(assignments: Iterable[Assignment]) -> Iterator[str]:
    for assignment in assignments:
        if not assignment.gpu_indices:
            yield assignment.node
        yield from (f"{assignment.node}/{gpu}" for gpu in assignment.gpu_indices)


def is_override(row: Decided, fate: Fate) -> bool:
    """True if the host ran the job elsewhere. Hosts that name nodes without GPU indices are compared by node."""
    if not fate.placement:
        return False
    names_gpus = list(fate.placement) != list(fate.nodes)
    planned, actual = (row.planned, fate.placement) if names_gpus else (row.nodes, fate.nodes)
    return list(planned) != list(actual)


def _status(row: Decided, fate: Fate, now_s: float, dangling_after_s: float, *, is_repeat: bool) -> Status:
    if fate.end:
        return Status.OBSERVED
    if row.outcome not in _HELD or row.is_tried or is_repeat:
        return Status.NOT_HELD
    last_s = max(row.time_s, fate.last_heard_time_s)
    return Status.DANGLING if now_s - last_s > dangling_after_s else Status.OPEN


def _between(first_s: float, last_s: float) -> float | None:
    """Seconds from one time to another; None if either is unknown, or if clocks disagree so far that it is negative."""
    return last_s - first_s if 0 < first_s <= last_s else None
