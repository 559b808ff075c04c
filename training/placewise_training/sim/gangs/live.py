"""A job that runs, and where its tasks are. Accounts for its work; never decides."""

from collections.abc import Sequence
from dataclasses import dataclass

from placewise_core.domain.cluster import Assignment, RunningJob
from placewise_core.domain.job import Job, Role
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

    def running(self, job: Job, now_s: float) -> RunningJob:
        """The job with its speed and progress by now, as its host would report them."""
        per_epoch = self.sim.epoch_samples or self.sim.samples / max(1e-12, job.total_epochs or 1.0)
        speed, done = self.rate / per_epoch, self.done_at(now_s) / per_epoch
        return RunningJob(job, self.assignments, start_time_s=self.start_s, speed=speed, epochs_done=done)


def spots_of(assignments: Sequence[Assignment]) -> list[Spot]:
    """Assignments gathered by node, in the order the nodes first appear."""
    workers: dict[str, int] = {}
    servers: dict[str, int] = {}
    gpus: dict[str, tuple[int, ...]] = {}
    for assignment in assignments:
        node, counted = assignment.node, workers if assignment.role is Role.WORKER else servers
        counted[node] = counted.get(node, 0) + 1
        gpus[node] = gpus.get(node, ()) + assignment.gpu_indices
    return [Spot(node, workers.get(node, 0), servers.get(node, 0), indices) for node, indices in gpus.items()]


def per_gpu(job: Job, assignments: Sequence[Assignment]) -> Sequence[Assignment]:
    """A job with a shape has one worker per node (standing.with_groups); the speeds are those of one worker per GPU."""
    if job.is_rigid or job.shape is None:
        return assignments
    group = job.groups[0]
    places = [(assignment.node, gpu) for assignment in assignments for gpu in assignment.gpu_indices]
    return [
        Assignment(f"worker-{number}", group.role, node, (gpu,), demand=group.demand)
        for number, (node, gpu) in enumerate(places)
    ]
