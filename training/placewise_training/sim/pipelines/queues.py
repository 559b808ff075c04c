"""One node's queue of pipeline tasks: their state, the subtasks that run on each unit, and the node's utilisation."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from placewise_core.domain.job import Job
from placewise_training.sim.hardware import NodeSpec
from placewise_training.sim.pipelines.applications import PipelineTask, SubtaskTruth
from placewise_training.sim.pipelines.units import UnitState

Use = tuple[float, float, float, float]


@dataclass(slots=True, eq=False)
class RunningSubtask:
    """One subtask on a unit; `left` in units of size, `rate` in units per second."""

    task: PipelineTask
    subtask: str
    truth: SubtaskTruth
    unit: str
    base_rate: float
    left: float
    settled_s: float
    rate: float = 0.0
    version: int = 0

    def settle(self, now_s: float) -> None:
        self.left = max(0.0, self.left - self.rate * (now_s - self.settled_s))
        self.settled_s = now_s


@dataclass(slots=True)
class NodeQueue:
    """One node: its tasks by id with their current DAG state, and what runs on which unit."""

    spec: NodeSpec
    tasks: dict[str, tuple[PipelineTask, Job]] = field(default_factory=dict)
    running: dict[tuple[str, str], RunningSubtask] = field(default_factory=dict)
    finished: int = 0
    work_done: float = 0.0  # tasks' worth of subtasks
    cores: int = 0
    gpus: int = 0
    _by_unit: dict[str, list[RunningSubtask]] = field(default_factory=dict)
    _idle: list[UnitState] = field(default_factory=list)
    _used: Use | None = None

    def __post_init__(self) -> None:
        self.cores, self.gpus = int(self.spec.node.capacity.cpu_cores), len(self.spec.node.gpus)
        self._idle = [UnitState(f"cpu{i}", False, 0, 0.0) for i in range(self.cores)]
        self._idle += [UnitState(f"gpu{gpu.index}", True, 0, 0.0) for gpu in self.spec.node.gpus]

    def on(self, unit: str) -> Sequence[RunningSubtask]:
        return self._by_unit.get(unit, ())

    def units(self, now_s: float) -> list[UnitState]:
        """The cores, then the GPUs, each with its subtasks."""
        there = self._by_unit
        return [_state_of(unit, there[unit.name], now_s) if there.get(unit.name) else unit for unit in self._idle]

    def begin(self, key: tuple[str, str], started: RunningSubtask) -> None:
        """One subtask more."""
        self.running[key] = started
        self._by_unit.setdefault(started.unit, []).append(started)
        self._used = None

    def end(self, key: tuple[str, str]) -> RunningSubtask:
        """One subtask less. Raises KeyError for one that does not run."""
        ended = self.running.pop(key)
        self._by_unit[ended.unit].remove(ended)
        self._used = None
        return ended

    def utilisation(self) -> Use:
        """(CPU, host memory, GPU, GPU memory) in use, shares of 1: what (7) takes the mean of."""
        if self._used is None:
            self._used = self._utilisation()
        return self._used

    def _utilisation(self) -> Use:
        gpus = self.gpus
        on_gpu = [(unit, r) for unit, there in self._by_unit.items() if unit.startswith("gpu") for r in there]
        cpu = (len(self.running) - len(on_gpu)) / max(1, self.cores)
        memory = min(1.0, sum(r.truth.host_memory for r in self.running.values()))
        busy = len({unit for unit, _ in on_gpu}) / gpus if gpus else 0.0
        device = min(1.0, sum(r.truth.shares[4] for _, r in on_gpu) / gpus) if gpus else 0.0
        return cpu, memory, busy, device

    def sm_utilisation(self) -> float:
        """Share of the node's streaming multiprocessors in use: what its GPUs' subtasks want together, at most all."""
        wanted = [sum(r.truth.shares[0] for r in self.on(f"gpu{gpu.index}")) for gpu in self.spec.node.gpus]
        return sum(min(1.0, w) for w in wanted) / self.gpus if self.gpus else 0.0


def _state_of(idle: UnitState, running: Sequence[RunningSubtask], now_s: float) -> UnitState:
    ends = [r.settled_s + r.left / r.rate - now_s for r in running if r.rate > 0]
    return UnitState(idle.name, idle.is_gpu, len(running), max(ends, default=0.0))
