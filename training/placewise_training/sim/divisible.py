"""Divisible tasks on nodes that warm up: the heat-island paper's experiment, with any splitter. Decides nothing itself.

A stream of tasks is split over the idle units of a cluster; each share runs for scale / true capability, its unit is
under full load meanwhile, and the temperature of its node follows thermal.py exactly. A splitter knows the view:
hardware, last telemetry, learned overheads, and learned heat and capabilities if the settings say so; true capabilities
and thermal constants are the simulator's own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import Assignment, ClusterSettings, Node, NodeTelemetry, RunningJob
from placewise_core.domain.commands import ShareOutcome
from placewise_core.domain.decision import Outcome, PartitionPlan, Share
from placewise_core.domain.divisible import DivisibleTask
from placewise_core.domain.events import ClusterRecords, NodesReported, SubtaskProfiled
from placewise_core.domain.job import Job, JobId, NodeId, Resources, Role
from placewise_core.partition.policy import PartitionContext
from placewise_core.speed.learned import capability, heat
from placewise_core.speed.learned.sums import Addition, sums_of
from placewise_core.view.learned.capability import capability_of
from placewise_core.view.learned.heat import heat_additions
from placewise_core.view.view import ClusterView
from placewise_training.sim.events import EventHash, EventKind, EventQueue
from placewise_training.sim.hardware import NodeSpec, make_node
from placewise_training.sim.statistics import Distribution
from placewise_training.sim.thermal import ThermalSpec, ThermalState

UNITS = ("cpu", "gpu0")


@dataclass(frozen=True, slots=True)
class HeatNode:
    """A node with a CPU and a GPU; `capability` of both together in computing scale per second as it really is, of
    which the CPU has `cpu_share`: about what the shipped coefficients say, as the experiment is not about them. A kind
    of task may go faster or slower: `of_kind` has the factors of UNITS."""

    spec: NodeSpec
    capability: float
    cpu_share: float = 0.4
    of_kind: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def rate(self, unit: str, kind: str = "") -> float:
        """Computing scale per second of one of UNITS."""
        of_cpu, of_gpu = self.of_kind.get(kind, (1.0, 1.0))
        share = self.cpu_share * of_cpu if unit == "cpu" else (1.0 - self.cpu_share) * of_gpu
        return self.capability * share


def idle_units(view: ClusterView) -> list[tuple[str, str]]:
    """(node, one of UNITS) of those that serve nothing."""
    found: list[tuple[str, str]] = []
    for m in range(view.nodes.size):
        is_idle = {"cpu": view.usage.cpu_task_count[m] == 0, "gpu0": view.usage.gpu_tenant_count[m, 0] == 0}
        found += [(view.nodes.records[m].id, unit) for unit in UNITS if is_idle[unit]]
    return found


def heat_cluster(limit_celsius: float = 62.0) -> list[HeatNode]:
    """Five strong nodes (i7-3930K, 16 GB, GTX 660) and two weak ones (E5300, 4 GB, 9400 GT), section 5 of the paper.

    Clocks, memory and caches are those of the parts. Power is theirs under load, thermal resistances are set so that a
    strong node under lasting full load passes the limit and a weak one does not, as the paper's Figure 2 shows; the
    paper prints neither watts nor the threshold. Capabilities follow cores × clock.
    """
    strong = ThermalSpec(25.0, 0.15, 1000.0, 70.0, 300.0, limit_celsius)
    weak = ThermalSpec(25.0, 0.30, 500.0, 40.0, 115.0, limit_celsius)
    nodes = []
    for i in range(7):
        is_strong = i < 5
        spec = make_node(
            f"C{i + 1}",
            cpu_cores=6 if is_strong else 2,
            gpus=1,
            memory_gib=16 if is_strong else 4,
            network_gbps=1,
            gpu_model="GTX660" if is_strong else "9400GT",
            gpu_memory_gib=2.0 if is_strong else 0.5,
            cpu_ghz=3.2 if is_strong else 2.6,
            cache_mib=12 if is_strong else 2,
            gpu_ghz=0.98 if is_strong else 0.55,
            thermal=strong if is_strong else weak,
        )
        nodes.append(HeatNode(spec, 1.2 if is_strong else 0.4))
    return nodes


class Splitter(Protocol):
    """The half of a partition policy this simulation needs: shares stay where they were handed out."""

    def partition(self, task: DivisibleTask, view: ClusterView, context: PartitionContext) -> PartitionPlan: ...


class EqualSplit:
    """The paper's conventional scheduling: task balance only, the same scale for every idle unit, heat ignored."""

    name = "equal"

    def partition(self, task: DivisibleTask, view: ClusterView, context: PartitionContext) -> PartitionPlan:
        idle = idle_units(view)
        if not idle:
            return PartitionPlan(Outcome.WAIT)
        part = task.parallel_scale / len(idle)
        return PartitionPlan(Outcome.PLACED, tuple(Share(node, unit, part, part, 0.0, 1.0) for node, unit in idle))


