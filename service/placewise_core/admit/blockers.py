"""Why a job is not admitted, in the reason codes every answer uses. Explains; never decides."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from placewise_core.admit.needs import elastic_range, shares_gpus
from placewise_core.admit.pool import Pool
from placewise_core.domain.cluster import NodeState
from placewise_core.domain.decision import Blocker, Reason
from placewise_core.domain.job import Job
from placewise_core.view.view import CPU, MEMORY, ClusterView


@lru_cache(maxsize=1024)
def behind(position: int) -> tuple[Blocker, ...]:
    """Another job stands before this one."""
    return (Blocker(Reason.BEHIND_IN_QUEUE, message=f"{position} job(s) stand before it in the queue"),)


KEPT_FOR_HEAD = Blocker(Reason.BEHIND_IN_QUEUE, message="the nodes with room are kept for the first job of a queue")

HELD_BACK = Blocker(Reason.EXPLORATION, message="exploration lets the job wait; the next slot draws again")


def no_shape(view: ClusterView) -> tuple[Blocker, ...]:
    """Not even the empty cluster could take it."""
    if view.nodes.size == 0:
        return (Blocker(Reason.EMPTY_CLUSTER, message="no node was reported"),)
    return (Blocker(Reason.NO_FEASIBLE_SHAPE, message="no shape of this job fits the cluster, even empty"),)


def does_not_fit(job: Job, pool: Pool, left_out: Sequence[Blocker]) -> tuple[Blocker, ...]:
    """The reasons against a start now: first resources short in sum, else fragmentation; then the nodes left out."""
    missing = _short(job, pool)
    if not missing:
        message = "enough is free in sum, but not on nodes that can each take their part"
        missing = [Blocker(Reason.FRAGMENTED, nodes=int((pool.gpus > 0).sum()), resource="gpus", message=message)]
    return (*missing, *left_out)


def _short(job: Job, pool: Pool) -> list[Blocker]:
    found = []
    need = int(np.ceil(job.gpus)) if job.is_rigid else elastic_range(job).min_gpus
    short = need - pool.total_gpus
    if short > 0 and not shares_gpus(job):
        found.append(
            Blocker(Reason.INSUFFICIENT_GPU, int((pool.gpus == 0).sum()), float(short), "gpus", f"{short} GPUs short")
        )
    if not job.is_rigid:
        return found
    for row, reason, name in (
        (CPU, Reason.INSUFFICIENT_CPU, "cpu_cores"),
        (MEMORY, Reason.INSUFFICIENT_MEMORY, "memory_gib"),
    ):
        wanted = sum(g.count * (g.demand.cpu_cores if row == CPU else g.demand.memory_gib) for g in job.groups)
        missing = wanted - float(pool.resources()[row].sum())
        if missing > 0:
            found.append(Blocker(reason, pool.view.nodes.size, missing, name, f"{missing:g} {name} short"))
    return found


def left_out(view: ClusterView, now_s: float) -> list[Blocker]:
    """Nodes that may not be used now, by reason."""
    found = []
    not_ready = int((~view.nodes.is_ready).sum())
    if not_ready:
        draining = sum(node.state is NodeState.DRAINING for node in view.nodes.records)
        for reason, nodes in ((Reason.NODE_DOWN, not_ready - draining), (Reason.NODE_DRAINING, draining)):
            if nodes:
                found.append(Blocker(reason, nodes))
    hot = int((view.nodes.is_hot & view.nodes.is_ready).sum())
    stale = int((view.is_stale(now_s) & view.nodes.is_ready).sum())
    if hot:
        found.append(Blocker(Reason.THERMAL_LIMIT, hot))
    if stale:
        found.append(Blocker(Reason.STALE_TELEMETRY, stale))
    return found
