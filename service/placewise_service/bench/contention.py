"""Load on nearly full nodes: many clients, two replicas, and (for chaos) a Redis that is killed. Checks every promise.

Clients ask Place for small gangs on nodes that are almost full. They release most placements at once and leave some to
expire. A ledger (ledger.py) checks that nothing is assigned twice; at the end nothing may be left. In chaos half of the
clients keep their placements for a moment. While Redis is down none of these is released, so that each has to be there
when it is back.
"""

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.duration_pb2 import Duration

from placewise.v1.cluster_pb2 import (
    GetClusterRequest,
    JobEvent,
    ReportJobEventsRequest,
    ReportNodesRequest,
)
from placewise.v1.decision_pb2 import JobDecision, Outcome, PlaceRequest
from placewise.v1.job_pb2 import Job, Resources, TaskGroup
from placewise_client.aio import AsyncClient
from placewise_client.errors import PlacewiseError
from placewise_core.basics.frozen import frozen
from placewise_service.bench.ledger import BenchLedger
from placewise_service.bench.workload import GPUS_PER_NODE, Workload
from placewise_service.state.redis.embedded import EmbeddedRedis

_TTL_S = 3.0
_LEFT_TO_EXPIRE = 0.02  # share of the placements that nobody gives back
_KEPT_S = 0.05  # at most, by the clients of chaos that keep their placements: some are there at each kill
_CATCH_UP_READINGS = 25  # of a view that is not stale, until a placement of another replica has to be in it
_RPC_TIMEOUT_S = 5.0
_BACK_OFF_S = 0.02
_RECOVERY_POLL_S = 0.02
_RECOVERY_TIMEOUT_S = 30.0
_CALM_S = 1.0  # load between two kills of Redis, at least
_FREE_PER_NODE = 2  # GPUs the running jobs leave on each node
_CORES_PER_TASK = 4.0

# Errors that a client may see while the state is away or the view is behind; every other error is a wrong answer.
_HONEST = frozenset({"StateUnavailableError", "StaleSnapshotError", "OverloadedError", "DeadlineExceededError"})


@frozen
class ContentionPlan:
    """How much load, on what. `kills` > 0 makes it chaos."""

    nodes: int
    clients: int
    decisions: int
    policy: str = ""
    kills: int = 0
    seed: int = 0
    cluster: str = "contention"


@dataclass(slots=True)
class Tally:
    """What happened. `recoveries_s`: from Redis answering again to the first answer that is not stale and that Redis
    has taken (each has a request_id, so a WAIT is written too); `outages_s`: the same from the kill; `readings_s`: from
    the start of Redis until it answers, which is the time it takes to read its file; `placements_s`:
    from Redis answering to the first placement. That waits for room: what clients could not give back while Redis was
    away stays held until it expires. `acknowledged`: placements held over a kill; `lost`: those of them that a replica
    no longer knew afterwards."""

    asked: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    unexpected: list[str] = field(default_factory=list)
    stale_answers: int = 0
    recoveries_s: list[float] = field(default_factory=list)
    outages_s: list[float] = field(default_factory=list)
    readings_s: list[float] = field(default_factory=list)
    placements_s: list[float] = field(default_factory=list)
    leaked: int = 0
    acknowledged: int = 0
    lost: int = 0
    wall_s: float = 0.0


