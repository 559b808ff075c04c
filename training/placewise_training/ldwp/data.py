"""What LDWP learns from: simulations of pipelines on hybrid clusters, one decision a row. Learns nothing itself.

Every episode draws its own truth, cluster, load and sizes, and whether the store knows how long kinds take on a core.
Each decision keeps the state, the action, the teacher's action, and in the end the task's turnaround: the
reward is credited to its own decision, in hindsight.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from placewise_core.basics.arrays import BoolArray, Float32, FloatArray
from placewise_core.inputs.ldwp import COLUMNS, RowEncoder
from placewise_core.view.view import ClusterView
from placewise_training.sim.hardware import NodeSpec, ldwp_cluster
from placewise_training.sim.pipelines.applications import PipelineTask, PipelineWorkload
from placewise_training.sim.pipelines.choosers import DrainFirst, NodeChooser, asked, measure_times
from placewise_training.sim.pipelines.engine import PipelineResult, PipelineSimulation
from placewise_training.sim.pipelines.queues import NodeQueue
from placewise_training.sim.pipelines.units import IawpUnits

MOST_NODES = 12
REWARD_SCALE_S = 300.0  # a usual turnaround: rewards around −1
_UTILISATIONS = [COLUMNS.index(name) for name in ("cpu_util", "memory_util", "gpu_util", "gpu_memory_util")]
_LEAST_REWARD = -6.0


class Values(Protocol):
    """(C,) value of each node from its row, as place.ldwp.NodeValues."""

    def values(self, rows: Float32) -> Float32: ...


@dataclass(frozen=True, slots=True)
class Situation:
    """The settings of one episode."""

    nodes: Sequence[NodeSpec]
    tasks: Sequence[PipelineTask]
    truth: str
    has_times: bool
    seed: int

    def simulate(self, chooser: NodeChooser) -> tuple[PipelineResult, Mapping[int, float]]:
        """Played by a chooser; turnaround in seconds by number of the task."""
        simulation = PipelineSimulation(self.nodes, self.tasks, self.truth, chooser, IawpUnits(), seed=self.seed)
        return simulation.run(), simulation.turnaround_s


def situation(seed: int, tasks: int) -> Situation:
    """A random one: 3 to 12 nodes of the paper's kinds, from idle to twice their capacity."""
    rng = np.random.default_rng((seed, 71))
    specs = ldwp_cluster(11)
    count = int(rng.integers(3, MOST_NODES))
    nodes = [specs[i] for i in sorted(rng.choice(len(specs), count, replace=False))]
    scale = float(rng.uniform(0.7, 1.5))
    workload = PipelineWorkload(
        tasks=tasks, per_minute=count * float(rng.uniform(3.0, 9.0)) / scale, sizes=(3000.0 * scale, 9000.0 * scale)
    )
    truth = f"draw{int(rng.integers(1000))}"
    return Situation(nodes, workload.generate(truth, seed), truth, bool(rng.random() < 0.5), seed)


