"""A deterministic stand-in for the engine, and both faces around it on free ports of the loopback."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

import grpc
import httpx

from placewise_core.basics.clock import Clock, SystemClock
from placewise_core.domain.cluster import Assignment, ClusterSettings, Node, QueueSettings, QueueState
from placewise_core.domain.commands import AdmitCommand, JobEvent, PartitionCommand, PlaceCommand
from placewise_core.domain.decision import (
    Admission,
    AdmitDecision,
    AdmitPlan,
    Blocker,
    DecisionMeta,
    DriftPlusPenalty,
    JobDecision,
    Outcome,
    PartitionDecision,
    PartitionPlan,
    PlaceDecision,
    Reason,
    Share,
    Verdict,
)
from placewise_core.domain.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    StaleSnapshotError,
    StateUnavailableError,
)
from placewise_core.domain.events import ClusterRecords
from placewise_core.domain.job import Job, JobId
from placewise_core.policies.trial.arms import Arms
from placewise_core.view.view import ClusterView
from placewise_log.logs import Log, LogState
from placewise_log.record import DecisionRecord
from placewise_service.api.calls.call_audit import CallAudit
from placewise_service.api.calls.gateway import Gateway
from placewise_service.api.faces.connect import ConnectFace
from placewise_service.api.faces.grpc_server import GrpcFace
from placewise_service.api.faces.rest import rest_app
from placewise_service.api.identity.auth import Authenticator, Open
from placewise_service.engine.pending import Pending
from placewise_service.engine.registry import BundleState, BundleStatus
from placewise_service.settings import LimitSettings, ServerSettings
from placewise_service.state.store import ActiveChoice, BundleChange, CanaryChoice, ChangeKind, Overcommit, ShadowChoice
from placewise_service.telemetry import Telemetry

DECISION_ID = "01932a6e-7c00-7b4e-9d1c-3f2a5b6c7d8e"
# Headers of a browser's request to this machine, and the expected answers.
ASKED_BY_PAGES = (
    ({}, 200),
    ({"host": "127.0.0.1:8080"}, 200),
    ({"host": "[::1]:8080"}, 200),
    ({"host": "evil.example"}, 403),
    ({"sec-fetch-site": "same-origin"}, 200),
    ({"sec-fetch-site": "cross-site"}, 403),
    ({"sec-fetch-site": "same-site"}, 403),
    ({"origin": "http://localhost"}, 200),
    ({"origin": "http://127.0.0.1:8080", "host": "127.0.0.1:8080"}, 200),
    ({"origin": "http://localhost:3000"}, 403),
    ({"origin": "http://evil.example"}, 403),
    ({"origin": "http://localhost.evil.example"}, 403),
    ({"origin": "null"}, 403),
)
SECRET = "redis://user:hunter2@10.0.0.7:6379"
_ERRORS = {
    error.reason: error
    for error in (DeadlineExceededError, OverloadedError, StaleSnapshotError, StateUnavailableError, NotFoundError)
}


@dataclass(frozen=True)
class Report:
    version: int
    applied: int
    ignored: int
    overcommits: tuple[Overcommit, ...] = ()
    unknown: tuple[JobId, ...] = ()


@dataclass(frozen=True)
class Snapshot:
    view: ClusterView
    is_stale: bool = False
    heat: tuple[object, ...] = ()
    capabilities: tuple[object, ...] = ()
    co_runs: tuple[object, ...] = ()


class FakeBundles:
    """Two bundles, one of them active."""

    def __init__(self) -> None:
        self.active = "default"
        self.shadow = ""
        self.canaries: dict[str, CanaryChoice] = {}
        self.kills: dict[str, str] = {}

    async def list(self) -> Sequence[BundleStatus]:
        return tuple(self._status(name) for name in ("default", "other"))

    @property
    def actives(self) -> Mapping[str, ActiveChoice]:
        return {}

    async def activate(self, name: str, cluster: str = "", caller: str = "") -> BundleStatus:
        if name not in ("default", "other"):
            raise NotFoundError("no such bundle", {"bundle": name})
        self.active = name
        return self._status(name)

    async def rollback(self, cluster: str = "", caller: str = "") -> BundleStatus:
        if self.active == "default":
            raise NotFoundError("no bundle was active before this one")
        return await self.activate("default")

    @property
    def shadows(self) -> Mapping[str, ShadowChoice]:
        return {"": ShadowChoice(self.shadow)} if self.shadow else {}

    async def promote(
        self, cluster: str = "", name: str = "", caller: str = "", *, allow_ungated: bool = False
    ) -> BundleStatus:
        if cluster not in self.canaries:
            raise NotFoundError("there is no canary", {"cluster": cluster})
        return await self.activate(self.canaries.pop(cluster).bundle)

    async def set_canary(
        self, name: str, cluster: str, rule: Arms, caller: str = ""
    ) -> tuple[BundleStatus, CanaryChoice]:
        if name != "other":
            raise NotFoundError("no such bundle", {"bundle": name})
        chosen = CanaryChoice(name, "1" * 64, rule.share, "salt", rule.unit.value, rule.period_s, rule.washout_s, 2e9)
        self.canaries[cluster] = chosen
        return BundleStatus(name, BundleState.CANARY), chosen

    async def end_canary(self, cluster: str = "", caller: str = "") -> None:
        self.canaries.pop(cluster, None)

    async def set_kill_switch(self, policy: str, cluster: str = "", caller: str = "") -> None:
        if policy not in ("", "consolidate"):
            raise InvalidRequestError("no such heuristic", "policy")
        self.kills = {cluster: policy} if policy else {}

    async def history(self, cluster: str, count: int) -> Sequence[BundleChange]:
        change = BundleChange(2e9, "", ChangeKind.ACTIVATED, "default", "1" * 64, "older", caller="ops")
        return [change, change][:count]

    async def set_shadow(self, name: str, cluster: str = "", policy: str = "", caller: str = "") -> BundleStatus | None:
        self.shadow = name
        return self._status(name) if name else None

    def _status(self, name: str) -> BundleStatus:
        if name == self.active:
            return BundleStatus(name, BundleState.ACTIVE)
        return BundleStatus(name, BundleState.SHADOW if name == self.shadow else BundleState.AVAILABLE)


@dataclass
class FakeEngine:
    """Puts every task of a job on the first node, and does as a job's model name says instead: fail, leak,
    sleep, answer WAIT. Same questions, same answers."""

    is_ready: bool = True
    trouble: str = ""
    bundles: FakeBundles = field(default_factory=FakeBundles)
    views: dict[str, ClusterView] = field(default_factory=dict)
    placed: list[PlaceCommand] = field(default_factory=list)
    events: list[JobEvent] = field(default_factory=list)
    deadlines: list[float] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    log: list[tuple[str, bytes]] = field(default_factory=list)
    exported: str = ""
    log_read: int = 0
    dropped: int = 0
    host_time_s: float | None = None

    def problem(self) -> str:
        return self.trouble

    async def place(self, command: PlaceCommand, deadline_s: float = math.inf) -> Pending[PlaceDecision]:
        self.placed.append(command)
        self.deadlines.append(deadline_s)
        view = self._view(command.cluster)
        for job in command.jobs:
            await self._obey(job)
        if command.policy not in ("", "consolidate"):
            raise InvalidRequestError("unknown policy; one of consolidate", "policy")
        decisions = tuple(_placed(job, view) for job in command.jobs)
        return Pending(PlaceDecision(decisions, _meta("consolidate", view.version)))

    async def _obey(self, job: Job) -> None:
        if job.model in _ERRORS:
            raise _ERRORS[job.model]("as the test asked")
        if job.model == "LEAK":
            raise RuntimeError(f"cannot reach {SECRET}")
        if job.model == "SLEEP":
            await asyncio.sleep(30)
        if job.model == "GATE":
            await self.gate.wait()

    async def partition(self, command: PartitionCommand, deadline_s: float = math.inf) -> PartitionDecision:
        view = self._view(command.cluster)
        scale = command.task.parallel_scale / max(1, view.nodes.size)
        shares = tuple(Share(node.id, "", scale, scale / 10.0, 60.0, 10.0) for node in view.nodes.records)
        plan = PartitionPlan(Outcome.PLACED, shares, 12.5, scale / 10.0, 1.5)
        return PartitionDecision(plan, _meta("threshold", view.version))

    async def admit_or_wait(self, command: AdmitCommand, deadline_s: float = math.inf) -> Pending[AdmitDecision]:
        view = self._view(command.cluster)
        admissions = tuple(
            Admission(job.id, Verdict.ADMIT, 4, 1, 4, rank, 1.8e9 + 0.25, -12.5, (DriftPlusPenalty(4, -3.0, 60.0),))
            if rank == 1
            else Admission(job.id, Verdict.WAIT, rank=rank, blockers=(Blocker(Reason.BEHIND_IN_QUEUE),))
            for rank, job in enumerate(command.jobs, 1)
        )
        queue = QueueState(command.queue, 3600.0, 60.0, slot=7, waiting={job.id: 60.0 for job in command.jobs})
        return Pending(AdmitDecision(AdmitPlan(admissions, queue), _meta("proteus", view.version)))

    async def report_nodes(self, cluster: str, nodes: Sequence[Node], full: bool, now_s: float | None = None) -> Report:
        old = {} if full or cluster not in self.views else {n.id: n for n in self.views[cluster].nodes.records}
        version = self.views[cluster].version + 1 if cluster in self.views else 1
        merged = {**old, **{node.id: node for node in nodes}}
        self.views[cluster] = ClusterView(ClusterRecords(cluster, version, "e", tuple(merged.values())))
        return Report(version, len(nodes), 0)

    async def report_job_events(self, cluster: str, events: Sequence[JobEvent], now_s: float | None = None) -> Report:
        view = self._view(cluster)
        self.events.extend(events)
        return Report(view.version, len(events), 0)

    async def get_cluster(self, cluster: str) -> Snapshot:
        return Snapshot(self._view(cluster))

    async def delete_cluster(self, cluster: str) -> None:
        self._view(cluster)
        del self.views[cluster]

    async def update_settings(self, cluster: str, settings: ClusterSettings) -> ClusterSettings:
        self._view(cluster).settings = settings
        return settings

    async def get_decision(self, cluster: str, decision_id: str) -> DecisionRecord:
        view = self._view(cluster)
        if decision_id != DECISION_ID:
            raise NotFoundError("no such decision", {"decision": decision_id})
        command = PlaceCommand(cluster, (Job(id="job-1"),), request_id="r")  # type: ignore[arg-type]
        decision = PlaceDecision((_placed(command.jobs[0], view),), _meta("consolidate", 1))
        return DecisionRecord.of_place(command, decision, time_s=1.7e9, seed=1, latency_ms=0.5)

    async def read_log(
        self, cluster: str, log: Log, after: str, count: int, exported: str
    ) -> tuple[Sequence[tuple[str, bytes]], LogState]:
        self._view(cluster)
        if log is Log.VIEWS:
            return (), LogState()
        self.exported = exported or self.exported
        found = [each for each in self.log if not after or each[0] > after][:count]
        self.log_read += len(found)
        return found, LogState(self.exported or "0", self.dropped, self.host_time_s)

    async def clusters(self) -> Sequence[str]:
        return sorted(self.views)

    def check_place_policy(self, cluster: str, name: str, field: str) -> None:
        pass

    def queue_settings(self, cluster: str, queue: str) -> QueueSettings:
        view = self.views.get(cluster)
        return (view.settings.queues.get(queue) if view else None) or QueueSettings()

    def _view(self, cluster: str) -> ClusterView:
        if cluster not in self.views:
            raise NotFoundError(f"no cluster {cluster!r}", {"cluster": cluster})
        return self.views[cluster]


def _placed(job: Job, view: ClusterView) -> JobDecision:
    if job.model == "WAIT" or not view.nodes.records:
        return JobDecision(job.id, Outcome.WAIT, blockers=(Blocker(Reason.INSUFFICIENT_GPU, 1, 2.0, "gpus", "busy"),))
    tasks = tuple(
        Assignment(f"{group.role.value.lower()}-{i}", group.role, view.nodes.records[0].id, (i,), group.demand)
        for group in job.groups
        for i in range(group.count)
    )
    return JobDecision(job.id, Outcome.PLACED, tasks, 1.5, reservation_id="res-1", expire_time_s=1.8e9 + 0.5)


def _meta(policy: str, version: int) -> DecisionMeta:
    return DecisionMeta(DECISION_ID, policy, "default", version, propensity=0.5, decide_ms=0.25)


@dataclass
class Faces:
    """Both faces, running, with a client for each."""

    engine: FakeEngine
    gateway: Gateway
    grpc: GrpcFace
    channel: grpc.aio.Channel
    http: httpx.AsyncClient


@contextlib.asynccontextmanager
async def faces(
    engine: FakeEngine | None = None,
    limits: LimitSettings | None = None,
    authenticator: Authenticator | None = None,
    clock: Clock | None = None,
    telemetry: Telemetry | None = None,
    audit: CallAudit | None = None,
) -> AsyncIterator[Faces]:
    """Starts both faces around one engine; REST and the calls beside it are asked in process."""
    engine, clock, telemetry = engine or FakeEngine(), clock or SystemClock(), telemetry or Telemetry()
    gateway = Gateway(engine, clock, limits or LimitSettings(), authenticator or Open(), telemetry, audit=audit)
    face = GrpcFace(gateway, ServerSettings(grpc_port=0))
    await face.start()
    await face.set_serving(True)
    transport = httpx.ASGITransport(ConnectFace(gateway, rest_app(gateway)), raise_app_exceptions=False)
    async with (
        grpc.aio.insecure_channel(f"127.0.0.1:{face.port}") as channel,
        httpx.AsyncClient(transport=transport, base_url="http://placewise") as http,
    ):
        yield Faces(engine, gateway, face, channel, http)
    await face.stop(0)
