"""The metrics that judge a simulation. Fed by the engine at every change; flat in the number of finished jobs.

Utilisation is allocation: the share of GPUs and cores that jobs hold. Load balance follows LDWP (7)–(10).
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from placewise_core.basics.frozen import frozen
from placewise_core.view.view import CPU, GPU_MEMORY, GPUS, MEMORY, ClusterView
from placewise_training.sim.statistics import Distribution, TimeAverage, jain


@dataclass(frozen=True, slots=True)
class Metrics:
    """One run. Times in seconds, rates in 1/s, shares of 1, °C. Temperatures are 0 where heat was not simulated."""

    jobs: int
    finished: int
    unfinished: int
    impossible: int
    restarts: int
    avg_jct_s: float
    p50: float
    p95: float
    p99: float
    avg_queueing_s: float
    p95_queueing_s: float
    avg_slowdown: float
    p95_slowdown: float
    makespan_s: float
    throughput_per_s: float
    gpu_util: float
    cpu_util: float
    load_balance: float
    fragmentation: float
    qos_rate: float
    fairness: float
    peak_celsius: float
    spread_celsius: float

    @property
    def avg_turnaround_s(self) -> float:
        """Proteus' name for the mean of finish − submit."""
        return self.avg_jct_s

    def as_dict(self) -> dict[str, float]:
        """Every metric by name, turnaround included."""
        return {**asdict(self), "avg_turnaround_s": self.avg_turnaround_s}


@frozen
class _NodeUse:
    load: float = 0.0
    used_gpus: int = 0
    used_cores: float = 0.0
    stranded_gpus: int = 0
    free_gpus: int = 0


class _Totals:
    """Sums over the nodes, kept by difference. Amounts of resources are exact in binary; loads drift below 1e-9."""

    def __init__(self) -> None:
        self.used_gpus = self.free_gpus = self.stranded_gpus = self.nodes = 0
        self.used_cores = self.load = self.load_squared = 0.0

    def add(self, use: _NodeUse, sign: int) -> None:
        self.nodes += sign
        self.used_gpus += sign * use.used_gpus
        self.free_gpus += sign * use.free_gpus
        self.stranded_gpus += sign * use.stranded_gpus
        self.used_cores += sign * use.used_cores
        self.load += sign * use.load
        self.load_squared += sign * use.load * use.load

    @property
    def spread(self) -> float:
        """Standard deviation of the load over the nodes, (10)."""
        if self.nodes == 0:
            return 0.0
        mean = self.load / self.nodes
        return math.sqrt(max(0.0, self.load_squared / self.nodes - mean * mean))


