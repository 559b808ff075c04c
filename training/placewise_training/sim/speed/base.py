"""The Protocol of a speed model, and its inputs: the tasks and their places. Holds no clock and no queue."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from placewise_core.basics.frozen import frozen
from placewise_training.sim.hardware import NodeSpec
from placewise_training.sim.jobs import SimJob


@dataclass(slots=True)
class Part:
    """A job's tasks on one node and their demand per iteration at the speed the job has alone.

    Rates are bytes per second; `cpu_wanted` and `cpu_requested` are cores. `input_cpu_s` is the input stage with all
    cores wanted. `net_s`, `peer_s` and `gpu_s` are stage seconds of one iteration on this node; `peer_s` is the part of
    the synchronisation between the GPUs of the node.
    """

    node: str
    workers: int
    servers: int
    gpu_model: str
    gpu_indices: tuple[int, ...]
    cpu_wanted: float = 0.0
    cpu_requested: float = 0.0
    disk_rate: float = 0.0
    pcie_rate: float = 0.0
    nic_rate: float = 0.0
    input_cpu_s: float = 0.0
    input_disk_s: float = 0.0
    input_pcie_s: float = 0.0
    gpu_s: float = 0.0
    net_s: float = 0.0
    peer_s: float = 0.0


@dataclass(slots=True)
class Footprint:
    """A job as placed. `samples_per_step` is its global batch; `alone_step_s` one iteration with nobody else there."""

    job: SimJob
    parts: tuple[Part, ...]
    samples_per_step: float
    alone_step_s: float
    noise: float = 1.0


@dataclass(slots=True)
class NodeLoad:
    """The jobs on one node, with the totals contention depends on (summed from scratch at each change: no drift)."""

    spec: NodeSpec
    parts: dict[str, Part] = field(default_factory=dict)  # by job id
    gpu_jobs: dict[int, tuple[str, ...]] = field(default_factory=dict)  # GPU index → job ids
    cpu_wanted: float = 0.0
    cpu_requested: float = 0.0
    disk_rate: float = 0.0
    pcie_rate: float = 0.0
    nic_rate: float = 0.0

    def add(self, job_id: str, part: Part) -> None:
        self.parts[job_id] = part
        for g in part.gpu_indices:
            self.gpu_jobs[g] = (*self.gpu_jobs.get(g, ()), job_id)
        self._sum()

    def remove(self, job_id: str) -> None:
        part = self.parts.pop(job_id)
        for g in part.gpu_indices:
            left = tuple(other for other in self.gpu_jobs[g] if other != job_id)
            if left:
                self.gpu_jobs[g] = left
            else:
                del self.gpu_jobs[g]
        self._sum()

    def _sum(self) -> None:
        wanted = requested = disk = pcie = nic = 0.0
        for part in self.parts.values():
            wanted += part.cpu_wanted
            requested += min(part.cpu_requested, part.cpu_wanted)
            disk += part.disk_rate
            pcie += part.pcie_rate
            nic += part.nic_rate
        self.cpu_wanted, self.cpu_requested = wanted, requested
        self.disk_rate, self.pcie_rate, self.nic_rate = disk, pcie, nic


@frozen
class Spot:
    """Where tasks of a job are: counts of workers and parameter servers on one node, and their GPUs."""

    node: str
    workers: int
    servers: int
    gpu_indices: tuple[int, ...]


class SpeedModel(Protocol):
    """The truth of a simulation. Pure: equal arguments give equal numbers; noise comes from seed, job and spots."""

    def footprint(self, job: SimJob, spots: Sequence[Spot], nodes: Mapping[str, NodeLoad]) -> Footprint:
        """The job's demand on its nodes when placed so."""
        ...

    def rate(self, footprint: Footprint, nodes: Mapping[str, NodeLoad], jobs: Mapping[str, Footprint]) -> float:
        """Samples per second given everything that runs on its nodes, itself included. Always > 0."""
        ...

    def alone_rate(self, job: SimJob, gpu_model: str, gpus_per_node: int) -> float:
        """Samples per second of the job alone, packed on as few nodes as its workers need."""
        ...
