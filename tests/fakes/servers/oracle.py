"""A small decision service in memory: a real grpc.aio server with a first-fit policy, to test clients and adapters.

It keeps the contract (gangs all-or-nothing, reservations, request_id, idempotent events) and has switches for the
failures of a real service rarely does: wait, refuse, be slow, be away. It has no policies, queues or persistence.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from tests.fakes.servers.status_trailer import build_status

from placewise.v1 import bundle_pb2, cluster_pb2, decision_pb2
from placewise.v1.cluster_pb2 import Assignment, Cluster, JobEvent, Node, RunningJob
from placewise.v1.decision_pb2 import Admission
from placewise.v1.job_pb2 import Job, Resources, TaskGroup
from placewise_client.errors import (
    DOMAIN,
    STATUS_TRAILER,
    AlreadyExistsError,
    InvalidRequestError,
    PlacewiseError,
    StateUnavailableError,
)
from placewise_client.rpcs import STREAM_PLACE_PATH, Rpc, Rpcs
from placewise_client.status import StatusDetails


@dataclass(slots=True)
class Held:
    """A job's resources, reserved or running."""

    assignments: list[Assignment]
    reservation_id: str
    decision_id: str
    expire_time_s: float
    is_running: bool = False


@dataclass
class SmallService:
    """The state and the switches. Every call and every report is kept in `calls`, `events` and `decided`."""

    nodes: dict[str, Node] = field(default_factory=dict)
    held: dict[str, Held] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    calls: list[tuple[str, Any]] = field(default_factory=list)
    events: list[JobEvent] = field(default_factory=list)
    reported: list[JobEvent] = field(default_factory=list)
    """Every event that came, also repeats, and those of a placement that was withdrawn."""
    decided: dict[str, list[list[Assignment]]] = field(default_factory=dict)
    decisions: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, decision_pb2.PlaceResponse] = field(default_factory=dict)
    double_placements: list[str] = field(default_factory=list)
    metadata: list[dict[str, str | bytes]] = field(default_factory=list)
    # Switches.
    waits: set[str] = field(default_factory=set)
    """Jobs that AdmitOrWait keeps waiting ("*" for all)."""
    fail: list[PlacewiseError] = field(default_factory=list)
    """The next calls fail with these, one each."""
    fail_always: PlacewiseError | None = None
    unreadable: set[str] = field(default_factory=set)
    """Jobs and nodes that make any question or report about them an invalid request."""
    lose_answers: int = 0
    """So many answers are worked out and then lost on the way."""
    blocked: asyncio.Event | None = None
    """Calls wait for it; a caller without a deadline of its own would wait for ever."""
    spoil: Callable[[decision_pb2.PlaceResponse], None] | None = None
    """Changes every placement on its way, also those inside an answer of AdmitOrWait."""
    questions: dict[str, bytes] = field(default_factory=dict)
    """The question of each request_id: another one under the same id is refused."""
    chosen_gpus: Callable[[Job], tuple[int, int]] | None = None
    """(nodes, GPUs per node) that AdmitOrWait gives an elastic job; None takes the smallest count."""
    now: Callable[[], float] = time.time

    async def answer(self, name: str, request: Any, metadata: Mapping[str, str | bytes]) -> Any:
        """One call, by its name in `Rpcs`, as the switches want it. Raises PlacewiseError."""
        self.calls.append((name, request))
        self.metadata.append(dict(metadata))
        if self.blocked is not None:
            await self.blocked.wait()
        error = self.fail.pop(0) if self.fail else self.fail_always
        if _named(request) & self.unreadable:
            error = InvalidRequestError("a job cannot be read", reason="BAD_JOB")
        for i, node in enumerate(getattr(request, "nodes", ())):
            if node.id in self.unreadable:
                error = InvalidRequestError("must be whole", metadata={"field": f"nodes[{i}].capacity.gpus"})
        if error is not None:
            raise error
        asked = getattr(request, "place", request) if name == "admit_or_wait" else request
        request_id = getattr(asked, "request_id", "")
        question = request.SerializeToString(deterministic=True)
        if request_id and self.questions.setdefault(request_id, question) != question:
            raise AlreadyExistsError("the request_id was used for another question")
        response = getattr(self, name)(request)
        if self.spoil is not None and name in ("place", "admit_or_wait"):
            response = type(response).FromString(response.SerializeToString())
            self.spoil(response if name == "place" else response.placed)
        if self.lose_answers and (name == "place" or request_places(request)):
            self.lose_answers -= 1
            raise StateUnavailableError("the answer was lost")
        return response

    # --- the RPCs -----------------------------------------------------------------------------------------------------

    def place(self, request: decision_pb2.PlaceRequest) -> decision_pb2.PlaceResponse:
        if request.request_id and request.request_id in self.answers:
            repeated = decision_pb2.PlaceResponse()
            repeated.CopyFrom(self.answers[request.request_id])
            repeated.meta.repeated = True
            return repeated
        response = decision_pb2.PlaceResponse(request_id=request.request_id)
        response.meta.decision_id = str(uuid.uuid4())
        response.meta.policy = request.policy or "first-fit"
        response.meta.propensity = 1.0
        for job in request.jobs:
            self._place_one(job, request, response)
        if not request.dry_run:
            self.answers[request.request_id] = response
            self.decisions[response.meta.decision_id] = response
        return response

    def _place_one(self, job: Job, request: decision_pb2.PlaceRequest, response: decision_pb2.PlaceResponse) -> None:
        decision = response.decisions.add(job_id=job.id)
        self._expire()
        held = self.held.get(job.id)
        if held is not None and not request.dry_run:
            # Asking again must not place it twice.
            decision.outcome = decision_pb2.PLACED
            decision.assignments.extend(held.assignments)
            decision.reservation_id = held.reservation_id
            decision.reservation_expire_time.FromSeconds(int(held.expire_time_s))
            return
        found = self._first_fit(job, empty=False)
        if found is None:
            fits_ever = self._first_fit(job, empty=True) is not None
            decision.outcome = decision_pb2.WAIT if fits_ever else decision_pb2.NO_FIT
            decision.blockers.add(reason=decision_pb2.INSUFFICIENT_GPU, nodes=len(self.nodes), resource="gpus")
            return
        decision.outcome = decision_pb2.PLACED
        decision.assignments.extend(found)
        if request.dry_run:
            return
        ttl_s = request.reserve_ttl.seconds or 60
        decision.reservation_id = str(uuid.uuid4())
        decision.reservation_expire_time.FromSeconds(int(self.now() + ttl_s))
        self._forget_end(job.id)
        self.held[job.id] = Held(found, decision.reservation_id, response.meta.decision_id, self.now() + ttl_s)
        self.decided.setdefault(job.id, []).append(found)

    def _forget_end(self, job_id: str) -> None:
        """A job that is placed again (its placement was withdrawn) is not over."""
        if job_id in self.ended:
            self.ended.discard(job_id)
            self.events = [event for event in self.events if event.job_id != job_id]

    def admit_or_wait(self, request: decision_pb2.AdmitOrWaitRequest) -> decision_pb2.AdmitOrWaitResponse:
        response = decision_pb2.AdmitOrWaitResponse()
        response.meta.decision_id = str(uuid.uuid4())
        response.meta.policy = request.policy or "fifo"
        response.queue.queue = request.queue
        for rank, job in enumerate(request.jobs, start=1):
            if job.id in self.waits or "*" in self.waits:
                admission = response.admissions.add(job_id=job.id, verdict=Admission.WAIT)
                admission.blockers.add(reason=decision_pb2.DRIFT_PLUS_PENALTY)
                continue
            admission = response.admissions.add(job_id=job.id, verdict=Admission.ADMIT, rank=rank)
            if not job.groups:
                nodes, gpus = self.chosen_gpus(job) if self.chosen_gpus else (1, max(1, job.elastic.min_gpus))
                admission.nodes, admission.gpus_per_node, admission.gpus = nodes, gpus, nodes * gpus
        if request.HasField("place"):
            self._place_admitted(request, response)
        return response

    def _place_admitted(
        self, request: decision_pb2.AdmitOrWaitRequest, response: decision_pb2.AdmitOrWaitResponse
    ) -> None:
        placing = decision_pb2.PlaceRequest()
        placing.CopyFrom(request.place)
        placing.cluster, placing.dry_run = request.cluster, request.dry_run
        admitted = {a.job_id for a in response.admissions if a.verdict == Admission.ADMIT}
        placing.jobs.extend(job for job in request.jobs if job.id in admitted)
        if placing.jobs:
            self.calls.append(("place", placing))
            response.placed.CopyFrom(self.place(placing))

    def partition(self, request: decision_pb2.PartitionRequest) -> decision_pb2.PartitionResponse:
        response = decision_pb2.PartitionResponse(outcome=decision_pb2.PLACED)
        response.meta.decision_id = str(uuid.uuid4())
        units = list(request.units) or [f"{node}/gpu0" for node in self.nodes]
        for position, unit in enumerate(units, start=1):
            node, _, name = unit.partition("/")
            # Unequal shares, so that a mix-up shows.
            scale = request.task.parallel_scale * position / (len(units) * (len(units) + 1) / 2)
            response.shares.add(node=node, unit=name, scale=scale, predicted_seconds=scale)
        response.units = len(units)
        return response

    def report_nodes(self, request: cluster_pb2.ReportNodesRequest) -> cluster_pb2.ReportNodesResponse:
        if request.full:
            self.nodes.clear()
        for node in request.nodes:
            self.nodes[node.id] = node
        return cluster_pb2.ReportNodesResponse(nodes=len(self.nodes))

    def report_job_events(self, request: cluster_pb2.ReportJobEventsRequest) -> cluster_pb2.ReportJobEventsResponse:
        self.reported.extend(request.events)
        applied = sum(self._take_event(event) for event in request.events)
        return cluster_pb2.ReportJobEventsResponse(applied=applied, ignored=len(request.events) - applied)

    def _take_event(self, event: JobEvent) -> bool:
        is_repeat = any(e.job_id == event.job_id and e.kind == event.kind for e in self.events)
        if event.kind == JobEvent.STARTED and event.placement and event.job_id in self.held:
            is_repeat = is_repeat and not self._moves(event)
        if is_repeat or (event.job_id in self.ended and event.kind != JobEvent.SHARE_FINISHED):
            return False
        self.events.append(event)
        if event.kind == JobEvent.STARTED:
            self._start(event)
        elif event.kind in (JobEvent.FINISHED, JobEvent.FAILED, JobEvent.CANCELLED):
            self.held.pop(event.job_id, None)
            self.ended.add(event.job_id)
        return True

    def _moves(self, event: JobEvent) -> bool:
        """Whether a job that runs holds other places than it was known to: they replace those."""

        def holds(places: Iterable[Assignment]) -> list[tuple[str, float, tuple[int, ...]]]:
            return sorted((task.node, task.demand.gpus, tuple(task.gpu_indices)) for task in places)

        return holds(event.placement) != holds(self.held[event.job_id].assignments)

    def _start(self, event: JobEvent) -> None:
        held = self.held.setdefault(event.job_id, Held([], event.reservation_id, event.decision_id, 0.0))
        held.is_running = True
        if event.placement:
            held.assignments = list(event.placement)
        for job_id, other in self.held.items():
            if job_id != event.job_id and other.is_running and _overlap(held.assignments, other.assignments):
                self.double_placements.append(f"{event.job_id} and {job_id}")

    def get_cluster(self, request: cluster_pb2.GetClusterRequest) -> Cluster:
        self._expire()
        cluster = Cluster(cluster=request.cluster, node_count=len(self.nodes), nodes=self.nodes.values())
        for job_id, held in self.held.items():
            state = RunningJob.RUNNING if held.is_running else RunningJob.RESERVED
            ids = {"reservation_id": held.reservation_id, "decision_id": held.decision_id}
            job = cluster.jobs.add(job_id=job_id, state=state, **ids)
            job.assignments.extend(held.assignments)
            job.reservation_expire_time.FromSeconds(int(held.expire_time_s))
        return cluster

    def get_decision(self, request: bundle_pb2.GetDecisionRequest) -> bundle_pb2.GetDecisionResponse:
        return bundle_pb2.GetDecisionResponse(
            decision_id=request.decision_id, rpc="Place", place=self.decisions[request.decision_id]
        )

    # --- first fit ----------------------------------------------------------------------------------------------------

    def _expire(self) -> None:
        now_s = self.now()
        for job_id in [j for j, h in self.held.items() if not h.is_running and h.expire_time_s < now_s]:
            del self.held[job_id]

    def _free(self, node: Node, held: list[Held]) -> tuple[list[int], float, float]:
        taken = [a for h in held for a in h.assignments if a.node == node.id]
        count = len(node.gpus) or int(node.capacity.gpus)
        indices = [i for i in range(count) if all(i not in a.gpu_indices for a in taken)]
        unnamed = int(sum(a.demand.gpus for a in taken if not a.gpu_indices))
        cpu = node.capacity.cpu_cores - sum(a.demand.cpu_cores for a in taken)
        memory = node.capacity.memory_gib - sum(a.demand.memory_gib for a in taken)
        return indices[unnamed:], cpu, memory

    def _first_fit(self, job: Job, *, empty: bool) -> list[Assignment] | None:
        held = [] if empty else [h for j, h in self.held.items() if j != job.id]
        free = {n.id: self._free(n, held) for n in self.nodes.values() if n.state in (Node.READY, 0)}
        chosen: list[Assignment] = []
        for group in _groups(job):
            on_node: dict[str, int] = {}
            for task in range(group.count):
                node = self._node_for(group, free, on_node)
                if node is None:
                    return None
                indices, cpu, memory = free[node]
                gpus = int(group.demand.gpus)
                free[node] = (indices[gpus:], cpu - group.demand.cpu_cores, memory - group.demand.memory_gib)
                on_node[node] = on_node.get(node, 0) + 1
                name = "ps" if group.role == TaskGroup.PARAMETER_SERVER else "worker"
                chosen.append(
                    Assignment(
                        task=f"{name}-{task}",
                        role=group.role,
                        node=node,
                        gpu_indices=indices[:gpus],
                        demand=group.demand,
                    )
                )
        return chosen

    def _node_for(
        self, group: TaskGroup, free: dict[str, tuple[list[int], float, float]], on_node: dict[str, int]
    ) -> str | None:
        # Last node first: a scheduler left to itself would take the first, so a test sees who decided.
        for node in sorted(free, reverse=True):
            indices, cpu, memory = free[node]
            demand = group.demand
            if group.max_per_node and on_node.get(node, 0) >= group.max_per_node:
                continue
            if len(indices) >= demand.gpus and cpu >= demand.cpu_cores and memory >= demand.memory_gib:
                return node
        return None


