"""Places a gang by a policy's scores: each task to the node of highest score, ties to the lowest index, all or nothing.

Tasks with the largest dominant share go first; equal tasks stay in their order. A node whose score depends on that node
alone is scored again only when it gets a task.
"""

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from heapq import heappop, heapreplace
from typing import Protocol

import numpy as np

from placewise_core.basics.arrays import BoolArray, FloatArray, least
from placewise_core.domain.decision import Candidate
from placewise_core.domain.job import Job, TaskGroup
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.gang import Gang
from placewise_core.gang.offer import Offer, best_fit
from placewise_core.gang.policy import NO_ROWS, NetRead, PlacementPolicy, Proposal
from placewise_core.view.view import ClusterView

# `info` key of a proposal that best fit had to find, because the policy's own order of nodes led into a dead end.
RESCUED = "best_fit_rescue"
NO_INFO: Mapping[str, float] = {}

_FOUND_SINGLY = 16  # best nodes up to which looking for one after the other is faster than for all at once
_FEW_CELLS = 1024  # scores that are worked out sooner for all nodes than for the best alone
_MOST_CELLS = 4096  # scores that are worked out ahead between two pauses
_EXPLAINED_CANDIDATES = 8  # per task: enough to see why, small enough to read
_LOWEST = np.array(-np.inf)  # as an array: a float would be converted at every task

Terms = tuple[tuple[str, float], ...]


class NodeScorer(Protocol):
    """The usual way to write a policy: score every node for the next task; `place_all` does the rest.

    `fills_nodes`: the gang's next task goes to the node of the last one for as long as that takes it. `is_by_node`: the
    score of a node depends on that node alone, not on the gang's other nodes or its remaining tasks. Both are known
    before the first score: they decide about which nodes, and how many rows deep, a policy is asked.
    """

    fills_nodes: bool
    is_by_node: bool

    def scores(self, offer: Offer) -> FloatArray:
        """(J, N), higher is better. Entries of nodes outside `offer.mask` are ignored."""
        ...

    def terms(self, offer: Offer, m: int) -> Terms:
        """The named parts of node m's score for the next task, for explain. The offer is of all nodes."""
        ...


class NetScorer(NodeScorer, Protocol):
    """Scores by a net. `read`: where it notes the arrays that the net reads before each task; None for nowhere."""

    read: NetRead | None


class ScoredPolicy(PlacementPolicy):
    """A PlacementPolicy and the NodeScorer that it places by, in one: jobs as they come, each task to the best node."""

    fills_nodes = False
    is_by_node = True

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        return propose(self, job, view, context)

    def prepare(self, view: ClusterView, now_s: float) -> None:
        view.slots.count_ahead()

    @abstractmethod
    def scores(self, offer: Offer) -> FloatArray:
        """As NodeScorer.scores."""

    @abstractmethod
    def terms(self, offer: Offer, m: int) -> Terms:
        """As NodeScorer.terms."""


class BestFit:
    """Least free GPUs, then least free CPU: leaves the large holes for the large tasks."""

    fills_nodes, is_by_node = False, True

    def scores(self, offer: Offer) -> FloatArray:
        return best_fit(offer)

    def terms(self, offer: Offer, m: int) -> Terms:
        return (("free_gpus", float(offer.free_gpus[0, m])),)


_RESCUE: tuple[NodeScorer, Mapping[str, float]] = (BestFit(), {RESCUED: 1.0})

# Chooses the node of the next task among those that are open, instead of the best; -1 for none.
Choose = Callable[[Gang, TaskGroup, BoolArray], int]


