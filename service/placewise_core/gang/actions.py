"""Action ids of Harmony's policy net: 2M actions, a worker or a parameter server on node m.

Action m places one worker on node m, action M + m one parameter server (Harmony, action space). Never decides.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from placewise_core.basics.arrays import BoolArray, IntArray
from placewise_core.domain.cluster import Assignment
from placewise_core.domain.job import Job, Role
from placewise_core.view.view import ClusterView

_ROLES = (Role.WORKER, Role.PARAMETER_SERVER)


def action_of(role: Role, m: int, size: int) -> int:
    """Id of placing one task of `role` on node m of `size` nodes."""
    return _ROLES.index(role) * size + m


def decode_action(action: int, size: int) -> tuple[Role, int]:
    """(role, node index). Raises IndexError for an id outside 0 … 2M − 1."""
    if not 0 <= action < 2 * size:
        raise IndexError(f"action {action} of {2 * size}")
    return _ROLES[action // size], action % size


def actions_of(assignments: Sequence[Assignment], view: ClusterView) -> IntArray:
    """(tasks,) the actions that make up a placement, in its order. Raises KeyError for a node the view lacks."""
    return np.array([action_of(a.role, view.nodes.index[a.node], view.nodes.size) for a in assignments], dtype=np.int64)


def action_mask(job: Job, view: ClusterView, usable: BoolArray, left: Mapping[Role, int]) -> BoolArray:
    """(2M,) True if a task of the role fits the node now. `left` counts the remaining tasks per role: a role with none
    left has no open action, so that an all-reduce job never has a parameter server action."""
    mask = np.zeros(2 * view.nodes.size, dtype=np.bool_)
    for group in job.groups:
        demand = view.nodes.demand_vector(group.demand)
        if demand is None or left.get(group.role, 0) <= 0:
            continue
        first = action_of(group.role, 0, view.nodes.size)
        mask[first : first + view.nodes.size] |= view.slots.feasible(demand, group, job.gpu_sharing, usable)
    return mask
