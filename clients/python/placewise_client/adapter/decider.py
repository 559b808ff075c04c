"""Asks the service about waiting gangs: AdmitOrWait and Place, once per gang, within a budget, and never raises.

Both go in one call if possible. Two calls are needed for an elastic gang, whose shape the host must accept, and for
gangs that were admitted earlier and still wait for room.

A verdict is kept until it is used, so that a host that asks again (they all do) gets the same answer. The decider never
touches the host, and never holds a job back longer than `release_after_s` because the service is away.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from google.protobuf.duration_pb2 import Duration

from placewise.v1 import decision_pb2 as pb
from placewise.v1.job_pb2 import Job, Shape
from placewise_client.adapter.book import Admitted, Book, Record
from placewise_client.adapter.breaker import Breaker
from placewise_client.adapter.metrics import AdapterMetrics
from placewise_client.adapter.native import (
    AdapterSettings,
    NativeJob,
    NoFit,
    Placed,
    Placement,
    Undecided,
    Verdict,
    Waiting,
)
from placewise_client.aio import AsyncClient
from placewise_client.errors import AlreadyExistsError, DeadlineExceededError, InvalidRequestError, PlacewiseError
from placewise_client.results import blocker_text, reason_names
from placewise_client.rpcs import AsyncMethod, Req, Res

log = logging.getLogger(__name__)

# A reservation this close to its end may be gone before the host has started the job.
_EXPIRY_MARGIN_S = 5.0


@dataclass(slots=True)
class Decider:
    """Verdicts for gangs.

    `decide` takes the waiting gangs of the host in queue order and answers for each; one coroutine asks at a time, so
    two callers with the same gang get one decision. `clock` is monotonic seconds; `now` is seconds since the epoch.
    The answers are kept in the gangs' records in `book`.
    """

    client: AsyncClient
    settings: AdapterSettings
    metrics: AdapterMetrics = field(default_factory=AdapterMetrics)
    breaker: Breaker = field(default_factory=Breaker)
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    book: Book = field(default_factory=Book)
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    _unanswered: pb.PlaceRequest | pb.AdmitOrWaitRequest | None = None
    _nonce: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    _attempt: int = 0
    _admissions: int = 0

    async def decide(self, waiting: Sequence[NativeJob]) -> Mapping[str, Verdict]:
        """One verdict per job of `waiting`, by key. Takes about `decide_budget_s` at most when the service is away."""
        async with self._asking:
            gangs = [self.book.put(job, self.clock()) for job in waiting]
            by_queue: dict[str, list[Record]] = {}
            for gang in gangs:
                if self._is_due(gang):
                    by_queue.setdefault(gang.job.job.queue, []).append(gang)
            for queue, due in by_queue.items():
                await self._ask_queue(queue, due)
            return {gang.key: gang.verdict or Undecided("not asked yet") for gang in gangs}

    def _is_expired(self, gang: Record) -> bool:
        if not isinstance(gang.verdict, Placed) or not gang.verdict.placement.expire_time_s:
            return False
        return self.now() > gang.verdict.placement.expire_time_s - _EXPIRY_MARGIN_S

    def _is_due(self, gang: Record) -> bool:
        if isinstance(gang.verdict, Placed):
            return self._is_expired(gang)
        if gang.failing_since_s is not None:
            return True
        return self.clock() - gang.asked_at_s >= self.settings.retry_s

    async def _ask_queue(self, queue: str, gangs: list[Record]) -> None:
        if self.breaker.is_open():
            self._fail(gangs, self.breaker.reason)
            return
        started_s = self.clock()
        asked = gangs[: self.settings.depth]
        # The budget is for one batch: hundreds of gangs in one question of admission may take as many times as long.
        deadline_s = started_s + self.settings.decide_budget_s * math.ceil(len(asked) / self.settings.batch)
        try:
            await self._settle_unanswered(deadline_s)
            open_gangs = [gang for gang in asked if not isinstance(gang.verdict, Placed) or self._is_expired(gang)]
            if self._is_one_question(open_gangs):
                await self._ask_both(queue, open_gangs, deadline_s)
            else:
                admitted = await self._admit(queue, open_gangs, deadline_s)
                await self._place_in_batches(admitted, deadline_s)
        except PlacewiseError as error:
            log.warning("no decision for queue %r: %s", queue, error)
            self.breaker.fail(error.reason)
            self._fail([gang for gang in gangs if gang.asked_at_s < started_s], error.reason)
        else:
            self.breaker.succeed()
        self.metrics.decide_s.observe(self.clock() - started_s)

    def _refuse(self, gang: Record, error: InvalidRequestError) -> None:
        """The service will never accept this job: the host gets it back, and no other job waits for it."""
        log.warning("the service refuses job %s: %s", gang.key, error)
        self._answer(gang, Undecided(error.reason, is_release_due=True))

    def _fail(self, gangs: Iterable[Record], reason: str) -> None:
        for gang in gangs:
            gang.mark_failed(reason, self.clock(), self.settings.release_after_s)
            self.metrics.undecided.inc()

    def _is_one_question(self, gangs: list[Record]) -> bool:
        """Whether those that are admitted may be placed unseen: as they are, and none ahead of one that waits."""
        are_as_asked = all(gang.job.job.groups and gang.admitted is None for gang in gangs)
        return self.settings.ask_admission and 0 < len(gangs) <= self.settings.batch and are_as_asked

    async def _ask_both(self, queue: str, gangs: list[Record], deadline_s: float) -> None:
        """AdmitOrWait and Place in one call. If the service refuses it, separate calls find the job that it refuses."""
        request = self._admission(queue, gangs)
        request.place.CopyFrom(self._placing())
        self._unanswered = request
        try:
            response = await self._in_time(self.client.admit_or_wait, request, deadline_s)
        except InvalidRequestError:
            self._unanswered = None
            deadline_s = self.clock() + self.settings.decide_budget_s
            await self._place_in_batches(await self._admit(queue, gangs, deadline_s), deadline_s)
            return
        self._unanswered = None
        self._read_admissions(gangs, response)
        self._read_decisions(response.placed, [gang for gang in gangs if gang.admitted is not None])

    async def _admit(self, queue: str, gangs: list[Record], deadline_s: float) -> list[Record]:
        """The gangs that may start now, in the order the policy gave. An admission is asked for once and kept."""
        if not self.settings.ask_admission:
            return gangs
        asked = [gang for gang in gangs if gang.admitted is None]
        if asked:
            await self._ask_admissions(queue, asked, deadline_s)
        admitted = [(gang.admitted.order, gang) for gang in gangs if gang.admitted is not None]
        return [gang for _, gang in sorted(admitted, key=lambda item: item[0])]

    async def _ask_admissions(self, queue: str, gangs: list[Record], deadline_s: float) -> None:
        """One question for all. If the service refuses it, smaller halves find the job that it refuses."""
        request = self._admission(queue, gangs)
        try:
            response = await self._in_time(self.client.admit_or_wait, request, deadline_s)
        except InvalidRequestError as error:
            if len(gangs) == 1:
                self._refuse(gangs[0], error)
                return
            middle = len(gangs) // 2
            for half in (gangs[:middle], gangs[middle:]):
                await self._ask_admissions(queue, half, self.clock() + self.settings.decide_budget_s)
        else:
            self._read_admissions(gangs, response)

    def _admission(self, queue: str, gangs: list[Record]) -> pb.AdmitOrWaitRequest:
        return pb.AdmitOrWaitRequest(
            cluster=self.settings.cluster,
            queue=queue,
            jobs=[gang.job.job for gang in gangs],
            policy=self.settings.admit_policy,
            dry_run=self.settings.is_dry_run,
        )

    def _read_admissions(self, gangs: list[Record], response: pb.AdmitOrWaitResponse) -> None:
        self._admissions += 1
        by_job = {admission.job_id: admission for admission in response.admissions}
        for gang in gangs:
            admission = by_job.get(gang.key)
            if admission is None:
                self._answer(gang, Waiting(text="not in the answer", decision_id=response.meta.decision_id))
            elif admission.verdict == pb.Admission.ADMIT:
                gang.admitted = Admitted((self._admissions, admission.rank), _shape(admission))
            else:
                blockers = admission.blockers
                self._answer(gang, Waiting(reason_names(blockers), blocker_text(blockers), response.meta.decision_id))

    async def _place_in_batches(self, gangs: list[Record], deadline_s: float) -> None:
        """Asks batch by batch. Stops when a whole batch found no place: the jobs behind it have no better chance."""
        for first in range(0, len(gangs), self.settings.batch):
            batch = gangs[first : first + self.settings.batch]
            # The budget is per decision: a later batch of a long queue has a whole one of its own.
            budget_end_s = deadline_s if first == 0 else self.clock() + self.settings.decide_budget_s
            if not await self._place(batch, budget_end_s):
                for gang in gangs[first + self.settings.batch :]:
                    self._answer(gang, Waiting(text="behind jobs that wait"))
                return

    async def _place(self, batch: list[Record], deadline_s: float) -> int:
        """Places one batch and returns how many were placed. If the service refuses the batch, asks job by job."""
        request = self._placing()
        request.cluster = self.settings.cluster
        request.dry_run = self.settings.is_dry_run
        request.jobs.extend(_shaped(gang) for gang in batch)
        self._unanswered = request
        try:
            response = await self._in_time(self.client.place, request, deadline_s)
        except InvalidRequestError as error:
            self._unanswered = None
            if len(batch) > 1:
                budget_s = self.settings.decide_budget_s
                return sum([await self._place([gang], self.clock() + budget_s) for gang in batch])
            self._refuse(batch[0], error)
            return 0
        self._unanswered = None
        return self._read_decisions(response, batch)

    def _placing(self) -> pb.PlaceRequest:
        """The settings of a placement, with a new request id, so that the question can be sent again."""
        self._attempt += 1
        return pb.PlaceRequest(
            request_id=f"{self._nonce}-{self._attempt}",
            policy=self.settings.place_policy,
            reserve_ttl=Duration(seconds=int(self.settings.reserve_ttl_s)),
        )

    async def _settle_unanswered(self, deadline_s: float) -> None:
        """Sends the question whose answer was lost again, with the same id: it may have reserved something.

        Jobs that were released meanwhile are left out, so that the service reserves nothing for them. The question then
        differs and takes a new id; the service still answers for jobs that hold a reservation.
        """
        if self._unanswered is None:
            return
        waiting = [job for job in self._unanswered.jobs if self.book.find_waiting(job.id) is not None]
        if not waiting:
            self._unanswered = None
            return
        if len(waiting) < len(self._unanswered.jobs):
            self._unanswered = self._without(self._unanswered, waiting)
        try:
            match self._unanswered:
                case pb.PlaceRequest() as request:
                    placed = await self._in_time(self.client.place, request, deadline_s)
                case pb.AdmitOrWaitRequest() as both:
                    placed = (await self._in_time(self.client.admit_or_wait, both, deadline_s)).placed
        except AlreadyExistsError:  # the adapter has another name now: the next pass asks a new question
            self._unanswered = None
            return
        self._unanswered = None
        self._read_decisions(placed)

    def _without(
        self, request: pb.PlaceRequest | pb.AdmitOrWaitRequest, waiting: Sequence[Job]
    ) -> pb.PlaceRequest | pb.AdmitOrWaitRequest:
        """The question about fewer jobs, with an id of its own."""
        fewer = type(request).FromString(request.SerializeToString())
        del fewer.jobs[:]
        fewer.jobs.extend(waiting)
        (fewer if isinstance(fewer, pb.PlaceRequest) else fewer.place).request_id = self._placing().request_id
        return fewer

    def _read_decisions(self, response: pb.PlaceResponse, expected: Iterable[Record] = ()) -> int:
        """Notes each answer; returns how many were placed. A gang of `expected` that has none, or a place for a part of
        its tasks alone, got no decision."""
        placed = 0
        for decision in response.decisions:
            gang = self.book.find_waiting(decision.job_id)
            if gang is not None and decision.outcome == pb.PLACED and len(decision.assignments) < _tasks(gang):
                self._fail([gang], "PLACE_INCOMPLETE")
            elif gang is not None:
                self._answer(gang, _verdict(decision, response.meta))
                placed += isinstance(gang.verdict, Placed)
        answered = {decision.job_id for decision in response.decisions}
        self._fail([gang for gang in expected if gang.key not in answered], "PLACE_MISSING")
        return placed

    def _answer(self, gang: Record, verdict: Verdict) -> None:
        gang.mark_answered(verdict, self.clock())
        self.metrics.verdicts.labels(type(verdict).__name__.lower()).inc()

    async def _in_time(self, call: AsyncMethod[Req, Res], request: Req, deadline_s: float) -> Res:
        left_s = deadline_s - self.clock()
        if left_s <= 0:
            raise DeadlineExceededError("the budget of this decision is used up", reason="BUDGET_SPENT")
        return await call(request, timeout_s=left_s, retry=None)


def _tasks(gang: Record) -> int:
    return sum(group.count for group in gang.job.job.groups) or 1


def _shape(admission: pb.Admission) -> Shape | None:
    if admission.nodes <= 0 or admission.gpus_per_node <= 0:
        return None
    return Shape(nodes=admission.nodes, gpus_per_node=admission.gpus_per_node)


def _shaped(gang: Record) -> Job:
    """The job as Place must see it: an elastic one carries the shape its admission gave."""
    shape = gang.admitted.shape if gang.admitted is not None else None
    if shape is None or gang.job.job.groups:
        return gang.job.job
    job = Job()
    job.CopyFrom(gang.job.job)
    job.shape.CopyFrom(shape)
    if gang.job.template is not None:
        job.shape.CopyFrom(_in_range(shape, gang.job.template.count, gang.job.most_nodes))
        group = job.groups.add()
        group.CopyFrom(gang.job.template)
        group.count = job.shape.nodes
        group.demand.gpus = job.shape.gpus_per_node
    return job


def _in_range(shape: Shape, fewest: int, most: int) -> Shape:
    """The shape on a number of nodes that the job's user allowed, with no GPU less than was admitted."""
    nodes = max(fewest, min(shape.nodes, most or shape.nodes))
    gpus = shape.nodes * shape.gpus_per_node
    return shape if nodes == shape.nodes else Shape(nodes=nodes, gpus_per_node=math.ceil(gpus / nodes))


def _verdict(decision: pb.JobDecision, meta: pb.DecisionMeta) -> Verdict:
    if decision.outcome == pb.PLACED:
        expires = decision.reservation_expire_time
        return Placed(
            Placement(
                assignments=tuple(decision.assignments),
                reservation_id=decision.reservation_id,
                expire_time_s=expires.seconds + expires.nanos / 1e9,
                decision_id=meta.decision_id,
                policy=meta.policy,
            )
        )
    names, text = reason_names(decision.blockers), blocker_text(decision.blockers)
    if decision.outcome == pb.NO_FIT:
        return NoFit(names, text, meta.decision_id)
    return Waiting(names, text, meta.decision_id)
