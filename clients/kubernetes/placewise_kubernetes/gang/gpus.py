"""GPU indices for pods that Placewise did not place.

The API shows a pod's number of GPUs and not their indices: the device plugin picks among equals. The lowest indices
that are not known to be held stand for them, so that no GPU is counted twice. Never changes a decision.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from placewise.v1.cluster_pb2 import Assignment
from placewise_kubernetes.kube.objects import Pod

# No node has more. A pod that names its node itself may ask for any number, until the kubelet refuses it.
_MOST_PER_NODE = 128


@dataclass(slots=True)
class GpuLedger:
    """Indices held per node and job. `indices` gives those of a node's GPUs."""

    indices: Callable[[str], Sequence[int]]
    _held: dict[str, dict[str, set[int]]] = field(default_factory=dict)
    _given: dict[str, dict[str, tuple[int, ...]]] = field(default_factory=dict)

    def hold(self, key: str, tasks: Iterable[Assignment]) -> None:
        """Notes the indices of a decision."""
        for task in tasks:
            self._on(task.node).setdefault(key, set()).update(task.gpu_indices)

    def indexed(self, key: str, tasks: Iterable[Assignment]) -> tuple[Assignment, ...]:
        """The tasks, each with as many indices as it holds GPUs; the same ones at every repeat."""
        tasks = list(tasks)
        self.hold(key, tasks)
        return tuple(self._with_indices(key, task) for task in tasks)

    def release(self, key: str) -> None:
        """The job is over."""
        self._given.pop(key, None)
        for jobs in self._held.values():
            jobs.pop(key, None)

    def _with_indices(self, key: str, task: Assignment) -> Assignment:
        wanted = int(min(task.demand.gpus, max(len(self.indices(task.node)), _MOST_PER_NODE)))
        if task.gpu_indices or wanted < 1:
            return task
        given = self._given.setdefault(key, {})
        name = f"{task.node}/{task.task}"
        if name not in given:
            given[name] = self._lowest(task.node, wanted)
            self._on(task.node).setdefault(key, set()).update(given[name])
        completed = Assignment()
        completed.CopyFrom(task)
        completed.gpu_indices.extend(given[name])
        return completed

    def _lowest(self, node: str, wanted: int) -> tuple[int, ...]:
        """Free ones first. If too few are free, the known holders are wrong, and any index will do."""
        taken = {index for indices in self._on(node).values() for index in indices}
        every = list(self.indices(node))
        if len(every) < wanted:
            every = list(range(wanted))
        free = [index for index in every if index not in taken]
        return tuple(sorted((free + [index for index in every if index in taken])[:wanted]))

    def _on(self, node: str) -> dict[str, set[int]]:
        return self._held.setdefault(node, {})


def beside(
    to_come: Sequence[Assignment], claimed: Iterable[Assignment], plan: Iterable[Assignment]
) -> Iterator[Assignment]:
    """Tasks of a plan that are still to come, with its GPUs that no claim of the gang holds; none if too few are left.

    A device driver gives a pod other GPUs than its task has, perhaps those of a task that is to come.
    """
    held, left = _by_node(claimed), _by_node(plan)
    is_kept = [held.get(task.node, set()).isdisjoint(task.gpu_indices) for task in to_come]
    for taken in (held, _by_node(itertools.compress(to_come, is_kept))):
        for node, indices in taken.items():
            left.get(node, set()).difference_update(indices)
    for task, is_as_planned in zip(to_come, is_kept, strict=True):
        if is_as_planned:
            yield task
            continue
        other = Assignment()
        other.CopyFrom(task)
        wanted, free = len(task.gpu_indices), sorted(left[task.node])
        other.gpu_indices[:] = free[:wanted] if len(free) >= wanted else ()
        left[task.node].difference_update(other.gpu_indices)
        yield other


def _by_node(tasks: Iterable[Assignment]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for task in tasks:
        found.setdefault(task.node, set()).update(task.gpu_indices)
    return found


def are_exact(pods: Iterable[Pod], gpu_resources: Iterable[str]) -> bool:
    """Whether claims tell the GPUs of every pod that has a node and asks for some."""
    resources = list(gpu_resources)
    asking = [pod for pod in pods if pod.node and any(map(pod.requests.get, resources))]
    return bool(asking) and all(pod.gpu_indices for pod in asking)


def gpus_by_node(tasks: Iterable[Assignment]) -> dict[str, float]:
    """GPUs that these tasks take, by node."""
    found: dict[str, float] = {}
    for task in tasks:
        found[task.node] = found.get(task.node, 0.0) + (task.demand.gpus or len(task.gpu_indices))
    return found
