"""LDWP's DQN as printed (4.2): an input and an output per node; a pipeline task goes to the node of the largest Q.

For another number of nodes than the net's, for a task of a type that it was not trained on, for other jobs, and without
a net, the heuristic answers, flagged. The net is injected: this module knows no runtime.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from placewise_core.basics.arrays import Float32, FloatArray
from placewise_core.domain.job import Job
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.greedy import Terms, propose_noted
from placewise_core.gang.offer import Offer
from placewise_core.gang.policy import NetRead, PlacementPolicy, Proposal
from placewise_core.inputs.ldwp_paper import order_of, state_of
from placewise_core.view.view import ClusterView

_LEAST_LEFT_S = 0.001


class PaperQ(Protocol):
    """The net. Any exception makes the heuristic answer."""

    @property
    def nodes(self) -> Sequence[str]:
        """The M nodes that it was trained for, by name."""
        ...

    @property
    def types(self) -> Sequence[str]:
        """The types of task that it was trained on."""
        ...

    def values(self, state: Float32) -> Float32:
        """(M,) Q of each node from a state (columns,)."""
        ...


class LdwpPaper(PlacementPolicy):
    """The greedy action of the DQN."""

    name = "ldwp-paper"
    fills_nodes = False
    is_by_node = False  # the net sees all nodes at once
    read: NetRead | None = None  # of one decision

    def __init__(
        self, net: PaperQ | None, heuristic: PlacementPolicy, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._net, self._heuristic, self._monotonic_s = net, heuristic, monotonic_s

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        if lack := self._lack(job, view):
            return self._fall_back(lack, job, view, context)
        if context.deadline_s - self._monotonic_s() < _LEAST_LEFT_S:
            return self._fall_back("deadline", job, view, context)
        try:
            return propose_noted(self, job, view, context)
        except Exception as error:  # of any kind: a broken net never fails a call
            return self._fall_back(type(error).__name__, job, view, context)

    def scores(self, offer: Offer) -> FloatArray:
        assert self._net is not None
        order = order_of(offer.view, self._net.nodes)
        state = state_of(offer.job, offer.view, self._net.types, order)
        if self.read is not None:
            self.read.tokens[len(offer.placed) :] = [state]
        values = self._net.values(state)
        if values.shape != order.shape or not np.isfinite(values).all():
            raise ValueError(f"the net returned values of shape {values.shape}; {len(order)} finite ones are needed")
        scores = np.empty((1, offer.view.nodes.size))
        scores[0, order] = values
        return scores

    def terms(self, offer: Offer, m: int) -> Terms:
        return (("q", float(self.scores(offer)[0, m])),)

    def _lack(self, job: Job, view: ClusterView) -> str:
        if not job.subtasks:
            return "no pipeline"
        if self._net is None:
            return "the bundle has no net for it (placewise train ldwp-paper)"
        if len(self._net.nodes) != view.nodes.size:
            return f"its net is for {len(self._net.nodes)} nodes, the cluster has {view.nodes.size}"
        if job.model not in self._net.types:
            return f"its net knows no tasks of type {job.model!r}: set model to one of {', '.join(self._net.types)}"
        return ""

    def _fall_back(self, reason: str, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        proposal = self._heuristic.propose(job, view, context)
        return proposal and replace(proposal, is_fallback=True, fallback_reason=f"{self.name}: {reason}")
