"""Consolidation: a gang on as few nodes as possible, the tightest that take it, in one rack where that can be."""

from collections.abc import Sequence

import numpy as np

from placewise_core.place.capacity import task_capacity
from placewise_core.place.outlook import Outlook
from placewise_core.place.policy import TaskContext
from placewise_core.place.scored import ScoredPolicy
from placewise_core.view import FloatArray

# Weights that rank one criterion strictly before the next: tasks taken (≤ thousands), then rack, then fit (< 1).
_TASKS, _RACK = 1e3, 10.0


class Consolidate(ScoredPolicy):
    """Most tasks of the gang on one node first; among equals the same rack as the gang so far, then best fit.

    Filling the node with most room first needs the fewest nodes where tasks are alike; a node that takes all that is
    left needs no more room than that, so the tightest of those wins.
    """

    name = "consolidate"
    fills_nodes = True
    counts_rooms = True

    def scores(self, task: TaskContext) -> FloatArray:
        last = task.placed[-1][1] if task.placed else -1
        if last >= 0 and task.mask[last]:
            stay = np.zeros(task.view.size)
            stay[last] = 1.0
            return stay
        scores = self._tasks_taken(task)
        scores *= _TASKS
        if task.view.has_racks():
            scores += self._same_rack(task) * _RACK
        scores += task.view.tightness()
        return scores

    def terms(self, task: TaskContext, m: int) -> tuple[tuple[str, float], ...]:
        return (
            ("tasks_taken", float(self._tasks_taken(task)[m])),
            ("same_rack", float(self._same_rack(task)[m])),
            ("fit", float(task.view.tightness()[m])),
        )

    def counted(self, outlook: Outlook) -> Sequence[int] | None:
        gang, nodes = outlook.gang, list[int]()
        if gang.view.has_racks():  # then a node's score depends on where the gang is already
            return None
        open_, fit = gang.rooms.copy(), gang.view.tightness()
        while (left := gang.group.count - len(nodes)) > 0:
            scores = np.minimum(open_, left)
            scores *= _TASKS
            scores += fit
            m = int(np.where(open_ > 0, scores, -np.inf).argmax())
            nodes += [m] * min(left, int(open_[m]))
            open_[m] = 0.0
            gang.slices.pause()
        return nodes

    def _tasks_taken(self, task: TaskContext) -> FloatArray:
        """(M,) tasks of the gang still to place that fit on each node: the group at hand, then those not begun."""
        view = task.view
        if len(task.job.groups) == 1 and task.rooms is not None:
            most = min(task.remaining, task.group.max_per_node or task.remaining)
            rooms = np.minimum(task.rooms, float(most))
            rooms *= task.mask
            return rooms
        begun = {id(group) for group, _ in task.placed}
        waiting = [group for group in task.job.groups if group is not task.group and id(group) not in begun]
        here = task.group.count - sum(group is task.group for group, _ in task.placed)
        demand, taken = task.demand, task_capacity(view, task.demand, task.group, task.sharing, task.mask)
        rooms = np.minimum(taken, here, out=taken)
        promised: FloatArray | None = None
        for group in waiting:
            mine = view.amounts(demand)[:, None] * rooms
            promised = mine if promised is None else promised + mine
            later = view.demand_vector(group.demand)
            if later is None:
                break
            demand, rooms = later, task_capacity(view, later, group, task.sharing, task.mask, promised)
            taken = taken + np.minimum(rooms, group.count, out=rooms)
        return taken

    @staticmethod
    def _same_rack(task: TaskContext) -> FloatArray:
        """(M,) 1 in a rack the gang is in already; for the first task, the share of the gang the rack has GPUs for."""
        rack = task.view.rack
        if task.placed:
            mine = {int(rack[m]) for _, m in task.placed} - {-1}
            return np.isin(rack, list(mine)).astype(np.float64)
        if rack.max(initial=-1) < 0:
            return np.zeros(len(rack))
        need = max(1.0, task.job.gpus)
        free = np.bincount(rack + 1, weights=np.where(task.mask, task.view.free_gpus(), 0))
        return np.where(rack >= 0, np.minimum(1.0, free[rack + 1] / need), 0.0)