def propose(scorer: NodeScorer, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
    """Places every task of `job` by `scorer`, or None if the gang does not fit that way. A greedy order may run into a
    dead end that another avoids: then best fit is tried, and `info` records it."""
    for tried, info in ((scorer, NO_INFO), _RESCUE):
        gang = Gang(job, view, context)
        candidates: list[Candidate] = []
        if place_all(tried, gang, candidates):
            return Proposal(gang.assignments(), candidates=tuple(candidates), info=info)
        if not gang.placed:
            break
    return None


def propose_noted(scorer: NetScorer, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
    """As `propose`. If the context asks for the arrays that the net read, the proposal has them, unless best fit had to
    find it."""
    if not context.is_recording:
        return propose(scorer, job, view, context)
    noting = copy.copy(scorer)
    noting.read = NetRead(NO_ROWS)
    proposal = propose(noting, job, view, context)
    is_its_own = proposal is not None and RESCUED not in proposal.info
    return replace(proposal, read=noting.read) if proposal is not None and is_its_own else proposal


def place_all(scorer: NodeScorer, gang: Gang, candidates: list[Candidate], choose: Choose | None = None) -> bool:
    """Places the whole gang, and adds to `candidates` if the context asks for them; False if the order of nodes leads
    into a dead end. A policy that draws does so once per task: the gang is not counted first."""
    for group in gang.groups():
        if choose is None and gang.lacks_slots(group):
            return False
        if not _place_tasks(scorer, gang, group, candidates, choose):
            return False
    return True


def can_fit(job: Job, view: ClusterView, context: PlaceContext) -> bool:
    """True if best-fit-decreasing finds room for the gang."""
    return place_all(BestFit(), Gang(job, view, context), [])


def obstacle(job: Job, view: ClusterView, context: PlaceContext) -> Offer | None:
    """What nodes offer the first task that best-fit-decreasing finds no node for; None if the gang fits. Every demand
    must be one the view can express."""
    gang = Gang(job, view, context, looks_at_gpus=True)
    for group in gang.groups():
        if not _place_tasks(BestFit(), gang, group, []):
            return gang.offer(group)
    return None


def _place_tasks(
    scorer: NodeScorer, gang: Gang, group: TaskGroup, candidates: list[Candidate], choose: Choose | None = None
) -> bool:
    offer, wanted = gang.offer(group), gang.wanted(group)
    if offer is None or wanted is None:
        return False
    is_unbound = choose is None and gang.domains is None  # a first task chooses the domain of the others
    if is_unbound and wanted.is_countable and not gang.context.is_explaining:
        if scorer.fills_nodes:
            return _fill_nodes(scorer, gang, offer)
        if scorer.is_by_node:
            nodes = _nodes_at_once(scorer, offer)
            gang.take_all(group, nodes)
            return len(nodes) == group.count
    return _Turns(scorer, gang, offer, choose).place_all(candidates)


def _fill_nodes(scorer: NodeScorer, gang: Gang, offer: Offer) -> bool:
    """A countable group node by node: the gang's last node, then the best one, gets as many tasks as it takes."""
    group, left, most = offer.group, offer.group.count, offer.group.max_per_node
    open_, scores = offer.mask, None
    m = gang.placed[-1][1] if gang.placed else -1
    while True:
        if m < 0 or not open_[m]:
            if scores is None:
                scores = scorer.scores(offer)[0]
                if scorer.is_by_node:  # these serve again, and are written
                    scores = np.where(open_, scores, _LOWEST)
            m = _best_of(scores, open_)
            if m < 0:
                return False
        at_most = min(left, most - gang.count(group, m)) if most else left
        count = int(min(at_most, offer.slots[m]))
        # The gang is complete: this node's remaining amounts are not needed.
        if count == gang.remaining and not gang.left:
            gang.take_all(group, [m] * count)
            return True
        gang.take(group, m, count)
        left -= count
        if not left:
            return True
        gang.context.slices.pause()
        if scorer.is_by_node:
            open_ = open_.copy() if open_ is offer.mask else open_
            open_[m] = False
            if scores is not None:
                scores[m] = _LOWEST
        else:
            offer, scores = gang.offer_after(offer, m), None
            open_ = offer.mask


def _best_of(scores: FloatArray, mask: BoolArray) -> int:
    """The masked node of highest score, the lowest index among equals; -1 if the mask has none."""
    m = int(scores.argmax()) if len(scores) else -1
    if m >= 0 and not mask[m]:
        m = int(np.where(mask, scores, _LOWEST).argmax())
    return m if m >= 0 and mask[m] else -1


def _nodes_at_once(scorer: NodeScorer, offer: Offer) -> list[int]:
    """The node of each task of a countable group, by scores of nodes that depend on the node alone; fewer if not all
    fit."""
    group = offer.group
    if group.count == 1:
        m = _best_of(scorer.scores(offer)[0], offer.mask)
        return [m] if m >= 0 else []
    most = min(group.count, group.max_per_node or group.count)
    depth = int(min(most, offer.most_slots))  # the slots may be infinite
    if depth > 1 and depth * len(offer.mask) <= _FEW_CELLS:
        return _nodes_of_all(scorer, offer.with_more(depth), offer.slots, most)
    return _nodes_of_best(scorer, offer, most)


def _nodes_of_all(scorer: NodeScorer, offer: Offer, slots: FloatArray, most: int) -> list[int]:
    """As `_nodes_at_once`. Every node is scored with every number of tasks that it may get.

    The scores are few: lists of them are faster than arrays, and there are too few tasks for a pause between them."""
    scores = scorer.scores(offer)
    now: list[float] = np.where(offer.mask, scores[0], _LOWEST).tolist()
    ahead, room, lowest = scores.item, slots.item, -math.inf
    nodes: list[int] = []
    taken: dict[int, int] = {}
    for _ in range(offer.group.count):
        best = max(now)
        if best == lowest:
            break
        m = now.index(best)
        nodes.append(m)
        there = taken[m] = taken.get(m, 0) + 1
        now[m] = ahead(there, m) if there < most and there < room(m) else lowest
    return nodes


def _nodes_of_best(scorer: NodeScorer, offer: Offer, most: int) -> list[int]:
    """As `_nodes_at_once`. Who takes a task was the best of those that have none: as many nodes as there are tasks are
    looked at."""
    group = offer.group
    order = _best(np.where(offer.mask, scorer.scores(offer)[0], _LOWEST), offer.mask, group.count)
    if not order:
        return []
    slots: list[float] = np.minimum(offer.slots[[m for _, m in order]], float(most)).tolist()
    depth = int(max(slots))
    ahead: list[list[float]] = []  # scores of the nodes in their order, with 0 … more tasks of the group there
    turns = [(-score, m, i, 0) for i, (score, m) in enumerate(order)]  # a heap, as it is sorted
    nodes: list[int] = []
    while turns and len(nodes) < group.count:
        _, m, i, there = turns[0]
        nodes.append(m)
        offer.slices.pause()
        there += 1
        if there >= slots[i]:
            heappop(turns)
            continue
        if i >= len(ahead):  # nodes come in their order
            some = [m for _, m in order[len(ahead) : len(ahead) + max(1, _MOST_CELLS // depth)]]
            ahead += scorer.scores(offer.on(some, depth)).T.tolist()
        heapreplace(turns, (-ahead[i][there], m, i, there))
    return nodes


def _best(scores: FloatArray, mask: BoolArray, count: int) -> list[tuple[float, int]]:
    """Up to `count` of the masked nodes with their scores, the highest first, the lowest index first among equals.
    `scores` is written."""
    if count > _FOUND_SINGLY:
        nodes = mask.nonzero()[0]
        nodes = nodes[least(-scores[nodes], min(count, len(nodes)))] if len(nodes) else nodes
        return list(zip(scores[nodes].tolist(), nodes.tolist(), strict=True))
    found: list[tuple[float, int]] = []
    while len(scores) and len(found) < count:
        m = int(scores.argmax())
        if not mask[m] or (found and scores[m] == _LOWEST):
            break
        found.append((float(scores[m]), m))
        scores[m] = _LOWEST
    return found


class _Turns:
    """The tasks of one group, turn by turn."""

    def __init__(self, scorer: NodeScorer, gang: Gang, offer: Offer, choose: Choose | None) -> None:
        self._scorer, self._gang, self._group, self._choose = scorer, gang, offer.group, choose
        self._is_explaining = gang.context.is_explaining
        self._fills = scorer.fills_nodes and not self._is_explaining and choose is None
        self._is_by_node = scorer.is_by_node and not self._is_explaining
        self._is_divided = gang.domains is not None
        self._offer: Offer | None = offer
        self._open = offer.mask.copy()
        self._scores: FloatArray  # (1, M), by the offer
        self._now: FloatArray | None = None  # (M,) those of the next task, of nodes that are open

    def place_all(self, candidates: list[Candidate]) -> bool:
        gang, group = self._gang, self._group
        left = group.count
        while left:
            m = self._chosen()
            if m < 0:
                return False
            explained = list(self._explained(m)) if self._is_explaining else []
            if not gang.take(group, m):
                self._drop_slow(m)
                continue
            candidates += explained
            left -= 1
            if left:
                gang.context.slices.pause()
                self._refresh(m)
        return True

    def _chosen(self) -> int:
        """The node of the next task; -1 if none takes it."""
        if self._choose is not None:
            if self._is_explaining:
                self._score()
            return self._choose(self._gang, self._group, self._open)
        last = self._gang.placed[-1][1] if self._fills and self._gang.placed else -1
        if last >= 0 and self._open[last]:
            return last
        if self._now is None:
            self._now = self._score()
        m = int(self._now.argmax()) if len(self._now) else -1
        return m if m >= 0 and self._open[m] else -1

    def _score(self) -> FloatArray:
        if self._offer is None:
            self._offer = self._gang.offer(self._group, self._open.copy())
            assert self._offer is not None
        self._scores = self._scorer.scores(self._offer)
        return np.where(self._open, self._scores[0], _LOWEST)

    def _refresh(self, m: int) -> None:
        """After node m got tasks of the group."""
        is_open = self._open[m] = self._gang.fits_on(self._group, m)
        if self._is_divided:  # the first task has chosen the domain
            self._is_divided = False
            self._open &= self._gang.usable
            self._now = None if self._now is None else np.where(self._open, self._now, _LOWEST)
        if not self._is_by_node:
            self._now = self._offer = None
        elif self._now is not None:
            self._now[m] = self._score_on(m) if is_open and not self._fills else _LOWEST

    def _score_on(self, m: int) -> float:
        assert self._offer is not None
        offer = self._gang.offer(self._group, self._offer.mask)
        assert offer is not None
        return float(self._scorer.scores(offer.on([m]))[0, 0])

    def _drop_slow(self, m: int) -> None:
        """Node m, and all others like it, have GPUs that are too slow to share."""
        self._open[m] = False
        self._open &= self._gang.takers(self._group, self._open)
        if self._is_by_node and self._now is not None:
            self._now = np.where(self._open, self._now, _LOWEST)
        else:
            self._now = self._offer = None
        self._gang.context.slices.pause()

    def _explained(self, chosen: int) -> Iterator[Candidate]:
        """The best nodes for the next task, with the terms of their scores."""
        offer, scores, view = self._offer, self._scores[0], self._gang.view
        assert offer is not None
        masked = np.where(self._open, scores, -np.inf)
        top = [int(m) for m in np.argsort(-masked, kind="stable")[:_EXPLAINED_CANDIDATES] if self._open[m]]
        for m in top if chosen in top else [*top, chosen]:
            yield Candidate(
                task=self._gang.next_name(self._group),
                node=view.nodes.records[m].id,
                score=float(scores[m]),
                terms=self._scorer.terms(offer, m),
                is_chosen=m == chosen,
            )
