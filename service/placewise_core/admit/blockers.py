"""Why a job is not admitted, in the reason codes every answer uses. Explains; never decides."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from placewise_core.admit.needs import elastic_range, shares_gpus
from placewise_core.admit.pool import Pool
from placewise_core.domain.cluster import NodeState
from placewise_core.domain.decision import Blocker, Reason
from placewise_core.domain.job import Job, KeepTogether
from placewise_core.view.view import CPU, MEMORY, ClusterView


@lru_cache(maxsize=1024)
def behind(position: int) -> tuple[Blocker, ...]:
    """Another job stands before this one."""
    return (Blocker(Reason.BEHIND_IN_QUEUE, message=f"{position} job(s) stand before it in the queue"),)


KEPT_FOR_HEAD = Blocker(Reason.BEHIND_IN_QUEUE, message="the nodes with room are kept for the first job of a queue")

HELD_BACK = Blocker(Reason.EXPLORATION, message="exploration lets the job wait; the next slot draws again")


def no_shape(job: Job, whole: Pool) -> tuple[Blocker, ...]:
    """Not even the empty cluster could take it."""
    if whole.view.nodes.size == 0:
        return (Blocker(Reason.EMPTY_CLUSTER, message="no node was reported"),)
    why = Blocker(Reason.NO_FEASIBLE_SHAPE, message="no shape of this job fits the cluster, even empty")
    return (why, *_wish(job, whole))


def does_not_fit(job: Job, pool: Pool, left_out: Sequence[Blocker]) -> tuple[Blocker, ...]:
    """The reasons against a start now: first resources short in sum, else fragmentation; then the nodes left out."""
    missing = _short(job, pool)
    if not missing and (wish := _wish(job, pool)):
        return (*wish, *left_out)
    if not missing:
        message = "enough is free in sum, but not on nodes that can each take their part"
        missing = [Blocker(Reason.FRAGMENTED, nodes=int((pool.gpus > 0).sum()), resource="gpus", message=message)]
    return (*missing, *left_out)


def _wish(job: Job, pool: Pool) -> list[Blocker]:
    """The wish of a job that would fit apart, or of one that is there."""
    if pool.domains(job) is None:
        return []
    beside = pool.without_networks()
    near = replace(job, exclusive_network=False)
    if not len(beside.options(replace(near, keep_together=KeepTogether.NONE))):
        return []
    if len(beside.options(near)):
        message = (
            "nodes with room have a job that spans several nodes; that job or this one wants its network for itself"
        )
        return [Blocker(Reason.EXCLUSIVE_NETWORK, message=message)]
    wanted = f"{job.task_count} tasks" if job.is_rigid else f"{elastic_range(job).min_gpus} GPUs"
    message = f"no {job.keep_together.lower()} holds the {wanted} together"
    if job.is_rigid and (most := beside.most_together(job)) < job.task_count:
        short = float(job.task_count - most)
        return [Blocker(Reason.KEEP_TOGETHER, 0, short, "tasks", f"{message}; the best holds {most}")]
    return [Blocker(Reason.KEEP_TOGETHER, message=message)]


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
