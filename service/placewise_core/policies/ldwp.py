"""LDWP: a learned value of every node for one pipeline task; the task goes to the node with the largest.

One net reads one row per node (inputs/ldwp.py), so that nodes may come and go without retraining; the paper's DQN has
an input and an output per node. The net is injected: this module knows no runtime. If the net fails, and for jobs that
are no pipelines, the heuristic answers, flagged.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np

from placewise_core.basics.arrays import Float32, FloatArray
from placewise_core.domain.job import Job
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.greedy import Terms, propose_noted
from placewise_core.gang.offer import Offer
from placewise_core.gang.policy import NetRead, PlacementPolicy, Proposal
from placewise_core.inputs.ldwp import COLUMNS, RowEncoder, shortlist
from placewise_core.view.view import ClusterView

MOST_NODES = 64  # a row costs a pass over the node's jobs: beyond it only the least used are looked at
_LEAST_LEFT_S = 0.001


class NodeValues(Protocol):
    """The net. Any exception makes the heuristic answer."""

    def values(self, rows: Float32) -> Float32:
        """(C,) value of each of C nodes from their rows (C, len(COLUMNS))."""
        ...


class LearnedNodes(PlacementPolicy):
    """LDWP under the name it is logged with."""

    name = "ldwp"
    fills_nodes = False
    is_by_node = False  # only the least used nodes are looked at
    read: NetRead | None = None  # of one decision

    def __init__(
        self,
        net: NodeValues,
        heuristic: PlacementPolicy,
        most_nodes: int = MOST_NODES,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._net, self._heuristic, self._most = net, heuristic, most_nodes
        self._monotonic_s = monotonic_s
        self._encoder = RowEncoder()

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        if not job.subtasks:
            return self._fallback(job, view, context, "no pipeline")
        if context.deadline_s - self._monotonic_s() < _LEAST_LEFT_S:
            return self._fallback(job, view, context, "deadline")
        try:
            return propose_noted(self, job, view, context)
        except Exception as error:  # of any kind: a broken model never fails a call
            return self._fallback(job, view, context, type(error).__name__)

    def scores(self, offer: Offer) -> FloatArray:
        nodes = shortlist(offer.view, offer.mask, self._most, offer)
        scores = np.full((1, offer.view.nodes.size), -np.inf)
        if len(nodes):
            rows = self._encoder.encode(offer.job, offer.view, nodes, offer)
            if self.read is not None:
                self.read.tokens[len(offer.placed) :] = [rows]
                self.read.step_rows[len(offer.placed) :] = [nodes]
            values = np.asarray(self._net.values(rows), dtype=np.float64)
            if values.shape != nodes.shape or not np.isfinite(values).all():
                raise ValueError(
                    f"the net returned values of shape {values.shape}; {len(nodes)} finite ones are needed"
                )
            scores[0, nodes] = values
        return scores

    def terms(self, offer: Offer, m: int) -> Terms:
        row = self._encoder.encode(offer.job, offer.view, [m], offer)[0]
        return tuple(zip(COLUMNS, (float(value) for value in row), strict=True))

    def _fallback(self, job: Job, view: ClusterView, context: PlaceContext, reason: str) -> Proposal | None:
        proposal = self._heuristic.propose(job, view, context)
        return proposal and replace(proposal, is_fallback=True, fallback_reason=f"ldwp: {reason}")
