"""The GPUs that the service counts on each running job. A start is reported once, and never corrected.

What a claim holds may be seen later, or change: such a GPU is not offered as long as the service counts another one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from placewise.v1.cluster_pb2 import Assignment
from placewise_client.adapter.native import NativeJob, Stage

# Indices by node.
GpusByNode = Mapping[str, frozenset[int]]


async def nothing_runs(_: int) -> Mapping[str, GpusByNode] | None:
    """For a service that knows no jobs of an earlier life."""
    return {}


@dataclass(frozen=True, slots=True)
class _Seen:
    stage: Stage
    gpus: GpusByNode | None


class ReportedGpus:
    """GPUs by job, as the job was when the loop was first told that it runs.

    `ask` gives the GPUs of the jobs that the service takes for running, for so many nodes; None if it does not answer.
    An earlier life of the adapter may have reported other ones: until the service has answered, none count as reported.
    """

    def __init__(self) -> None:
        self.ask: Callable[[int], Awaitable[Mapping[str, GpusByNode] | None]] = nothing_runs
        self._seen: dict[str, _Seen] = {}
        self._known: dict[str, GpusByNode] | None = None

    async def learn(self, nodes: int) -> bool:
        """Asks the service until it has answered once. Whether this is the answer.

        At every look: without the GPUs that are held, gangs could be taken for ones that never fit.
        """
        if self._known is not None:
            return False
        found = await self.ask(nodes)
        self._known = dict(found) if found is not None else None
        return found is not None

    def note(self, job: NativeJob) -> bool:
        """A job as the loop is told of it. True if its GPUs may count otherwise now."""
        before = self._seen.pop(job.key, None)
        if job.stage is Stage.ENDED:
            self._forget(job.key)
            return before is not None
        if job.stage is Stage.RUNNING:
            first = before.gpus if before is not None else None
            if first is None:
                first = gpus_by_node(job.placement) if job.are_gpus_exact else {}
            now = _Seen(job.stage, first)
        else:
            if before is not None and before.stage is Stage.RUNNING:
                self._forget(job.key)  # the loop reports that it waits again
            now = _Seen(job.stage, None)
        self._seen[job.key] = now
        return before != now or now.gpus is None  # it may have got a decision, or lost it

    def keep(self, keys: Iterable[str]) -> None:
        """These jobs are all that there are."""
        for key in self._seen.keys() - set(keys):
            del self._seen[key]
            self._forget(key)

    def is_started(self, key: str) -> bool:
        """Whether the job has been reported as started."""
        return key in self._seen and self._seen[key].gpus is not None

    def gpus(self, key: str, node: str) -> frozenset[int] | None:
        """Those of a running job on a node for certain; None for a job that has not been reported as started."""
        seen = self._seen.get(key)
        if seen is None or seen.gpus is None:
            return None
        if self._known is None:
            return frozenset()
        first = seen.gpus.get(node, frozenset())
        return first & self._known[key].get(node, frozenset()) if key in self._known else first

    def _forget(self, key: str) -> None:
        if self._known is not None:
            self._known.pop(key, None)


def gpus_by_node(assignments: Iterable[Assignment]) -> GpusByNode:
    """The indices of a placement."""
    found: dict[str, frozenset[int]] = {}
    for task in assignments:
        found[task.node] = found.get(task.node, frozenset()).union(task.gpu_indices)
    return found