def _groups(job: Job) -> list[TaskGroup]:
    if job.groups:
        return list(job.groups)
    nodes, gpus = max(1, job.shape.nodes), max(1, job.shape.gpus_per_node)
    return [TaskGroup(role=TaskGroup.WORKER, count=nodes, demand=Resources(gpus=gpus), max_per_node=1)]


def _overlap(left: list[Assignment], right: list[Assignment]) -> bool:
    taken = {(a.node, index) for a in left for index in a.gpu_indices}
    return any((a.node, index) in taken for a in right for index in a.gpu_indices)


# As the real server: clients ping idle connections.
PINGS = [("grpc.keepalive_permit_without_calls", 1), ("grpc.http2.min_ping_interval_without_data_ms", 5000)]


class OracleServer:
    """The oracle behind a real gRPC server on a free loopback port. `stop` and `start` keep the port."""

    def __init__(self, oracle: SmallService | None = None, credentials: grpc.ServerCredentials | None = None) -> None:
        self.oracle = oracle or SmallService()
        self._credentials = credentials
        self.port = 0
        self._server: grpc.aio.Server | None = None

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> OracleServer:
        self._server = grpc.aio.server(options=PINGS)
        self._server.add_generic_rpc_handlers((_Handler(self.oracle),))
        address = f"127.0.0.1:{self.port}"
        if self._credentials is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, self._credentials)
        await self._server.start()
        return self

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(grace=0)
            self._server = None


