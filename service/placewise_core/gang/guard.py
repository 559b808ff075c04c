"""The guard of exploration: which jobs it spares. It sees the job and the nodes that can take it, never a placement.

A guard that looked at the placement drawn would change the probability of every other one. This one decides first, from
the state alone, so that the propensities stay exact.
"""

from placewise_core.domain.cluster import MAX_GPUS, MIN_NODES, URGENT, ExplorationGuard
from placewise_core.domain.job import Job, Priority
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.gang import Gang
from placewise_core.view.view import ClusterView


def verdict(guard: ExplorationGuard, job: Job, view: ClusterView, context: PlaceContext) -> str:
    """Why the job is spared: the first rule that says so, or ""."""
    if guard.is_urgent_spared and job.priority is Priority.URGENT:
        return URGENT
    if 0 < guard.max_gpus < job.gpus:
        return MAX_GPUS
    if guard.min_nodes > 0 and _feasible_nodes(job, view, context) < guard.min_nodes:
        return MIN_NODES
    return ""


def _feasible_nodes(job: Job, view: ClusterView, context: PlaceContext) -> int:
    """Nodes that can take a task now, of the group for which there are fewest."""
    gang = Gang(job, view, context)
    counts: list[int] = []
    for group in job.groups:
        wanted = gang.wanted(group)
        if wanted is None:
            return 0
        counts.append(int(gang.takers(group, gang.mask_of(group, wanted)).sum()))
    return min(counts, default=0)
