"""Puts a gang that was decided on a fork of a view onto the view, which may have changed since. Decides nothing."""

from placewise_core.basics.arrays import BoolArray
from placewise_core.domain.cluster import Assignment, RunningJob
from placewise_core.domain.job import Job, TaskGroup
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.gang import task_names
from placewise_core.gang.gpus import is_tolerated
from placewise_core.view.domains import domains_of
from placewise_core.view.heads import barred
from placewise_core.view.view import ClusterView


def land(running: RunningJob, seen: ClusterView, view: ClusterView, context: PlaceContext) -> bool:
    """Claims the gang on `view`, where every task still fits; all of it or, and then False, nothing.

    `seen` is the fork that it was decided on, and holds it. A node on which nothing was taken or given back since then
    is only asked whether it may still be used.
    """
    usable = view.usable(context.now_s)
    if (kept := barred(view, running.job, running.job.gpus, context.now_s)) is not None:
        usable &= ~kept
    groups = {name: group for group, name in task_names(running.job)}
    changed, unchanged = list[Assignment](), set[int]()
    for task in running.assignments:
        m = view.nodes.index.get(task.node)
        if m is None or not usable[m]:
            return False
        if m in unchanged or (
            view.is_as_forked(seen, m) and view.nodes.records[m].labels == seen.nodes.records[m].labels
        ):
            unchanged.add(m)
        else:
            changed.append(task)
    if not _is_together(running, view):
        return False
    for i, task in enumerate(changed):
        if not _takes(view, running.job, groups[task.task], task, context):
            for taken in reversed(changed[:i]):
                view.usage.unclaim(running.job, taken)
            return False
        view.usage.claim(running.job, task)
    view.usage.adopt(seen.usage, sorted(unchanged))
    return True


def _is_together(running: RunningJob, view: ClusterView) -> bool:
    """True if all tasks are in one domain, as the view is now. Each is on a node of it."""
    domains = domains_of(running.job, view)
    return domains is None or len({int(domains.of[view.nodes.index[task.node]]) for task in running.assignments}) == 1


def _takes(view: ClusterView, job: Job, group: TaskGroup, task: Assignment, context: PlaceContext) -> bool:
    """True if the task's node has room for it on its assigned GPUs."""
    m, demand = view.nodes.index[task.node], view.nodes.demand_vector(task.demand)
    if demand is None or not group.node_selector.items() <= view.nodes.records[m].labels.items():
        return False
    if not view.slots.feasible_on(m, demand, group, job.gpu_sharing):
        return False
    empty, shared = view.slots.gpu_open(demand, group, job.gpu_sharing, slice(m, m + 1))
    return all(_is_open(empty[0], g) or _is_shared(view, m, g, shared[0], job, context) for g in task.gpu_indices)


def _is_open(gpus: BoolArray, g: int) -> bool:
    return g < len(gpus) and bool(gpus[g])


def _is_shared(view: ClusterView, m: int, g: int, shared: BoolArray, job: Job, context: PlaceContext) -> bool:
    return _is_open(shared, g) and is_tolerated(view, m, g, job, context.interference)
