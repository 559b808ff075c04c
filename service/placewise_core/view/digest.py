"""The digest of a view and of its parts, kept up change by change. Know no event and decide nothing.

The digest of a part is a sum modulo 2^64 of pseudo-random numbers, so that what has changed is taken out and added
again: one for the usage and one for the report of each node, one for each two jobs that follow each other, one for each
queue. Equal views have equal sums on any machine.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

import numpy as np

from placewise_core.basics.arrays import IntArray
from placewise_core.basics.cells import number_of
from placewise_core.domain.cluster import ClusterSettings, HeadReservation, Node, QueueState, RunningJob
from placewise_core.domain.job import JobId
from placewise_core.speed.co_runs import CoRunBook
from placewise_core.view.estimates import Estimates
from placewise_core.view.nodes import Nodes, Words, number_of_report, telemetry_row
from placewise_core.view.usage import Usage

_MASK: Final = 2**64 - 1
_TURN: Final = 0x9E3779B97F4A7C15  # turns the second number of a product, so that it matters which is the first
_EDGE: Final = JobId("")  # before the first job and after the last one
_MOST_CHANGED: Final = 20_000
_of_job = struct.Struct("<9d").pack
_of_queue = struct.Struct("<10d").pack
_of_view = struct.Struct("<6Q?d").pack


class Digested(Protocol):
    """The parts of a view that decisions read."""

    nodes: Nodes
    usage: Usage
    jobs: dict[JobId, RunningJob]
    queues: dict[str, QueueState]
    heads: dict[str, HeadReservation]
    settings: ClusterSettings
    estimates: Estimates
    co_runs: CoRunBook
    host_time_s: float | None


class ViewDigest:
    """Digest of one view. A change of its jobs or queues has to be noted here; its other parts carry stamps."""

    def __init__(self) -> None:
        self._nodes: NodeDigest | None = None
        self._jobs: JobDigest | None = None
        self._queues: QueueDigest | None = None
        self._settings: tuple[ClusterSettings | None, int] = None, 0
        self._seen: tuple[object, ...] = ()  # the state that `_value` is of; empty once a change was noted
        self._value = 0

    def note_job(self, job_id: JobId) -> None:
        """The job came, went, or changed. If it is there, it is the last one now."""
        self._seen = ()
        if self._jobs is not None:
            self._jobs.note(job_id)
            if self._jobs.is_far_behind:
                self._jobs = None

    def note_queues(self, names: Iterable[str]) -> None:
        """These queues, or whether their heads hold, have changed."""
        self._seen = ()
        if self._queues is not None:
            self._queues.note(names)

    def forget_jobs(self) -> None:
        """Any job may have changed."""
        self._seen, self._jobs = (), None

    def forget_queues(self) -> None:
        """Any queue may have changed."""
        self._seen, self._queues = (), None

    def value(self, view: Digested) -> int:
        """The digest now, of the view that the changes were noted of."""
        usage, learned = view.usage, (view.estimates.digest, view.co_runs.digest)
        seen = (usage, usage.stamp, view.nodes.telemetry_stamp, view.settings, *learned, view.host_time_s)
        if seen != self._seen:
            self._seen, self._value = seen, self._value_now(view)
        return self._value

    def _value_now(self, view: Digested) -> int:
        if self._nodes is None or not self._nodes.serves(view.nodes, view.usage):
            self._nodes = NodeDigest(view.nodes, view.usage)
        if self._jobs is None:
            self._jobs = JobDigest(view.jobs)
        if self._queues is None:
            self._queues = QueueDigest(view.queues)
        if self._settings[0] is not view.settings:
            self._settings = view.settings, _number_of_settings(view.settings)
        parts = (
            self._nodes.value(),
            self._jobs.value(view.jobs),
            self._queues.value(view.queues, view.heads),
            self._settings[1],
            view.estimates.digest,
            view.co_runs.digest,
        )
        return number_of(_of_view(*parts, view.host_time_s is None, view.host_time_s or 0.0))


def _number_of_settings(settings: ClusterSettings) -> int:
    """64 bits over the settings of exploration and of learning."""
    explorers = [(explorer.policy, explorer.weight) for explorer in settings.explorers]
    rates = (float(settings.exploration_rate), float(settings.admit_exploration_rate))
    learns: tuple[bool, ...] = (settings.learn_durations, settings.learn_throughput, settings.host_clock)
    later = (settings.learn_heat, settings.learn_capability, settings.learn_co_runs)
    if any(later):  # else as replicas of 0.1.0 have it
        learns += later
    return number_of(repr((rates, explorers, learns)).encode())


class NodeDigest:
    """Digest of nodes: their hardware, reports and free resources. A node that comes, goes or changes its capacity ends
    its use."""

    def __init__(self, nodes: Nodes, usage: Usage) -> None:
        self._nodes, self._usage = nodes, usage
        self._usage_stamp, self._telemetry_stamp = usage.stamp, nodes.telemetry_stamp
        names = [_name_of(node) for node in nodes.records]
        self._names: Words = np.array(names, dtype=np.uint64)
        self._keys = [name.to_bytes(8) for name in names]
        self._used = [self._used_on(m) for m in range(nodes.size)]
        self._reported = self._reported_by(np.arange(nodes.size))
        order = number_of("\n".join((*nodes.columns, "", *nodes.index)).encode())
        self._total = order + sum(self._used) + int(self._reported.sum())

    def serves(self, nodes: Nodes, usage: Usage) -> bool:
        return nodes is self._nodes and usage is self._usage

    def value(self) -> int:
        """The digest now."""
        nodes, usage, used = self._nodes, self._usage, self._used
        if nodes.telemetry_stamp != self._telemetry_stamp:
            rows = (nodes.report_stamp > self._telemetry_stamp).nonzero()[0]
            self._telemetry_stamp = nodes.telemetry_stamp
            fresh = self._reported_by(rows)
            self._total += int((fresh - self._reported[rows]).sum())
            self._reported[rows] = fresh
        if usage.stamp != self._usage_stamp:
            for m in set(usage.touched_since(self._usage_stamp)):
                now = self._used_on(m)
                self._total += now - used[m]
                used[m] = now
            self._usage_stamp = usage.stamp
        self._total &= _MASK
        return self._total

    def _used_on(self, m: int) -> int:
        """What node m has free, and the use of its GPUs."""
        usage = self._usage
        free, tenants, memory = usage.free[:, m], usage.gpu_tenant_count[m], usage.gpu_memory_free[m]
        return number_of(self._keys[m] + free.tobytes() + tenants.tobytes() + memory.tobytes())

    def _reported_by(self, rows: IntArray) -> Words:
        """(N,) of the last reports of N nodes."""
        nodes = self._nodes
        for m in rows[nodes.report_number[rows] == 0].tolist():
            node = nodes.records[m]
            nodes.report_number[m] = number_of_report(node, telemetry_row(node.telemetry))
        return self._names[rows] * (nodes.report_number[rows] ^ np.uint64(_TURN))


def _name_of(node: Node) -> int:
    """64 bits over a node's id, capacity and GPUs. The number is odd, so that multiplying by it loses no bit."""
    capacity = node.capacity
    amounts = (capacity.cpu_cores, capacity.memory_gib, capacity.gpu_memory_gib, capacity.network_gbps, capacity.gpus)
    extended = [(name, float(amount)) for name, amount in sorted(capacity.extended.items())]
    gpus = [f"{gpu.index} {gpu.model} {float(gpu.memory_gib)}" for gpu in node.gpus]
    names = (node.id, str(node.max_jobs_per_gpu), str(extended), *gpus)
    return number_of("\n".join(names).encode() + struct.pack("<5d", *amounts)) | 1