class WithoutHeat:
    """A partition policy that sees no temperature: the paper's scheme, which predicts none."""

    name = "no prediction"

    def __init__(self, policy: Splitter) -> None:
        self._policy = policy

    def partition(self, task: DivisibleTask, view: ClusterView, context: PartitionContext) -> PartitionPlan:
        hidden = [7, 8, 9, 10, 11]  # rows of the telemetry: temperatures, limit, power, ambient
        kept = view.nodes.telemetry[hidden].copy()
        view.nodes.telemetry[hidden] = np.nan
        try:
            return self._policy.partition(task, view, context)
        finally:
            view.nodes.telemetry[hidden] = kept


@dataclass(frozen=True, slots=True)
class DivisibleWorkload:
    """Tasks of `scale` ± 30 % at `per_minute`, Poisson; the stream of the paper's second phase."""

    tasks: int = 200
    per_minute: float = 2.0
    scale: float = 150.0
    serial_share: float = 0.05

    def generate(self, seed: int) -> list[tuple[float, DivisibleTask]]:
        """(arrival time, task) in order."""
        rng = np.random.default_rng((seed, 8))
        times = np.cumsum(rng.exponential(60.0 / self.per_minute, self.tasks))
        scales = self.scale * rng.uniform(0.7, 1.3, self.tasks)
        return [
            (float(t), DivisibleTask(f"d{i}", float(s) * (1 - self.serial_share), float(s) * self.serial_share, 1.0))
            for i, (t, s) in enumerate(zip(times, scales, strict=True))
        ]


@dataclass(frozen=True, slots=True)
class HeatResult:
    """One run. `spread_celsius` is the mean over time of hottest less coolest node; `over_limit_s` summed over nodes.

    `curves` holds (seconds, °C of every node) every few seconds, for the paper's figures.
    """

    finished: int
    avg_completion_s: float
    makespan_s: float
    peak_celsius: float
    spread_celsius: float
    max_spread_celsius: float
    over_limit_s: float
    peak_by_node: Mapping[str, float]
    curves: tuple[tuple[float, tuple[float, ...]], ...]
    event_hash: str


