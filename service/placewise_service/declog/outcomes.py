"""Joins decisions with their outcomes, one row per job (or share). Pure: knows no file and no store.

Status of a row:

    OBSERVED   the host reported an end
    OPEN       no end yet, and the time-out has not passed since the last word of the job
    DANGLING   no end, and the time-out has passed: the host forgot, or was never able, to report
    NOT_HELD   nothing to wait for: the answer was WAIT or NO_FIT, a dry run, a shadow's, or a repeat of an earlier
               decision for the job (outcomes reported under the repeat count for the earlier one)
"""

import enum
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import Assignment
from placewise_core.domain.commands import JobEventKind
from placewise_core.domain.decision import JobDecision, Outcome, Share
from placewise_core.domain.job import Job
from placewise_log.record import DecisionRecord, OutcomeRecord

Key = tuple[str, str, str]  # decision id, job id, "node/unit" of a share ("" for a whole job)

_ENDS = (JobEventKind.FINISHED, JobEventKind.FAILED, JobEventKind.CANCELLED)


class Status(enum.StrEnum):
    OBSERVED = "OBSERVED"
    OPEN = "OPEN"
    DANGLING = "DANGLING"
    NOT_HELD = "NOT_HELD"


@dataclass(slots=True)
class Fate:
    """Reports about one job since a decision. Times in epoch seconds, 0 = never; speeds in epochs per second."""

    last_heard_time_s: float = 0.0
    start_time_s: float = 0.0
    end_time_s: float = 0.0
    end: str = ""
    placement: tuple[Assignment, ...] = ()
    speed_sum: float = 0.0
    speed_count: int = 0
    epochs_done: float = 0.0
    share_s: float = 0.0

    @property
    def mean_speed(self) -> float:
        return self.speed_sum / self.speed_count if self.speed_count else 0.0


@frozen
class Row:
    """One job of a Place decision, or one share of a Partition decision, with its fate.

    `planned` and `actual` list "node/gpu" (or "node") of every task; `actual` is empty if the host confirmed the
    plan or reported no placement. `predicted_s` and `actual_s` are for shares. `propensity` is P(a), `own_propensity`
    π(a); this, `exploration_rate`, `explorer` and `guard` are null for a job that the decision did not place. Times and
    speeds that nobody reported are None, never 0. declog/columns.py describes every field.
    """

    decision_id: str
    job_id: str
    unit: str
    rpc: str
    cluster: str
    decide_time_s: float
    policy: str
    bundle: str
    bundle_digest: str
    caller: str
    propensity: float
    is_explored: bool
    is_fallback: bool
    outcome: str
    status: str
    planned: tuple[str, ...]
    actual: tuple[str, ...]
    is_overridden: bool
    submit_time_s: float | None
    start_time_s: float | None
    end_time_s: float | None
    end: str
    predicted_speed: float | None
    mean_speed: float | None
    epochs_done: float | None
    predicted_s: float | None
    actual_s: float | None
    own_propensity: float | None = None
    exploration_rate: float | None = None
    explorer: str | None = None
    guard: str | None = None
    predicted_speed_epochs_per_s: float | None = None
    speed_epochs_per_s: float | None = None
    slowdown: float | None = None
    queueing_s: float | None = None
    jct_s: float | None = None


def repeats(decisions: Iterable[DecisionRecord]) -> dict[Key, Key]:
    """Jobs whose answer repeats an earlier decision of the day, each with the key of that decision.

    A host that asks again for a job gets the placement it has, under a new decision id and the old reservation.
    """
    holders: dict[tuple[str, str], tuple[float, Key]] = {}
    asked_again: list[tuple[tuple[str, str], Key]] = []
    for record in decisions:
        for decided in record.place.decisions if record.place is not None else ():
            if not decided.reservation_id:
                continue
            held, key = (decided.job_id, decided.reservation_id), (record.decision_id, decided.job_id, "")
            first = holders.get(held)
            if first is None or record.time_s < first[0]:
                holders[held] = (record.time_s, key)
            if first is not None:
                asked_again += [(held, key), (held, first[1])]
    return {key: holders[held][1] for held, key in asked_again if holders[held][1] != key}


