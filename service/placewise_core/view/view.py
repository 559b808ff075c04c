"""ClusterView: one cluster as events tell it. It has `nodes`, their `usage` and the `slots` that are left on them.

Layout: resource arrays are (R, M), GPU arrays (M, G), telemetry (T, M); M nodes, G = most GPUs on any node.
One thread owns a view. Policies only read it; the engine *assumes* an accepted gang at once, and gives it back if the
store refuses it. A view never does I/O and never decides.
"""

import copy
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from placewise_core.basics.arrays import BoolArray, IntArray
from placewise_core.domain.cluster import HeadReservation, Node, QueueState, RunningJob
from placewise_core.domain.events import (
    Change,
    ClockMoved,
    ClusterDeleted,
    ClusterRecords,
    Event,
    JobsChanged,
    JobsEnded,
    NodesReported,
    OverheadLearned,
    QueueAdvanced,
    SettingsChanged,
    SubtaskForgotten,
    SubtaskProfiled,
)
from placewise_core.domain.job import JobId
from placewise_core.speed.co_runs import CoRunBook, is_row
from placewise_core.view.digest import Mark, ViewDigest
from placewise_core.view.estimates import Estimates
from placewise_core.view.nodes import CPU, GPU_MEMORY, GPUS, MEMORY, NETWORK, Nodes
from placewise_core.view.slots import Slots
from placewise_core.view.usage import Usage

__all__ = ["CPU", "DEFAULT_STALE_AFTER_S", "GPUS", "GPU_MEMORY", "MEMORY", "NETWORK", "ClusterView"]

# A node whose telemetry is older than this is not offered (a reporter that reports at all does so every few seconds).
DEFAULT_STALE_AFTER_S = 90.0


class Lineage:
    """The same object in a view and its forks."""


