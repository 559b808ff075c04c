"""The digest of a view and of its parts, kept up change by change. Know no event and decide nothing.

The digest of a part is a sum modulo 2^64 of pseudo-random numbers, so that what has changed is taken out and added
again: one for the usage and one for the report of each node, one for each two jobs that follow each other, one for each
queue. Equal views have equal sums on any machine.
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
_MOST_CHANGED: Final = 20_000  # jobs noted since the last mark
_MOST_WAITING: Final = 200  # marks
# Changes of a view: a node and its use, a job and its state, a queue, its state and whether its head holds.
_Use = tuple[int, bytes]
_Came = tuple[JobId, RunningJob | None]
_Queue = tuple[str, QueueState | None, bool]

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


class Mark:
    """The digest of a view as it was at one moment. It is worked out when it is first asked for."""

    __slots__ = ("_before", "_value", "_work", "waiting")

    def __init__(self, before: "Mark | None", work: Callable[[], int]) -> None:
        """`before`: the view's last mark. `work` is to be done after that one's."""
        self._before = before if before is not None and before._value is None else None
        self._work = work
        self._value: int | None = None
        self.waiting: int = 1 + (self._before.waiting if self._before is not None else 0)  # marks, at most

    @property
    def value(self) -> int:
        """64 bits, as of ClusterView.digest."""
        marks: list[Mark] = []
        last: Mark | None = self
        while last is not None and last._value is None:
            marks.append(last)
            last = last._before
        for mark in reversed(marks):
            mark._value = mark._work()
            mark._before = None
            del mark._work  # with the changes that it holds
        assert self._value is not None
        return self._value


def _followed(
    nodes: "NodeDigest",
    used: list[_Use],
    jobs: "JobDigest",
    came: list[_Came],
    queues: "QueueDigest",
    queued: list[_Queue],
    rest: tuple[int, int, int, int, float | None],
) -> int:
    """The digest after these changes. `rest` are the sums over reports, settings, estimates and co-runs, and the host's
    time."""
    reported, settings, estimates, co_runs, host_time_s = rest
    of_nodes = (reported + nodes.follow(used)) & _MASK
    parts = (of_nodes, jobs.follow(came), queues.follow(queued), settings, estimates, co_runs)
    return number_of(_of_view(*parts, host_time_s is None, host_time_s or 0.0))


class ViewDigest:
    """Digest of one view. A change of its jobs or queues has to be noted here; its other parts carry stamps."""

    def __init__(self) -> None:
        self._nodes: NodeDigest | None = None
        self._jobs: JobDigest | None = None
        self._queues: QueueDigest | None = None
        self._settings: tuple[ClusterSettings | None, int] = None, 0
        self._seen: tuple[object, ...] = ()  # the state that `_mark` is of; empty once a change was noted
        self._mark: Mark | None = None  # the last one

    def note_job(self, job_id: JobId) -> None:
        """The job came, went, or changed. If it is there, it is the last one now."""
        self._seen = ()
        if self._jobs is not None:
            self._jobs.note(job_id)
            if self._jobs.is_far_behind:
                self._jobs = None

    def note_renewed(self, before: RunningJob, now: RunningJob) -> None:
        """The last job has changed, and is still the last one."""
        if not _is_alike(before, now):
            self.note_job(now.id)

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

    def mark(self, view: Digested) -> Mark:
        """The digest now, of the view whose changes were noted. Costs a copy of those since the last mark."""
        usage, learned = view.usage, (view.estimates.digest, view.co_runs.digest)
        seen = (usage, usage.stamp, view.nodes.telemetry_stamp, view.settings, *learned, view.host_time_s)
        if self._mark is None or seen != self._seen:
            if self._mark is not None and self._mark.waiting >= _MOST_WAITING:
                self._mark.value  # noqa: B018 - releases the marks that wait
            self._seen, self._mark = seen, self._new_mark(view)
        return self._mark

    def _new_mark(self, view: Digested) -> Mark:
        nodes, jobs, queues = self._parts_of(view)
        rest = (
            nodes.reports(),
            self._number_of_settings(view.settings),
            view.estimates.digest,
            view.co_runs.digest,
            view.host_time_s,
        )
        came, queued = jobs.changed(view.jobs), queues.changed(view.queues, view.heads)
        return Mark(self._mark, partial(_followed, nodes, nodes.changed(), jobs, came, queues, queued, rest))

    def _parts_of(self, view: Digested) -> "tuple[NodeDigest, JobDigest, QueueDigest]":
        """Those of now. Before one is made again, the marks that hold the old one are worked out: it may be large."""
        serves = self._nodes is not None and self._nodes.serves(view.nodes, view.usage)
        if self._mark is not None and not (serves and self._jobs and self._queues):
            self._mark.value  # noqa: B018 - releases the old one
        if not serves or self._nodes is None:
            self._nodes = NodeDigest(view.nodes, view.usage)
        if self._jobs is None:
            self._jobs = JobDigest(view.jobs)
        if self._queues is None:
            self._queues = QueueDigest(view.queues)
        return self._nodes, self._jobs, self._queues

    def _number_of_settings(self, settings: ClusterSettings) -> int:
        """64 bits over the settings that decisions read."""
        if self._settings[0] is not settings:
            self._settings = settings, _number_of_settings(settings)
        return self._settings[1]


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
        self._used = [number_of(self._use_of(m)) for m in range(nodes.size)]
        self._reported = self._reported_by(np.arange(nodes.size))
        order = number_of("\n".join((*nodes.columns, "", *nodes.index)).encode())
        self._total_used, self._total_reported = sum(self._used), order + int(self._reported.sum())

    def serves(self, nodes: Nodes, usage: Usage) -> bool:
        return nodes is self._nodes and usage is self._usage

    def reports(self) -> int:
        """The sum over the nodes and their reports now."""
        nodes = self._nodes
        if nodes.telemetry_stamp != self._telemetry_stamp:
            rows = (nodes.report_stamp > self._telemetry_stamp).nonzero()[0]
            self._telemetry_stamp = nodes.telemetry_stamp
            fresh = self._reported_by(rows)
            self._total_reported = (self._total_reported + int((fresh - self._reported[rows]).sum())) & _MASK
            self._reported[rows] = fresh
        return self._total_reported

    def changed(self) -> list[_Use]:
        """The nodes of which something was taken or given back since the last call, and their use now."""
        usage = self._usage
        if usage.stamp == self._usage_stamp:
            return []
        touched = set(usage.touched_since(self._usage_stamp))
        self._usage_stamp = usage.stamp
        return [(m, self._use_of(m)) for m in touched]

    def follow(self, changed: Iterable[_Use]) -> int:
        """The sum over the use of all nodes after these changes."""
        used = self._used
        for m, use in changed:
            now = number_of(use)
            self._total_used += now - used[m]
            used[m] = now
        self._total_used &= _MASK
        return self._total_used

    def _use_of(self, m: int) -> bytes:
        """What node m has free, and the use of its GPUs."""
        usage = self._usage
        free, tenants, memory = usage.free[:, m], usage.gpu_tenant_count[m], usage.gpu_memory_free[m]
        use: bytes = self._keys[m] + free.tobytes() + tenants.tobytes() + memory.tobytes()
        return use

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


@dataclass(slots=True)
class _ChainedJob:
    """A job in the order of the jobs, with its number. Its neighbours by id: objects that name each other would outlive
    the digest until the next full collection of garbage."""

    number: int
    before: JobId
    after: JobId
    job: RunningJob | None = None


class JobDigest:
    """Of the jobs of a view and their order: Σ over two that follow each other of the product of their numbers, the
    second one turned, so that it matters which comes first."""

    def __init__(self, jobs: Iterable[JobId]) -> None:
        self._changed: dict[JobId, None] = dict.fromkeys(jobs)
        self._chain = {_EDGE: _ChainedJob(1, _EDGE, _EDGE)}
        self._total = 0

    @property
    def is_far_behind(self) -> bool:
        """True if so much was noted that a new one costs less memory."""
        return len(self._changed) > _MOST_CHANGED

    def note(self, job_id: JobId) -> None:
        """The job came, went, or changed. If it is there, it is the last one now."""
        self._changed.pop(job_id, None)
        self._changed[job_id] = None

    def changed(self, jobs: Mapping[JobId, RunningJob]) -> list[_Came]:
        """The jobs that were noted since the last call, as they are now."""
        found = [(job_id, jobs.get(job_id)) for job_id in self._changed]
        self._changed.clear()
        return found

    def follow(self, changed: Sequence[_Came]) -> int:
        """The digest after these changes."""
        chain = self._chain
        moved = {job_id: self._removed(job_id) for job_id, _ in changed if job_id in chain}
        for job_id, job in changed:
            if job is not None:
                known = moved.get(job_id)
                is_alike = known is not None and known.job is not None and _is_alike(known.job, job)
                self._append(job, known.number if known is not None and is_alike else _number_of(job))
        self._total &= _MASK
        return self._total

    def _removed(self, job_id: JobId) -> _ChainedJob:
        """The job, taken out of the order."""
        job = self._chain.pop(job_id)
        before, after, turned = self._chain[job.before], self._chain[job.after], job.number ^ _TURN
        self._total += (before.number - job.number) * (after.number ^ _TURN) - before.number * turned
        before.after, after.before = job.after, job.before
        return job

    def _append(self, job: RunningJob, number: int) -> None:
        edge = self._chain[_EDGE]
        last = self._chain[edge.before]
        self._total += last.number * (number ^ _TURN) + (number - last.number) * (edge.number ^ _TURN)
        self._chain[job.id] = _ChainedJob(number, edge.before, _EDGE, job)
        last.after = edge.before = job.id


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

    def changed(self, queues: Mapping[str, QueueState], heads: Mapping[str, HeadReservation]) -> list[_Queue]:
        """The queues that were noted since the last call: name, state now, and whether its head holds."""
        found = [(name, queues.get(name), name in heads) for name in self._changed]
        self._changed.clear()
        return found

    def follow(self, changed: Iterable[_Queue]) -> int:
        """The digest after these changes."""
        for name, queue, is_held in changed:
            self._total -= self._number.pop(name, 0)
            if queue is not None:
                self._number[name] = number = _number_of_queue(queue, is_held=is_held)
                self._total += number
        self._total &= _MASK
        return self._total


def _number_of_queue(queue: QueueState, *, is_held: bool) -> int:
    head, names, times_s = queue.head, [queue.queue], (0.0, 0.0, 0.0, 0.0)
    if head is not None:
        names += [str(is_held), head.job, *head.nodes, "", *head.passes]
        times_s = (head.start_s, head.since_s, head.bound_s, head.expire_s)
    state = (queue.seq, queue.slot, queue.decided_slot, queue.backlog_s, queue.delay_s, queue.arrivals_s)
    return number_of("\n".join(names).encode() + _of_queue(*state, *times_s))
