"""ClusterView: the cluster as arrays, changed by events and by tentative claims. Never does I/O, never decides.

Layout: resource arrays are (R, M), GPU arrays (M, G), telemetry (T, M); M nodes, G = most GPUs on any node.
One thread owns a view. Policies only read it; the engine *assumes* an accepted gang at once, and gives it back if the
store refuses it.
"""

import bisect
import copy
import itertools
from collections.abc import Iterable, Iterator, Sequence
from weakref import WeakKeyDictionary

import numpy as np

from placewise_core.basics.arrays import BoolArray, FloatArray
from placewise_core.domain.cluster import Assignment, HeadReservation, QueueState, RunningJob
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
from placewise_core.domain.job import Job, JobId, Resources
from placewise_core.speed.co_runs import CoRunBook, is_row
from placewise_core.view.estimates import Estimates
from placewise_core.view.nodes import (
    CPU,
    GPU_MEMORY,
    GPUS,
    MEMORY,
    NETWORK,
    RESOURCE_COLUMNS,
    TELEMETRY_COLUMNS,
    CoTenants,
    GpuTenant,
    digest_of_last,
    gpus_at,
    runs_of_alike,
    telemetry_row,
    tenant_of,
)
from placewise_core.view.slots import SlotArrays, may_share

__all__ = [
    "CPU",
    "DEFAULT_STALE_AFTER_S",
    "GPUS",
    "GPU_MEMORY",
    "MEMORY",
    "NETWORK",
    "RESOURCE_COLUMNS",
    "TELEMETRY_COLUMNS",
    "ClusterView",
    "GpuTenant",
    "may_share",
    "telemetry_row",
]

# A node whose telemetry is older than this is not offered (a reporter that reports at all does so every few seconds).
DEFAULT_STALE_AFTER_S = 90.0

# Written in place by claims (…, M) and (M, …), or by reports that leave the layout as it is: a fork has its own.
_CLAIMED_COLUMNS = ("free", "countable_free")
_CLAIMED_ROWS = (
    *("task_count", "cpu_task_count", "_tightness", "_load", "_free_gpus"),
    *("gpu_tenant_count", "gpu_is_exclusive", "gpu_fraction_free", "gpu_memory_free", "gpu_co_tenants"),
)
_REPORTED = ("telemetry", "hardware", "cpu_ghz", "rack", "is_ready", "_is_hot", "observe_time_s")

_NOBODY = GpuTenant(JobId(""), 0.0, 0.0, False, "", 1.0)
_DIGESTED_NODES = 64
_KEPT_CO_TENANTS = 100_000  # more than the GPUs of the largest cluster


