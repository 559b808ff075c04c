"""The scheduler of a replay: asks AdmitOrWait and Place, starts placed jobs, and reports their events.

Time is the trace's, and each request states it (setting host_clock): it jumps from event to event, as fast as the
service answers, or at a speed. Run times come from the trace, so they do not depend on the placement: such a replay
shows queueing, fragmentation, utilisation and decision latency. With a truth (true_host.py) interference changes them.
"""

import asyncio
import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from placewise.v1.cluster_pb2 import (
    ClusterSettings,
    DeleteClusterRequest,
    Explorer,
    JobEvent,
    Node,
    ReportJobEventsRequest,
    ReportNodesRequest,
    UpdateClusterSettingsRequest,
)
from placewise.v1.decision_pb2 import Admission, AdmitOrWaitRequest, JobDecision, Outcome, PlaceRequest, Reason
from placewise.v1.job_pb2 import Job, Resources, Shape, TaskGroup
from placewise_client.aio import AsyncClient
from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import QueueSettings
from placewise_core.domain.traces import TraceJob
from placewise_core.domain.truth import IDLE_TICKS, TICK_S

# At one instant, jobs that end release resources before new jobs ask.
_FINISH, _PROGRESS, _ARRIVE, _TICK = range(4)
_JOBS_PER_QUESTION = 256  # the service's limit
RESERVE_TTL_S = 120  # of the trace's time, in which a placed job starts at once
_CORES_PER_GPU = 4.0
_MEMORY_GIB_PER_GPU = 16.0


@frozen
class ReplayPlan:
    """One run: which policies, on which cluster. `base_time_s` is the epoch time of trace second 0: whole days, so that
    slots begin as the simulator's do. `speed` is in trace seconds per second; 0: as fast as the service answers.
    `reports_progress`, with a truth: of each running job before each question, as a simulator may know it."""

    cluster: str
    place_policy: str
    admit_policy: str
    nodes: int
    gpus_per_node: int
    base_time_s: float
    exploration_rate: float = 0.0
    seed: int | None = None
    admit_exploration_rate: float = 0.0
    speed: float = 0.0
    reports_progress: bool = False
    explorers: tuple[Explorer, ...] = ()


@dataclass(slots=True)
class ReplayResult:
    """Results of one replay. Per started job: submit, start and finish in trace seconds. Latencies in milliseconds."""

    plan: ReplayPlan
    submit_s: list[float] = field(default_factory=list)
    start_s: list[float] = field(default_factory=list)
    finish_s: list[float] = field(default_factory=list)
    gpus: list[int] = field(default_factory=list)
    busy_gpus: list[tuple[float, int]] = field(default_factory=list)
    place_ms: list[float] = field(default_factory=list)
    admit_ms: list[float] = field(default_factory=list)
    report_ms: list[float] = field(default_factory=list)
    decide_ms: list[float] = field(default_factory=list)
    decision_ids: set[str] = field(default_factory=set)  # an unchanged refusal has the id of the first one
    never_fits: list[str] = field(default_factory=list)
    never_admitted: list[str] = field(default_factory=list)
    place_waits: int = 0
    fallbacks: int = 0
    wall_s: float = 0.0
    digest: str = ""  # of a truth's events


