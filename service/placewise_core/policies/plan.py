"""A plan for the rest of a gang: a completion known at every step, for policies that draw nodes. Decides nothing."""

from collections import Counter
from collections.abc import Sequence

from placewise_core.basics.arrays import BoolArray
from placewise_core.domain.cluster import Assignment
from placewise_core.domain.job import TaskGroup
from placewise_core.gang.gang import Gang
from placewise_core.gang.greedy import BestFit, place_all
from placewise_core.gang.offer import NodeLeft


def plan_of(gang: Gang) -> "Plan | None":
    """Best fit's plan for a gang of countable groups of which nothing is placed; None if it finds none. It is within
    the gang's domain, if it is kept to one, else within the one that best fit chooses."""
    return _planned(gang, gang.alike())


def plan_around(gang: Gang, m: int) -> "Plan | None":
    """As `plan_of`, within the domain of node m."""
    return _planned(gang, gang.alike().keep_to(m))


def _planned(gang: Gang, full: Gang) -> "Plan | None":
    return Plan(gang, full.placed) if place_all(BestFit(), full, []) else None


class Plan:
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

    def open_to(self, group: TaskGroup) -> BoolArray:
        """(M,) nodes for the group's next task."""
        beside = self._open[id(group)].copy()
        for m, left in self._left.items():
            beside[m] = self._ahead[id(group)][m] > 0 or (beside[m] and self._takes_more(group, m, left))
        return beside

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

    def rest(self) -> tuple[Assignment, ...]:
        """The whole gang: what is placed, and the rest as planned, in the order of nodes."""
        gang = Gang(self._gang.job, self._gang.view, self._gang.context)
        for group, m in self._gang.placed:
            gang.take(group, m)
        for group in gang.groups():
            for m in sorted(self._ahead[id(group)].elements()):
                gang.take(group, m)
        return gang.assignments()

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
