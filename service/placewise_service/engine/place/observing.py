"""Training data in the log: the observation of a choice, the mask of each step, the actions taken.

Every choice of a cluster that explores, and a small share of the others, drawn at random. On the others every
propensity is 1: their records cannot be weighed, but a policy or a model of speeds may still learn from their
observations. If Harmony's net placed the job, these are the arrays that it read. Otherwise the view is encoded here,
once, which costs as much as the decision. The view moves on with the next event, so this is copied before the answer;
writing it comes after, with the rest of the record.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placewise_core.basics.arrays import BoolArray, IntArray
from placewise_core.domain.cluster import Assignment, RunningJob, RunState
from placewise_core.domain.job import Job
from placewise_core.gang.actions import action_mask, actions_of
from placewise_core.gang.policy import NO_ROWS, NetRead, Proposal
from placewise_core.inputs.cluster import Encoder
from placewise_core.view.view import ClusterView
from placewise_log.record import Choice, Tensor

MOST_NODES = 64  # more are cut to these, the chosen ones among them; `rows` then says which
MOST_STEPS = 16  # tasks whose masks are kept: without a net each costs a look at every node


def choice_of(job: Job, proposal: Proposal | None, view: ClusterView, now_s: float, encoder: Encoder) -> Choice:
    """The choice as the view is before it is made; None: the job found no place.

    `observation`: `nodes` (C, features), `jobs` (J, features) with the new job first, `placement` (J, C, 2), and
    `rows` (C,), the nodes' places in the view. `nodes` and `jobs` of the choice are the ids behind these tokens.
    `actions` and `mask` (steps, 2·C) count in those C nodes: action c is a worker on node c, C + c a parameter server.

    If Harmony's net placed the job, these are the arrays that it read, its masks and its actions, in the order in which
    it took them; tasks that a plan placed for it have none. Heuristics, and those that answer in a net's place, read no
    tensors. Then the observation is an encoding of the view that the policy read, made for the log, with a mask for
    each task in the order of the request. Other nets read other arrays: theirs is such an encoding, too.

    `steps` (steps, …) are the arrays that any net read before each task: of `harmony` (C, STEP_FEATURES), of
    `harmony-paper` (J, columns), of `ldwp-paper` (columns,), of `ldwp` (N, columns) for the nodes whose places are in
    `step_rows` (steps, N), −1 for padding. Those of the last two are in the order of placing, largest tasks first.
    A job that found no place has no actions, masks or steps, nor has one of which a plan placed all.
    """
    tasks, read = ((), None) if proposal is None else (proposal.assignments, proposal.read)
    read = read or NetRead(NO_ROWS)
    if not read.observation:
        read = _completed(read, job, tasks, view, now_s, encoder)
    tensors: dict[str, NDArray[Any]] = {**read.observation, "rows": read.rows}
    if read.tokens:
        tensors["steps"] = _padded(read.tokens[:MOST_STEPS], 0.0)
    if read.step_rows:
        tensors["step_rows"] = _padded(read.step_rows[:MOST_STEPS], -1)
    masks = np.array(read.masks[:MOST_STEPS], dtype=np.bool_)
    return Choice(
        job_id=job.id,
        actions=tuple(read.actions),
        observation={name: Tensor.pack(values) for name, values in tensors.items()},
        mask=Tensor.pack(masks.reshape(len(masks), 2 * len(read.rows))),
        nodes=tuple([view.nodes.records[m].id for m in read.rows.tolist()]),
        jobs=(job.id, *read.jobs),
    )


def _completed(
    read: NetRead, job: Job, assignments: Sequence[Assignment], view: ClusterView, now_s: float, encoder: Encoder
) -> NetRead:
    """With the tokens that Harmony's net would have read, on more nodes, and the masks and actions of this placement
    unless they are known."""
    actions = actions_of(assignments, view)
    rows = read.rows if read.actions else _rows(actions % view.nodes.size, view, now_s)
    seen_rows = None if len(rows) == view.nodes.size else rows
    seen = encoder.encode(view, [job], now_s, rows=seen_rows)
    local = np.searchsorted(rows, actions % view.nodes.size) + (actions // view.nodes.size) * len(rows)
    return replace(
        read,
        rows=rows,
        observation={"nodes": seen.nodes, "jobs": seen.jobs, "placement": seen.placement},
        jobs=[running.id for running in encoder.running(view, seen_rows)],
        masks=read.masks or [*_masks(job, assignments[:MOST_STEPS], view, now_s, rows)],
        actions=read.actions or local.tolist(),
    )


def _padded(arrays: Sequence[NDArray[Any]], padding: float) -> NDArray[Any]:
    """Of different lengths, stacked."""
    most = max(len(array) for array in arrays)
    widths = [[(0, most - len(array)), *[(0, 0)] * (array.ndim - 1)] for array in arrays]
    return np.stack([np.pad(a, w, constant_values=padding) for a, w in zip(arrays, widths, strict=True)])


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
