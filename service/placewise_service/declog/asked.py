"""Jobs that this process was asked about: whether a question is a repeat, and which decision admitted a job."""

from collections.abc import Mapping, Sequence
from typing import Final

from placewise_core.basics.bounded import Bounded
from placewise_core.domain.cluster import QueueState
from placewise_core.domain.decision import AdmitDecision, Verdict
from placewise_core.domain.job import Job

_MOST: Final = 16_384  # jobs remembered


class AskedJobs:
    """Bounded, and gone with the process. The queues in the shared state also know who admitted a shaped job."""

    def __init__(self, most: int = _MOST) -> None:
        self._placed: Bounded[tuple[str, str], None] = Bounded(most)
        self._admitted: Bounded[tuple[str, str], str] = Bounded(most)

    def admit(self, cluster: str, decision: AdmitDecision) -> None:
        """Remembers who admitted these jobs: the first decision, until one says WAIT."""
        for given in decision.plan.admissions:
            key = (cluster, given.job_id)
            if given.verdict is Verdict.WAIT:
                self._admitted.pop(key, None)
            elif key not in self._admitted:
                self._admitted[key] = decision.meta.decision_id

    def admitted_by(self, cluster: str, jobs: Sequence[Job], queues: Mapping[str, QueueState]) -> Mapping[str, str]:
        """The AdmitOrWait decision of each job that was admitted."""
        found: dict[str, str] = {}
        for job in jobs:
            known = [queue.decisions[job.id] for queue in queues.values() if job.id in queue.decisions]
            if decision_id := known[0] if known else self._admitted.get((cluster, job.id), ""):
                found[job.id] = decision_id
        return found

    def repeats(self, cluster: str, jobs: Sequence[Job]) -> tuple[str, ...]:
        """Those of the jobs that Place was asked about before. Remembers them all."""
        again = []
        for job in jobs:
            if (cluster, job.id) in self._placed:
                again.append(job.id)
            else:
                self._placed[cluster, job.id] = None
        return tuple(again)
