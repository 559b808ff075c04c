"""One gang placed action by action, each on the state the last one left (Harmony, section V). Decides nothing.

Actions are those of placewise_core.actions, over the candidate nodes only. The view carries the builder's claims from
its first `apply` to `give_back`.
"""

import math
from collections import Counter

import numpy as np

from placewise_core.actions import decode_action
from placewise_core.cluster import Assignment
from placewise_core.job import Job, NodeId, Role, TaskGroup
from placewise_core.place.context import PlaceContext
from placewise_core.place.gang import task_names
from placewise_core.place.gpus import pick_gpus
from placewise_core.view import GPUS, BoolArray, ClusterView, FloatArray, IntArray

_ROLES = (Role.WORKER, Role.PARAMETER_SERVER)


class GangBuilder:
    """`rows` (C,) are the candidate nodes, as ascending indices into the view; None means all of them.

    `claims_last` False leaves the claim of the gang's last task out, for callers that only give everything back.
    """

    def __init__(
        self,
        job: Job,
        view: ClusterView,
        context: PlaceContext,
        rows: IntArray | None = None,
        *,
        claims_last: bool = True,
    ) -> None:
        self.job = job
        self.view = view
        self.context = context
        self.rows: IntArray = np.arange(view.size) if rows is None else rows
        # The same as an index: a slice, where it can be, is no copy.
        self.at: slice | IntArray = slice(None) if len(self.rows) == view.size else self.rows
        self.assignments: list[Assignment] = []
        self.placed: list[tuple[TaskGroup, int]] = []
        self._counts: Counter[tuple[int, int]] = Counter()  # (group's id, node) → tasks
        self.remaining = 0  # tasks still to place
        self._left: dict[Role, list[tuple[TaskGroup, str]]] = {role: [] for role in _ROLES}
        for group, name in task_names(job):
            self._left[group.role].append((group, name))
            self.remaining += 1
        self._usable: BoolArray = view.usable(context.now_s)[self.at]
        self._demands: dict[int, FloatArray | None] = {id(g): view.demand_vector(g.demand) for g in job.groups}
        self._plain: dict[int, bool] = {id(group): self._wants_plain(group) for group in job.groups}
        self._masks: dict[int, BoolArray] = {}  # by group, of those whose turn it is or was
        self._none: BoolArray = np.zeros(len(self.rows), dtype=np.bool_)
        self._by_role = [self._next_mask(role) for role in _ROLES]
        self._claims_last = claims_last
        self._claimed = 0

    def remaining_of(self, role: Role) -> int:
        return len(self._left[role])

    def next_group(self, role: Role) -> TaskGroup:
        """The group whose task an action of `role` would place. Raises IndexError if none is left."""
        return self._left[role][0][0]

    def next_name(self, role: Role) -> str:
        """Name of the task an action of `role` would place. Raises IndexError if none is left."""
        return self._left[role][0][1]

    def groups_left(self) -> list[TaskGroup]:
        """The group of every task still to place."""
        return [group for left in self._left.values() for group, _ in left]

    def demand_of(self, group: TaskGroup) -> FloatArray | None:
        """(R,) demand of one task of the group; None where no node has such a resource."""
        return self._demands[id(group)]

    def count(self, group: TaskGroup, m: int) -> int:
        """Tasks of the group that were placed on node m."""
        return self._counts[id(group), m]

    def is_open(self, group: TaskGroup) -> BoolArray:
        """(C,) candidates that are usable and carry the labels the group asks for."""
        return self._usable & self.view.selected(group)[self.at] if group.node_selector else self._usable

    def _wants_plain(self, group: TaskGroup) -> bool:
        demand = self._demands[id(group)]
        return demand is not None and self.view.is_plain(demand, group, self.job.gpu_sharing)

    def is_plain(self, group: TaskGroup) -> bool:
        """True where ClusterView.plain_rooms says all about the room for a task of the group on a node."""
        return self._plain[id(group)]

    @property
    def is_complete(self) -> bool:
        return self.remaining == 0

    def mask(self) -> BoolArray:
        """(2C,) actions that are possible now. All False while tasks remain means the gang does not fit this way."""
        return np.concatenate(self._by_role)

    def is_stuck(self) -> bool:
        """True if no action is possible."""
        workers, servers = self._by_role
        return not (len(workers.nonzero()[0]) or len(servers.nonzero()[0]))  # any() takes five times as long

    def _next_mask(self, role: Role) -> BoolArray:
        """(C,) where the next task of the role could go. Kept up by `_refresh`."""
        if not self._left[role]:
            return self._none
        group = self._left[role][0][0]
        found = self._masks.get(id(group))
        if found is None:
            found = self._masks[id(group)] = self._group_mask(group)
        return found

    def _group_mask(self, group: TaskGroup) -> BoolArray:
        demand = self._demands[id(group)]
        if demand is None:
            return self._none
        if self.is_plain(group):
            mask = (self.view.plain_rooms(demand)[self.at] >= 1.0) & self.is_open(group)
        else:
            everywhere: BoolArray = np.ones(self.view.size, dtype=np.bool_)
            mask = self.view.feasible(demand, group, self.job.gpu_sharing, everywhere)[self.at] & self._usable
        if group.max_per_node:
            for c in np.flatnonzero(mask).tolist():
                mask[c] = self.count(group, int(self.rows[c])) < group.max_per_node
        return np.asarray(mask)

    def apply(self, action: int) -> bool:
        """Claims what the action says. False, and the action is masked from then on, where the GPUs of the node turn
        out too slow to share. Raises ValueError for an action the mask does not allow."""
        role, c = decode_action(action, len(self.rows))
        mask, left = self._by_role[role is not Role.WORKER], self._left[role]
        if not mask[c]:
            raise ValueError(f"action {action} is masked")
        group, name = left[0]
        demand = self._demands[id(group)]
        assert demand is not None
        m = int(self.rows[c])
        if self._plain[id(group)]:  # then its GPUs were counted
            gpus: tuple[int, ...] | None = self.view.first_free_gpus(m, math.ceil(demand[GPUS]))
        else:
            gpus = pick_gpus(self.view, m, self.job, group, demand, self.context.interference)
        if gpus is None:
            mask[c] = False
            return False
        assignment = Assignment(name, role, NodeId(self.view.node_id(m)), gpus, group.demand)
        self.assignments.append(assignment)
        self.placed.append((group, m))
        self._counts[id(group), m] += 1
        del left[0]
        self.remaining -= 1
        if self.remaining or self._claims_last:
            self.view.claim(self.job, assignment)
            self._claimed += 1
        if self.remaining:
            self._refresh(c, m)
            if not left or left[0][0] is not group:
                self._by_role[role is not Role.WORKER] = self._next_mask(role)
        return True

    def _refresh(self, c: int, m: int) -> None:
        """Only the node that was just used has changed."""
        for group in self.job.groups:
            mask = self._masks.get(id(group))
            demand = self._demands[id(group)]
            if mask is not None and demand is not None and mask[c]:
                if self._plain[id(group)]:
                    fits = self.view.plain_feasible_on(m, demand)
                else:
                    fits = self.view.feasible_on(m, demand, group, self.job.gpu_sharing)
                mask[c] = fits and not (group.max_per_node and self.count(group, m) >= group.max_per_node)

    def placement(self) -> tuple[Assignment, ...]:
        """The assignments in the order of the request. Raises ValueError before the gang is complete."""
        if not self.is_complete:
            raise ValueError(f"job {self.job.id}: {self.remaining} tasks are not placed yet")
        if len(self.job.groups) == 1:
            return tuple(self.assignments)
        order = {name: i for i, (_, name) in enumerate(task_names(self.job))}
        return tuple(sorted(self.assignments, key=lambda assignment: order[assignment.task]))

    def give_back(self) -> None:
        """Returns every claim: the view is as it was before. The builder is then of no further use."""
        for assignment in reversed(self.assignments[: self._claimed]):
            self.view.unclaim(self.job, assignment)
        self.assignments, self._claimed = [], 0
