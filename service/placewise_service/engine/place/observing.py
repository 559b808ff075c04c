"""Training data in the log: the observation of a choice, the mask of each step, the actions taken.

Every choice of a cluster that explores, and a small share of the others, drawn at random. On the others every
propensity is 1: their records cannot be weighed, but a policy or a model of speeds may still learn from their
observations. An observation costs as much as the decision. The view moves on with the next event, so this is copied
before the answer; packing and writing it comes after, with the rest of the record.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placewise_core.basics.arrays import BoolArray, IntArray
from placewise_core.domain.cluster import Assignment, RunningJob, RunState
from placewise_core.domain.job import Job
from placewise_core.gang.actions import action_mask, actions_of
from placewise_core.inputs.cluster import Encoder
from placewise_core.view.view import ClusterView
from placewise_log.record import Choice, Tensor

MOST_NODES = 64  # more are cut to these, the chosen ones among them; `rows` then says which
MOST_STEPS = 16  # tasks whose masks are kept: each costs a look at every node


def choice_of(job: Job, assignments: Sequence[Assignment], view: ClusterView, now_s: float, encoder: Encoder) -> Choice:
    """The choice as the view is before it is made.

    `observation`: `nodes` (C, features), `jobs` (J, features) with the new job first, `placement` (J, C, 2), and
    `rows` (C,), the nodes' places in the view. `nodes` and `jobs` of the choice are the ids behind these tokens.
    `actions` and `mask` (steps, 2·C) count in those C nodes: action c is a worker on node c, C + c a parameter server.
    A job that found no place has neither actions nor masks.
    """
    actions = actions_of(assignments, view)
    rows = _rows(actions % view.nodes.size, view, now_s)
    seen_rows = None if len(rows) == view.nodes.size else rows
    seen = encoder.encode(view, [job], now_s, current=0, rows=seen_rows)
    local = np.searchsorted(rows, actions % view.nodes.size) + (actions // view.nodes.size) * len(rows)
    tensors: dict[str, NDArray[Any]] = {
        "nodes": seen.nodes,
        "jobs": seen.jobs,
        "placement": seen.placement,
        "rows": rows,
    }
    return Choice(
        job_id=job.id,
        actions=tuple(local.tolist()),
        observation={name: Tensor.pack(values) for name, values in tensors.items()},
        mask=Tensor.pack(_masks(job, assignments[:MOST_STEPS], view, now_s, rows)),
        nodes=tuple([view.nodes.records[m].id for m in rows.tolist()]),
        jobs=(job.id, *[running.id for running in encoder.running(view, seen_rows)]),
    )


def _rows(chosen: IntArray, view: ClusterView, now_s: float) -> IntArray:
    """(C,) ascending: all nodes, or the chosen ones and as many usable ones as there is room for."""
    if view.nodes.size <= MOST_NODES:
        return np.arange(view.nodes.size)
    others = np.setdiff1d(np.flatnonzero(view.usable(now_s)), chosen)
    room = max(0, MOST_NODES - len(np.unique(chosen)))
    spread = others[np.linspace(0, len(others) - 1, min(room, len(others)), dtype=np.int64)] if len(others) else others
    return np.union1d(chosen, spread)


def _masks(job: Job, assignments: Sequence[Assignment], view: ClusterView, now_s: float, rows: IntArray) -> BoolArray:
    """(steps, 2·C) open actions before each task, with the earlier ones placed. Leaves the view as it was."""
    usable = view.usable(now_s)
    left = Counter({group.role: group.count for group in job.groups})
    columns = np.concatenate([rows, view.nodes.size + rows])
    masks = np.zeros((len(assignments), len(columns)), dtype=np.bool_)
    for step, assignment in enumerate(assignments):
        if step:
            view.add_job(RunningJob(job, tuple(assignments[:step]), RunState.RESERVED))
        try:
            masks[step] = action_mask(job, view, usable, left)[columns]
        finally:
            if step:
                view.remove_job(job.id)
        left[assignment.role] -= 1
    return masks
