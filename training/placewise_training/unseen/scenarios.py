"""Scenarios on hardware outside the training data: clusters, fabrics, contention rules, arrivals.

A scrambled Sobol sequence fills the joint ranges evenly, so that every level of every factor meets every other one. Its
seed is a constant of this file: scenario n is the same on every machine. Trainers draw their simulations in
reward/data.py, never from here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from scipy.stats import qmc

from placewise_core.basics.frozen import frozen
from placewise_training.sim.arrivals import INTERVAL_S
from placewise_training.sim.hardware import NodeSpec, make_node
from placewise_training.sim.jobs import SimJob
from placewise_training.sim.speed.composed import ComposedSpeed
from placewise_training.sim.speed.profiles import MODEL_NAMES
from placewise_training.sim.traces import TraceMapping, read_jobs
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import HarmonyWorkload, Lengths

_T = TypeVar("_T")

SOBOL_SEED = 190_719
FIRST_SEED = 500_000  # of the windows: scenario n plays with seed FIRST_SEED + n
PATTERNS = ("philly", "uniform", "poisson", "google")
# None: every NIC by demand over capacity. A number: the share of its speed that a job on several nodes loses beside
# another one.
RULES: Sequence[float | None] = (None, 0.0, 0.25, 0.5)
GPU_MODELS = ("P100", "1080TI", "T4", "2080TI", "V100", "A100")
_GPUS_PER_NODE = (2, 4, 8)
_MOST_TASKS = 8
_MEMORY_GIB_PER_GPU = 48.0


@frozen
class Scenario:
    """One cluster and its load. Bandwidths of links in bytes per second; `load` is the GPU time the jobs would take
    alone over the GPU time there is while they arrive."""

    number: int
    nodes: int
    gpus_per_node: int
    gpu_model: str
    interconnect_bps: float
    pcie_bps: float
    network_gbps: float
    cores_per_gpu: int
    flat_loss: float | None
    pattern: str
    load: float

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def jobs(self) -> int:
        """More on a large cluster, which takes longer to fill."""
        return 100 + self.gpus // 2

    @property
    def seed(self) -> int:
        return FIRST_SEED + self.number

    def cluster(self) -> list[NodeSpec]:
        """Equal nodes."""
        return [
            make_node(
                f"node{i:03d}",
                cpu_cores=self.cores_per_gpu * self.gpus_per_node,
                gpus=self.gpus_per_node,
                memory_gib=_MEMORY_GIB_PER_GPU * self.gpus_per_node,
                network_gbps=self.network_gbps,
                gpu_model=self.gpu_model,
                interconnect_bps=self.interconnect_bps,
                pcie_bps=self.pcie_bps,
            )
            for i in range(self.nodes)
        ]

    def truth(self) -> ComposedSpeed:
        """The judging truth with this scenario's rule of contention."""
        truth = make_truth("judge", self.seed)
        truth.flat_loss = self.flat_loss
        return truth

    def workload(self, truth: ComposedSpeed) -> list[SimJob]:
        """The jobs in order of arrival, at `load`."""
        return self._from_trace(truth) if self.pattern == "philly" else self._generated(truth)

    def _generated(self, truth: ComposedSpeed) -> list[SimJob]:
        shape = HarmonyWorkload(
            jobs=self.jobs,
            pattern=self.pattern,
            per_interval=1.0,
            most_tasks=_MOST_TASKS,
            models=MODEL_NAMES,
            lengths=Lengths(median_s=1500.0),
            gpu_model=self.gpu_model,
            gpus_per_node=self.gpus_per_node,
        )
        per_job = gpu_seconds(shape.generate(truth, self.seed)) / self.jobs
        per_interval = self.load * self.gpus * INTERVAL_S / per_job
        return replace(shape, per_interval=per_interval).generate(truth, self.seed)

    def _from_trace(self, truth: ComposedSpeed) -> list[SimJob]:
        """Jobs of one stretch of the shipped cut, arrivals drawn together or apart until they give the load. Jobs
        larger than half of the cluster are left out."""
        most = self.gpus // 2
        rows = [row for row in read_jobs("philly") if row.gpus <= most]
        first = self.number * 7919 % (len(rows) - self.jobs)
        rows = rows[first : first + self.jobs]
        span_s = rows[-1].submit_s - rows[0].submit_s
        offered = sum(row.gpus * row.duration_s for row in rows) / (self.load * self.gpus)
        scale = offered / span_s
        begun = rows[0].submit_s
        rows = [replace(row, submit_s=(row.submit_s - begun) * scale) for row in rows]
        mapping = TraceMapping(
            gpu_model=self.gpu_model, gpus_per_node=self.gpus_per_node, cores_per_gpu=2.0, memory_gib_per_gpu=8.0
        )
        return list(mapping.generate(rows, truth, self.seed))

    def levels(self) -> Mapping[str, str]:
        """The level of each factor, by its name."""
        return {
            "nodes": _level(self.nodes, (13, 22), ("6 to 12", "13 to 21", "22 to 30")),
            "links in a node": _level(self.interconnect_bps, (1.4e10, 6.5e10), ("3 to 14 GB/s", "to 65", "to 300")),
            "network": _level(self.network_gbps, (34.0, 117.0), ("10 to 34 Gbit/s", "to 117", "to 400")),
            "cores": _level(self.cores_per_gpu, (8, 12), ("4 to 7 a GPU", "8 to 11", "12 to 16")),
            "GPUs per node": str(self.gpus_per_node),
            "contention": "demand" if self.flat_loss is None else f"flat {self.flat_loss:.0%}",
            "arrivals": self.pattern,
            "load": _level(self.load, (0.6, 0.8), ("0.4 to 0.6", "to 0.8", "to 1.0")),
        }


def gpu_seconds(jobs: Sequence[SimJob]) -> float:
    """GPU time of the jobs, each alone."""
    return sum(job.job.gpus * job.ideal_s for job in jobs)


def scenarios(count: int, seed: int = SOBOL_SEED) -> list[Scenario]:
    """The first `count` scenarios of the Sobol sequence; the levels are even if `count` is a power of two. To choose
    nets or settings, take another `seed`: the scenarios of SOBOL_SEED are kept for the final judgement."""
    sobol = qmc.Sobol(d=10, seed=seed)
    points = sobol.random_base2(max(1, math.ceil(math.log2(count))))[:count]
    first = 0 if seed == SOBOL_SEED else 100_000 + seed * 1000
    return [_scenario(first + i, [float(u) for u in point]) for i, point in enumerate(points)]


def _scenario(number: int, u: Sequence[float]) -> Scenario:
    return Scenario(
        number=number,
        nodes=6 + int(u[0] * 25),
        gpus_per_node=_pick(_GPUS_PER_NODE, u[1]),
        gpu_model=_pick(GPU_MODELS, u[2]),
        interconnect_bps=_log_between(3e9, 3e11, u[3]),
        pcie_bps=_log_between(1.2e10, 6e10, u[4]),
        network_gbps=_log_between(10.0, 400.0, u[5]),
        cores_per_gpu=4 + int(u[6] * 13),
        flat_loss=_pick(RULES, u[7]),
        pattern=_pick(PATTERNS, u[8]),
        load=0.4 + 0.6 * u[9],
    )


def _pick(values: Sequence[_T], u: float) -> _T:
    return values[min(int(u * len(values)), len(values) - 1)]


def _log_between(low: float, high: float, u: float) -> float:
    return low * math.exp(u * math.log(high / low))


def _level(value: float, bounds: Sequence[float], names: Sequence[str]) -> str:
    return names[sum(value >= bound for bound in bounds)]
