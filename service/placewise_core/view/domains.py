"""Domains: sets of nodes of which one must hold a whole gang. Divides the nodes; decides nothing.

Two wishes divide them. `keep_together`: each node, or each rack, is a domain. `exclusive_network`: on a node with a
task of another job that spans several nodes, the gang may only be as a whole, as it uses no network then. So each such
node is a domain, and all others together are one. The wish binds both sides: that of the gang, and that of a job there.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from placewise_core.basics.arrays import BoolArray, FloatArray, IntArray
from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import RunningJob
from placewise_core.domain.job import Job, KeepTogether
from placewise_core.view.view import ClusterView


@frozen
class Domains:
    """of (M,): the domain of each node, 0 … count − 1. Some domains may have no node."""

    of: IntArray
    count: int

    def totals(self, amounts: FloatArray) -> FloatArray:
        """(count,) the sum of `amounts` (M,) over the nodes of each domain."""
        return np.asarray(np.bincount(self.of, amounts, self.count), dtype=np.float64)

    def around(self, m: int) -> BoolArray:
        """(M,) the nodes of node m's domain."""
        return np.asarray(self.of == self.of[m])


def divided(view: ClusterView, together: KeepTogether, crossed: Sequence[int] = ()) -> Domains | None:
    """Domains for this wish, with another's network on the nodes `crossed`; None if all nodes will do."""
    size = view.nodes.size
    if together is KeepTogether.NODE:
        return Domains(np.arange(size), size)
    if together is KeepTogether.NONE and not crossed:
        return None
    of = view.nodes.rack.copy() if together is KeepTogether.RACK else np.zeros(size, dtype=np.int64)
    racks = int(of.max(initial=-1)) + 1
    of[list(crossed)] = -1
    alone = (of < 0).nonzero()[0]
    of[alone] = racks + alone
    return Domains(of, racks + size)


def domains_of(job: Job, view: ClusterView, heeds_together: bool = True, heeds_network: bool = True) -> Domains | None:
    """The domains of which one must hold the gang; None if all nodes will do. A wish not heeded counts as none."""
    if job.task_count < 2 or not (job.has_wish or view.exclusive):
        return None
    together = job.keep_together if heeds_together else KeepTogether.NONE
    is_crossed = heeds_network and together is not KeepTogether.NODE
    return divided(view, together, crossed(job, view) if is_crossed else ())


def spans(running: RunningJob) -> bool:
    """True for a job with tasks on several nodes."""
    tasks = running.assignments
    return any(task.node != tasks[0].node for task in tasks)


def crossed(job: Job, view: ClusterView) -> Sequence[int]:
    """Nodes with a task of another job that spans several nodes, if one of the two wants its network for itself."""
    if job.exclusive_network:
        return nodes_of(view.jobs.values(), job, view)
    return nodes_of([view.jobs[other] for other in view.exclusive], job, view) if view.exclusive else ()


def nodes_of(others: Iterable[RunningJob], job: Job, view: ClusterView) -> Sequence[int]:
    """The nodes of those of the jobs that span several; not of the job itself."""
    index = view.nodes.index
    spanning = [other for other in others if other.id != job.id and spans(other)]
    return sorted({index[task.node] for other in spanning for task in other.assignments if task.node in index})
