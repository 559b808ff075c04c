"""The two arms of one Place request. The arm of a job decides alone which policies place it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from placewise_core.domain.job import JobId
from placewise_core.policies.trial.arms import Arm, Side
from placewise_core.view.view import ClusterView
from placewise_service.engine.registry import Canary


@dataclass(slots=True)
class Arming:
    """Which arm decides each job of a request, by the time of the request; `taken` has those decided so far. A dry run
    asks the arm that would answer, and is no part of the trial: `is_tried`."""

    canary: Canary
    now_s: float
    sides: Mapping[Arm, Side]
    is_tried: bool = False
    taken: dict[JobId, Arm] = field(default_factory=dict)

    def take(self, job_id: JobId) -> Side:
        """The side that decides a job."""
        arm = self.taken[job_id] = self.canary.rule.of(job_id, self.now_s)
        return self.sides[arm]

    @property
    def is_all_canary(self) -> bool:
        """Whether the canary decided every job that was decided."""
        return bool(self.taken) and set(self.taken.values()) == {Arm.CANARY}


ArmingOn = Callable[[ClusterView], Arming]
"""Of a request that is decided on this view. One in slices meets another view than when it came."""