class ClusterView:
    """Snapshot of one cluster, at `version` of `epoch`. `nodes`, `usage` and `slots` are others once nodes come, go or
    change their capacity."""

    def __init__(self, records: ClusterRecords, stale_after_s: float = DEFAULT_STALE_AFTER_S) -> None:
        self.cluster, self.version, self.epoch = records.cluster, records.version, records.epoch
        self.stale_after_s = stale_after_s
        self.settings, self.host_time_s = records.settings, records.host_time_s
        self.queues: dict[str, QueueState] = dict(records.queues)
        self.heads: dict[str, HeadReservation] = {name: q.head for name, q in self.queues.items() if q.head is not None}
        profiles = {kind: row for kind, row in records.subtask_profiles.items() if not is_row(kind)}
        self.estimates = Estimates(records.overheads, profiles)
        self.overheads, self.subtask_profiles = self.estimates.overheads, self.estimates.profiles
        self.jobs: dict[JobId, RunningJob] = {job.id: job for job in records.jobs}
        # Jobs that want their network for themselves.
        self.exclusive: set[JobId] = {job.id for job in records.jobs if job.job.exclusive_network}
        self.co_runs = CoRunBook(records.subtask_profiles, [running.job for running in records.jobs])
        self._lay_pairs_beneath()
        self._digests = ViewDigest()
        self.lineage = Lineage()
        # By policy: results kept for its next decision on this view. The policy checks that they still hold.
        self.notes: WeakKeyDictionary[object, Any] = WeakKeyDictionary()
        self._hold_all(Nodes(records.nodes), usage_stamp=0)

    def _hold_all(self, nodes: Nodes, usage_stamp: int) -> None:
        """Replaces the nodes of the view, and counts all its jobs on them."""
        self.nodes, self.usage = nodes, Usage(nodes, usage_stamp)
        self.slots = Slots(nodes, self.usage)
        # (M,) for each node, the number of gangs with tasks on it and on other nodes.
        self.gangs_on: IntArray = np.zeros(nodes.size, dtype=np.int64)
        for running in self.jobs.values():
            self._count_gang(running, 1)
            for assignment in running.assignments:
                self.usage.claim(running.job, assignment)

    def _count_gang(self, running: RunningJob, by: int) -> None:
        """Adds a gang to its nodes, or takes it away, if they are several."""
        tasks = running.assignments
        if len(tasks) > 1 and any(task.node != tasks[0].node for task in tasks):
            index = self.nodes.index
            self.gangs_on[list({index[task.node] for task in tasks if task.node in index})] += by

    def is_stale(self, now_s: float) -> BoolArray:
        """(M,) telemetry that was once reported and is older than the limit."""
        observe_time_s = self.nodes.observe_time_s
        return (observe_time_s > 0) & (now_s - observe_time_s > self.stale_after_s)

    def usable(self, now_s: float) -> BoolArray:
        """(M,) ready, not hot, with telemetry that is fresh or was never reported."""
        nodes = self.nodes
        mask = nodes.is_ready.copy()
        if nodes.has_telemetry:
            mask &= ~self.is_stale(now_s)
            mask &= ~nodes.is_hot
        return mask

    def digest(self) -> int:
        """64 bits over nodes with their usage and reports, jobs in their order, queues, settings of exploration,
        estimates and co-runs: the same for equal views on any machine. Its cost follows the changes since the last."""
        return self._digests.mark(self).value

    def mark(self) -> Mark:
        """The digest of now, which is worked out later. Others of this view may be asked for meanwhile."""
        return self._digests.mark(self)

    def add_job(self, running: RunningJob) -> None:
        """Claims the resources of the job's assignments; replaces earlier claims of the same id."""
        before = self.jobs.get(running.id)
        if before is not None and before.job is running.job and before.assignments is running.assignments:
            self._confirm(running)
            return
        if before is not None:
            self.remove_job(running.id)
        self.hold(running)
        self.usage.claim_all(running.job, running.assignments)

    def _confirm(self, running: RunningJob) -> None:
        """As assumed, now with its expiry. Moves behind the jobs that came since, as on a view that was not asked."""
        if next(reversed(self.jobs)) == running.id:
            self._digests.note_renewed(self.jobs[running.id], running)
            self.jobs[running.id] = running
            return
        self._digests.note_job(running.id)
        del self.jobs[running.id]
        self.jobs[running.id] = running
        self.usage.move_last(running.id, [task.node for task in running.assignments])

    def hold(self, running: RunningJob) -> None:
        """As add_job, for a new job whose assignments are claimed on this view already."""
        self.jobs[running.id] = running
        self._count_gang(running, 1)
        self._digests.note_job(running.id)
        if running.job.gpu_sharing.co_runs:
            self.co_runs.add(running.job)
        if running.job.exclusive_network:
            self.exclusive.add(running.id)

    def update_jobs(self, jobs: Iterable[RunningJob]) -> None:
        """Gives jobs a new state. Their places and their order remain (the simulator's way in)."""
        self._digests.forget_jobs()
        for running in jobs:
            self.jobs[running.id] = running

    def remove_job(self, job_id: JobId) -> RunningJob | None:
        """Frees a job's resources; None if it holds nothing."""
        running = self.jobs.pop(job_id, None)
        if running is not None:
            self._count_gang(running, -1)
            self._digests.note_job(job_id)
            self.usage.unclaim_all(running.job, running.assignments)
            if running.job.gpu_sharing.co_runs:
                self.co_runs.remove(running.job)
            self.exclusive.discard(job_id)
        return running

    def apply(self, event: Event) -> None:
        """Applies the next event. Raises ValueError unless it is of this epoch and follows `version`."""
        if event.epoch != self.epoch or event.version != self.version + 1:
            raise ValueError(f"event {event.epoch}:{event.version} does not follow {self.epoch}:{self.version}")
        self.apply_change(event.change)
        self.version = event.version

    def apply_change(self, change: Change) -> None:
        """Applies a change without looking at versions (the simulator's way in)."""
        match change:
            case NodesReported():
                self._apply_nodes(change)
            case JobsChanged():
                for job in change.jobs:
                    self.add_job(job)
            case JobsEnded():
                for job_id in change.job_ids:
                    self.remove_job(job_id)
                self.drop_heads(change)
            case QueueAdvanced():
                self.show_queue(change.queue)
            case SettingsChanged():
                self.settings = change.settings
                self._lay_pairs_beneath()
                self.host_time_s = (self.host_time_s or 0.0) if change.settings.host_clock else None
            case ClockMoved():
                self.host_time_s = change.time_s
            case OverheadLearned():
                self.estimates.learn(change)
            case SubtaskProfiled() | SubtaskForgotten():
                self._apply_profile(change)
            case ClusterDeleted():
                self.jobs.clear()
                self.exclusive.clear()
                self.co_runs = CoRunBook({}, ())
                self.queues.clear()
                self.heads.clear()
                self._replace_nodes(())
                self._digests = ViewDigest()

    def _apply_nodes(self, change: NodesReported) -> None:
        if self.keeps_layout(change):
            for node in change.nodes:
                self.nodes.report(self.nodes.index[node.id], node)
            return
        removed = set(change.removed)
        merged = {node.id: node for node in self.nodes.records if node.id not in removed}
        merged.update((node.id, node) for node in change.nodes)
        self._replace_nodes(tuple(merged.values()))

    def _replace_nodes(self, records: Sequence[Node]) -> None:
        self._hold_all(Nodes(records, self.nodes), self.usage.stamp)

    def _apply_profile(self, change: SubtaskProfiled | SubtaskForgotten) -> None:
        if isinstance(change, SubtaskForgotten):
            self.estimates.forget(change.kind)
            self.co_runs.forget(change.kind)
        elif is_row(change.kind):
            self.co_runs.learn(change.kind, change.metrics)
        else:
            self.estimates.profile(change)

    def _lay_pairs_beneath(self) -> None:
        """Forecasts on shared GPUs read what reports have shown, if the setting is on."""
        self.co_runs.lay_beneath(self.estimates.pairs if self.settings.learn_co_runs else None)

    def drop_heads(self, change: JobsEnded) -> None:
        """The heads of queues that ended keep no nodes; a job whose reservation expired still waits."""
        gone = () if change.is_expiry else change.job_ids
        held = {name: head for name, head in self.heads.items() if head.job not in gone}
        if len(held) < len(self.heads):
            self._digests.note_queues(self.heads.keys() - held.keys())
        self.heads = held

    def show_queue(self, queue: QueueState) -> None:
        """Replaces the state of a queue and its head; one of seq 0 is forgotten."""
        self._digests.note_queues((queue.queue,))
        if queue.seq:
            self.queues[queue.queue] = queue
        else:  # forgotten: as before its first question
            self.queues.pop(queue.queue, None)
        if queue.head is not None:
            self.heads[queue.queue] = queue.head
        else:
            self.heads.pop(queue.queue, None)

    def keeps_layout(self, change: NodesReported) -> bool:
        """True if no node comes, goes, or changes its capacity."""
        return not change.removed and all(self.nodes.has_layout_of(node) for node in change.nodes)

    def take_rest(self, old: "ClusterView") -> None:
        """Takes over all that an old view has but its nodes and jobs."""
        self.version, self.settings, self.host_time_s = old.version, old.settings, old.host_time_s
        self.queues, self.heads = old.queues, old.heads
        self._digests.forget_queues()
        self.estimates, self.co_runs = old.estimates, old.co_runs
        self.overheads, self.subtask_profiles = old.overheads, old.subtask_profiles

    def fork(self) -> "ClusterView":
        """The view as it is now, for one decision alone: neither of the two sees later claims of the other. For
        deciding, not for applying events to."""
        other = copy.copy(self)
        other.nodes = self.nodes.fork()
        other.usage = self.usage.fork(other.nodes)
        other.slots = Slots(other.nodes, other.usage)  # not the kept ones: they are counted on in place
        other.jobs, other.co_runs, other.exclusive = dict(self.jobs), self.co_runs.fork(), set(self.exclusive)
        other.gangs_on = self.gangs_on.copy()
        other.notes = WeakKeyDictionary()
        other._digests = ViewDigest()
        return other

    def copied(self) -> "ClusterView":
        """A fork to which events may be applied, too: they do not show on this view, nor its own on the copy."""
        other = self.fork()
        other.queues, other.heads = dict(self.queues), dict(self.heads)
        other.estimates = copy.deepcopy(self.estimates)
        other.overheads, other.subtask_profiles = other.estimates.overheads, other.estimates.profiles
        other._lay_pairs_beneath()
        return other

    def is_as_forked(self, fork: "ClusterView", m: int) -> bool:
        """True while nothing was taken or given back on node m since `fork` was made of this view."""
        if self.lineage is not fork.lineage or self.nodes.layout_stamp != fork.nodes.layout_stamp:
            return False
        return self.usage.is_as_forked(fork.usage, m)

    def emptied(self) -> "ClusterView":
        """The same nodes with no job on them, all ready and cool: what could fit, however long one waited.

        Shares inventory with this view: for asking, not for applying events to.
        """
        other = copy.copy(self)
        other.jobs, other.exclusive, other.gangs_on = {}, set(), np.zeros_like(self.gangs_on)
        other._digests = ViewDigest()
        other.co_runs = CoRunBook({}, ())
        other.nodes = self.nodes.all_ready()
        other.usage = Usage(other.nodes, self.usage.stamp)
        other.slots = Slots(other.nodes, other.usage)
        return other
