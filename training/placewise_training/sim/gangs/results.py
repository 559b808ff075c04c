"""Options, observers and the result of a run. Plain data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from placewise_core.domain.cluster import ClusterSettings, QueueSettings
from placewise_core.speed.interference import GpuInterference, NoInterference
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.faults import Fault
from placewise_training.sim.gangs.metrics import Metrics
from placewise_training.sim.jobs import SimJob

# Called with (time, event, job, node ids); the event is "start", "finish", "restart" or "impossible".
Observer = Callable[[float, str, SimJob, tuple[str, ...]], None]


@dataclass(frozen=True, slots=True)
class SimResult:
    """One run: metrics, the hash of its events, its CPU time, and the jobs that can never run."""

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
        """Tasks placed per CPU second spent in the policy: the rate of one core of its own."""
        return self.decisions / self.decide_s if self.decide_s > 0 else 0.0


@dataclass(slots=True)
class SimOptions:
    """`belief` is the policy's model of GPU sharing. `learns_durations`: jobs without a length get the one learned from
    those that ended, as on a cluster with the setting `learn_durations`. `learns_throughput`: admission's forecasts
    follow the speeds that jobs report whenever one may start or ends, as with `learn_throughput`. `learns_disturbance`:
    the cluster learns from these reports how much jobs beside each other lose, for the policy `adaptive`."""

    discipline: Discipline = field(default_factory=Discipline)
    belief: GpuInterference = field(default_factory=NoInterference)
    queue_settings: QueueSettings = field(default_factory=QueueSettings)
    faults: Sequence[Fault] = ()
    telemetry_every_s: float = 0.0
    reports_progress: bool = False
    observers: Sequence[Observer] = ()
    learns_durations: bool = False
    learns_throughput: bool = False
    learns_disturbance: bool = False

    @property
    def learns_from_speeds(self) -> bool:
        """Whether the cluster learns from reports, and there are any."""
        return self.learns_throughput or (self.learns_disturbance and self.reports_progress)

    @property
    def settings(self) -> ClusterSettings:
        """Of the simulated cluster."""
        return ClusterSettings(learn_throughput=self.learns_throughput)
