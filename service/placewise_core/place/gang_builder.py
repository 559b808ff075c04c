"""One gang placed action by action, each on the state the last one left (Harmony, section V). Decides nothing.

Actions are those of placewise_core.actions, over the candidate nodes only. The view carries the builder's claims from
its first `apply` to `give_back`.
"""

import numpy as np

from placewise_core.actions import decode_action
from placewise_core.cluster import Assignment
from placewise_core.job import Job, NodeId, Role, TaskGroup
from placewise_core.place.decode import task_names
from placewise_core.place.gpus import pick_gpus
from placewise_core.place.policy import PlaceContext
from placewise_core.view import BoolArray, ClusterView, FloatArray, IntArray

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
        self._left: dict[Role, list[tuple[TaskGroup, str]]] = {role: [] for role in _ROLES}
        for group, name in task_names(job):
            self._left[group.role].append((group, name))
        self._usable: BoolArray = view.usable(context.now_s)[self.at]
        self._demands: dict[int, FloatArray | None] = {id(g): view.demand_vector(g.demand) for g in job.groups}
        self._masks: dict[int, BoolArray] = {}
        self._none: BoolArray = np.zeros(len(self.rows), dtype=np.bool_)
        self._everywhere: BoolArray = np.ones(view.size, dtype=np.bool_)
        self._claims_last = claims_last
        self._claimed = 0

    @property
    def remaining(self) -> int:
        """Tasks still to place."""
        return sum(len(left) for left in self._left.values())

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
        return sum(g is group and n == m for g, n in self.placed)

    def is_open(self, group: TaskGroup) -> BoolArray:
        """(C,) candidates that are usable and carry the labels the group asks for."""
        return self._usable & self.view.selected(group)[self.at] if group.node_selector else self._usable

    @property
    def is_complete(self) -> bool:
        return self.remaining == 0

    def mask(self) -> BoolArray:
        """(2C,) actions that are possible now. All False while tasks remain means the gang does not fit this way."""
        workers, servers = (self._role_mask(role) for role in _ROLES)
        return np.concatenate((workers, servers))

    def is_stuck(self) -> bool:
        """True if no action is possible."""
        return not (self._role_mask(Role.WORKER).any() or self._role_mask(Role.PARAMETER_SERVER).any())

    def _role_mask(self, role: Role) -> BoolArray:
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
        mask = self.view.feasible(demand, group, self.job.gpu_sharing, self._everywhere)[self.at] & self._usable
        if group.max_per_node:
            for c in np.flatnonzero(mask).tolist():
                mask[c] = self.count(group, int(self.rows[c])) < group.max_per_node
        return np.asarray(mask)

    def apply(self, action: int) -> bool:
        """Claims what the action says. False, and the action is masked from then on, where the GPUs of the node turn
        out too slow to share. Raises ValueError for an action the mask does not allow."""
        role, c = decode_action(action, len(self.rows))
        if not self._role_mask(role)[c]:
            raise ValueError(f"action {action} is masked")
        group, name = self._left[role][0]
        demand = self._demands[id(group)]
        assert demand is not None
        m = int(self.rows[c])
        gpus = pick_gpus(self.view, m, self.job, group, demand, self.context.interference)
        if gpus is None:
            self._masks[id(group)][c] = False
            return False
        assignment = Assignment(name, role, NodeId(self.view.node_id(m)), gpus, group.demand)
        self.assignments.append(assignment)
        self.placed.append((group, m))
        self._left[role].pop(0)
        if not self.is_complete or self._claims_last:
            self.view.claim(self.job, assignment)
            self._claimed += 1
            self._refresh(c, m)
        return True

    def _refresh(self, c: int, m: int) -> None:
        """Only the node that was just used has changed."""
        for group in self.job.groups:
            mask = self._masks.get(id(group))
            demand = self._demands[id(group)]
            if mask is not None and demand is not None and mask[c]:
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