@dataclass(slots=True)
class Recorder:
    """Chooses, and records. With probability `explore` any node, with `guided` the teacher's, else the best
    by `values`. A unit of the chosen node's load (7) above the mean of all nodes costs as much as `balance` usual
    turnarounds."""

    truth: str
    has_times: bool
    values: Values | None
    explore: float
    guided: float
    seed: int
    balance: float = 0.0
    name: str = "recorder"
    rows: list[Float32] = field(default_factory=list)
    actions: list[int] = field(default_factory=list)
    taught: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    excess: list[float] = field(default_factory=list)  # of the chosen node's load over the mean of all
    _encoder: RowEncoder = field(default_factory=RowEncoder)
    _teacher: DrainFirst = field(init=False)

    def __post_init__(self) -> None:
        self._teacher = DrainFirst(self.truth, self.balance * REWARD_SCALE_S)

    def choose(self, task: PipelineTask, view: ClusterView, nodes: Mapping[str, NodeQueue], now_s: float) -> str:
        if self.has_times:
            measure_times(view, self.truth)
        names = list(nodes)
        rows = self._encoder.encode(asked(task), view, [view.nodes.index[name] for name in names])
        taught = names.index(self._teacher.choose(task, view, nodes, now_s))
        rng = np.random.default_rng((self.seed, 72, task.number))
        drawn = rng.random()
        if drawn < self.explore:
            action = int(rng.integers(len(names)))
        elif self.values is None or drawn < self.explore + self.guided:
            action = taught
        else:
            action = int(np.argmax(self.values.values(rows)))
        self.rows.append(rows)
        self.actions.append(action)
        self.taught.append(taught)
        self.numbers.append(task.number)
        self.excess.append(excess_of(rows, action))
        return names[action]

    def rewards(self, turnaround_s: Mapping[int, float]) -> NDArray[np.float32]:
        """(decisions,) minus the turnaround of each task and the cost of its node's load."""
        took = np.array([turnaround_s[number] for number in self.numbers])
        return np.asarray(late(took) - self.balance * np.array(self.excess), dtype=np.float32)


def late(took_s: FloatArray) -> FloatArray:
    """Minus the turnarounds, in usual ones."""
    return np.maximum(_LEAST_REWARD, -took_s / REWARD_SCALE_S)


def excess_of(rows: Float32, action: int) -> float:
    """Load (7) of the chosen node above the mean of all, from the rows (C, COLUMNS)."""
    loads = rows[:, _UTILISATIONS].mean(axis=1)
    return float(loads[action] - loads.mean())


@dataclass(slots=True)
class Replay:
    """Transitions of whole episodes, padded to MOST_NODES; the oldest fall out. `next` is −1 at the end of one. With
    `is_bound`, () for nowhere, a task still ran, and its reward is at most `reward`."""

    rows: NDArray[np.float32]
    mask: NDArray[np.float32]
    action: NDArray[np.int64]
    taught: NDArray[np.int64]
    reward: NDArray[np.float32]
    next: NDArray[np.int64]
    is_bound: BoolArray = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))

    @classmethod
    def empty(cls) -> "Replay":
        shape = (0, MOST_NODES)
        whole = np.zeros(0, dtype=np.int64)
        return cls(
            np.zeros((*shape, len(COLUMNS)), np.float32), np.zeros(shape, np.float32), whole, whole,
            np.zeros(0, np.float32), whole,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.action)

    def with_episode(self, seen: Recorder, turnaround_s: Mapping[int, float], most: int) -> "Replay":
        """One episode more."""
        count = len(seen.actions)
        rows = np.zeros((count, MOST_NODES, len(COLUMNS)), np.float32)
        mask = np.zeros((count, MOST_NODES), np.float32)
        for i, one in enumerate(seen.rows):
            rows[i, : len(one)], mask[i, : len(one)] = one, 1.0
        following = np.arange(1, count + 1) + len(self)
        following[-1] = -1
        joined = Replay(
            np.concatenate([self.rows, rows]),
            np.concatenate([self.mask, mask]),
            np.concatenate([self.action, np.array(seen.actions)]),
            np.concatenate([self.taught, np.array(seen.taught)]),
            np.concatenate([self.reward, seen.rewards(turnaround_s)]),
            np.concatenate([self.next, following]),
        )
        return joined.last(most)

    def last(self, most: int) -> "Replay":
        """The newest `most`; what followed the first that is left is there too."""
        cut = max(0, len(self) - most)
        following = np.where(self.next >= 0, self.next - cut, -1)
        return Replay(
            self.rows[cut:], self.mask[cut:], self.action[cut:], self.taught[cut:], self.reward[cut:], following[cut:]
        )

    def fingerprint(self) -> str:
        """SHA-256 of the contents."""
        digest = hashlib.sha256()
        for array in (self.rows, self.action, self.reward):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()
