"""Which node an arriving pipeline task goes to: the service's policies, and baselines that know the queues."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np

from placewise_core.domain.events import SubtaskProfiled
from placewise_core.domain.job import Architecture, Job, Resources, Role, SubtaskState, TaskGroup
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import PlacementPolicy
from placewise_core.policies.profiled.pats_on_nodes import RelativePerformance
from placewise_core.policies.profiled.tables import GpuSpeeds
from placewise_core.subtasks.metrics import CORE_SECONDS
from placewise_core.view.view import ClusterView
from placewise_training.sim.pipelines.applications import PipelineTask, subtask_truths
from placewise_training.sim.pipelines.queues import NodeQueue
from placewise_training.sim.speed.profiles import GPU_SPEED, gpu_speed


class NodeChooser(Protocol):
    """Names the node of one task; the view carries fresh telemetry."""

    name: str

    def choose(self, task: PipelineTask, view: ClusterView, nodes: Mapping[str, NodeQueue], now_s: float) -> str:
        """A node of `nodes`."""
        ...


class PolicyChooser:
    """A placement policy of the service: the task is one worker that holds nothing, as queues take any number.

    `times_of` is a truth whose core seconds the store has measured of every kind: what BacklogEct knows too.
    """

    def __init__(self, policy: PlacementPolicy, seed: int = 0, times_of: str = "") -> None:
        self.name = policy.name
        self._policy = policy
        self._rng = np.random.default_rng((seed, 7))
        self._times_of = times_of

    def choose(self, task: PipelineTask, view: ClusterView, nodes: Mapping[str, NodeQueue], now_s: float) -> str:
        if self._times_of:
            measure_times(view, self._times_of)
        proposal = self._policy.propose(asked(task), view, PlaceContext(now_s, self._rng))
        if proposal is None:
            raise RuntimeError(f"{self.name} found no node for a task that needs nothing")
        return proposal.assignments[0].node


def measure_times(view: ClusterView, truth: str) -> None:
    """The store learns the time of every kind on a core; known kinds stay as they are."""
    for name, kind in subtask_truths(truth).items():
        if CORE_SECONDS not in view.subtask_profiles.get(name, {}):
            view.apply_change(SubtaskProfiled(name, {CORE_SECONDS: kind.core_s}))


def asked(task: PipelineTask) -> Job:
    """The task as a scheduler would ask for a node: one worker that holds nothing, and the pipeline."""
    return replace(task.job, architecture=Architecture.SINGLE, groups=(TaskGroup(Role.WORKER, 1, Resources()),))


def loaded_pats() -> PolicyChooser:
    """The service's PATS, with the speeds of the simulated GPUs; speedups are those on a K80."""
    return PolicyChooser(RelativePerformance(GpuSpeeds(mean=GPU_SPEED, models={}), reference_gpu="K80"))


class BacklogEct:
    """ECT with the queues known: the node where work ahead plus own work, over the node's speed, is least.

    A node's speed is its cores plus its GPUs weighted by their speed and the mean speedup of the applications; work is
    in core-seconds, with true times: the strongest form of this baseline.
    """

    name = "ect"

    def __init__(self, truth: str) -> None:
        kinds = subtask_truths(truth)
        self._core_s = {name: kind.core_s for name, kind in kinds.items()}
        gains = [kind.speedup for kind in kinds.values() if kind.has_gpu_version]
        self._mean_speedup = sum(gains) / len(gains)
        self._kept: dict[int, tuple[Job, float]] = {}

    def choose(self, task: PipelineTask, view: ClusterView, nodes: Mapping[str, NodeQueue], now_s: float) -> str:
        own = self._work(task)
        return min(nodes, key=lambda name: (self._ahead(nodes[name]) + own) / self._speed(nodes[name]))

    def _work(self, task: PipelineTask) -> float:
        return task.size * sum(self._core_s[s.kind] for s in task.job.subtasks)

    def _ahead(self, queue: NodeQueue) -> float:
        return sum(self._left(task, job) for task, job in queue.tasks.values())

    def _left(self, task: PipelineTask, job: Job) -> float:
        """Core-seconds of the subtasks that are left. Remembered until the task goes on."""
        kept = self._kept.get(task.number)
        if kept is not None and kept[0] is job:
            return kept[1]
        left = task.size * sum(self._core_s[s.kind] for s in job.subtasks if s.state is not SubtaskState.DONE)
        self._kept[task.number] = (job, left)
        return left

    def _speed(self, queue: NodeQueue) -> float:
        gpus = len(queue.spec.node.gpus) * gpu_speed(queue.spec.gpu_model) / gpu_speed("K80") * self._mean_speedup
        return queue.cores * queue.spec.cpu_speed + gpus


class DrainFirst:
    """The node that would be empty first: the longer of its cores' and its GPUs' work, true times and queues known.

    What BacklogEct leaves out: cores and GPUs are two queues, and work that only cores can do fills one of them. The
    teacher of the learned choice, and a yardstick for it. A node's load (7) counts like `load_s` seconds of work.
    """

    name = "drain"
    _SHARING = 1.4  # throughput of a GPU with several subtasks over one at a time, on training truths

    def __init__(self, truth: str, load_s: float = 0.0) -> None:
        self._kinds = subtask_truths(truth)
        self._load_s = load_s
        self._kept: dict[int, tuple[Job, tuple[float, float]]] = {}

    def choose(self, task: PipelineTask, view: ClusterView, nodes: Mapping[str, NodeQueue], now_s: float) -> str:
        cpu_s, gpu_s = self._work(task, task.job)
        return min(nodes, key=lambda name: self._cost_s(nodes[name], cpu_s, gpu_s))

    def _cost_s(self, queue: NodeQueue, cpu_s: float, gpu_s: float) -> float:
        load = sum(queue.utilisation()) / 4.0 if self._load_s else 0.0
        return self._drain_s(queue, cpu_s, gpu_s) + self._load_s * load

    def _drain_s(self, queue: NodeQueue, cpu_s: float, gpu_s: float) -> float:
        for task, job in queue.tasks.values():
            more = self._work(task, job)
            cpu_s, gpu_s = cpu_s + more[0], gpu_s + more[1]
        power = len(queue.spec.node.gpus) * gpu_speed(queue.spec.gpu_model) / gpu_speed("K80") * self._SHARING
        return max(cpu_s / max(1, queue.cores), gpu_s / max(power, 1e-9))

    def _work(self, task: PipelineTask, job: Job) -> tuple[float, float]:
        """Seconds on cores alone, and on one K80, of the subtasks that are left. Remembered until the task goes on."""
        kept = self._kept.get(task.number)
        if kept is not None and kept[0] is job:
            return kept[1]
        cpu_s = gpu_s = 0.0
        for subtask in job.subtasks:
            if subtask.state is SubtaskState.DONE:
                continue
            kind = self._kinds[subtask.kind]
            left_s = task.size * kind.core_s * (0.5 if subtask.state is SubtaskState.RUNNING else 1.0)
            if kind.has_gpu_version:
                gpu_s += left_s / kind.speedup
            else:
                cpu_s += left_s
        self._kept[task.number] = (job, (cpu_s, gpu_s))
        return cpu_s, gpu_s