class HeatSimulation:
    """One stream of divisible tasks over one cluster under one splitter, by arrival or the smallest first."""

    def __init__(
        self,
        nodes: Sequence[HeatNode],
        tasks: Sequence[tuple[float, DivisibleTask]],
        policy: Splitter,
        *,
        report_every_s: float = 5.0,
        is_shortest_first: bool = False,
        settings: ClusterSettings | None = None,
        share_sd: float = 0.0,
        seed: int = 0,
    ) -> None:
        """`share_sd`: the spread of the logarithm of a share's speed."""
        self.policy = policy
        self._is_shortest_first = is_shortest_first
        self.nodes = {node.spec.id: node for node in nodes}
        self.heat = {node.spec.id: ThermalState(node.spec.thermal) for node in nodes}
        self.view = ClusterView(ClusterRecords("heat", 0, "sim", nodes=tuple(node.spec.node for node in nodes)))
        self.view.settings = settings or ClusterSettings()
        self.clock, self.events, self.hash = ManualClock(), EventQueue(), EventHash()
        self.completion = Distribution()
        self.waiting: list[tuple[float, DivisibleTask]] = []
        self._left: dict[str, int] = {}
        self._started: dict[str, float] = {}
        self._report_every_s, self._share_sd = report_every_s, share_sd
        self._rng = np.random.default_rng((seed, 9))
        self._noise = {node.spec.id: float(np.exp(0.03 * self._rng.standard_normal())) for node in nodes}
        self._samples: list[tuple[float, tuple[float, ...]]] = []
        self._over_s = self._last_finish_s = 0.0
        self._open = len(tasks)
        for time_s, task in tasks:
            self.events.push(time_s, EventKind.ARRIVAL, (time_s, task))
        self.events.push(0.0, EventKind.TELEMETRY)

    @property
    def now_s(self) -> float:
        return self.clock.now_s()

    def run(self, progress: Callable[[int, float], None] | None = None) -> HeatResult:
        """To the last share."""
        while len(self.events) and self._open:
            event = self.events.pop()
            self.clock.advance(max(0.0, event.time_s - self.now_s))
            if event.kind is EventKind.TELEMETRY:
                self._sample()
            elif event.kind is EventKind.ARRIVAL:
                self._wait(*event.payload)
            else:
                self._share_done(*event.payload)
            self._split_waiting()
            if progress is not None:
                progress(self.completion.count, self.now_s)
        return self._result()

    def _wait(self, arrived_s: float, task: DivisibleTask) -> None:
        self.waiting.append((arrived_s, task))
        if self._is_shortest_first:
            self.waiting.sort(key=lambda entry: entry[1].parallel_scale + entry[1].serial_scale)

    def _sample(self) -> None:
        celsius = {name: state.advance(self.now_s) for name, state in self.heat.items()}
        limits = {name: node.spec.thermal.limit_celsius for name, node in self.nodes.items()}
        self._over_s += self._report_every_s * sum(celsius[name] > limits[name] + 1e-9 for name in celsius)
        self._samples.append((self.now_s, tuple(celsius.values())))
        before = tuple(self.view.nodes.records)
        reported = tuple(self._reported(node, celsius) for node in before)
        self.view.apply_change(NodesReported(reported))
        if self.view.settings.learn_heat:
            for addition in heat_additions(zip(before, reported, strict=True)):
                self._add(addition, heat.HALVING_S)
        self.events.push(self.now_s + self._report_every_s, EventKind.TELEMETRY)

    def _add(self, addition: Addition, halving_s: float) -> None:
        """As the store does."""
        row = sums_of(self.view.estimates.row(addition.kind))
        added = row.added(addition.value, self.now_s, halving_s, addition.weight)
        self.view.apply_change(SubtaskProfiled(addition.kind, added.row))

    def _reported(self, node: Node, celsius: Mapping[str, float]) -> Node:
        m = self.view.nodes.index[node.id]
        spec = self.nodes[node.id].spec.thermal
        telemetry = NodeTelemetry(
            cpu_util=0.9 if self.view.usage.cpu_task_count[m] else 0.02,
            gpu_util=0.9 if self.view.usage.gpu_tenant_count[m, 0] else 0.0,
            cpu_celsius=celsius[node.id],
            gpu_celsius=celsius[node.id],
            limit_celsius=spec.limit_celsius,
            power_watts=self.heat[node.id].power_w,
            ambient_celsius=spec.ambient_celsius,
            observe_time_s=max(1e-9, self.now_s),
        )
        return replace(node, telemetry=telemetry)

    def _split_waiting(self) -> None:
        """Tasks in their order, each split over the idle units; the first that has to wait stops the rest."""
        while self.waiting:
            arrived_s, task = self.waiting[0]
            plan = self.policy.partition(task, self.view, PartitionContext(self.now_s))
            if plan.outcome is not Outcome.PLACED:
                return
            self.waiting.pop(0)
            self._start(arrived_s, task, plan)

    def _start(self, arrived_s: float, task: DivisibleTask, plan: PartitionPlan) -> None:
        """The first share does the serial part before its own; every share of a split costs its overhead."""
        self._left[task.id] = len(plan.shares)
        self._started[task.id] = arrived_s
        self.hash.add(self.now_s, task.id, len(plan.shares), [f"{s.node}/{s.unit}" for s in plan.shares])
        overhead_s = task.overhead_s if len(plan.shares) > 1 else 0.0
        for i, share in enumerate(plan.shares):
            scale = share.scale + (task.serial_scale if i == 0 else 0.0)
            rate = self.nodes[share.node].rate(share.unit, task.kind) * self._noise[share.node]
            if self._share_sd > 0:
                rate *= float(np.exp(self._share_sd * self._rng.standard_normal()))
            self._hold(task, i, share)
            outcome = ShareOutcome(task.kind, share.node, share.unit, share.scale, share.scale / rate, overhead_s)
            self.events.push(self.now_s + scale / rate + overhead_s, EventKind.FINISH, (task.id, i, outcome))

    def _hold(self, task: DivisibleTask, i: int, share: Share) -> None:
        job = Job(JobId(f"{task.id}/{i}"))
        gpus, demand = ((0,), Resources(gpus=1)) if share.unit == "gpu0" else ((), Resources(cpu_cores=1))
        held = Assignment("share", Role.WORKER, NodeId(share.node), gpus, demand)
        self.view.add_job(RunningJob(job, (held,), start_time_s=self.now_s))
        self._warm(share.node)

    def _share_done(self, task_id: str, i: int, outcome: ShareOutcome) -> None:
        self.view.remove_job(JobId(f"{task_id}/{i}"))
        self._warm(outcome.node)
        if self.view.settings.learn_capability:
            addition = capability_of(outcome, self.view)
            if addition is not None:
                self._add(addition, capability.HALVING_S)
        self._left[task_id] -= 1
        if self._left[task_id] == 0:
            del self._left[task_id]
            self._open -= 1
            self._last_finish_s = self.now_s
            self.completion.add(self.now_s - self._started.pop(task_id))
            self.hash.add(self.now_s, task_id, 0)

    def _warm(self, node: str) -> None:
        """CPU and GPU take half of the node's power each: those of the paper's strong nodes have 130 and 140 W."""
        self.heat[node].set_util(self.now_s, self.view.usage.tasks_on(self.view.nodes.index[node]) / len(UNITS))

    def _result(self) -> HeatResult:
        spreads = [max(celsius) - min(celsius) for _, celsius in self._samples]
        peaks = {name: state.peak_celsius for name, state in self.heat.items()}
        return HeatResult(
            finished=self.completion.count,
            avg_completion_s=self.completion.mean,
            makespan_s=self._last_finish_s,
            peak_celsius=max(peaks.values()),
            spread_celsius=float(np.mean(spreads)),
            max_spread_celsius=float(np.max(spreads)),
            over_limit_s=self._over_s,
            peak_by_node=peaks,
            curves=tuple(self._samples),
            event_hash=self.hash.hexdigest(),
        )