class JobDigest:
    """Of the jobs of a view and their order: Σ over two that follow each other of the product of their numbers, the
    second one turned, so that it matters which comes first."""

    def __init__(self, jobs: Iterable[JobId]) -> None:
        self._changed: dict[JobId, None] = dict.fromkeys(jobs)
        self._known: dict[JobId, tuple[RunningJob | None, int]] = {_EDGE: (None, 1)}  # with its number
        self._after: dict[JobId, JobId] = {_EDGE: _EDGE}
        self._before: dict[JobId, JobId] = {_EDGE: _EDGE}
        self._total = 0

    @property
    def is_far_behind(self) -> bool:
        """True if so much was noted that a new one costs less memory."""
        return len(self._changed) > _MOST_CHANGED

    def note(self, job_id: JobId) -> None:
        """The job came, went, or changed. If it is there, it is the last one now."""
        self._changed.pop(job_id, None)
        self._changed[job_id] = None

    def value(self, jobs: Mapping[JobId, RunningJob]) -> int:
        """The digest now, of the view's jobs."""
        known = self._known
        moved = {job_id: known[job_id] for job_id in self._changed if job_id in known}
        for job_id in moved:
            self._remove(job_id)
        for job_id in self._changed:
            if (job := jobs.get(job_id)) is not None:
                before, number = moved.get(job_id, (None, 0))
                number = number if before is not None and _is_alike(before, job) else _number_of(job)
                self._append(job_id, job, number)
        self._changed.clear()
        self._total &= _MASK
        return self._total

    def _remove(self, job_id: JobId) -> None:
        before, after = self._before.pop(job_id), self._after.pop(job_id)
        self._total -= self._pair(before, job_id) + self._pair(job_id, after)
        del self._known[job_id]
        self._after[before], self._before[after] = after, before
        self._total += self._pair(before, after)

    def _append(self, job_id: JobId, job: RunningJob, number: int) -> None:
        last = self._before[_EDGE]
        self._total -= self._pair(last, _EDGE)
        self._known[job_id] = job, number
        self._after[last] = self._before[_EDGE] = job_id
        self._after[job_id], self._before[job_id] = _EDGE, last
        self._total += self._pair(last, job_id) + self._pair(job_id, _EDGE)

    def _pair(self, one: JobId, other: JobId) -> int:
        return self._known[one][1] * (self._known[other][1] ^ _TURN)