@dataclass(slots=True)
class Fates:
    """The fates of all jobs of a day, folded from outcomes in any order; a job in `repeats` counts for the
    decision that it repeats. A repeated outcome would change speed means, so the caller removes repeats first."""

    repeats: Mapping[Key, Key] = field(default_factory=dict)
    by_key: dict[Key, Fate] = field(default_factory=dict)

    def add(self, outcome: OutcomeRecord) -> None:
        """Folds one outcome in."""
        event = outcome.event
        unit = f"{event.share.node}/{event.share.unit}" if event.share is not None else ""
        key = (outcome.decision_id, event.job_id, unit)
        fate = self.by_key.setdefault(self.repeats.get(key, key), Fate())
        time_s = event.event_time_s or outcome.receive_time_s
        fate.last_heard_time_s = max(fate.last_heard_time_s, time_s)
        if event.kind is JobEventKind.STARTED:
            fate.start_time_s = time_s
            fate.placement = event.placement
        elif event.kind in _ENDS or event.kind is JobEventKind.SHARE_FINISHED:
            fate.end_time_s, fate.end = time_s, event.kind.value
        if event.share is not None:
            fate.share_s = event.share.seconds
        if event.speed > 0:
            fate.speed_sum += event.speed
            fate.speed_count += 1
        fate.epochs_done = max(fate.epochs_done, event.epochs_done)


def join(decisions: Iterable[DecisionRecord], fates: Fates, *, now_s: float, dangling_after_s: float) -> Iterator[Row]:
    """The rows of Place and Partition decisions. AdmitOrWait has none: its jobs are placed by a later decision."""
    for record in decisions:
        if record.place is not None:
            jobs = {job.id: job for job in record.jobs}
            for decided in record.place.decisions:
                key = (record.decision_id, decided.job_id, "")
                fate = fates.by_key.get(key, Fate())
                is_repeat = not decided.reservation_id or key in fates.repeats
                status = _status(record, decided.outcome, fate, now_s, dangling_after_s, is_repeat=is_repeat)
                yield _job_row(record, decided, fate, status, jobs.get(decided.job_id))
        elif record.partition is not None and record.task is not None:
            for share in record.partition.plan.shares:
                unit = f"{share.node}/{share.unit}"
                fate = fates.by_key.get((record.decision_id, record.task.id, unit), Fate())
                status = _status(record, record.partition.plan.outcome, fate, now_s, dangling_after_s)
                yield _share_row(record, record.task.id, unit, share, fate, status)


