"""The contract of a truth: a cluster that runs placed jobs at true speeds, on a clock of its own. Decides nothing.

`placewise replay --truth NAME` drives one with a running service as its policy. Packages offer truths by an entry point
in the group `placewise.truths`: its name is the truth's, its value a `TruthMaker`.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import Assignment, Node
from placewise_core.domain.job import Job, JobId, Shape
from placewise_core.domain.traces import TraceJob

TRUTH_GROUP = "placewise.truths"
TICK_S = 60.0  # between questions while nothing happens and jobs wait (policies that wait on purpose)
IDLE_TICKS = 2000  # so many in vain, and the rest will never start


@frozen
class TruthSetting:
    """Everything that a truth is made from. `is_elastic` leaves the number of GPUs to admission."""

    jobs: Sequence[TraceJob]
    nodes: int
    gpus_per_node: int
    gpu_model: str = "V100"
    seed: int = 0
    is_elastic: bool = False


@frozen
class Progress:
    """A job's speed in epochs per second and its epochs done. The speed of a finished job is its mean."""

    job_id: JobId
    speed: float
    epochs_done: float


@frozen
class Moment:
    """One thing that happened, `now_s` seconds after the trace began: a job arrived, or one finished.

    `is_impossible`: the job that arrived can never run on this cluster.
    """

    now_s: float
    arrived: Job | None = None
    is_impossible: bool = False
    finished: Progress | None = None


class Truth(Protocol):
    """A cluster with a clock. Equal settings and equal starts give equal moments."""

    @property
    def nodes(self) -> Sequence[Node]:
        """The nodes of the cluster, all ready."""
        ...

    @property
    def queues(self) -> Sequence[str]:
        """The queues that its jobs name."""
        ...

    def advance(self) -> Moment | None:
        """Runs to the next moment; None if nothing will happen any more by itself."""
        ...

    def pass_time(self, span_s: float) -> float:
        """Lets time pass though nothing happens; the new time in seconds."""
        ...

    def start(self, job_id: JobId, assignments: Sequence[Assignment], shape: Shape | None = None) -> None:
        """Starts a job that arrived; `shape` is the one that an elastic job was admitted with.

        Raises KeyError if the job does not wait.
        """
        ...

    def settle(self) -> Sequence[Progress]:
        """Ends the starts of a moment. The jobs whose speed changed, the started ones among them."""
        ...

    def digest(self) -> str:
        """A hash of everything that happened: equal for equal runs."""
        ...


TruthMaker = Callable[[TruthSetting], Truth]
