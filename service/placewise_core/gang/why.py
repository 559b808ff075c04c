"""Why a job was not placed: the outcome, and its reasons in the order in which fixing them helps.

NO_FIT: the gang would not fit the cluster even with every node empty, ready and cool. WAIT: it would.

The gang is packed best fit, largest tasks first, until a task finds no node; that task is examined on the remaining
resources. Order of the blockers, the first to fix first:

1. demands that no node can ever satisfy: SELECTOR_MISMATCH, GPU_MODEL_MISMATCH on every node
2. unusable nodes with room for the task: NODE_DOWN, NODE_DRAINING, STALE_TELEMETRY, THERMAL_LIMIT
   (those that hold back most nodes first)
3. usable nodes with room that the job's own limits refuse: MAX_PER_NODE, SLOWDOWN_LIMIT
4. FRAGMENTED: the free resources suffice for all tasks left in sum, but for none on any single node
5. INSUFFICIENT_…: resources short on usable nodes; first the one that alone is missing on most nodes, then the
   smallest shortfall relative to the demand
6. nodes with room that the selector or the GPU model excludes, if other nodes match both: SELECTOR_MISMATCH,
   GPU_MODEL_MISMATCH

A gang that fits but for `keep_together` or an exclusive network has that one blocker: KEEP_TOGETHER, or else
EXCLUSIVE_NETWORK.

Works on whole arrays; loops over nodes only for those that are not ready, and for sharing jobs over those with room.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from placewise_core.basics.arrays import BoolArray
from placewise_core.domain.cluster import NodeState
from placewise_core.domain.decision import Blocker, Outcome, Reason
from placewise_core.domain.job import Job, KeepTogether
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.gang import Gang
from placewise_core.gang.greedy import can_fit, obstacle
from placewise_core.gang.offer import Offer
from placewise_core.gang.shortage import Shortage, shortages
from placewise_core.view.domains import crossed, domains_of
from placewise_core.view.nodes import CELSIUS
from placewise_core.view.view import ClusterView


def explain(job: Job, view: ClusterView, context: PlaceContext) -> tuple[Outcome, tuple[Blocker, ...]]:
    """Outcome NO_FIT or WAIT with ordered blockers, for a job that no placement was found for. Changes nothing."""
    if view.nodes.size == 0:
        return Outcome.NO_FIT, (Blocker(Reason.EMPTY_CLUSTER, message="the cluster has no nodes"),)
    unknown = tuple(_unknown_resources(job, view))
    if unknown:
        return Outcome.NO_FIT, unknown
    empty, whenever = view.emptied(), replace(context, barred=None, first_offers=None)
    is_divided = domains_of(job, view) is not None
    task = obstacle(job, empty, _apart(whenever) if is_divided else whenever)
    if task is not None:
        return Outcome.NO_FIT, tuple(_blockers(task, whenever, is_empty=not task.placed))
    if is_divided and (found := tuple(_not_together(job, empty, whenever))):
        return Outcome.NO_FIT, found
    task = obstacle(job, view, _apart(context) if is_divided else context)
    if task is not None:
        return Outcome.WAIT, tuple(_blockers(task, context))
    if is_divided and (found := tuple(_not_together(job, view, context))):
        return Outcome.WAIT, found
    message = "the policy found no way to place the gang as it is; best fit would"
    return Outcome.WAIT, (Blocker(Reason.FRAGMENTED, message=message),)


def _apart(context: PlaceContext, *, heeds_together: bool = False) -> PlaceContext:
    """The context of a gang whose tasks may be apart, and beside any network."""
    return replace(context, first_offers=None, heeds_together=heeds_together, heeds_network=False)


def _not_together(job: Job, view: ClusterView, context: PlaceContext) -> Iterator[Blocker]:
    """Of a gang that would fit apart: the wish against it, its own or that of a job there. Nothing if best fit places
    it all the same."""
    if can_fit(job, view, context):
        return
    beside = _apart(context, heeds_together=True)
    gang, tasks = Gang(job, view, beside), job.task_count
    if job.keep_together is not KeepTogether.NONE and not can_fit(job, view, beside):
        most, one = gang.most_together, job.keep_together.lower()
        found = f"the best holds {most}" if most < tasks else "each group finds room in one, but not all at once"
        message = f"no {one} holds the {tasks} tasks together; {found}"
        yield Blocker(Reason.KEEP_TOGETHER, shortfall=float(max(1, tasks - most)), resource="tasks", message=message)
        return
    slots_each = np.add.reduce([gang.slots_each(group) for group in job.groups])
    nodes = int(np.count_nonzero(slots_each[list(crossed(job, view))]))
    if job.exclusive_network:
        message = "jobs that span several nodes use the network of nodes with room; this job wants it for itself"
    else:
        message = "nodes with room have a job that wants its network for itself"
    yield Blocker(Reason.EXCLUSIVE_NETWORK, nodes, message=message)


def _unknown_resources(job: Job, view: ClusterView) -> Iterator[Blocker]:
    wanted = {name: amount for group in job.groups for name, amount in group.demand.extended.items() if amount > 0}
    for name in sorted(wanted.keys() - set(view.nodes.columns)):
        message = f"no node has the resource {name}"
        yield Blocker(Reason.INSUFFICIENT_EXTENDED, view.nodes.size, wanted[name], name, message)


def _blockers(task: Offer, context: PlaceContext, *, is_empty: bool = False) -> Iterator[Blocker]:
    """`is_empty`: nothing at all is claimed, so that a shortage is one of size, not of fragmentation."""
    view, group = task.view, task.group
    short = shortages(task)
    has_room = ~np.logical_or.reduce([s.is_short for s in short]) if short else np.ones(view.nodes.size, dtype=np.bool_)
    selected = view.nodes.selected(group) if group.node_selector else np.ones(view.nodes.size, dtype=np.bool_)
    has_model = _has_gpu_model(task)
    eligible = selected & has_model
    if not eligible.any():
        yield from _never(task, selected, has_model)
        return
    usable = view.usable(context.now_s)
    yield from _held_back(view, eligible & has_room & ~usable, context.now_s)
    if (barred := context.barred) is not None:
        if kept := int((eligible & has_room & usable & barred).sum()):
            message = "nodes with room are kept for the first job of a queue"
            yield Blocker(Reason.BEHIND_IN_QUEUE, kept, message=message)
        usable &= ~barred
    yield from _refused(task, eligible & has_room & usable)
    fragmented = None if is_empty else _fragmented(task, short, eligible & usable)
    if fragmented is not None:
        yield fragmented
    yield from _insufficient(task, short, eligible & usable)
    yield from _excluded(task, has_room & usable, selected, has_model)


def _never(task: Offer, selected: BoolArray, has_model: BoolArray) -> Iterator[Blocker]:
    size = task.view.nodes.size
    if not selected.any():
        yield Blocker(Reason.SELECTOR_MISMATCH, size, message=f"no node has the labels {_labels(task)}")
    if not has_model.any():
        message = f"no node has {_gpus_needed(task)} GPUs of model {task.group.gpu_model}"
        yield Blocker(Reason.GPU_MODEL_MISMATCH, size, resource="gpus", message=message)
    if selected.any() and has_model.any():
        message = f"no node has both the labels {_labels(task)} and GPUs of model {task.group.gpu_model}"
        yield Blocker(Reason.SELECTOR_MISMATCH, int((~selected).sum()), message=message)


def _held_back(view: ClusterView, nodes: BoolArray, now_s: float) -> Iterator[Blocker]:
    """Nodes with room that are not usable, by the first reason that holds for each."""
    not_ready = nodes & ~view.nodes.is_ready
    states = [view.nodes.records[m].state for m in np.flatnonzero(not_ready).tolist()]
    draining = sum(state is NodeState.DRAINING for state in states)
    stale = nodes & view.nodes.is_ready & view.is_stale(now_s)
    hot = nodes & view.nodes.is_ready & ~stale & view.nodes.is_hot
    cpu_celsius, gpu_celsius, limit = view.nodes.telemetry[CELSIUS]
    excess = np.fmax(cpu_celsius, gpu_celsius) - limit
    age = now_s - view.nodes.observe_time_s - view.stale_after_s
    found = [
        Blocker(Reason.NODE_DOWN, len(states) - draining, message="nodes with room are down"),
        Blocker(Reason.NODE_DRAINING, draining, message="nodes with room are draining"),
        Blocker(
            Reason.STALE_TELEMETRY, int(stale.sum()), _least(age, stale), "seconds", "nodes with room do not report"
        ),
        Blocker(Reason.THERMAL_LIMIT, int(hot.sum()), _least(excess, hot), "celsius", "nodes with room are too hot"),
    ]
    yield from sorted((b for b in found if b.nodes), key=lambda b: -b.nodes)


def _refused(task: Offer, nodes: BoolArray) -> Iterator[Blocker]:
    """Usable nodes with room that the job's own limits exclude."""
    group = task.group
    if not nodes.any():
        return
    full = np.zeros(task.view.nodes.size, dtype=np.bool_)
    if group.max_per_node:
        on_node = np.bincount([m for g, m in task.placed if g is group], minlength=task.view.nodes.size)
        full = nodes & (on_node >= group.max_per_node)
    if full.any():
        message = f"{group.max_per_node} tasks of this group per node are allowed"
        yield Blocker(Reason.MAX_PER_NODE, int(full.sum()), float(task.remaining), "tasks", message)
    too_slow = int((nodes & ~full).sum())
    if too_slow:
        message = "sharing a GPU there would slow this job or a neighbour beyond its limit"
        yield Blocker(Reason.SLOWDOWN_LIMIT, too_slow, resource="gpus", message=message)


