"""Consolidation where jobs on several nodes slow each other down: a gang that needs several takes those that no other
such gang is on, if they take all of it."""

import numpy as np

from placewise_core.basics.arrays import BoolArray, FloatArray
from placewise_core.gang.greedy import Terms
from placewise_core.gang.offer import Offer
from placewise_core.policies.consolidate import Consolidate

# Above the scores of Consolidate, which are some thousands for each of the gang's tasks at most.
_QUIET = 1e9


class ConsolidateApart(Consolidate):
    """A gang that one node takes, or that the quiet nodes cannot take, goes where Consolidate puts it."""

    name = "consolidate-apart"

    def scores(self, offer: Offer) -> FloatArray:
        scores = super().scores(offer)
        quiet = self._quiet(offer)
        return scores if quiet is None else scores + _QUIET * quiet

    def terms(self, offer: Offer, m: int) -> Terms:
        quiet = self._quiet(offer)
        return (*super().terms(offer, m), ("quiet", 0.0 if quiet is None else float(quiet[m])))

    def _quiet(self, offer: Offer) -> BoolArray | None:
        """(M,) nodes without a task of a gang on several nodes; None if they do not matter to this gang."""
        left = sum([group.count for group in offer.job.groups]) - len(offer.placed)
        taken = np.where(offer.mask, self._tasks_taken(offer), 0.0)
        if not offer.placed and taken.max(initial=0.0) >= left:
            return None
        quiet: BoolArray = offer.view.gangs_on == 0
        return quiet if taken[quiet].sum() >= left else None
