"""The few nodes that a net looks at: found in a handful of passes over arrays, so that 10 000 nodes cost little.

A shortlist holds the nodes that any good placement might use: those that take most of a gang, the tightest that take a
task, and the least loaded ones. Decides nothing else; ties go to the lowest node index.
"""

from collections.abc import Sequence

import numpy as np

from placewise_core.basics.arrays import FloatArray, IntArray, least
from placewise_core.domain.job import Job, KeepTogether, TaskGroup
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.gang import Gang
from placewise_core.view.domains import Domains
from placewise_core.view.view import ClusterView

MOST_NODES = 32  # as many as the clusters that nets are trained on have; every node there costs time with every task
_NODES_PER_TASK = 2  # a wide gang that is spread must find room
_MOST_DEMANDS = 8  # distinct ones of a batch that are looked at: each costs passes over all nodes


def shortlist(jobs: Sequence[Job], view: ClusterView, context: PlaceContext, most: int = MOST_NODES) -> IntArray:
    """(C,) ascending node indices: every node if there are no more than `most`, else those worth a look for `jobs`,
    the first of them above all; more than `most` of them only for gangs of many tasks."""
    most = max(most, _NODES_PER_TASK * max(job.task_count for job in jobs))
    if view.nodes.size <= most:
        return np.arange(view.nodes.size)
    gang = Gang(jobs[0], view, context)
    slots = _slots(jobs, gang)
    fits = np.flatnonzero(slots > 0)
    if len(fits) <= most:
        return fits
    free = view.usage.free_gpus[fits] + view.usage.free[0, fits] * view.nodes.inverse_capacity[0, fits]
    if gang.domains is not None and jobs[0].keep_together is KeepTogether.RACK:
        return _by_domain(fits, free - 1e3 * slots[fits], gang.domains, jobs[0].task_count, most)
    chosen: IntArray = np.zeros(0, dtype=np.int64)
    # Each in turn fills its share with nodes that are not chosen yet: a third, a third, the rest.
    for cost, share in ((free - 1e3 * slots[fits], most // 3), (free, most // 3), (view.usage.load[fits], most)):
        left = least(cost, most)
        left = left[~np.isin(left, chosen)]
        chosen = np.concatenate([chosen, left[: min(share, most - len(chosen))]])
    return np.sort(fits[chosen])


def _by_domain(fits: IntArray, cost: FloatArray, domains: Domains, each: int, most: int) -> IntArray:
    """Up to `most` of the nodes `fits`: those of the domain with the node of least `cost` (N,) first, and of each
    domain no more than `each`, which is enough for the gang."""
    left: dict[int, list[int]] = {}
    for m in fits[cost.argsort(kind="stable")].tolist():
        nodes = left.setdefault(int(domains.of[m]), [])
        if len(nodes) < each:
            nodes.append(m)
    return np.sort(np.array([m for nodes in left.values() for m in nodes][:most], dtype=np.int64))


def _slots(jobs: Sequence[Job], gang: Gang) -> FloatArray:
    """(M,) tasks of the first job's gang that each node takes, group by group; then a trace for those of the others."""
    view, slots = gang.view, np.zeros(gang.view.nodes.size)
    seen: set[tuple[object, ...]] = set()
    for i, job in enumerate(jobs):
        for group in job.groups:
            key = _kind(job, group)
            demand = view.nodes.demand_vector(group.demand)
            if demand is None or key in seen or len(seen) >= _MOST_DEMANDS:
                continue
            seen.add(key)
            if i > 0:
                slots += 1e-3 * view.slots.feasible(demand, group, job.gpu_sharing, gang.usable)
            elif (offer := gang.offer(group)) is not None:
                most = float(min(group.count, group.max_per_node or group.count))
                slots += np.minimum(offer.slots, most) * offer.mask
    return slots


def _kind(job: Job, group: TaskGroup) -> tuple[object, ...]:
    """Equal for groups that fit the same nodes."""
    demand = group.demand
    return (
        *(demand.cpu_cores, demand.memory_gib, demand.gpu_memory_gib, demand.network_gbps, demand.gpus),
        *(tuple(sorted(demand.extended.items())), group.gpu_model, tuple(sorted(group.node_selector.items()))),
        job.gpu_sharing.allowed,
    )