class Throttle:
    """Keeps a replay from running ahead of its speed."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._began: tuple[float, float] | None = None  # trace time and this machine's, at the first event

    async def wait(self, trace_s: float) -> None:
        """Returns when it is time for this second of the trace."""
        if not self._speed:
            return
        now_s = time.monotonic()
        first_s, began_s = self._began = self._began or (trace_s, now_s)
        await asyncio.sleep(max(0.0, began_s + (trace_s - first_s) / self._speed - now_s))


class Host:
    """One replay of a trace through one cluster of the service. Use once."""

    def __init__(self, client: AsyncClient, plan: ReplayPlan, jobs: Sequence[TraceJob]) -> None:
        self._client = client
        self._plan = plan
        self.result = ReplayResult(plan)
        self._order = count()
        self._heap: list[tuple[float, int, int, TraceJob | None]] = []
        self._waiting: dict[str, dict[str, TraceJob]] = {job.queue: {} for job in jobs}
        self._asked_anew: set[str] = set()
        self._reports: list[JobEvent] = []
        self._busy = 0
        self._idle_ticks = 0
        for job in jobs:
            self._push(job.submit_s, _ARRIVE, job)

    async def run(self, on_finished: Callable[[int], None]) -> ReplayResult:
        """Sets the cluster up and runs the trace to its end; `on_finished(n)` hears of jobs that are done with.

        Raises the client's PlacewiseError when the service fails for good.
        """
        began_s = time.perf_counter()
        await self._set_up()
        throttle = Throttle(self._plan.speed)
        while self._heap:
            now_s = self._heap[0][0]
            await throttle.wait(now_s)
            done = 0
            while self._heap and self._heap[0][0] == now_s:
                _, kind, _, job = heapq.heappop(self._heap)
                done += self._take(kind, job, now_s)
            await self._report(now_s)
            done += await self._schedule(now_s)
            await self._report(now_s)
            self._keep_ticking(now_s)
            if done:
                on_finished(done)
        self.result.never_admitted = [job.id for queue in self._waiting.values() for job in queue.values()]
        self.result.wall_s = time.perf_counter() - began_s
        return self.result

    async def clean_up(self) -> None:
        """Forgets the cluster of this run."""
        await self._client.delete_cluster(DeleteClusterRequest(cluster=self._plan.cluster))

    async def _set_up(self) -> None:
        plan = self._plan
        gpus = plan.gpus_per_node
        capacity = Resources(
            cpu_cores=_CORES_PER_GPU * gpus, gpus=gpus, memory_gib=_MEMORY_GIB_PER_GPU * gpus, network_gbps=100
        )
        nodes = [Node(id=f"node-{index:04d}", capacity=capacity, state=Node.READY) for index in range(plan.nodes)]
        await self._client.update_cluster_settings(settings_request(plan, tuple(self._waiting)))
        now = self._timestamp(0.0)
        await self._client.report_nodes(ReportNodesRequest(cluster=plan.cluster, nodes=nodes, full=True, now=now))

    def _push(self, time_s: float, kind: int, job: TraceJob | None) -> None:
        heapq.heappush(self._heap, (time_s, kind, next(self._order), job))

    def _take(self, kind: int, job: TraceJob | None, now_s: float) -> int:
        """One event of the trace's clock; 1 if it ended a job."""
        if kind == _TICK or job is None:
            self._asked_anew.update(self._waiting)
            return 0
        if kind == _ARRIVE:
            self._waiting[job.queue][job.id] = job
            self._asked_anew.add(job.queue)
            self._note(JobEvent.SUBMITTED, job, now_s, job=self._message(job))
            return 0
        if kind == _PROGRESS:
            self._note(JobEvent.PROGRESS, job, now_s, speed=1.0 / job.duration_s, epochs_done=0.5)
            return 0
        self._note(JobEvent.FINISHED, job, now_s, speed=1.0 / job.duration_s, epochs_done=1.0)
        self._asked_anew.update(self._waiting)
        self._change_busy(now_s, -job.gpus)
        return 1

    async def _schedule(self, now_s: float) -> int:
        """Asks for every queue where something changed, the longest-waiting head first; how many can never run."""
        heads = [(next(iter(self._waiting[q].values())).submit_s, q) for q in self._asked_anew if self._waiting[q]]
        self._asked_anew.clear()
        rejected = 0
        for _, queue in sorted(heads):
            for admission in await self._ask(queue, now_s):
                job = self._waiting[queue][admission.job_id]
                if admission.verdict == Admission.ADMIT:
                    rejected += await self._place(job, admission, now_s)
                elif any(blocker.reason == Reason.NO_FEASIBLE_SHAPE for blocker in admission.blockers):
                    rejected += self._reject(job, now_s)
        return rejected

    async def _ask(self, queue: str, now_s: float) -> Sequence[Admission]:
        """AdmitOrWait for the head of a queue; its answers in the order of their ranks."""
        jobs = list(self._waiting[queue].values())[:_JOBS_PER_QUESTION]
        request = AdmitOrWaitRequest(
            cluster=self._plan.cluster,
            queue=queue,
            jobs=[self._message(job) for job in jobs],
            policy=self._plan.admit_policy,
            now=self._timestamp(now_s),
        )
        began_s = time.perf_counter()
        answer = await self._client.admit_or_wait(request)
        self.result.admit_ms.append((time.perf_counter() - began_s) * 1000.0)
        self.result.decision_ids.add(answer.meta.decision_id)
        return sorted(answer.admissions, key=lambda admission: admission.rank)

    async def _place(self, job: TraceJob, admission: Admission, now_s: float) -> int:
        """Places and starts one admitted job; 1 if it can never run here."""
        request = PlaceRequest(
            cluster=self._plan.cluster,
            jobs=[self._message(job, admission)],
            policy=self._plan.place_policy,
            reserve_ttl=Duration(seconds=RESERVE_TTL_S),
            now=self._timestamp(now_s),
        )
        began_s = time.perf_counter()
        answer = await self._client.place(request)
        self.result.place_ms.append((time.perf_counter() - began_s) * 1000.0)
        self.result.decision_ids.add(answer.meta.decision_id)
        self.result.decide_ms.append(answer.meta.decide_ms)
        self.result.fallbacks += answer.meta.fallback
        decision = answer.decisions[0]
        if decision.outcome == Outcome.PLACED:
            self._start(job, decision, answer.meta.decision_id, now_s)
        elif decision.outcome == Outcome.NO_FIT:
            return self._reject(job, now_s)
        else:
            self.result.place_waits += 1
        return 0

    def _reject(self, job: TraceJob, now_s: float) -> int:
        """Takes out a job that this cluster could never run, however empty."""
        del self._waiting[job.queue][job.id]
        self.result.never_fits.append(job.id)
        self._note(JobEvent.CANCELLED, job, now_s, reason="does not fit the cluster")
        return 1

    def _start(self, job: TraceJob, decision: JobDecision, decision_id: str, now_s: float) -> None:
        del self._waiting[job.queue][job.id]
        self._idle_ticks = 0
        self._note(JobEvent.STARTED, job, now_s, reservation_id=decision.reservation_id, decision_id=decision_id)
        self.result.submit_s.append(job.submit_s)
        self.result.start_s.append(now_s)
        self.result.finish_s.append(now_s + job.duration_s)
        self.result.gpus.append(job.gpus)
        self._change_busy(now_s, job.gpus)
        self._push(now_s + job.duration_s / 2, _PROGRESS, job)
        self._push(now_s + job.duration_s, _FINISH, job)

    def _keep_ticking(self, now_s: float) -> None:
        """A policy may wait though nothing more will happen: ask it again later, but not for ever."""
        if not self._heap and any(self._waiting.values()) and self._idle_ticks < IDLE_TICKS:
            self._idle_ticks += 1
            self._push(now_s + TICK_S, _TICK, None)

    def _change_busy(self, now_s: float, gpus: int) -> None:
        self._busy += gpus
        self.result.busy_gpus.append((now_s, self._busy))

    def _note(self, kind: JobEvent.Kind, subject: TraceJob, now_s: float, /, **fields: Any) -> None:
        event = JobEvent(job_id=subject.id, kind=kind, event_time=self._timestamp(now_s), **fields)
        self._reports.append(event)

    async def _report(self, now_s: float) -> None:
        if self._reports:
            now = self._timestamp(now_s)
            request = ReportJobEventsRequest(cluster=self._plan.cluster, events=self._reports, now=now)
            began_s = time.perf_counter()
            await self._client.report_job_events(request)
            self.result.report_ms.append((time.perf_counter() - began_s) * 1000.0)
            self._reports = []

    def _timestamp(self, trace_s: float) -> Timestamp:
        stamp = Timestamp()
        stamp.FromNanoseconds(round((self._plan.base_time_s + trace_s) * 1e9))
        return stamp

    def _message(self, job: TraceJob, admission: Admission | None = None) -> Job:
        groups = gang(job.gpus, self._plan.gpus_per_node)
        message = Job(
            id=job.id,
            groups=groups,
            architecture=Job.SINGLE if job.gpus <= self._plan.gpus_per_node else Job.ALL_REDUCE,
            total_epochs=1.0,
            queue=job.queue,
            submit_time=self._timestamp(job.submit_s),
            single_gpu_seconds=job.duration_s * job.gpus,
        )
        if admission is not None and admission.gpus:
            message.shape.CopyFrom(Shape(nodes=admission.nodes, gpus_per_node=admission.gpus_per_node))
        return message


