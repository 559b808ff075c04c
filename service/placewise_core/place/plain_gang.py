"""A gang for which counting says all: one group of plain tasks. Claims nothing and decides nothing.

Which nodes it might go to, and how many of its tasks each takes, is known before the first task is placed, and every
task takes its part away: whoever tries placements of such a gang need not claim any of them on the view.
"""

import math
from collections.abc import Sequence
from typing import Self

from placewise_core.cluster import Assignment
from placewise_core.frozen import frozen
from placewise_core.job import Job, NodeId, TaskGroup
from placewise_core.place.capacity import task_capacity
from placewise_core.place.context import PlaceContext
from placewise_core.place.gang import task_names
from placewise_core.slices import ONE_SLICE, Slices
from placewise_core.view import GPUS, ClusterView, FloatArray


@frozen
class PlainGang:
    """`demand` (R,) of one task, which takes `gpus` whole GPUs · rooms (M,): tasks of the gang that each node takes, 0
    where none may go. Do not write."""

    job: Job
    group: TaskGroup
    view: ClusterView
    demand: FloatArray
    gpus: int
    rooms: FloatArray
    slices: Slices = ONE_SLICE

    @classmethod
    def of(cls, job: Job, view: ClusterView, context: PlaceContext) -> Self | None:
        """None for a job of several groups, and where counting amounts and free GPUs does not say all."""
        if len(job.groups) != 1:
            return None
        group = job.groups[0]
        demand = view.demand_vector(group.demand)
        if demand is None or not view.is_plain(demand, group, job.gpu_sharing):
            return None
        rooms = task_capacity(view, demand, group, job.gpu_sharing, view.usable(context.now_s))
        return cls(job, group, view, demand, math.ceil(demand[GPUS]), rooms, context.slices)

    def assignments(self, nodes: Sequence[int]) -> tuple[Assignment, ...]:
        """The gang with its tasks on these nodes, one after the other. Each node must have the room."""
        group, view, each = self.group, self.view, self.gpus
        taken: dict[int, int] = {}
        placed = []
        for (_, name), m in zip(task_names(self.job), nodes, strict=True):
            before = taken.get(m, 0)
            taken[m] = before + each
            gpus = view.first_free_gpus(m, before + each)[before:]
            placed.append(Assignment(name, group.role, NodeId(view.nodes[m].id), gpus, demand=group.demand))
        return tuple(placed)