def _fragmented(task: Offer, short: list[Shortage], nodes: BoolArray) -> Blocker | None:
    """Set if the free resources of `nodes` add up to the group's remaining tasks, and no node has room for one."""
    placed = sum(group is task.group for group, _ in task.placed)
    left = task.group.count - placed
    lacking = [s for s in short if (s.is_short & nodes).any()]
    if not lacking or any(float(s.free[nodes].sum()) < s.wanted * left for s in short):
        return None
    worst = max(lacking, key=lambda s: int((s.is_short & nodes).sum()))
    count = int(np.logical_or.reduce([s.is_short & nodes for s in lacking]).sum())
    message = f"enough {worst.resource} is free in sum, on no node enough for one task"
    return Blocker(Reason.FRAGMENTED, count, worst.least(nodes), worst.resource, message)


def _insufficient(task: Offer, short: list[Shortage], nodes: BoolArray) -> Iterator[Blocker]:
    fitting = f" once {len(task.placed)} of {task.job.task_count} tasks are placed" if task.placed else ""
    lacking = [s for s in short if (s.is_short & nodes).any()]
    missing = np.sum([s.is_short for s in lacking], axis=0) if lacking else np.zeros(len(nodes))
    alone = nodes & (missing == 1)
    for s in sorted(lacking, key=lambda s: (-int((s.is_short & alone).sum()), s.least(nodes) / s.wanted)):
        count = int((s.is_short & nodes).sum())
        message = (
            f"{s.wanted:g} {s.resource} per task, {s.least(nodes):g} short on the nearest of {count} nodes{fitting}"
        )
        yield Blocker(s.reason, count, s.least(nodes), s.resource, message)