def settings_request(plan: ReplayPlan, queues: Sequence[str]) -> UpdateClusterSettingsRequest:
    """The settings of a replayed cluster: the trace's time, and for these queues the simulator's parameters."""
    settings = ClusterSettings(
        exploration_rate=plan.exploration_rate,
        admit_exploration_rate=plan.admit_exploration_rate,
        explorers=plan.explorers,
        host_clock=True,
    )
    usual = QueueSettings()
    for name in queues:
        settings.queues.add(
            queue=name,
            v=usual.v,
            epsilon_seconds=usual.epsilon_s,
            tau_seconds=usual.tau_s,
            slot_duration=Duration(seconds=int(usual.slot_s)),
            wait_bound=Duration(seconds=int(usual.bound_s)),
        )
    return UpdateClusterSettingsRequest(cluster=plan.cluster, settings=settings)


def gang(gpus: int, gpus_per_node: int) -> list[TaskGroup]:
    """Whole nodes first, then one task with the rest: Philly's jobs wanted their GPUs as close together as possible."""
    whole, rest = divmod(gpus, gpus_per_node)
    sizes = [(whole, gpus_per_node), (1 if rest else 0, rest)]
    return [TaskGroup(role=TaskGroup.WORKER, count=tasks, demand=_demand(size)) for tasks, size in sizes if tasks]


def _demand(gpus: int) -> Resources:
    return Resources(cpu_cores=_CORES_PER_GPU * gpus, gpus=gpus, memory_gib=_MEMORY_GIB_PER_GPU * gpus)