class MetricsCollector:
    """Accumulates one run."""

    def __init__(self) -> None:
        self.jct = Distribution()
        self.queueing = Distribution()
        self.slowdown = Distribution()
        self.by_queue: dict[str, Distribution] = {}
        self.jobs = self.impossible = self.restarts = 0
        self.with_deadline = self.in_time = 0
        self.first_submit_s = math.inf
        self.last_finish_s = 0.0
        self.peak_celsius = self.spread_celsius = 0.0
        self._gpu, self._cpu, self._balance, self._fragmented = (TimeAverage() for _ in range(4))
        self._use: dict[str, _NodeUse] = {}
        self._totals = _Totals()
        self._capacity_gpus = self._capacity_cores = 0.0

    def count_arrival(self, now_s: float) -> None:
        self.jobs += 1
        if self.first_submit_s == math.inf:
            self.first_submit_s = now_s
            for average in (self._gpu, self._cpu, self._balance, self._fragmented):
                average.restart(now_s)

    def count_end(
        self, now_s: float, submit_s: float, queued_s: float, ideal_s: float, deadline_s: float, queue: str
    ) -> None:
        jct = now_s - submit_s
        slowdown = jct / ideal_s
        self.jct.add(jct)
        self.queueing.add(max(0.0, queued_s))
        self.slowdown.add(slowdown)
        self.by_queue.setdefault(queue, Distribution()).add(slowdown)
        if deadline_s < math.inf:
            self.with_deadline += 1
            self.in_time += now_s <= deadline_s
        self.last_finish_s = now_s

    def cluster_changed(self, now_s: float, view: ClusterView) -> None:
        """Nodes came or went: capacity is that of the nodes the view knows."""
        self._capacity_gpus = float(view.nodes.gpu_exists.sum())
        self._capacity_cores = float(view.nodes.capacity[CPU].sum())
        self._use = {name: _node_use(view, m) for name, m in view.nodes.index.items()}
        self._totals = _Totals()
        for use in self._use.values():
            self._totals.add(use, 1)
        self._average(now_s)

    def usage_changed(self, now_s: float, view: ClusterView, nodes: Iterable[str]) -> None:
        """Jobs on these nodes started or ended."""
        for name in nodes:
            m = view.nodes.index.get(name)
            if m is not None:
                self._totals.add(self._use[name], -1)
                self._use[name] = _node_use(view, m)
                self._totals.add(self._use[name], 1)
        self._average(now_s)

    def _average(self, now_s: float) -> None:
        totals = self._totals
        self._gpu.set(now_s, totals.used_gpus / self._capacity_gpus if self._capacity_gpus else 0.0)
        self._cpu.set(now_s, totals.used_cores / self._capacity_cores if self._capacity_cores else 0.0)
        self._balance.set(now_s, 1.0 - totals.spread)
        self._fragmented.set(now_s, totals.stranded_gpus / totals.free_gpus if totals.free_gpus else 0.0)

    def note_heat(self, celsius: list[float]) -> None:
        """Temperatures of all nodes at one moment."""
        self.peak_celsius = max(self.peak_celsius, *celsius)
        self.spread_celsius = max(self.spread_celsius, max(celsius) - min(celsius))

    def result(self, now_s: float) -> Metrics:
        end_s = self.last_finish_s if self.jct.count else now_s
        makespan = max(0.0, end_s - self.first_submit_s) if self.jobs else 0.0
        return Metrics(
            jobs=self.jobs,
            finished=self.jct.count,
            unfinished=self.jobs - self.jct.count - self.impossible,
            impossible=self.impossible,
            restarts=self.restarts,
            avg_jct_s=self.jct.mean,
            p50=self.jct.quantile(0.5),
            p95=self.jct.quantile(0.95),
            p99=self.jct.quantile(0.99),
            avg_queueing_s=self.queueing.mean,
            p95_queueing_s=self.queueing.quantile(0.95),
            avg_slowdown=self.slowdown.mean,
            p95_slowdown=self.slowdown.quantile(0.95),
            makespan_s=makespan,
            throughput_per_s=self.jct.count / makespan if makespan > 0 else 0.0,
            gpu_util=self._gpu.mean(end_s),
            cpu_util=self._cpu.mean(end_s),
            load_balance=self._balance.mean(end_s),
            fragmentation=self._fragmented.mean(end_s),
            qos_rate=self.in_time / self.with_deadline if self.with_deadline else 1.0,
            fairness=jain([1.0 / d.mean for d in self.by_queue.values() if d.mean > 0]),
            peak_celsius=self.peak_celsius,
            spread_celsius=self.spread_celsius,
        )


def _node_use(view: ClusterView, m: int) -> _NodeUse:
    """Load_i of (7): mean of CPU, host memory, GPU and GPU-memory use. A GPU serves any number of jobs."""
    capacity: list[float] = view.nodes.capacity[:, m].tolist()
    free: list[float] = view.usage.free[:, m].tolist()
    gpus = len(view.nodes.records[m].gpus)
    free_gpus = int(view.usage.free_gpus[m])
    shares = [(capacity[r] - free[r]) / capacity[r] for r in (CPU, MEMORY) if capacity[r] > 0]
    if capacity[GPUS] > 0:
        shares.append((gpus - free_gpus) / gpus if gpus else 0.0)
        memory = capacity[GPU_MEMORY]
        shares.append((memory - free[GPU_MEMORY]) / memory if memory > 0 else 0.0)
    return _NodeUse(
        load=sum(shares) / len(shares) if shares else 0.0,
        used_gpus=gpus - free_gpus,
        used_cores=capacity[CPU] - free[CPU],
        stranded_gpus=free_gpus if 0 < free_gpus < gpus else 0,
        free_gpus=free_gpus,
    )