class ClusterView(SlotArrays):
    """Structure-of-arrays snapshot of one cluster, at `version` of `epoch`."""

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
        self._jobs_digest: int | None = None  # None once they are others, or in another order
        self.co_runs = CoRunBook(records.subtask_profiles, [running.job for running in records.jobs])
        self.forked_stamp = 0  # of a fork: the usage stamp of the view it was made of
        self._last_tenant: tuple[Job | None, Resources | None, int, GpuTenant] = (None, None, 0, _NOBODY)
        super().__init__()
        self._rebuild(records.nodes)

    def is_stale(self, now_s: float) -> BoolArray:
        """(M,) telemetry that was once reported and is older than the limit."""
        return (self.observe_time_s > 0) & (now_s - self.observe_time_s > self.stale_after_s)

    def usable(self, now_s: float) -> BoolArray:
        """(M,) ready, not hot, with telemetry that is fresh or was never reported."""
        mask = self.is_ready.copy()
        if self._has_telemetry:
            mask &= ~self.is_stale(now_s)
            mask &= ~self._is_hot
        return mask

    def load(self) -> FloatArray:
        """(M,) Σ of normalised usage over CPU, memory, network and GPUs (Harmony's LB baseline)."""
        return self._load

    def tightness(self) -> FloatArray:
        """(M,) in (0, 1): more for less free GPUs and CPU. Do not write."""
        return self._tightness

    def tenants(self, m: int, g: int) -> tuple[GpuTenant, ...]:
        """The jobs on GPU g of node m."""
        return self._tenants[m].get(g, ())

    def jobs_on(self, m: int) -> Iterable[JobId]:
        """Ids of the jobs that hold something on node m."""
        return self._jobs_on[m].keys()

    def tasks_on(self, m: int) -> int:
        return int(self.task_count[m])

    def tasks_at(self, m: int) -> Iterator[tuple[str, Resources]]:
        """Model and demand of every task on node m."""
        return itertools.chain.from_iterable(self._jobs_on[m].values())

    def is_on(self, job_id: JobId, m: int) -> bool:
        """True if the job holds something on node m."""
        return job_id in self._jobs_on[m]

    def digest(self) -> int:
        """32 bits over what policies read, the same for equal views on any machine: usage and telemetry of some 64 to
        128 nodes, which depend on the version, the number of jobs, the order of the last ones, estimates, co-runs."""
        step = max(1, self.size // _DIGESTED_NODES)
        if self._jobs_digest is None:
            self._jobs_digest = digest_of_last(self.jobs)
        before = self._jobs_digest ^ self.estimates.digest ^ self.co_runs.digest
        return self._digest(step, self.version % step, before)

    def add_job(self, running: RunningJob) -> None:
        """Claims the resources of the job's assignments; replaces earlier claims of the same id."""
        before = self.jobs.get(running.id)
        if before is not None and before.job is running.job and before.assignments is running.assignments:
            self._confirm(running)
            return
        if before is not None:
            self.remove_job(running.id)
        self.hold(running)
        self.claim_all(running.job, running.assignments)

    def _confirm(self, running: RunningJob) -> None:
        """As assumed, now with its expiry. Moves behind the jobs that came since, as on a view that was not asked."""
        if next(reversed(self.jobs)) == running.id:
            self.jobs[running.id] = running
            return
        del self.jobs[running.id]
        self.jobs[running.id], self._jobs_digest = running, None
        for m in {self.index[a.node] for a in running.assignments if a.node in self.index}:
            self._move_last(m, running.id)

    def hold(self, running: RunningJob) -> None:
        """As add_job, for a new job whose assignments are claimed on this view already."""
        self.jobs[running.id], self._jobs_digest = running, None
        if running.job.gpu_sharing.co_runs:
            self.co_runs.add(running.job)

    def remove_job(self, job_id: JobId) -> RunningJob | None:
        """Frees a job's resources; None if it holds nothing."""
        running = self.jobs.pop(job_id, None)
        if running is not None:
            self._jobs_digest = None
            for tasks in runs_of_alike(running.assignments):
                self._unclaim_alike(running.job, tasks)
            if running.job.gpu_sharing.co_runs:
                self.co_runs.remove(running.job)
        return running

    def claim(self, job: Job, assignment: Assignment) -> None:
        """Takes one task's resources. Nodes the view does not know are passed over (they left with their resources)."""
        self.claim_alike(job, (assignment,))

    def claim_all(self, job: Job, assignments: Sequence[Assignment]) -> None:
        """As `claim` for each. Tasks alike that follow each other on one node are taken in one step: sums are exact."""
        for tasks in runs_of_alike(assignments):
            self.claim_alike(job, tasks)

    def claim_alike(self, job: Job, tasks: Sequence[Assignment]) -> None:
        """As `claim` for each of several tasks that take the same amounts of one node."""
        first, count = tasks[0], len(tasks)
        m = self.index.get(first.node)
        if m is None:
            return
        if self._is_borrowed[m]:
            self._own(m)
        demand = self.demand_vector(first.demand)
        free = self.free[:, m]
        if demand is not None:
            free -= demand if count == 1 else count * demand
        if first.gpu_indices:
            gpus = list(first.gpu_indices) if count == 1 else [g for task in tasks for g in task.gpu_indices]
            self._add_tenant(m, gpus, self._tenant(job, first))
        else:
            self.cpu_task_count[m] += count
        there = self._jobs_on[m].setdefault(job.id, [])
        there += [(job.model, first.demand)] * count
        self.task_count[m] += count
        self._touch(m, free)

    def unclaim(self, job: Job, assignment: Assignment) -> None:
        """The inverse of claim: exact, as amounts are quantised."""
        self._unclaim_alike(job, (assignment,))

    def _unclaim_alike(self, job: Job, tasks: Sequence[Assignment]) -> None:
        first, count = tasks[0], len(tasks)
        m = self.index.get(first.node)
        if m is None or job.id not in self._jobs_on[m]:
            return
        if self._is_borrowed[m]:
            self._own(m)
        demand = self.demand_vector(first.demand)
        free = self.free[:, m]
        if demand is not None:
            free += demand if count == 1 else count * demand
        if first.gpu_indices:
            self._drop_tenant(m, [g for task in tasks for g in task.gpu_indices], job.id)
        else:
            self.cpu_task_count[m] -= count
        there = self._jobs_on[m][job.id]
        if len(there) == count:
            del self._jobs_on[m][job.id]
        else:
            for _ in range(count):
                there.remove((job.model, first.demand))
        self.task_count[m] -= count
        self._touch(m, free)

    def _tenant(self, job: Job, assignment: Assignment) -> GpuTenant:
        """The job as a tenant of each GPU of the assignment. The tasks of a gang come one after the other and are
        alike: the last answer mostly serves again."""
        for_job, for_demand, for_gpus, tenant = self._last_tenant
        if for_job is job and for_demand is assignment.demand and for_gpus == len(assignment.gpu_indices):
            return tenant
        tenant = tenant_of(job, assignment)
        self._last_tenant = (job, assignment.demand, len(assignment.gpu_indices), tenant)
        return tenant

    def _add_tenant(self, m: int, gpus: Sequence[int], tenant: GpuTenant) -> None:
        idle = self._idle_gpus[m]
        if gpus == idle[: len(gpus)]:  # as a decision on this view gives them
            self._occupy(m, gpus, tenant)
            self._idle_gpus[m] = idle[len(gpus) :]
            return
        taken = set(gpus)
        if len(gpus) == len(taken) and taken.issubset(idle):
            self._occupy(m, sorted(gpus), tenant)
            self._idle_gpus[m] = [g for g in idle if g not in taken]
            return
        width = self.gpu_exists.shape[1]
        for g in gpus:
            if g < width:  # a node may have lost the GPUs it had
                self._set_tenants(m, g, (*self._tenants[m].get(g, ()), tenant))

    def _occupy(self, m: int, gpus: Sequence[int], tenant: GpuTenant) -> None:
        """As _set_tenants for GPUs, in ascending order, that serve nobody yet."""
        self._tenants[m].update(dict.fromkeys(gpus, (tenant,)))
        at = gpus_at(m, gpus)
        self.gpu_tenant_count[at] = 1
        self.gpu_is_exclusive[at] = not tenant.is_sharing
        self.gpu_fraction_free[at] = 1.0 - tenant.fraction
        self.gpu_memory_free[at] = self.gpu_memory[at] - tenant.memory_gib
        self.gpu_co_tenants[at] = self._number_of_co_tenants((tenant,)) if tenant.is_sharing else 0

    def _drop_tenant(self, m: int, gpus: Sequence[int], job_id: JobId) -> None:
        by_gpu = self._tenants[m]
        if all(len(held := by_gpu.get(g, ())) == 1 and held[0].job_id == job_id for g in gpus):
            self._vacate(m, sorted(set(gpus)))
            return
        for g in gpus:
            held = by_gpu.get(g, ())
            for i, tenant in enumerate(held):
                if tenant.job_id == job_id:
                    self._set_tenants(m, g, (*held[:i], *held[i + 1 :]))
                    break

    def _set_tenants(self, m: int, g: int, tenants: tuple[GpuTenant, ...]) -> None:
        by_gpu = self._tenants[m]
        before = by_gpu.get(g, ())
        self.shared_gpus += (len(tenants) > 1) - (len(before) > 1)
        if tenants:
            by_gpu[g] = tenants
        else:
            by_gpu.pop(g, None)
        fraction = memory = 0.0
        is_exclusive = False
        for tenant in tenants:
            fraction += tenant.fraction
            memory += tenant.memory_gib
            is_exclusive = is_exclusive or not tenant.is_sharing
        at = (m, g)
        self.gpu_tenant_count[at] = len(tenants)
        self.gpu_is_exclusive[at] = is_exclusive
        self.gpu_fraction_free[at] = 1.0 - fraction
        self.gpu_memory_free[at] = self.gpu_memory[at] - memory
        self.gpu_co_tenants[at] = 0 if is_exclusive or not tenants else self._number_of_co_tenants(tenants)
        if bool(before) != bool(tenants) and self.gpu_exists[at]:
            self._set_idle(m, g, not tenants)

    def _set_idle(self, m: int, g: int, is_idle: bool) -> None:
        if is_idle:
            bisect.insort(self._idle_gpus[m], g)
        else:
            self._idle_gpus[m].remove(g)

    def _number_of_co_tenants(self, tenants: Iterable[GpuTenant]) -> int:
        """The number in `gpu_co_tenants` of GPUs shared by such tenants; 0 stands for none."""
        co_tenants = tuple(sorted((t.model, t.max_slowdown) for t in tenants))
        if len(self._co_tenants) > _KEPT_CO_TENANTS and co_tenants not in self._co_tenants:
            self._forget_co_tenants()
        return self._co_tenants.setdefault(co_tenants, len(self._co_tenants))

    def _forget_co_tenants(self) -> None:
        """Keeps the combinations that are there now: model names and limits come from users, in any number."""
        self._co_tenants = {(): 0}
        for m, by_gpu in enumerate(self._tenants):
            for g, tenants in by_gpu.items():
                if not any(not t.is_sharing for t in tenants):
                    co_tenants = tuple(sorted((t.model, t.max_slowdown) for t in tenants))
                    self.gpu_co_tenants[m, g] = self._co_tenants.setdefault(co_tenants, len(self._co_tenants))

    def co_tenants(self) -> tuple[CoTenants, ...]:
        """Combinations of tenants by their number in `gpu_co_tenants`."""
        return tuple(self._co_tenants)

    def _touch(self, m: int, column: FloatArray) -> None:
        """Renews the values derived from the free amounts (R,) and GPUs of node m, and its stamp."""
        free: list[float] = column.tolist()
        idle = self._free_gpus[m] = len(self._idle_gpus[m])
        self.countable_free[:, m] = column
        self.countable_free[GPUS, m] = idle
        self._tightness[m] = 1.0 / (2.0 + idle + max(0.0, free[CPU]) / self._cpu_scale[m])
        cpu, memory, network, gpus = self._load_weights[m]
        used = free[CPU] * cpu + free[MEMORY] * memory + free[NETWORK] * network + free[GPUS] * gpus
        self._load[m] = self._load_base[m] - used
        self._stamp(m)

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
                self.host_time_s = (self.host_time_s or 0.0) if change.settings.host_clock else None
            case ClockMoved():
                self.host_time_s = change.time_s
            case OverheadLearned():
                self.estimates.learn(change)
            case SubtaskProfiled() | SubtaskForgotten():
                self._apply_profile(change)
            case ClusterDeleted():
                self.jobs.clear()
                self._jobs_digest, self.co_runs = None, CoRunBook({}, ())
                self.queues.clear()
                self.heads.clear()
                self._rebuild(())

    def _apply_nodes(self, change: NodesReported) -> None:
        if self.keeps_layout(change):
            for node in change.nodes:
                self._write_node(self.index[node.id], node)
            return
        removed = set(change.removed)
        merged = {node.id: node for node in self.nodes if node.id not in removed}
        merged.update((node.id, node) for node in change.nodes)
        self._rebuild(tuple(merged.values()))

    def _apply_profile(self, change: SubtaskProfiled | SubtaskForgotten) -> None:
        if isinstance(change, SubtaskForgotten):
            self.estimates.forget(change.kind)
            self.co_runs.forget(change.kind)
        elif is_row(change.kind):
            self.co_runs.learn(change.kind, change.metrics)
        else:
            self.estimates.profile(change)

    def drop_heads(self, change: JobsEnded) -> None:
        """The heads of queues that ended keep no nodes; a job whose reservation expired still waits."""
        gone = () if change.is_expiry else change.job_ids
        self.heads = {name: head for name, head in self.heads.items() if head.job not in gone}

    def show_queue(self, queue: QueueState) -> None:
        """Replaces the state of a queue and its head; one of seq 0 is forgotten."""
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
        return not change.removed and all(self._same_layout(node) for node in change.nodes)

    def _reset_usage(self) -> None:
        super()._reset_usage()
        for running in self.jobs.values():
            for assignment in running.assignments:
                self.claim(running.job, assignment)

    def fork(self) -> "ClusterView":
        """The view as it is now, for one decision alone: neither of the two sees later claims of the other. For
        deciding, not for applying events to.

        Costs a copy of the arrays; lists per node are shared until one of the two writes them.
        """
        other = copy.copy(self)
        for name in (*_CLAIMED_COLUMNS, *_CLAIMED_ROWS, *_REPORTED, "node_stamp"):
            setattr(other, name, getattr(self, name).copy())
        other.nodes, other.jobs = list(self.nodes), dict(self.jobs)
        other.co_runs = self.co_runs.fork()
        other._tenants, other._jobs_on = list(self._tenants), list(self._jobs_on)
        other._idle_gpus, other._touched = list(self._idle_gpus), list(self._touched)
        other._clear_slots()  # its arrays are counted on in place
        other.notes = WeakKeyDictionary()
        other.forked_stamp = self.usage_stamp
        self._is_borrowed = bytearray(b"\x01") * self.size
        other._is_borrowed = bytearray(self._is_borrowed)
        return other

    def is_as_forked(self, fork: "ClusterView", m: int) -> bool:
        """True while nothing was taken or given back on node m since `fork` was made of this view."""
        if self.lineage is not fork.lineage or self.layout_stamp != fork.layout_stamp:
            return False
        return self._co_tenants is fork._co_tenants and bool(self.node_stamp[m] <= fork.forked_stamp)

    def adopt(self, fork: "ClusterView", nodes: Sequence[int]) -> None:
        """Takes over the usage of these nodes, each of which must be as it was forked; costs less than claiming."""
        rows = np.array(nodes, dtype=np.int64)
        shared = int((fork.gpu_tenant_count[rows] > 1).sum()) - int((self.gpu_tenant_count[rows] > 1).sum())
        self.shared_gpus += shared
        for name in _CLAIMED_COLUMNS:
            getattr(self, name)[:, rows] = getattr(fork, name)[:, rows]
        for name in _CLAIMED_ROWS:
            getattr(self, name)[rows] = getattr(fork, name)[rows]
        for m in nodes:
            self._tenants[m], self._jobs_on[m], self._idle_gpus[m] = (
                fork._tenants[m],
                fork._jobs_on[m],
                fork._idle_gpus[m],
            )
            self._is_borrowed[m] = fork._is_borrowed[m] = 1
        self.usage_stamp += 1
        self.node_stamp[rows] = self.usage_stamp
        self._touched = []  # which has one node a stamp

    def emptied(self) -> "ClusterView":
        """The same nodes with no job on them, all ready and cool: what could fit, however long one waited.

        Shares inventory with this view: for asking, not for applying events to.
        """
        other = copy.copy(self)
        other.jobs, other._jobs_digest = {}, None
        other.co_runs = CoRunBook({}, ())
        other.is_ready = np.ones(self.size, dtype=np.bool_)
        other.observe_time_s = np.zeros(self.size)
        other._is_hot = np.zeros(self.size, dtype=np.bool_)
        other._has_telemetry = False
        other._clear_usage()
        return other