def count_statuses(rows: Iterable[Row]) -> Counter[str]:
    """How many rows have each status; "OVERRIDDEN" counts those the host placed elsewhere."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row.status] += 1
        counts["OVERRIDDEN"] += row.is_overridden
    return counts


def spots(assignments: Iterable[Assignment]) -> tuple[str, ...]:
    """ "node/gpu" for every GPU of every task, "node" for a task without one; sorted, so that the order of tasks,
    which hosts number as they like, makes no difference."""
    named = (
        f"{assignment.node}/{gpu}" if gpu is not None else assignment.node
        for assignment in assignments
        for gpu in (assignment.gpu_indices or (None,))
    )
    return tuple(sorted(named))


def is_override(planned: Iterable[Assignment], actual: Iterable[Assignment]) -> bool:
    """True if the host ran the job elsewhere. Hosts that name nodes without GPU indices are compared by node."""
    planned, actual = tuple(planned), tuple(actual)
    if not actual:
        return False
    if any(assignment.gpu_indices for assignment in actual):
        return spots(planned) != spots(actual)
    return sorted(a.node for a in planned) != sorted(a.node for a in actual)


def _status(
    record: DecisionRecord,
    outcome: Outcome,
    fate: Fate,
    now_s: float,
    dangling_after_s: float,
    *,
    is_repeat: bool = False,
) -> Status:
    if fate.end:
        return Status.OBSERVED
    if outcome is not Outcome.PLACED or record.is_dry_run or record.shadow_of or is_repeat:
        return Status.NOT_HELD
    last_s = max(record.time_s, fate.last_heard_time_s)
    return Status.DANGLING if now_s - last_s > dangling_after_s else Status.OPEN


def _job_row(record: DecisionRecord, decided: JobDecision, fate: Fate, status: Status, job: Job | None) -> Row:
    meta, draw = record.meta, record.draw_of(decided.job_id)
    submit_time_s = job.submit_time_s if job is not None else 0.0
    predicted, speed = decided.predicted_speed or None, fate.mean_speed or None
    in_epochs = predicted if job is not None and _is_in_epochs(job) else None
    has_finished = fate.end == JobEventKind.FINISHED.value
    return Row(
        decision_id=record.decision_id,
        job_id=decided.job_id,
        unit="",
        rpc=record.rpc,
        cluster=record.cluster,
        decide_time_s=record.time_s,
        policy=meta.policy,
        bundle=meta.bundle,
        bundle_digest=meta.bundle_digest,
        caller=meta.caller,
        propensity=decided.propensity,
        is_explored=draw.is_explored if draw is not None else meta.is_explored,
        is_fallback=bool(draw.fallback_reason) if draw is not None else meta.is_fallback,
        outcome=decided.outcome.value,
        status=status.value,
        planned=spots(decided.assignments),
        actual=spots(fate.placement),
        is_overridden=is_override(decided.assignments, fate.placement),
        submit_time_s=submit_time_s or None,
        start_time_s=fate.start_time_s or None,
        end_time_s=fate.end_time_s or None,
        end=fate.end,
        predicted_speed=predicted,
        mean_speed=speed,
        epochs_done=fate.epochs_done or None,
        predicted_s=None,
        actual_s=None,
        own_propensity=draw and draw.own_propensity,
        exploration_rate=draw and draw.rate,
        explorer=draw and draw.explorer,
        guard=draw and draw.guard,
        predicted_speed_epochs_per_s=in_epochs,
        speed_epochs_per_s=speed,
        slowdown=in_epochs / speed if in_epochs and speed else None,
        queueing_s=_between(submit_time_s, fate.start_time_s),
        jct_s=_between(submit_time_s, fate.end_time_s) if has_finished else None,
    )


def _is_in_epochs(job: Job) -> bool:
    """Whether its predicted speed counts epochs; else it counts samples."""
    return job.dataset_size > 0 or (job.single_gpu_s > 0 and job.total_epochs > 0)


def _share_row(record: DecisionRecord, task_id: str, unit: str, share: Share, fate: Fate, status: Status) -> Row:
    meta = record.meta
    return Row(
        decision_id=record.decision_id,
        job_id=task_id,
        unit=unit,
        rpc=record.rpc,
        cluster=record.cluster,
        decide_time_s=record.time_s,
        policy=meta.policy,
        bundle=meta.bundle,
        bundle_digest=meta.bundle_digest,
        caller=meta.caller,
        propensity=meta.propensity,
        is_explored=meta.is_explored,
        is_fallback=meta.is_fallback,
        outcome=Outcome.PLACED.value,
        status=status.value,
        planned=(unit,),
        actual=(),
        is_overridden=False,
        submit_time_s=None,
        start_time_s=fate.start_time_s or None,
        end_time_s=fate.end_time_s or None,
        end=fate.end,
        predicted_speed=None,
        mean_speed=None,
        epochs_done=None,
        predicted_s=share.predicted_s,
        actual_s=fate.share_s or None,
    )


def _between(first_s: float, last_s: float) -> float | None:
    """Seconds from one time to another; None if either is unknown, or if clocks disagree so far that it is negative."""
    return last_s - first_s if 0 < first_s <= last_s else None
