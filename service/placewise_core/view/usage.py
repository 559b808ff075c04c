"""Usage: what jobs hold on the nodes of a cluster, kept up to date claim by claim. Applies no event, decides nothing.

Layout: resource arrays are (R, M), GPU arrays (M, G); M nodes, G = most GPUs on any node.
"""

import bisect
import copy
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from placewise_core.basics.arrays import BoolArray, FloatArray, IntArray
from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import Assignment
from placewise_core.domain.job import Job, JobId, Resources, quantise
from placewise_core.view.nodes import CPU, GPUS, MEMORY, NETWORK, Nodes

# Written in place by claims, (…, M) and (M, …): a fork has its own.
_CLAIMED_COLUMNS = ("free", "countable_free")
_CLAIMED_ROWS = (
    *("task_count", "cpu_task_count", "tightness", "load", "free_gpus"),
    *("gpu_tenant_count", "gpu_is_exclusive", "gpu_fraction_free", "gpu_memory_free", "gpu_co_tenants"),
)
_KEPT_CO_TENANTS = 100_000  # more than the GPUs of the largest cluster
_MOST_TOUCHED = 64  # claims and give-backs whose nodes are known without a look at all nodes

# Tenants of a GPU that a newcomer would share: (model, limit) of each, sorted.
CoTenants = tuple[tuple[str, float], ...]


@frozen
class GpuTenant:
    """A job on one GPU: the fraction it holds there (1 for a whole one), its memory, whether it shares, its limit."""

    job_id: JobId
    fraction: float
    memory_gib: float
    is_sharing: bool
    model: str
    max_slowdown: float


class GpuUsage(NamedTuple):
    """Use of the GPUs of N nodes, (N, G) each, as the arrays of the usage of the same names."""

    tenant_count: IntArray
    is_exclusive: BoolArray
    fraction_free: FloatArray
    memory_free: FloatArray

    def copy(self) -> "GpuUsage":
        return GpuUsage(
            self.tenant_count.copy(), self.is_exclusive.copy(), self.fraction_free.copy(), self.memory_free.copy()
        )


_NOBODY = GpuTenant(JobId(""), 0.0, 0.0, False, "", 1.0)


