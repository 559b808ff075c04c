"""Candidates: the nodes a net chooses among for a gang's next task, and the actions that are possible on them.

Actions are those of placewise_core.gang.actions, over the candidates only. Decides nothing.
"""

import numpy as np

from placewise_core.basics.arrays import BoolArray, FloatArray, IntArray
from placewise_core.domain.job import Role, TaskGroup
from placewise_core.gang.actions import decode_action
from placewise_core.gang.gang import Gang
from placewise_core.view.domains import Domains

_ROLES = (Role.WORKER, Role.PARAMETER_SERVER)


class Turn:
    """The group whose task is next in its role. slots (C,): its tasks that each candidate takes, counted; mask (C,):
    the nodes open to the next one. A node whose GPUs turned out too slow to share has slots and is masked."""

    __slots__ = ("group", "mask", "slots")

    def __init__(self, gang: Gang, group: TaskGroup, rows: IntArray, at: slice | IntArray) -> None:
        offer, most = gang.offer(group), float(group.max_per_node or gang.job.task_count)
        self.group = group
        self.slots: FloatArray
        self.mask: BoolArray
        if offer is None:
            self.slots, self.mask = np.zeros(len(rows)), np.zeros(len(rows), dtype=np.bool_)
            return
        self.mask = offer.mask[at].copy()
        self.slots = np.minimum(offer.slots[at], most)
        for m in gang.left:
            c = int(rows.searchsorted(m))
            self.slots[c] = min(self.slots[c], most - gang.count(group, m))
        self.slots *= self.mask


class Candidates:
    """`gang` on the candidate nodes `rows` (C,), ascending indices into the view; None means all of them.

    `mask` (2C,): the actions that are possible now. `turns`: of the roles with tasks still to place, counted in `left`.
    `at`: the rows as an index, if possible a slice, which is no copy.
    """

    def __init__(self, gang: Gang, rows: IntArray | None = None) -> None:
        self.gang = gang
        self.rows: IntArray = np.arange(gang.view.nodes.size) if rows is None else rows
        self.at: slice | IntArray = slice(None) if len(self.rows) == gang.view.nodes.size else self.rows
        self.mask: BoolArray = np.zeros(2 * len(self.rows), dtype=np.bool_)
        self.left = dict.fromkeys(_ROLES, 0)  # tasks still to place
        self._waiting: dict[Role, list[TaskGroup]] = {role: [] for role in _ROLES}
        for group in gang.job.groups:
            if waiting := gang.remaining_of(group):
                self.left[group.role] += waiting
                self._waiting[group.role].append(group)
        self._is_counted = len(gang.job.groups) == 1 and gang.is_countable(gang.job.groups[0])
        self.turns: dict[Role, Turn] = {}
        for role, waiting_groups in self._waiting.items():
            if waiting_groups:
                self._begin(role)
        if gang.domains is not None and self.at is self.rows:
            self._close_parts(gang.domains)

    def is_stuck(self) -> bool:
        """True if no action is possible."""
        return 1 not in self.mask.tobytes()  # any() takes ten times as long

    def lacks_slots(self) -> bool:
        """True if no action is possible, or counting says that the candidates do not take a gang of one group; one
        that is explained is tried."""
        if not self._is_counted or self.gang.context.is_explaining:
            return self.is_stuck()
        return any(np.add.reduce(turn.slots) < self.gang.remaining for turn in self.turns.values())

    def take(self, action: int) -> bool:
        """Places the task of the action. If the GPUs of the node turn out too slow to share, returns False and masks
        the action from then on. Raises ValueError for an action the mask does not allow."""
        role, c = decode_action(action, len(self.rows))
        is_divided = self.gang.domains is not None
        if not self.mask[action]:
            raise ValueError(f"action {action} is masked")
        turn, m = self.turns[role], int(self.rows[c])
        if not self.gang.take(turn.group, m):
            turn.mask[c] = self.mask[action] = False
            return False
        if is_divided:  # the first task has chosen the domain
            self._narrow(self.gang.usable[self.at])
        self.left[role] -= 1
        if not self.gang.remaining:
            self.turns.clear()
            self.mask[:] = False
            return True
        if self._is_counted:
            turn.slots[c] -= 1.0
            turn.mask[c] = self.mask[action] = turn.slots[c] >= 1.0
            return True
        for other, its in self.turns.items():
            if its.slots[c]:  # a gang only takes: a full node stays full
                self._count(other, its, c, m)
        if not self.gang.remaining_of(turn.group):
            self._waiting[role].remove(turn.group)
            self._begin(role)
        return True

    def _close_parts(self, domains: Domains) -> None:
        """Masks the domains of whose nodes too few are candidates."""
        of = domains.of[self.rows]
        for turn in list(self.turns.values()):
            holds = np.bincount(of, turn.slots, domains.count) >= turn.group.count
            self._narrow(holds[of])

    def _narrow(self, mask: BoolArray) -> None:
        """Masks the candidates outside of `mask` (C,)."""
        for role, turn in self.turns.items():
            turn.mask &= mask
            turn.slots *= mask
            self.mask[self._half(role)] = turn.mask

    def close_intolerant(self) -> None:
        """Masks the nodes whose GPUs are too slow to share with the next task, as `take` would one by one."""
        gang = self.gang
        for role, turn in self.turns.items():
            if gang.is_countable(turn.group) or not turn.mask.any():
                continue
            mask = np.zeros(gang.view.nodes.size, dtype=np.bool_)
            mask[self.rows[turn.mask]] = True
            turn.mask &= gang.takers(turn.group, mask)[self.at]
            self.mask[self._half(role)] = turn.mask

    def _half(self, role: Role) -> slice:
        size = len(self.rows)
        return slice(0, size) if role is Role.WORKER else slice(size, None)

    def _begin(self, role: Role) -> None:
        """The next group of the role, if there is one."""
        if not self._waiting[role]:
            self.turns.pop(role, None)
            self.mask[self._half(role)] = False
            return
        turn = self.turns[role] = Turn(self.gang, self._waiting[role][0], self.rows, self.at)
        self.mask[self._half(role)] = turn.mask

    def _count(self, role: Role, turn: Turn, c: int, m: int) -> None:
        """Only the node that was just used has changed."""
        gang, group = self.gang, turn.group
        most = float(group.max_per_node or gang.job.task_count) - gang.count(group, m)
        slots = turn.slots[c] = min(gang.slots_on(group, m), most)
        if turn.mask[c] and slots < 1.0:
            turn.mask[c] = self.mask[c if role is Role.WORKER else len(self.rows) + c] = False
