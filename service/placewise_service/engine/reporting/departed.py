"""Which decision led to jobs that are gone from a view, so that what hosts still report of them finds its decision.

A host repeats the end of a job when the answer to its first report was lost. An adapter that is started again repeats
the start and the end of each job that its host still shows. A host may name a job whose reservation has expired. Then
the view has forgotten the job. Bounded: the oldest are forgotten first.
"""

from collections.abc import Mapping

from placewise_core.basics.bounded import Latest
from placewise_core.domain.cluster import RunningJob
from placewise_core.domain.events import JobsEnded
from placewise_core.domain.job import JobId

MOST = 8192  # about a megabyte; hosts repeat a report within seconds


class Departed:
    """The decisions of one cluster's latest departed jobs, as one replica saw them leave."""

    def __init__(self, most: int = MOST) -> None:
        self._decisions: Latest[JobId, tuple[str, bool, float]] = Latest(most)

    def note(self, jobs: Mapping[JobId, RunningJob], change: JobsEnded) -> None:
        """Remembers the jobs that this change takes out of `jobs`."""
        for job_id in change.job_ids:
            if (job := jobs.get(job_id)) is not None:
                self._remember(job, change.is_expiry)

    def note_missing(self, before: Mapping[JobId, RunningJob], after: Mapping[JobId, RunningJob]) -> None:
        """Remembers the jobs of a view that are not in the one built in its place."""
        for job_id in before.keys() - after.keys():
            self._remember(before[job_id], has_expired=False)

    def decision_of(self, job_id: JobId, *, is_end: bool, start_time_s: float = 0.0) -> str:
        """The decision id, "" if unknown. `start_time_s`: of a start that the host dates, else 0.

        A job that ended may start again under the same id without a new request: only another report of its end, or of
        the same start, is about the old decision. A job whose reservation expired may still start by that decision.
        """
        decision_id, has_expired, started_s = self._decisions.get(job_id, ("", False, 0.0))
        return decision_id if is_end or has_expired or 0 < start_time_s <= started_s else ""

    def _remember(self, job: RunningJob, has_expired: bool) -> None:
        if not job.decision_id:
            return
        self._decisions.pop(job.job.id, None)  # the newest stands last
        self._decisions[job.job.id] = (job.decision_id, has_expired, job.start_time_s)