class _Handler(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    def __init__(self, oracle: SmallService) -> None:
        self._oracle = oracle
        rpcs = {name: rpc for name, rpc in vars(Rpcs).items() if isinstance(rpc, Rpc)}
        self._handlers = {rpc.path: self._unary(name, rpc) for name, rpc in rpcs.items() if hasattr(oracle, name)}
        self._handlers[STREAM_PLACE_PATH] = grpc.stream_stream_rpc_method_handler(
            self._stream,
            request_deserializer=decision_pb2.PlaceRequest.FromString,
            response_serializer=decision_pb2.PlaceResponse.SerializeToString,
        )

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self._handlers.get(handler_call_details.method)

    def _unary(self, name: str, rpc: Rpc[Any, Any]) -> Any:
        async def answer(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            try:
                return await self._oracle.answer(name, request, dict(context.invocation_metadata() or ()))
            except PlacewiseError as error:
                await _abort(context, error)

        return grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=rpc.request.FromString,
            response_serializer=rpc.response.SerializeToString,
        )

    async def _stream(
        self, requests: AsyncIterator[decision_pb2.PlaceRequest], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[decision_pb2.PlaceResponse]:
        async for request in requests:
            self._oracle.calls.append(("stream_place", request))
            if not request.jobs:
                error = decision_pb2.StreamError(code=3, reason="NO_JOBS", message="a request needs a job")
                yield decision_pb2.PlaceResponse(request_id=request.request_id, error=error)
            else:
                yield self._oracle.place(request)


def _named(request: Any) -> set[str]:
    """Jobs that a request asks about or tells of."""
    asked = {job.id for job in getattr(request, "jobs", ())}
    return asked | {event.job_id for event in getattr(request, "events", ())}


def request_places(request: Any) -> bool:
    """Whether this is an AdmitOrWait that places, too."""
    return isinstance(request, decision_pb2.AdmitOrWaitRequest) and request.HasField("place")


async def _abort(context: grpc.aio.ServicerContext[Any, Any], error: PlacewiseError) -> None:
    details = StatusDetails(error.message, error.reason, error.metadata, error.retry_delay_s)
    trailer = build_status(error.code.value[0], DOMAIN, details)
    await context.abort(error.code, error.message, trailing_metadata=((STATUS_TRAILER, trailer),))
