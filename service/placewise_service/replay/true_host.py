"""The scheduler of a replay with a truth: the service decides, the truth runs the jobs and says when they end.

After each moment of the truth the host asks Place for the waiting jobs, or AdmitOrWait and then Place if an admission
policy is named. That is how the simulator asks its own policies, so that equal policies give equal runs.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from operator import index
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from placewise.v1.cluster_pb2 import DeleteClusterRequest, JobEvent, ReportJobEventsRequest, ReportNodesRequest
from placewise.v1.decision_pb2 import Admission, AdmitOrWaitRequest, JobDecision, Outcome, PlaceRequest
from placewise_client.aio import AsyncClient
from placewise_core.admit.needs import own_gpus
from placewise_core.admit.registry import passes_in_order
from placewise_core.admit.turns import Turns
from placewise_core.domain.job import Job, JobId, Shape
from placewise_core.domain.truth import IDLE_TICKS, TICK_S, Moment, Progress, Truth
from placewise_core.policies.explore import seed_of_question
from placewise_service.api.convert.convert_cluster import node
from placewise_service.replay.host import (
    RESERVE_TTL_S,
    ReplayPlan,
    ReplayResult,
    Throttle,
    settings_request,
)
from placewise_service.replay.messages import assignment, job_message, timestamp

_MOST_JOBS = 256  # of one question: the limit of the service, and the window of the simulator


class TrueHost:
    """One replay of a truth through one cluster of the service. Use once."""

    def __init__(self, client: AsyncClient, plan: ReplayPlan, truth: Truth) -> None:
        self._client = client
        self._plan = plan
        self._truth = truth
        self.result = ReplayResult(plan)
        self._waiting: dict[str, Job] = {}
        self._index: dict[str, int] = {}  # started job → its index in the columns of `result`
        self._progress: dict[str, tuple[float, Progress]] = {}  # running job → its last progress, and the time of it
        self._reports: list[JobEvent] = []
        self._now_s = 0.0
        self._gpus: dict[str, set[tuple[str, int]]] = {}  # that running jobs have, by node and index
        self._busy = 0
        self._is_admitting = plan.admit_policy not in ("", "none")

    async def run(self, on_finished: Callable[[int], None]) -> ReplayResult:
        """Sets the cluster up and runs the truth to its end; `on_finished(n)` hears of jobs that are done with.

        Raises the client's PlacewiseError when the service fails for good.
        """
        began_s = time.perf_counter()
        await self._set_up()
        idle_ticks, throttle = 0, Throttle(self._plan.speed)
        while True:
            moment = self._truth.advance()
            if moment is not None:
                on_finished(self._take(moment))
            elif self._waiting and self._is_admitting and idle_ticks < IDLE_TICKS:
                self._now_s = self._truth.pass_time(TICK_S)
            else:
                break
            await throttle.wait(self._now_s)
            if self._plan.reports_progress and self._waiting:
                self._note_progress([self._by_now(*known) for known in self._progress.values()])
            await self._report()
            idle_ticks = 0 if await self._schedule() else idle_ticks + 1
            self._note_progress(self._truth.settle())
            await self._report()
        self.result.never_admitted = list(self._waiting)
        self.result.digest = self._truth.digest()
        self.result.wall_s = time.perf_counter() - began_s
        return self.result

    async def clean_up(self) -> None:
        """Forgets the cluster of this run."""
        await self._client.delete_cluster(DeleteClusterRequest(cluster=self._plan.cluster))

    async def _set_up(self) -> None:
        nodes = [node(item) for item in self._truth.nodes]
        plan, now = self._plan, self._now()
        await self._client.update_cluster_settings(settings_request(plan, self._truth.queues))
        await self._client.report_nodes(ReportNodesRequest(cluster=plan.cluster, nodes=nodes, full=True, now=now))

    def _take(self, moment: Moment) -> int:
        """One moment of the truth; 1 if a job is done with."""
        self._now_s = moment.now_s
        if moment.finished is not None:
            self._finish(moment.finished)
            return 1
        job = moment.arrived
        assert job is not None
        if moment.is_impossible:
            self.result.never_fits.append(job.id)
            return 1
        self._waiting[job.id] = job
        self._note(JobEvent.SUBMITTED, job.id, job=job_message(job, self._plan.base_time_s))
        return 0

    def _finish(self, end: Progress) -> None:
        self._note(JobEvent.FINISHED, end.job_id, speed=end.speed, epochs_done=end.epochs_done)
        index = self._index[end.job_id]
        self.result.finish_s[index] = self._now_s
        self._change_busy(-self.result.gpus[index])
        self._progress.pop(end.job_id, None)
        del self._gpus[end.job_id]

    async def _schedule(self) -> int:
        """Asks about the jobs that may start now; how many did."""
        window = list(islice(self._waiting.values(), _MOST_JOBS))
        if not self._is_admitting:
            return await self._place(window) if window else 0
        queues: dict[str, list[int]] = {}
        for place, job in enumerate(window):
            queues.setdefault(job.queue, []).append(place)
        if passes_in_order(self._plan.admit_policy) and all(map(own_gpus, window)):
            return await self._start_by_turns(window, queues)
        admissions = [
            admission for queue, places in queues.items() for admission in await self._ask(queue, window, places)
        ]
        return await self._start_admitted(window, admissions)

    async def _start_by_turns(self, window: Sequence[Job], queues: Mapping[str, Sequence[int]]) -> int:
        """As long as a GPU is idle, each question follows the starts of the one before."""
        started, turns = 0, Turns(queues, index)
        while self._has_idle_gpu() and (turn := turns.take()) is not None:
            admissions = await self._ask(turn.queue, window, queues[turn.queue][turn.first : turn.behind])
            turns.end(turn, has_started=bool(admissions))
            started += await self._start_admitted(window, admissions)
            await self._report()
        return started

    def _has_idle_gpu(self) -> bool:
        return len(set[tuple[str, int]]().union(*self._gpus.values())) < sum(
            len(node.gpus) for node in self._truth.nodes
        )

    async def _start_admitted(self, window: Sequence[Job], admissions: Sequence[Admission]) -> int:
        """Starts the jobs that AdmitOrWait let start and Place finds room for, by rank and then by arrival."""
        places, started = {job.id: place for place, job in enumerate(window)}, 0
        for admission in sorted(admissions, key=lambda found: (found.rank, places[JobId(found.job_id)])):
            job = window[places[JobId(admission.job_id)]]
            shape = Shape(admission.nodes, admission.gpus_per_node) if admission.nodes else None
            started += await self._place([job], shape)
        return started

    async def _ask(self, queue: str, window: Sequence[Job], places: Sequence[int]) -> list[Admission]:
        request = AdmitOrWaitRequest(
            cluster=self._plan.cluster,
            queue=queue,
            jobs=[job_message(window[place], self._plan.base_time_s) for place in places],
            policy=self._plan.admit_policy,
            seed=self._seed(window[places[0]]),
            now=self._now(),
        )
        began_s = time.perf_counter()
        answer = await self._client.admit_or_wait(request)
        self.result.admit_ms.append((time.perf_counter() - began_s) * 1000.0)
        self.result.decision_ids.add(answer.meta.decision_id)
        return [admission for admission in answer.admissions if admission.verdict == Admission.ADMIT]

    async def _place(self, jobs: Sequence[Job], shape: Shape | None = None) -> int:
        """One question for all these jobs; how many of them started."""
        request = PlaceRequest(
            cluster=self._plan.cluster,
            jobs=[job_message(job, self._plan.base_time_s, shape) for job in jobs],
            policy=self._plan.place_policy,
            reserve_ttl=Duration(seconds=RESERVE_TTL_S),
            seed=self._seed(jobs[0]),
            now=self._now(),
        )
        began_s = time.perf_counter()
        answer = await self._client.place(request)
        self.result.place_ms.append((time.perf_counter() - began_s) * 1000.0)
        self.result.decision_ids.add(answer.meta.decision_id)
        self.result.decide_ms.append(answer.meta.decide_ms)
        self.result.fallbacks += answer.meta.fallback
        answered = list(zip(jobs, answer.decisions, strict=True))
        placed = [(job, decision) for job, decision in answered if decision.outcome == Outcome.PLACED]
        for job, decision in sorted(placed, key=lambda pair: _turn(pair[1])):
            self._start(job, decision, answer.meta.decision_id, shape)
        self.result.place_waits += len(answered) - len(placed)
        return len(placed)

    def _start(self, job: Job, decision: JobDecision, decision_id: str, shape: Shape | None) -> None:
        placed = [assignment(item, job) for item in decision.assignments]
        self._truth.start(job.id, placed, shape)
        self._gpus[job.id] = {(item.node, gpu) for item in placed for gpu in item.gpu_indices}
        del self._waiting[job.id]
        self._note(JobEvent.STARTED, job.id, reservation_id=decision.reservation_id, decision_id=decision_id)
        run = self.result
        self._index[job.id] = len(run.start_s)
        run.submit_s.append(job.submit_time_s)
        run.start_s.append(self._now_s)
        run.finish_s.append(float("nan"))
        run.gpus.append(sum(len(item.gpu_indices) for item in placed))
        self._change_busy(run.gpus[-1])

    def _note_progress(self, changed: Sequence[Progress]) -> None:
        for job in changed:
            self._progress[job.job_id] = (self._now_s, job)
            self._note(JobEvent.PROGRESS, job.job_id, speed=job.speed, epochs_done=job.epochs_done)

    def _by_now(self, asked_s: float, job: Progress) -> Progress:
        return replace(job, epochs_done=job.epochs_done + job.speed * (self._now_s - asked_s))

    def _seed(self, first: Job) -> int | None:
        """The seed of a question, drawn as in the simulator. None lets the service choose it."""
        return None if self._plan.seed is None else seed_of_question(self._plan.seed, self._now_s, first)

    def _change_busy(self, gpus: int) -> None:
        self._busy += gpus
        self.result.busy_gpus.append((self._now_s, self._busy))

    def _note(self, kind: JobEvent.Kind, job_id: str, /, **fields: Any) -> None:
        self._reports.append(JobEvent(job_id=job_id, kind=kind, event_time=self._now(), **fields))

    def _now(self) -> Timestamp:
        return timestamp(self._plan.base_time_s + self._now_s)

    async def _report(self) -> None:
        if self._reports:
            request = ReportJobEventsRequest(cluster=self._plan.cluster, events=self._reports, now=self._now())
            began_s = time.perf_counter()
            await self._client.report_job_events(request)
            self.result.report_ms.append((time.perf_counter() - began_s) * 1000.0)
            self._reports = []


def _turn(decision: JobDecision) -> int:
    """The place of a job in the policy's order, which reservations count; answers stand in the order of the request."""
    return int(decision.reservation_id.rpartition(".")[2])