def _excluded(task: Offer, nodes: BoolArray, selected: BoolArray, has_model: BoolArray) -> Iterator[Blocker]:
    by_label, by_model = int((nodes & ~selected).sum()), int((nodes & selected & ~has_model).sum())
    if by_label:
        message = f"nodes with room do not have the labels {_labels(task)}"
        yield Blocker(Reason.SELECTOR_MISMATCH, by_label, message=message)
    if by_model:
        message = f"nodes with room do not have GPUs of model {task.group.gpu_model}"
        yield Blocker(Reason.GPU_MODEL_MISMATCH, by_model, resource="gpus", message=message)


def _has_gpu_model(task: Offer) -> BoolArray:
    """(M,) nodes that own as many GPUs of the wanted model as a task takes."""
    view, wanted = task.view, task.group.gpu_model
    if not wanted or not _gpus_needed(task):
        return np.ones(view.nodes.size, dtype=np.bool_)
    of_model = view.nodes.gpu_exists & (view.nodes.gpu_model == view.nodes.gpu_model_id(wanted))
    return np.asarray(of_model.sum(axis=1) >= _gpus_needed(task))


def _gpus_needed(task: Offer) -> int:
    return int(np.ceil(task.demand[4]))


def _labels(task: Offer) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(task.group.node_selector.items()))


def _least(amounts: np.ndarray, nodes: BoolArray) -> float:
    return float(amounts[nodes].min()) if nodes.any() else 0.0
