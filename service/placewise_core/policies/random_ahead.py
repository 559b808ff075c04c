"""Random that looks ahead: it draws only nodes after which the rest of the gang still fits. Its propensity is exact."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from placewise_core.basics.arrays import BoolArray
from placewise_core.domain.job import TaskGroup
from placewise_core.gang.gang import Gang
from placewise_core.gang.greedy import BestFit, can_fit, place_all
from placewise_core.gang.offer import NodeLeft
from placewise_core.gang.policy import Proposal
from placewise_core.policies.random_fit import Random

_WALKED = 1024  # tasks placed to try completions, per gang that counting says nothing of: bounds the time


class RandomAhead(Random):
    """Uniform, task by task, over nodes after which a completion of the gang is known. Never runs into a dead end.

    Countable groups keep a plan for the rest of the gang, at first best fit's. A node is open if the plan has a task of
    the group there, or if it takes another one beside all that are planned. Other gangs try best fit after each of
    at most 1024 / tasks² nodes per task, its own always among them; large ones get best fit's placement. All of this
    follows from the nodes drawn so far, so the product of 1/n is exact.
    """

    def _placed(self, gang: Gang, given: Mapping[str, int] | None) -> Proposal | None:
        if any(gang.wanted(group) is None for group in gang.job.groups):
            return None
        if all(gang.is_countable(group) for group in gang.job.groups):
            return _drawn_by_plan(gang, given)
        if not can_fit(gang.job, gang.view, gang.context) or _rest(_copy(gang)) is None:
            return None
        propensity = 1.0
        for group in gang.groups():
            while gang.remaining_of(group):
                nodes = _open_ended(gang, group)
                propensity /= len(nodes)
                m = _chosen(gang, group, nodes, given)
                if m < 0 or not gang.take(group, m):
                    return None
        return Proposal(gang.assignments(), propensity)


def _drawn_by_plan(gang: Gang, given: Mapping[str, int] | None) -> Proposal | None:
    full = Gang(gang.job, gang.view, gang.context)
    if not place_all(BestFit(), full, []):
        return None
    plan, propensity = _Plan(gang, full.placed), 1.0
    for group in gang.groups():
        while gang.remaining_of(group):
            nodes = plan.open_to(group)
            propensity /= len(nodes)
            m = _chosen(gang, group, nodes, given)
            if m < 0:
                return None
            gang.take(group, m)
            plan.change(group, m)
            gang.context.slices.pause()
    return Proposal(gang.assignments(), propensity)


def _chosen(gang: Gang, group: TaskGroup, nodes: Sequence[int], given: Mapping[str, int] | None) -> int:
    """One of the nodes, drawn; the given one if it is among them, or −1."""
    if given is None:
        return nodes[int(gang.context.rng.integers(len(nodes)))]
    m = given.get(gang.next_name(group), -1)
    return m if m in nodes else -1


class _Plan:
    """Where the rest of a gang of countable groups may go, and the nodes' amounts after all of it."""

    def __init__(self, gang: Gang, placed: Sequence[tuple[TaskGroup, int]]) -> None:
        self._gang = gang
        self._left: dict[int, list[float]] = {}  # by node, as NodeLeft.whole
        self._ahead: dict[int, Counter[int]] = {}  # by the group's id, tasks still to place on each node
        self._all: dict[int, Counter[int]] = {}  # as _ahead, with the tasks placed
        self._open: dict[int, BoolArray] = {}  # by the group's id, nodes that have none of the gang's tasks
        for group in gang.job.groups:
            wanted = gang.wanted(group)
            assert wanted is not None
            self._ahead[id(group)], self._all[id(group)] = Counter(), Counter()
            self._open[id(group)] = gang.mask_of(group, wanted)
        for group, m in placed:
            self._ahead[id(group)][m] += 1
            self._give(group, m, 1)

    def open_to(self, group: TaskGroup) -> list[int]:
        """Nodes for the group's next task, ascending."""
        beside = self._open[id(group)].copy()
        for m, left in self._left.items():
            beside[m] = self._ahead[id(group)][m] > 0 or (beside[m] and self._takes_more(group, m, left))
        found: list[int] = beside.nonzero()[0].tolist()
        return found

    def change(self, group: TaskGroup, m: int) -> None:
        """The group's next task goes to node m: as planned, or else instead of that planned for the last node."""
        ahead = self._ahead[id(group)]
        if not ahead[m]:
            last = max(ahead.elements())
            ahead[last] -= 1
            self._give(group, last, -1)
            self._give(group, m, 1)
        else:
            ahead[m] -= 1

    def _takes_more(self, group: TaskGroup, m: int, left: Sequence[float]) -> bool:
        wanted = self._gang.wanted(group)
        assert wanted is not None
        if group.max_per_node and self._all[id(group)][m] >= group.max_per_node:
            return False
        return all(left[row] >= amount for row, amount in wanted.whole)

    def _give(self, group: TaskGroup, m: int, count: int) -> None:
        wanted = self._gang.wanted(group)
        assert wanted is not None
        if m not in self._left:
            self._left[m] = NodeLeft(self._gang.view, m).whole()
        for row, amount in wanted.whole:
            self._left[m][row] -= count * amount
        self._all[id(group)][m] += count


def _open_ended(gang: Gang, group: TaskGroup) -> Sequence[int]:
    """Nodes for the group's next task after which best fit completes the gang. Best fit completes it now, so at least
    one does."""
    wanted = gang.wanted(group)
    assert wanted is not None
    own = _rest(_copy(gang))
    assert own
    most = _WALKED // gang.job.task_count**2
    if most <= 1:
        return own[:1]
    nodes: list[int] = gang.takers(group, gang.mask_of(group, wanted)).nonzero()[0].tolist()
    if len(nodes) > most:
        spread = np.linspace(0, len(nodes) - 1, most)[1:].astype(int).tolist()
        nodes = sorted({own[0], *(nodes[i] for i in spread)})
    return [m for m in nodes if _rest(_copy(gang, (group, m))) is not None]


def _copy(gang: Gang, *more: tuple[TaskGroup, int]) -> Gang:
    """The same gang with the same tasks placed, and with `more`."""
    copied = Gang(gang.job, gang.view, gang.context)
    for group, m in [*gang.placed, *more]:
        copied.take(group, m)
    return copied


def _rest(gang: Gang) -> list[int] | None:
    """Places the rest of the gang by best fit: the nodes, or None where that runs into a dead end."""
    found: list[int] = []
    for group in gang.groups():
        while gang.remaining_of(group):
            wanted = gang.wanted(group)
            assert wanted is not None
            mask = gang.takers(group, gang.mask_of(group, wanted))
            offer = gang.offer(group, mask)
            if offer is None or not mask.any():
                return None
            m = int(np.where(mask, BestFit().scores(offer)[0], -np.inf).argmax())
            if not gang.take(group, m):
                return None
            found.append(m)
            gang.context.slices.pause()
    return found
