"""Which node an arriving pipeline task goes to: the service's policies, and baselines that know the queues."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from placewise_core.job import Architecture, Job, Resources, Role, SubtaskState, TaskGroup
from placewise_core.place.policy import PlaceContext, PlacementPolicy
from placewise_core.view import ClusterView
from placewise_training.sim.pipelines import PipelineTask, subtask_truths
from placewise_training.sim.speed.profiles import gpu_speed

if TYPE_CHECKING:
    from placewise_training.sim.pipeline_engine import NodeQueue


class NodeChooser(Protocol):
    """Names the node of one task; the view carries fresh telemetry."""

    name: str

    def choose(self, task: PipelineTask, view: ClusterView, nodes: Mapping[str, "NodeQueue"], now_s: float) -> str:
        """A node of `nodes`."""
        ...


class PolicyChooser:
    """A placement policy of the service: the task is one worker that holds nothing, as queues take any number."""

    def __init__(self, policy: PlacementPolicy, seed: int = 0) -> None:
        self.name = policy.name
        self._policy = policy
        self._rng = np.random.default_rng((seed, 7))

    def choose(self, task: PipelineTask, view: ClusterView, nodes: Mapping[str, "NodeQueue"], now_s: float) -> str:
        proposal = self._policy.propose(asked(task), view, PlaceContext(now_s, self._rng))
        if proposal is None:
            raise RuntimeError(f"{self.name} found no node for a task that needs nothing")
        return proposal.assignments[0].node


def asked(task: PipelineTask) -> Job:
    """The task as a scheduler would ask for a node: one worker that holds nothing, and the pipeline."""
    return replace(task.job, architecture=Architecture.SINGLE, groups=(TaskGroup(Role.WORKER, 1, Resources()),))


class LoadedPats:
    """PATS with loads as reported: the node with the largest product of relative pace and idle share of its GPUs and
    cores, by telemetry; tasks queued there count as busy."""

    name = "pats"

    def choose(self, task: PipelineTask, view: ClusterView, nodes: Mapping[str, "NodeQueue"], now_s: float) -> str:
        return max(nodes, key=lambda name: self._score(nodes[name]))

    def _score(self, queue: "NodeQueue") -> float:
        cpu, _, gpu, _ = queue.utilisation()
        gpus = len(queue.spec.node.gpus)
        pace = queue.spec.cpu_speed + (gpu_speed(queue.spec.gpu_model) / gpu_speed("K80") if gpus else 0.0)
        idle = 1.0 - (cpu + gpu) / 2.0 if gpus else 1.0 - cpu
        return pace * (idle + 1e-3) / (1.0 + len(queue.tasks))


class BacklogEct:
    """ECT with the queues known: the node where work ahead plus own work, over the node's pace, is least.

    A node's pace is its cores plus its GPUs weighted by their speed and the mean speedup of the applications; work is
    in core-seconds, with true times: the strongest form of this baseline.
    """

    name = "ect"

    def __init__(self, truth: str) -> None:
        kinds = subtask_truths(truth)
        self._core_s = {name: kind.core_s for name, kind in kinds.items()}
        gains = [kind.speedup for kind in kinds.values() if kind.has_gpu_version]
        self._mean_speedup = sum(gains) / len(gains)

    def choose(self, task: PipelineTask, view: ClusterView, nodes: Mapping[str, "NodeQueue"], now_s: float) -> str:
        own = self._work(task)
        return min(nodes, key=lambda name: (self._ahead(nodes[name]) + own) / self._pace(nodes[name]))

    def _work(self, task: PipelineTask) -> float:
        return task.size * sum(self._core_s[s.kind] for s in task.job.subtasks)

    def _ahead(self, queue: "NodeQueue") -> float:
        return sum(
            task.size * sum(self._core_s[s.kind] for s in job.subtasks if s.state is not SubtaskState.DONE)
            for task, job in queue.tasks.values()
        )

    def _pace(self, queue: "NodeQueue") -> float:
        gpus = len(queue.spec.node.gpus) * gpu_speed(queue.spec.gpu_model) / gpu_speed("K80") * self._mean_speedup
        return queue.cores * queue.spec.cpu_speed + gpus