class Usage:
    """Free amounts, tasks and the tenants of GPUs, by node."""

    def __init__(self, nodes: Nodes, stamp: int = 0) -> None:
        """Nothing is in use. `stamp`: that of the usage before."""
        self._nodes = nodes
        capacity, exists, m = nodes.capacity, nodes.gpu_exists, nodes.size
        self.free: FloatArray = capacity.copy()
        self.free_gpus: IntArray = exists.sum(axis=1)  # (M,) that serve no job at all
        # As `free`, but with the GPUs that serve nobody at all in the row of GPUs: what countable tasks are counted on.
        self.countable_free: FloatArray = capacity.copy()
        self.countable_free[GPUS] = self.free_gpus
        self.task_count: IntArray = np.zeros(m, dtype=np.int64)
        self.cpu_task_count: IntArray = np.zeros(m, dtype=np.int64)  # those without a GPU
        self.gpu_tenant_count: IntArray = np.zeros(exists.shape, dtype=np.int64)
        self.gpu_is_exclusive: BoolArray = np.zeros(exists.shape, dtype=np.bool_)
        self.gpu_fraction_free: FloatArray = np.ones(exists.shape)
        self.gpu_memory_free: FloatArray = nodes.gpu_memory.copy()
        self.gpu_co_tenants: IntArray = np.zeros(exists.shape, dtype=np.int64)
        self.shared_gpus = 0  # GPUs that serve several tenants
        # (M,) in (0, 1): more for less free GPUs and CPU. Do not write.
        self.tightness: FloatArray = 1.0 / (2.0 + self.free_gpus + self.free[CPU].clip(min=0.0) / (1.0 + capacity[CPU]))
        # (M,) Σ of normalised usage over CPU, memory, network and GPUs (Harmony's LB baseline). Do not write.
        self.load: FloatArray = np.zeros(m)
        self._co_tenants: dict[CoTenants, int] = {(): 0}
        self._last_tenant: tuple[Job | None, Resources | None, int, GpuTenant] = (None, None, 0, _NOBODY)
        # By node; borrowed lists belong to another usage as well, and are copied before they are written.
        self._idle_gpus: list[list[int]] = list(nodes.all_gpus)
        nobody: dict[int, tuple[GpuTenant, ...]] = {}
        self._tenants: list[dict[int, tuple[GpuTenant, ...]]] = [nobody] * m
        nothing: dict[JobId, list[tuple[str, Resources]]] = {}
        self._jobs_on: list[dict[JobId, list[tuple[str, Resources]]]] = [nothing] * m
        self._is_borrowed = bytearray(b"\x01") * m
        # Grows with every claim and release, over all nodes: a value derived from a node's jobs is valid
        # while the node's stamp is the one it was derived at.
        self.stamp = stamp + 1
        self.node_stamp: IntArray = np.full(m, self.stamp, dtype=np.int64)
        self._touched: list[int] = []  # the nodes of the last claims and give-backs, in their order
        self._forked_stamp = 0  # of a fork: the stamp of the usage it was made of

    # -- who is where ---------------------------------------------------------------------------------------------

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

    def idle_gpus(self, m: int) -> list[int]:
        """GPUs of node m that serve no job, ascending. Do not write."""
        return self._idle_gpus[m]

    def first_free_gpus(self, m: int, count: int) -> tuple[int, ...]:
        """The `count` lowest indices of the idle GPUs of node m; all of them if there are fewer."""
        return tuple(self._idle_gpus[m][:count])

    def of_gpus(self, rows: slice = slice(None)) -> GpuUsage:
        """Of the GPUs of these nodes. Do not write."""
        return GpuUsage(
            self.gpu_tenant_count[rows],
            self.gpu_is_exclusive[rows],
            self.gpu_fraction_free[rows],
            self.gpu_memory_free[rows],
        )

    def co_tenants(self) -> tuple[CoTenants, ...]:
        """Combinations of tenants by their number in `gpu_co_tenants`."""
        return tuple(self._co_tenants)

    def touched_since(self, stamp: int) -> list[int]:
        """The nodes with claims or give-backs since `stamp` was this; one may come more than once."""
        count = self.stamp - stamp
        if count <= len(self._touched):
            return self._touched[-count:] if count else []
        changed: list[int] = (self.node_stamp > stamp).nonzero()[0].tolist()
        return changed

    # -- taking and giving back -----------------------------------------------------------------------------------

    def claim(self, job: Job, assignment: Assignment) -> None:
        """Takes one task's resources. Nodes that are not known are passed over (they left with their resources)."""
        self._claim_alike(job, (assignment,))

    def claim_all(self, job: Job, assignments: Sequence[Assignment]) -> None:
        """As `claim` for each. Tasks alike that follow each other on one node are taken in one step: sums are exact."""
        for tasks in _runs_of_alike(assignments):
            self._claim_alike(job, tasks)

    def unclaim(self, job: Job, assignment: Assignment) -> None:
        """The inverse of claim: exact, as amounts are quantised."""
        self._unclaim_alike(job, (assignment,))

    def unclaim_all(self, job: Job, assignments: Sequence[Assignment]) -> None:
        """As `unclaim` for each."""
        for tasks in _runs_of_alike(assignments):
            self._unclaim_alike(job, tasks)

    def _claim_alike(self, job: Job, tasks: Sequence[Assignment]) -> None:
        """As `claim` for each of several tasks that take the same amounts of one node."""
        first, count = tasks[0], len(tasks)
        m = self._nodes.index.get(first.node)
        if m is None:
            return
        if self._is_borrowed[m]:
            self._own(m)
        demand = self._nodes.demand_vector(first.demand)
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

    def _unclaim_alike(self, job: Job, tasks: Sequence[Assignment]) -> None:
        first, count = tasks[0], len(tasks)
        m = self._nodes.index.get(first.node)
        if m is None or job.id not in self._jobs_on[m]:
            return
        if self._is_borrowed[m]:
            self._own(m)
        demand = self._nodes.demand_vector(first.demand)
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

    def _own(self, m: int) -> None:
        """Copies the lists of node m, before the first writing since the usage was forked."""
        self._tenants[m] = dict(self._tenants[m])
        self._jobs_on[m] = {job_id: list(tasks) for job_id, tasks in self._jobs_on[m].items()}
        self._idle_gpus[m] = list(self._idle_gpus[m])
        self._is_borrowed[m] = 0

    def _touch(self, m: int, column: FloatArray) -> None:
        """Renews the values derived from the free amounts (R,) and GPUs of node m, and its stamp."""
        free: list[float] = column.tolist()
        idle = self.free_gpus[m] = len(self._idle_gpus[m])
        self.countable_free[:, m] = column
        self.countable_free[GPUS, m] = idle
        self.tightness[m] = 1.0 / (2.0 + idle + max(0.0, free[CPU]) / self._nodes.cpu_scale[m])
        base, cpu, memory, network, gpus = self._nodes.load_terms[m]
        used = free[CPU] * cpu + free[MEMORY] * memory + free[NETWORK] * network + free[GPUS] * gpus
        self.load[m] = base - used
        self._stamp(m)

    def _stamp(self, m: int) -> None:
        self.stamp += 1
        self.node_stamp[m] = self.stamp
        self._touched.append(m)
        if len(self._touched) > _MOST_TOUCHED:
            del self._touched[: _MOST_TOUCHED // 2]

    def move_last(self, job_id: JobId, nodes: Iterable[str]) -> None:
        """Moves a job behind the others of these nodes: sums over the jobs of a node run in this order."""
        for m in {self._nodes.index[node] for node in nodes if node in self._nodes.index}:
            there = self._jobs_on[m]
            if job_id not in there or next(reversed(there)) == job_id:
                continue
            if self._is_borrowed[m]:
                self._own(m)
                there = self._jobs_on[m]
            there[job_id] = there.pop(job_id)
            by_gpu = self._tenants[m]
            for g, tenants in by_gpu.items():
                if len(tenants) > 1:
                    by_gpu[g] = tuple(sorted(tenants, key=lambda tenant: tenant.job_id == job_id))
            self._stamp(m)

    # -- tenants of GPUs ------------------------------------------------------------------------------------------

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
        width = self._nodes.gpu_exists.shape[1]
        for g in gpus:
            if g < width:  # a node may have lost the GPUs it had
                self._set_tenants(m, g, (*self._tenants[m].get(g, ()), tenant))

    def _occupy(self, m: int, gpus: Sequence[int], tenant: GpuTenant) -> None:
        """As _set_tenants for GPUs, in ascending order, that serve nobody yet."""
        self._tenants[m].update(dict.fromkeys(gpus, (tenant,)))
        at = _gpus_at(m, gpus)
        self.gpu_tenant_count[at] = 1
        self.gpu_is_exclusive[at] = not tenant.is_sharing
        self.gpu_fraction_free[at] = 1.0 - tenant.fraction
        self.gpu_memory_free[at] = self._nodes.gpu_memory[at] - tenant.memory_gib
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

    def _vacate(self, m: int, gpus: Sequence[int]) -> None:
        """GPUs, in ascending order, that served one job serve nobody."""
        for g in gpus:
            del self._tenants[m][g]
        at = _gpus_at(m, gpus)
        self.gpu_tenant_count[at] = 0
        self.gpu_is_exclusive[at] = False
        self.gpu_fraction_free[at] = 1.0
        self.gpu_memory_free[at] = self._nodes.gpu_memory[at]
        self.gpu_co_tenants[at] = 0
        exists = self._nodes.gpu_exists
        self._idle_gpus[m] = sorted([*self._idle_gpus[m], *[g for g in gpus if exists[m, g]]])

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
        self.gpu_memory_free[at] = self._nodes.gpu_memory[at] - memory
        self.gpu_co_tenants[at] = 0 if is_exclusive or not tenants else self._number_of_co_tenants(tenants)
        if bool(before) != bool(tenants) and self._nodes.gpu_exists[at]:
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

    # -- forks ----------------------------------------------------------------------------------------------------

    def fork(self, nodes: Nodes) -> "Usage":
        """The usage as it is now, on a fork of the nodes: neither of the two sees later claims of the other.

        Costs a copy of the arrays; lists per node are shared until one of the two writes them.
        """
        other = copy.copy(self)
        other._nodes = nodes
        for name in (*_CLAIMED_COLUMNS, *_CLAIMED_ROWS, "node_stamp"):
            setattr(other, name, getattr(self, name).copy())
        other._tenants, other._jobs_on = list(self._tenants), list(self._jobs_on)
        other._idle_gpus, other._touched = list(self._idle_gpus), list(self._touched)
        other._forked_stamp = self.stamp
        self._is_borrowed = bytearray(b"\x01") * len(self._is_borrowed)
        other._is_borrowed = bytearray(self._is_borrowed)
        return other

    def is_as_forked(self, fork: "Usage", m: int) -> bool:
        """True while nothing was taken or given back on node m since `fork` was made of this usage."""
        return self._co_tenants is fork._co_tenants and bool(self.node_stamp[m] <= fork._forked_stamp)

    def adopt(self, fork: "Usage", nodes: Sequence[int]) -> None:
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
        self.stamp += 1
        self.node_stamp[rows] = self.stamp
        self._touched = []  # which has one node a stamp


def tenant_of(job: Job, assignment: Assignment) -> GpuTenant:
    """The tenant that a task of the job is on each of its GPUs."""
    demand = assignment.demand
    gpus = max(1, len(assignment.gpu_indices))
    is_fraction = demand.is_gpu_fraction
    return GpuTenant(
        job_id=job.id,
        fraction=quantise(demand.gpus) if is_fraction else 1.0,
        memory_gib=quantise(demand.gpu_memory_gib / gpus),
        is_sharing=is_fraction or job.gpu_sharing.allowed,
        model=job.model,
        max_slowdown=job.gpu_sharing.max_slowdown,
    )


def _runs_of_alike(assignments: Sequence[Assignment]) -> Iterator[Sequence[Assignment]]:
    """Tasks that follow each other and take the same amounts of the same node; which GPUs may differ."""
    start = 0
    while start < len(assignments):
        first, end = assignments[start], start + 1
        while end < len(assignments) and _is_alike(first, assignments[end]):
            end += 1
        yield assignments[start:end]
        start = end


def _is_alike(one: Assignment, other: Assignment) -> bool:
    return one.node == other.node and one.demand is other.demand and len(one.gpu_indices) == len(other.gpu_indices)


def _gpus_at(m: int, gpus: Sequence[int]) -> tuple[int, int | slice | Sequence[int]]:
    """The index of GPUs, in ascending order, of node m. A slice is the faster one."""
    first, last = gpus[0], gpus[-1]
    if len(gpus) == 1:
        return m, first
    return m, slice(first, last + 1) if last - first == len(gpus) - 1 else gpus