class Contention:
    """One run. Use once, inside one event loop."""

    def __init__(self, plan: ContentionPlan, targets: list[str], redis: EmbeddedRedis) -> None:
        self._plan = plan
        self._redis = redis
        self._workload = Workload(plan.cluster, plan.nodes, 0, 1)
        self._clients = [AsyncClient(target, timeout_s=_RPC_TIMEOUT_S) for target in targets]
        self._rng = random.Random(plan.seed)
        free_cores = _FREE_PER_NODE * _CORES_PER_TASK
        self.ledger = BenchLedger({node.id: free_cores for node in self._workload.inventory()})
        self.tally = Tally()
        self._may_release = asyncio.Event()
        self._may_release.set()
        self._last_answered_s = 0.0
        self._last_held_s = 0.0

    async def run(self, on_progress: Callable[[int], None]) -> Tally:
        """Runs the load and the kills, and counts the reservations left at the end."""
        began_s = time.perf_counter()
        await self._fill()
        load = [asyncio.create_task(self._client(index, on_progress)) for index in range(self._plan.clients)]
        if self._plan.kills:  # together: a Redis that does not come back must end the load, which waits for it
            load.append(asyncio.create_task(self._kill_redis()))
        await asyncio.gather(*load)
        self.tally.wall_s = time.perf_counter() - began_s
        await self._count_leaks()
        for client in self._clients:
            await client.close()
        return self.tally

    async def _fill(self) -> None:
        """Nodes with room for two single-GPU tasks each: one running job holds the rest of each."""
        client = self._clients[0]
        nodes = self._workload.inventory()
        for node in nodes:
            node.max_jobs_per_gpu = 1
        await client.report_nodes(ReportNodesRequest(cluster=self._plan.cluster, nodes=nodes, full=True))
        events = []
        for node in nodes:
            demand = Resources(
                cpu_cores=node.capacity.cpu_cores - _FREE_PER_NODE * _CORES_PER_TASK,
                gpus=GPUS_PER_NODE - _FREE_PER_NODE,
            )
            group = TaskGroup(role=TaskGroup.WORKER, count=1, demand=demand)
            event = JobEvent(job_id=f"resident-{node.id}", kind=JobEvent.STARTED)
            event.job.CopyFrom(Job(id=event.job_id, groups=[group]))
            indices = range(GPUS_PER_NODE - _FREE_PER_NODE)
            event.placement.add(
                task="worker-0", role=TaskGroup.WORKER, node=node.id, gpu_indices=indices, demand=demand
            )
            events.append(event)
        await client.report_job_events(ReportJobEventsRequest(cluster=self._plan.cluster, events=events))

    async def _client(self, index: int, on_progress: Callable[[int], None]) -> None:
        rng = random.Random(self._rng.random())
        client = self._clients[index % len(self._clients)]
        keeps = self._plan.kills > 0 and index // len(self._clients) % 2 == 1
        while self.tally.asked < self._plan.decisions or self._is_chaos_on:
            self.tally.asked += 1
            on_progress(1)
            await self._ask(client, f"{index}-{self.tally.asked}", rng, keeps)

    @property
    def _is_chaos_on(self) -> bool:
        return len(self.tally.recoveries_s) < self._plan.kills

    async def _ask(self, client: AsyncClient, job_id: str, rng: random.Random, keeps: bool) -> None:
        tasks = rng.choice((1, 1, 2, 4))
        demand = Resources(cpu_cores=_CORES_PER_TASK, gpus=1)
        group = TaskGroup(role=TaskGroup.WORKER, count=tasks, demand=demand)
        ttl = Duration(seconds=int(_TTL_S))
        job = Job(id=job_id, groups=[group], architecture=Job.ALL_REDUCE if tasks > 1 else Job.SINGLE)
        request = PlaceRequest(cluster=self._plan.cluster, jobs=[job], policy=self._plan.policy, reserve_ttl=ttl)
        request.request_id = job_id
        try:
            answer = await client.place(request, retry=None)
        except PlacewiseError as error:
            self._note_error(error)
            await asyncio.sleep(_BACK_OFF_S)
            return
        decision = answer.decisions[0]
        self.tally.outcomes[Outcome.Name(decision.outcome)] += 1
        if answer.meta.stale:
            self.tally.stale_answers += 1
            return
        self._last_answered_s = time.monotonic()
        if decision.outcome == Outcome.PLACED:
            await self._hold(client, decision, tasks, rng, keeps)
        elif decision.outcome == Outcome.NO_FIT:
            self.tally.unexpected.append(f"{job_id}: NO_FIT for a gang that an empty cluster has room for")

    async def _hold(
        self, client: AsyncClient, decision: JobDecision, tasks: int, rng: random.Random, keeps: bool
    ) -> None:
        """Books a placement, and releases most of them after other clients had a turn, or a moment later."""
        self._last_held_s = time.monotonic()
        if len(decision.assignments) != tasks:
            self.tally.unexpected.append(f"{decision.job_id}: {len(decision.assignments)} of {tasks} tasks placed")
        expire_s = decision.reservation_expire_time.ToNanoseconds() / 1e9
        self.ledger.take(decision.job_id, decision.assignments, expire_s, time.time())
        if rng.random() < _LEFT_TO_EXPIRE:
            return
        await asyncio.sleep(_KEPT_S * rng.random() if keeps else 0)
        if keeps:
            await self._may_release.wait()
        self.ledger.strike(decision.job_id)
        event = JobEvent(job_id=decision.job_id, kind=JobEvent.CANCELLED, reservation_id=decision.reservation_id)
        request = ReportJobEventsRequest(cluster=self._plan.cluster, events=[event])
        # A release that fails is left to the reservation's expiry, as a host that crashed would.
        with contextlib.suppress(PlacewiseError):
            await client.report_job_events(request, retry=None)

    def _note_error(self, error: PlacewiseError) -> None:
        name = type(error).__name__
        self.tally.errors[name] += 1
        if name not in _HONEST or (not self._plan.kills and name != "StaleSnapshotError"):
            self.tally.unexpected.append(f"{name}: {error}")

    async def _kill_redis(self) -> None:
        for _ in range(self._plan.kills):
            await asyncio.sleep(_CALM_S + self._rng.random())
            self._may_release.clear()
            killed_s = time.monotonic()
            await asyncio.to_thread(self._redis.stop, signal.SIGKILL)
            acknowledged = self.ledger.held(time.time())
            await asyncio.sleep(0.2 + self._rng.random() / 2)
            began_s = time.monotonic()
            await asyncio.to_thread(self._redis.start)  # returns when it answers, having read its file
            back_s = time.monotonic()
            answered_s = await self._first_after(back_s, lambda: self._last_answered_s)
            await self._count_lost(acknowledged)
            self._may_release.set()
            held_s = await self._first_after(back_s, lambda: self._last_held_s)
            self.tally.readings_s.append(back_s - began_s)
            self.tally.recoveries_s.append(answered_s - back_s)
            self.tally.outages_s.append(answered_s - killed_s)
            self.tally.placements_s.append(held_s - back_s)

    async def _count_lost(self, acknowledged: Set[str]) -> None:
        """Looks for placements that clients got before the kill, and still hold, in the view of every replica."""
        self.tally.acknowledged += len(acknowledged & self.ledger.held(time.time()))
        for client in self._clients:
            self.tally.lost += await self._lost_on(client, acknowledged)

    async def _lost_on(self, client: AsyncClient, acknowledged: Set[str]) -> int:
        missing, readings = acknowledged, 0
        deadline_s = time.monotonic() + _RECOVERY_TIMEOUT_S
        while missing and readings < _CATCH_UP_READINGS and time.monotonic() < deadline_s:
            with contextlib.suppress(PlacewiseError):
                cluster = await client.get_cluster(GetClusterRequest(cluster=self._plan.cluster, full=True))
                if not cluster.stale:
                    there = {job.job_id for job in cluster.jobs}
                    missing = (missing & self.ledger.held(time.time())) - there
                    readings += 1
            await asyncio.sleep(_RECOVERY_POLL_S)
        return len(missing)

    async def _first_after(self, since_s: float, last_s: Callable[[], float]) -> float:
        """When `last_s` was first seen to be later than `since_s`, or when there is no hope left."""
        deadline_s = since_s + _RECOVERY_TIMEOUT_S
        while time.monotonic() < deadline_s and last_s() < since_s:  # noqa: ASYNC110 - a probe, not a wait
            await asyncio.sleep(_RECOVERY_POLL_S)
        return time.monotonic()

    async def _count_leaks(self) -> None:
        """After every reservation has expired, only the residents may hold anything, on every replica."""
        await asyncio.sleep(_TTL_S + 2.0)
        for client in self._clients:
            cluster = await client.get_cluster(GetClusterRequest(cluster=self._plan.cluster, full=True))
            left = [job.job_id for job in cluster.jobs if not job.job_id.startswith("resident-")]
            resident = self._plan.nodes * (GPUS_PER_NODE - _FREE_PER_NODE)
            self.tally.leaked += len(left) + int(abs(cluster.used.gpus - resident))

    def figures(self) -> dict[str, Any]:
        """What `placewise bench contention|chaos --json` prints."""
        tally = self.tally
        return {
            "decisions": tally.asked,
            "decisions_per_s": tally.asked / tally.wall_s,
            "clients": self._plan.clients,
            "replicas": len(self._clients),
            "outcomes": dict(tally.outcomes),
            "errors": dict(tally.errors),
            "stale_answers": tally.stale_answers,
            "handed_out_twice": len(self.ledger.violations),
            "leaked": tally.leaked,
            "acknowledged": tally.acknowledged,
            "lost": tally.lost,
            "unexpected": len(tally.unexpected),
            "first_problems": (self.ledger.violations + tally.unexpected)[:5],
            "kills": self._plan.kills,
            "recovery_max_s": max(tally.recoveries_s, default=0.0),
            "outage_max_s": max(tally.outages_s, default=0.0),
            "reading_max_s": max(tally.readings_s, default=0.0),
            "first_placement_max_s": max(tally.placements_s, default=0.0),
            "wall_s": tally.wall_s,
        }
