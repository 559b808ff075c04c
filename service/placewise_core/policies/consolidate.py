"""Consolidation: a gang on as few nodes as possible, the tightest that take it, in one rack where that can be."""

import numpy as np

from placewise_core.basics.arrays import FloatArray
from placewise_core.domain.job import TaskGroup
from placewise_core.gang.greedy import ScoredPolicy, Terms
from placewise_core.gang.offer import Offer, count_slots
from placewise_core.view.nodes import whole_gpus

# Weights that rank one criterion strictly before the next: tasks taken (≤ thousands), then rack, then fit (< 1).
_TASKS, _RACK = 1e3, 10.0


class Consolidate(ScoredPolicy):
    """Most tasks of the gang on one node first; among equals the same rack as the gang so far, then best fit.

    Filling the node with most room first needs the fewest nodes where tasks are alike; a node that takes all that is
    left needs no more room than that, so the tightest of those wins.
    """

    name = "consolidate"
    fills_nodes = True
    is_by_node = False

    def scores(self, offer: Offer) -> FloatArray:
        last = offer.last
        if last >= 0 and offer.mask[last]:
            stay = np.zeros((1, offer.view.nodes.size))
            stay[0, last] = 1.0
            return stay
        scores = self._tasks_taken(offer)
        scores *= _TASKS
        if offer.view.nodes.has_racks():
            scores += self._same_rack(offer) * _RACK
        scores += offer.tightness[0]
        return scores[None]

    def terms(self, offer: Offer, m: int) -> Terms:
        return (
            ("tasks_taken", float(self._tasks_taken(offer)[m])),
            ("same_rack", float(self._same_rack(offer)[m])),
            ("fit", float(offer.tightness[0, m])),
        )

    def _tasks_taken(self, offer: Offer) -> FloatArray:
        """(M,) tasks of the gang still to place that fit on each node of the mask: the group at hand, then those not
        begun. A new array."""
        group, view = offer.group, offer.view
        here = group.count - sum([other is group for other, _ in offer.placed])
        fitting = _taken(offer, offer.slots, group, here)
        if len(offer.job.groups) == 1:
            return fitting
        begun = {id(other) for other, _ in offer.placed}
        waiting = [other for other in offer.job.groups if other is not group and id(other) not in begun]
        demand, taken = offer.demand, fitting
        promised: FloatArray | None = None
        for other in waiting:
            mine = whole_gpus(demand)[:, None] * fitting
            promised = mine if promised is None else promised + mine
            later = view.nodes.demand_vector(other.demand)
            if later is None:
                break
            slots = count_slots(offer, later, other, promised)
            demand, fitting = later, _taken(offer, slots, other, other.count)
            taken = taken + fitting
        return taken

    @staticmethod
    def _same_rack(offer: Offer) -> FloatArray:
        """(M,) 1 in a rack the gang is in already; for the first task, the share of the gang the rack has GPUs for."""
        rack = offer.view.nodes.rack
        if offer.placed:
            mine = {int(rack[m]) for _, m in offer.placed} - {-1}
            return np.isin(rack, list(mine)).astype(np.float64)
        if rack.max(initial=-1) < 0:
            return np.zeros(len(rack))
        need = max(1.0, offer.job.gpus)
        free = np.bincount(rack + 1, weights=np.where(offer.mask, offer.free_gpus[0], 0))
        return np.where(rack >= 0, np.minimum(1.0, free[rack + 1] / need), 0.0)


def _taken(offer: Offer, slots: FloatArray, group: TaskGroup, count: int) -> FloatArray:
    """(M,) of `count` tasks of the group, how many each node takes that has `slots` for them. A new array."""
    taken: FloatArray = np.minimum(slots, float(min(count, group.max_per_node or count)))
    if group.node_selector:
        taken *= offer.view.nodes.selected(group)
    return taken
