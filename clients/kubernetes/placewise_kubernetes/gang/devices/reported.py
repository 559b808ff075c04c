"""The GPUs that the service counts on each running job.

The adapter reports a start once, and again if the places of a job that can move have changed. It may see the GPUs of a
claim later than the start. It offers such a GPU only once the service counts it as that job's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from placewise.v1.cluster_pb2 import Assignment
from placewise_client.adapter.native import NativeJob, Stage

# A service that is there answers within moments.
_WAIT_S = 0.05

# Indices by node.
GpusByNode = Mapping[str, frozenset[int]]


async def nothing_runs(_: int) -> Mapping[str, GpusByNode] | None:
    """For a service that knows no jobs of an earlier life."""
    return {}


@dataclass(frozen=True, slots=True)
class _Seen:
    """`gpus`: as reported; None before that. `is_corrected`: they replace the report of an earlier life."""

    stage: Stage
    gpus: GpusByNode | None
    is_corrected: bool = False


class ReportedGpus:
    """GPUs by job: those of its first report to the loop as a running job, or its present ones if it can move.

    `ask` gives the GPUs of the jobs that the service takes for running, for so many nodes; None if it does not answer.
    An earlier life of the adapter may have reported other ones: until the service has answered, none count as reported.
    """

    def __init__(self, notify: Callable[[], None] = lambda: None) -> None:
        """`notify` is called when an answer has come that no look has waited for."""
        self._notify = notify
        self.ask: Callable[[int], Awaitable[Mapping[str, GpusByNode] | None]] = nothing_runs
        self._seen: dict[str, _Seen] = {}
        self._known: dict[str, GpusByNode] | None = None
        self._question: asyncio.Task[Mapping[str, GpusByNode] | None] | None = None
        self._wait_s: float | None = None

    async def learn(self, nodes: int) -> bool:
        """Asks the service until it has answered once. Whether this is the answer.

        The first look waits for its question: without the GPUs that are held, a gang could be called one that never
        fits. Later looks wait for a moment only, so that pods are served while the service is away.
        """
        if self._known is not None:
            return False
        if self._question is None:
            self._question = asyncio.create_task(self._ask(nodes))
        wait_s, self._wait_s = self._wait_s, _WAIT_S
        await asyncio.wait({self._question}, timeout=wait_s)
        if not self._question.done():
            return False
        question, self._question = self._question, None
        found = question.result()
        self._known = dict(found) if found is not None else None
        return found is not None

    async def _ask(self, nodes: int) -> Mapping[str, GpusByNode] | None:
        found = await self.ask(nodes)
        if found is not None:
            self._notify()
        return found

    def note(self, job: NativeJob) -> bool:
        """A job as the loop is told of it. True if its GPUs may count otherwise now."""
        before = self._seen.pop(job.key, None)
        if job.stage is Stage.ENDED:
            self._forget(job.key)
            return before is not None
        if job.stage is Stage.RUNNING:
            now = _running(job, before)
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
        reported = seen.gpus.get(node, frozenset())
        if seen.is_corrected or key not in self._known:
            return reported
        return reported & self._known[key].get(node, frozenset())

    def _forget(self, key: str) -> None:
        if self._known is not None:
            self._known.pop(key, None)


def _running(job: NativeJob, before: _Seen | None) -> _Seen:
    """The loop reports a job that can move again as soon as its places differ from those that were reported."""
    reported = before.gpus if before is not None else None
    is_corrected = before is not None and before.is_corrected
    if job.can_move and job.are_gpus_exact and job.placement:
        return _Seen(job.stage, gpus_by_node(job.placement), is_corrected=True)
    if reported is None:
        return _Seen(job.stage, gpus_by_node(job.placement) if job.are_gpus_exact else {})
    if job.can_move and job.placement:  # some are guessed: only those are certain that are the same in both reports
        now = gpus_by_node(job.placement)
        reported = {node: indices & now.get(node, frozenset()) for node, indices in reported.items()}
    return _Seen(job.stage, reported, is_corrected)


def gpus_by_node(assignments: Iterable[Assignment]) -> GpusByNode:
    """The indices of a placement."""
    found: dict[str, frozenset[int]] = {}
    for task in assignments:
        found[task.node] = found.get(task.node, frozenset()).union(task.gpu_indices)
    return found
