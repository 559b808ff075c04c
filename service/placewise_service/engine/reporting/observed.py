"""Completes the placement a host reports: hosts often name nodes and counts, but the state needs demands and GPUs.

The job's reservation comes first, then the demand of its task group, then free GPUs of the node. Never
moves a task to another node: the host's report is right.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from placewise_core.domain.cluster import Assignment, RunningJob
from placewise_core.domain.job import Job, NodeId, Resources
from placewise_core.view.view import ClusterView


def completed(
    placement: Sequence[Assignment], job: Job, known: RunningJob | None, view: ClusterView
) -> tuple[Assignment, ...]:
    """The placement with a demand and GPU indices for every task; fewer indices if the node has no more free."""
    reserved = {(a.task, a.node): a for a in known.assignments} if known is not None else {}
    taken = {(a.node, g) for a in placement for g in a.gpu_indices}
    return tuple([_whole(a, job, reserved.get((a.task, a.node)), taken, view) for a in placement])


def _whole(
    assignment: Assignment, job: Job, reserved: Assignment | None, taken: set[tuple[NodeId, int]], view: ClusterView
) -> Assignment:
    demand = assignment.demand
    if demand == Resources():
        demand = reserved.demand if reserved else _group_demand(assignment, job)
    gpus = assignment.gpu_indices
    need = math.ceil(demand.gpus)
    if need and not gpus:
        gpus = _gpus(assignment.node, need, reserved.gpu_indices if reserved else (), job, taken, view)
        taken.update((assignment.node, g) for g in gpus)
    return replace(assignment, demand=demand, gpu_indices=gpus)


def _group_demand(assignment: Assignment, job: Job) -> Resources:
    return next((group.demand for group in job.groups if group.role is assignment.role), Resources())


def _gpus(
    node: NodeId, need: int, reserved: Sequence[int], job: Job, taken: set[tuple[NodeId, int]], view: ClusterView
) -> tuple[int, ...]:
    """GPUs of the node: those reserved for this task, then the job's other ones there, then free ones."""
    m = view.nodes.index.get(node)
    if m is None:
        return tuple(reserved)[:need]
    exists = np.flatnonzero(view.nodes.gpu_exists[m]).tolist()
    own = [g for g in exists if any(t.job_id == job.id for t in view.usage.tenants(m, g))]
    free = [g for g in exists if not view.usage.tenants(m, g)]
    order = dict.fromkeys([*(g for g in reserved if g in exists), *own, *free])
    return tuple(sorted([g for g in order if (node, g) not in taken][:need]))