def _is_alike(one: RunningJob, other: RunningJob) -> bool:
    """True if their numbers are the same, at a glance."""
    return (one.job is other.job and one.assignments is other.assignments and one.state is other.state) and (
        one.start_time_s,
        one.speed,
        one.epochs_done,
    ) == (other.start_time_s, other.speed, other.epochs_done)


def _number_of(running: RunningJob) -> int:
    """64 bits over a job and its state; odd, so that a product with it loses nothing."""
    job = running.job
    names = [job.id, running.state, job.model, job.user, job.queue, job.priority]
    names += [f"{task.task} {task.node} {task.gpu_indices}" for task in running.assignments]
    if job.exclusive_network:
        names.append("exclusive_network")
    numbers = _of_job(
        running.start_time_s, running.speed, running.epochs_done, job.total_epochs, job.single_gpu_s, job.iterations,
        job.batch_size, job.submit_time_s, job.gpu_sharing.max_slowdown,
    )  # fmt: skip
    return number_of("\n".join(names).encode() + numbers) | 1


class QueueDigest:
    """Of the queues of a view and the heads that hold nodes."""

    def __init__(self, names: Iterable[str]) -> None:
        self._changed = set(names)
        self._number: dict[str, int] = {}
        self._total = 0

    def note(self, names: Iterable[str]) -> None:
        """These queues, or whether their heads hold, have changed."""
        self._changed.update(names)

    def value(self, queues: Mapping[str, QueueState], heads: Mapping[str, HeadReservation]) -> int:
        """The digest now, of the view's queues."""
        for name in self._changed:
            self._total -= self._number.pop(name, 0)
            if (queue := queues.get(name)) is not None:
                self._number[name] = number = _number_of_queue(queue, is_held=name in heads)
                self._total += number
        self._changed.clear()
        self._total &= _MASK
        return self._total


def _number_of_queue(queue: QueueState, *, is_held: bool) -> int:
    head, names, times_s = queue.head, [queue.queue], (0.0, 0.0, 0.0, 0.0)
    if head is not None:
        names += [str(is_held), head.job, *head.nodes, "", *head.passes]
        times_s = (head.start_s, head.since_s, head.bound_s, head.expire_s)
    state = (queue.seq, queue.slot, queue.decided_slot, queue.backlog_s, queue.delay_s, queue.arrivals_s)
    return number_of("\n".join(names).encode() + _of_queue(*state, *times_s))
