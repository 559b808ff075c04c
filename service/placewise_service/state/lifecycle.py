"""What reservations and reports make of a job: the reference for report_jobs.lua. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from placewise_core.domain.cluster import RunningJob, RunState
from placewise_core.domain.events import JobsChanged, JobsEnded
from placewise_service.state.holdings import holds_of
from placewise_service.state.store import JobReport


def reserved(job: RunningJob, expire_s: float) -> RunningJob:
    """The job as a reservation holds it."""
    return RunningJob(
        job.job, job.assignments, RunState.RESERVED, job.reservation_id, expire_s, decision_id=job.decision_id
    )


def started(held: RunningJob | None, report: JobReport) -> RunningJob | None:
    """The job as the host started it; None for a repeat, or if its resources are unknown."""
    reported = report.running
    if held is None and reported is None:
        return None
    is_confirming = held is not None and held.state is RunState.RESERVED
    if held is not None and not is_confirming and (reported is None or holds_of(reported) == holds_of(held)):
        return None
    job = reported or held
    assert job is not None
    return replace(
        job,
        state=RunState.RUNNING,
        expire_time_s=0.0,
        start_time_s=reported.start_time_s if reported is not None else report.event_time_s,
        speed=report.speed,
        epochs_done=report.epochs_done,
    )


def progressed(held: RunningJob | None, report: JobReport) -> RunningJob | None:
    """The job with its progress; progress of a reserved job confirms it. None without a change."""
    if held is None or report.kind != "PROGRESS":
        return None
    is_confirming = held.state is RunState.RESERVED
    if not is_confirming and (held.speed, held.epochs_done) == (report.speed, report.epochs_done):
        return None
    return replace(
        held,
        state=RunState.RUNNING,
        expire_time_s=0.0,
        start_time_s=report.event_time_s if is_confirming else held.start_time_s,
        speed=report.speed,
        epochs_done=report.epochs_done,
    )


def runs_of(changes: Sequence[JobsChanged | JobsEnded]) -> list[JobsChanged | JobsEnded]:
    """One change per run of changes of the same kind."""
    runs: list[JobsChanged | JobsEnded] = []
    for change in changes:
        last = runs[-1] if runs else None
        if isinstance(last, JobsChanged) and isinstance(change, JobsChanged):
            runs[-1] = JobsChanged(last.jobs + change.jobs)
        elif isinstance(last, JobsEnded) and isinstance(change, JobsEnded):
            runs[-1] = JobsEnded(last.job_ids + change.job_ids)
        else:
            runs.append(change)
    return runs
