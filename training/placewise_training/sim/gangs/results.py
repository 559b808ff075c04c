"""What a run is told and what it tells: options, observers, result. Plain data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from placewise_core.cluster import QueueSettings
from placewise_core.speed.interference import GpuInterference, NoInterference
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.faults import Fault
from placewise_training.sim.gangs.metrics import Metrics
from placewise_training.sim.jobs import SimJob

# What a run may tell: (time, what, job, node ids). "start", "finish", "restart" and "impossible".
Observer = Callable[[float, str, SimJob, tuple[str, ...]], None]


@dataclass(frozen=True, slots=True)
class SimResult:
    """One run: metrics, the hash of its events, what it cost, and what could not be done."""

    metrics: Metrics
    event_hash: str
    events: int
    decisions: int
    decide_s: float
    wall_s: float
    impossible: tuple[str, ...]
    is_partial: bool = False

    @property
    def decisions_per_s(self) -> float:
        """Tasks placed per CPU second spent in the policy: what one core of its own would do."""
        return self.decisions / self.decide_s if self.decide_s > 0 else 0.0


@dataclass(slots=True)
class SimOptions:
    """`belief` is what the policy thinks of GPU sharing; `ideal_gpu` the GPU slowdowns are counted against."""

    discipline: Discipline = field(default_factory=Discipline)
    belief: GpuInterference = field(default_factory=NoInterference)
    queue_settings: QueueSettings = field(default_factory=QueueSettings)
    faults: Sequence[Fault] = ()
    telemetry_every_s: float = 0.0
    reports_progress: bool = False
    observers: Sequence[Observer] = ()
