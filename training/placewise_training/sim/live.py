"""A job that runs, and where its tasks are. Accounts for its work; never decides."""

from collections.abc import Sequence
from dataclasses import dataclass

from placewise_core.cluster import Assignment
from placewise_core.job import Role
from placewise_training.sim.jobs import SimJob
from placewise_training.sim.speed.base import Footprint, Spot


@dataclass(slots=True)
class LiveJob:
    """A job that runs. `done` and `rate` in samples, as of `settled_s`."""

    sim: SimJob
    footprint: Footprint
    assignments: tuple[Assignment, ...]
    start_s: float
    settled_s: float
    done: float
    rate: float = 0.0
    version: int = 0
    gpus: int = 0

    def done_at(self, now_s: float) -> float:
        """Samples done by `now_s`, at the present rate since it was settled."""
        return self.done + self.rate * (now_s - self.settled_s)

    def settle(self, now_s: float) -> None:
        self.done = self.done_at(now_s)
        self.settled_s = now_s


def spots_of(assignments: Sequence[Assignment]) -> list[Spot]:
    """Assignments gathered by node, in the order the nodes first appear."""
    gathered: dict[str, list[Assignment]] = {}
    for assignment in assignments:
        gathered.setdefault(assignment.node, []).append(assignment)
    return [
        Spot(
            node=name,
            workers=sum(a.role is Role.WORKER for a in there),
            servers=sum(a.role is Role.PARAMETER_SERVER for a in there),
            gpu_indices=tuple(g for a in there for g in a.gpu_indices),
        )
        for name, there in gathered.items()
    ]
