"""The audit of calls, over gRPC, REST and Connect: which are on record, who is named, and what floods cost."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.fakes.callers.identity import by_certificates, by_tokens
from tests.fakes.cluster import make_node
from tests.fakes.servers.faces import Faces, FakeEngine, faces

from placewise.v1.cluster_pb2 import GetClusterRequest
from placewise.v1.decision_pb2 import PlaceRequest
from placewise.v1.decision_pb2_grpc import DecisionServiceStub
from placewise.v1.job_pb2 import Job, TaskGroup
from placewise_core.domain.errors import UnauthenticatedError
from placewise_core.policies.trial.arms import Arms
from placewise_log.audit import AuditRecord
from placewise_service.api.calls.call_audit import CallAudit
from placewise_service.api.calls.rpcs import RPCS, STREAM_PLACE
from placewise_service.api.docs.routes import ROUTES
from placewise_service.api.identity.auth import AccessScope, Authenticator, Credentials
from placewise_service.api.identity.token_changes import create_token
from placewise_service.settings import LimitSettings

NOW_S = 1_800_000_000.0


@dataclass
class Recorded:
    """Both faces, and what went on record."""

    running: Faces
    audit: CallAudit
    records: list[AuditRecord] = field(default_factory=list)

    def take(self) -> list[AuditRecord]:
        """Records since the last call."""
        self.running.gateway.telemetry.afterwards.run()
        taken = list(self.records)
        self.records.clear()
        return taken

    async def rest(self, method: str, path: str, body: Any = None, token: str = "") -> int:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        more = {} if body is None else {"json": body}
        return (await self.running.http.request(method, path, headers=headers, **more)).status_code


@asynccontextmanager
async def recorded(
    authenticator: Authenticator | None = None, limits: LimitSettings | None = None
) -> AsyncIterator[Recorded]:
    engine = FakeEngine()
    await engine.report_nodes("prod", [make_node("n0")], full=True)
    records: list[AuditRecord] = []
    audit = CallAudit(records.append, lambda: NOW_S)
    async with faces(engine, limits, authenticator, audit=audit) as running:
        yield Recorded(running, audit, records)


def question(*models: str, **more: Any) -> dict[str, Any]:
    jobs = [{"id": f"j{i}", "model": model, "groups": [{"count": 1}]} for i, model in enumerate(models)]
    return {"jobs": jobs, "requestId": "r-1", **more}


PLACE = "/v1/clusters/prod/jobs:place"
PARTITION, TASK = "/v1/clusters/prod/tasks:partition", {"task": {"id": "t", "parallelScale": 10}}


async def test_a_record_names_the_caller_and_what_was_done(tmp_path: Path) -> None:
    token = create_token(tmp_path / "t", "slurm", [AccessScope.DECIDE, AccessScope.ADMIN])
    async with recorded(by_tokens(tmp_path / "t")) as at:
        assert await at.rest("POST", PLACE, question("", ""), token) == 200
        [made] = at.take()
        assert made == AuditRecord(NOW_S, "Place", "OK", "slurm", "token", made.peer, "prod", "j0 +1", "r-1")
        assert made.peer.startswith("127.0.0.1:")
        metadata = (("authorization", f"Bearer {token}"),)
        request = PlaceRequest(cluster="prod", request_id="r-1")
        request.jobs.extend([Job(id="j0", groups=[TaskGroup(count=1)]), Job(id="j1", groups=[TaskGroup(count=1)])])
        await DecisionServiceStub(at.running.channel).Place(request, metadata=metadata)
        [by_grpc] = at.take()
        answer = await at.running.http.post(
            RPCS["Place"].path,
            content=request.SerializeToString(),
            headers={"content-type": "application/proto", "authorization": f"Bearer {token}"},
        )
        assert answer.status_code == 200
        [by_connect] = at.take()
        for found in (by_grpc, by_connect):
            assert found == AuditRecord(NOW_S, "Place", "OK", "slurm", "token", found.peer, "prod", "j0 +1", "r-1")
            assert found.peer.startswith("127.0.0.1:")
        assert await at.rest("DELETE", "/v1/clusters/prod", token=token) == 200
        [deleted] = at.take()
        assert (deleted.call, deleted.caller, deleted.cluster) == ("DeleteCluster", "slurm", "prod")


# Every call that is not READ, and what its record has as its subject.
CHANGES: list[tuple[str, Any, str]] = [
    ("Partition", {**TASK, "requestId": "r"}, "t"),
    ("Place", {"jobs": [{"id": "j", "groups": [{"count": 1}]}]}, "j"),
    ("ReportNodes", {"nodes": [{"id": "n7"}, {"id": "n8"}]}, "n7 +1"),
    ("ReportJobEvents", {"events": [{"jobId": "j", "kind": "STARTED"}]}, "j"),
    ("AdmitOrWait", {"jobs": [{"id": "j"}]}, "j"),
    ("UpdateClusterSettings", {"placePolicy": "tetris"}, "place_policy"),
    ("DeleteCluster", None, ""),
    ("ReadLog", {}, ""),
    ("ActivateBundle", {}, "other"),
    ("RollbackBundle", {}, ""),
    ("SetShadow", {"name": "other"}, "other"),
    ("SetShadow", {"policy": "tetris"}, "tetris"),
    ("SetShadow", {"name": "other", "policy": "harmony"}, "other/harmony"),
    ("SetCanary", {"name": "other", "share": 0.1}, "other"),
    ("PromoteBundle", {"cluster": "prod"}, ""),
    ("SetKillSwitch", {"policy": "consolidate"}, "consolidate"),
]


def test_the_table_has_every_call_that_changes_something() -> None:
    changing = {rpc.name for rpc in RPCS.values() if rpc.scope is not AccessScope.READ}
    assert {call for call, _, _ in CHANGES} == changing


@pytest.mark.parametrize(("call", "body", "subject"), CHANGES)
async def test_every_change_is_on_record(call: str, body: Any, subject: str) -> None:
    [route] = [route for route in ROUTES if route.rpc.name == call]
    async with recorded() as at:
        at.running.engine.bundles.active = "other"
        await at.running.engine.bundles.set_canary("other", "prod", Arms("salt", 0.1))
        url = route.path.format(cluster="prod", queue="q", name="other")
        assert await at.rest(route.method, url, body) == 200
        [made] = at.take()
        assert (made.call, made.result, made.caller, made.method) == (call, "OK", "anyone", "open")
        assert made.subject == subject


@pytest.mark.parametrize("path", ["/v1/bundles/other:activate", "/v1/bundles:rollback"])
async def test_a_bundle_is_changed_for_the_cluster_that_the_body_names(path: str) -> None:
    async with recorded() as at:
        assert await at.rest("POST", "/v1/bundles/other:activate", {}) == 200
        at.take()
        assert await at.rest("POST", path, {"cluster": "prod"}) == 200
        assert [made.cluster for made in at.take()] == ["prod"]


async def test_what_writes_nothing_is_not() -> None:
    async with recorded() as at:
        assert await at.rest("GET", "/v1/clusters/prod") == 200
        assert await at.rest("GET", "/v1/clusters") == 200
        assert await at.rest("POST", PLACE, question("", dryRun=True)) == 200
        assert await at.rest("POST", PLACE, question("WAIT", requestId="")) == 200
        assert await at.rest("POST", PARTITION, TASK) == 200
        assert at.take() == []


async def test_an_answer_that_is_remembered_is_on_record() -> None:
    async with recorded() as at:
        assert await at.rest("POST", PLACE, question("WAIT")) == 200
        assert await at.rest("POST", PARTITION, {**TASK, "requestId": "r-2"}) == 200
        found = [(each.call, each.result, each.request_id) for each in at.take()]
        assert found == [("Place", "OK", "r-1"), ("Partition", "OK", "r-2")]


@pytest.mark.parametrize(
    ("method", "path", "body", "call", "result"),
    [
        ("POST", PLACE, question("STALE_SNAPSHOT"), "Place", "STALE_SNAPSHOT"),
        ("POST", PLACE, question("LEAK"), "Place", "INTERNAL"),
        ("POST", PLACE, question("", dryRun=True, policy="none"), "Place", "INVALID_REQUEST"),
        ("POST", PLACE, {"jobs": 1}, "Place", "INVALID_REQUEST"),
        ("POST", PARTITION, {"task": {"id": ""}}, "Partition", "INVALID_REQUEST"),
        ("POST", PARTITION.replace("prod", "none"), TASK, "Partition", "NOT_FOUND"),
        (
            "POST",
            "/v1/clusters/none/tasks:partition",
            {"task": {"id": "t", "parallelScale": 10}},
            "Partition",
            "NOT_FOUND",
        ),
        ("DELETE", "/v1/clusters/none", None, "DeleteCluster", "NOT_FOUND"),
        ("GET", "/v1/clusters/none", None, "GetCluster", "NOT_FOUND"),
        ("GET", "/v1/clusters/prod/decisions?page_size=-1", None, "ListDecisions", "INVALID_REQUEST"),
    ],
)
async def test_a_call_that_fails_is_on_record_with_its_reason(
    method: str, path: str, body: Any, call: str, result: str
) -> None:
    async with recorded() as at:
        assert await at.rest(method, path, body) >= 400
        assert [(found.call, found.caller, found.result) for found in at.take()] == [(call, "anyone", result)]


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        (PLACE, {"placewise-timeout-ms": "soon"}),
        (RPCS["Place"].path, {"connect-timeout-ms": "soon"}),
        (RPCS["Place"].path, {"content-encoding": "gzip"}),
    ],
)
async def test_a_call_that_is_refused_for_a_header_is_on_record(path: str, headers: dict[str, str]) -> None:
    async with recorded() as at:
        assert (await at.running.http.post(path, json=question(""), headers=headers)).status_code == 400
        assert [(found.call, found.result) for found in at.take()] == [("Place", "INVALID_REQUEST")]


async def test_a_caller_who_leaves_is_on_record_only_where_something_may_be_written() -> None:
    async with recorded() as at:
        for request_id, dry_run in (("", False), ("r-3", False), ("r-4", True)):
            request = PlaceRequest(cluster="prod", request_id=request_id, dry_run=dry_run)
            request.jobs.add(id="j", model="SLEEP", groups=[TaskGroup(count=1)])
            placed = len(at.running.engine.placed)
            call = DecisionServiceStub(at.running.channel).Place(request)
            while len(at.running.engine.placed) == placed:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            call.cancel()
            while at.running.gateway.in_flight:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        found = [(each.call, each.result, each.request_id) for each in at.take()]
        assert found == [("Place", "CANCELLED", ""), ("Place", "CANCELLED", "r-3")]


async def test_every_refusal_is_on_record_with_who_was_refused(tmp_path: Path) -> None:
    reader = create_token(tmp_path / "t", "reader", [AccessScope.READ], ["prod"])
    async with recorded(by_tokens(tmp_path / "t")) as at:
        assert await at.rest("GET", "/v1/clusters/prod", token="pw_wrong") == 401
        assert await at.rest("GET", "/v1/clusters/other", token=reader) == 403
        assert await at.rest("POST", PLACE, question("", dryRun=True), reader) == 403
        assert await at.rest("GET", "/metrics", token=reader) == 403
        assert await at.rest("GET", "/metrics") == 401
        found = [(each.call, each.caller, each.method, each.result) for each in at.take()]
        assert found == [
            ("GetCluster", "", "", "UNAUTHENTICATED"),
            ("GetCluster", "reader", "token", "PERMISSION_DENIED"),
            ("Place", "reader", "token", "PERMISSION_DENIED"),
            ("metrics", "reader", "token", "PERMISSION_DENIED"),
            ("metrics", "", "", "UNAUTHENTICATED"),
        ]
        stream = at.running.channel.stream_stream("/placewise.v1.DecisionService/StreamPlace")()
        assert await stream.code() is grpc.StatusCode.UNAUTHENTICATED
        [refused] = at.take()
        assert (refused.call, refused.result) == ("StreamPlace", "UNAUTHENTICATED")


async def test_a_reader_who_is_refused_for_overload_is_on_record() -> None:
    async with recorded(limits=LimitSettings(in_flight=1)) as at:
        with at.running.gateway.enter(RPCS["GetCluster"], Credentials(), math.inf):
            assert await at.rest("GET", "/v1/clusters/prod") == 429
        assert [(each.call, each.result) for each in at.take()] == [("GetCluster", "OVERLOADED")]


async def asked(at: Recorded, face: str, content: bytes, token: str, call: str = "GetCluster") -> None:
    """Sends a message, or JSON to REST, as it is. Any answer will do."""
    path = RPCS[call].path
    headers = {"authorization": f"Bearer {token}"} if token else {}
    if face == "gRPC":
        channel: Any = at.running.channel
        await channel.unary_unary(path)(content, metadata=tuple(headers.items())).code()
    elif face == "REST":
        await at.rest("GET", f"/v1/clusters/{GetClusterRequest.FromString(content).cluster}", token=token)
    else:
        kind = "application/json" if content.startswith(b"{") else "application/proto"
        await at.running.http.post(path, content=content, headers={"content-type": kind, **headers})


@pytest.mark.parametrize("face", ["REST", "Connect", "gRPC"])
async def test_refused_credentials_are_on_record_over_every_face(face: str, tmp_path: Path) -> None:
    reader = create_token(tmp_path / "t", "reader", [AccessScope.READ], ["prod"])
    async with recorded(by_tokens(tmp_path / "t")) as at:
        for token, cluster in (("pw_wrong", "prod"), ("", "prod"), (reader, "other"), (reader, "prod")):
            await asked(at, face, GetClusterRequest(cluster=cluster).SerializeToString(), token)
        found = at.take()
        assert [(each.call, each.caller, each.method, each.cluster, each.result) for each in found] == [
            ("GetCluster", "", "", "", "UNAUTHENTICATED"),
            ("GetCluster", "", "", "", "UNAUTHENTICATED"),
            ("GetCluster", "reader", "token", "other", "PERMISSION_DENIED"),
        ]
        assert all(each.peer.startswith("127.0.0.1:") for each in found)


@pytest.mark.parametrize(
    ("face", "content", "limit"),
    [
        ("gRPC", bytes(1500), "message_bytes"),
        ("Connect", bytes(1500), "message_bytes"),
        ("Connect", b'{"a":[[],[],[]]}', "json_objects"),
    ],
)
async def test_a_reader_whose_message_is_over_a_limit_is_on_record(
    face: str, content: bytes, limit: str, tmp_path: Path
) -> None:
    reader = create_token(tmp_path / "t", "reader", [AccessScope.READ])
    limits = LimitSettings(message_bytes=1024, json_objects=3)
    async with recorded(by_tokens(tmp_path / "t"), limits) as at:
        await asked(at, face, content, reader)
        found = [(each.call, each.caller, each.result) for each in at.take()]
        assert found == [("GetCluster", "reader", limit)]


async def test_a_message_of_a_stream_over_the_limit_is_on_record(tmp_path: Path) -> None:
    token = create_token(tmp_path / "t", "slurm", [AccessScope.DECIDE])
    async with recorded(by_tokens(tmp_path / "t"), LimitSettings(message_bytes=1024)) as at:
        channel: Any = at.running.channel
        stream = channel.stream_stream(STREAM_PLACE.path)(
            iter([bytes(1500)]), metadata=(("authorization", f"Bearer {token}"),)
        )
        async for _ in stream:
            pass
        assert [(each.call, each.caller, each.result) for each in at.take()] == [
            ("StreamPlace", "slurm", "message_bytes")
        ]


async def test_no_token_and_no_body_is_on_record(tmp_path: Path) -> None:
    token = create_token(tmp_path / "t", "slurm", [AccessScope.DECIDE])
    async with recorded(by_tokens(tmp_path / "t")) as at:
        await at.rest("POST", PLACE, question("a-secret-model"), token)
        await at.rest("POST", PLACE, question("a-secret-model"), "pw_wrong")
        text = b"".join(found.line() for found in at.take()).decode()
        assert text.count("\n") == 2
        for secret in (token, "pw_wrong", "a-secret-model", "sha256"):
            assert secret not in text


async def test_a_stranger_with_a_certificate_is_named_by_it(tmp_path: Path) -> None:
    identity = by_certificates(tmp_path / "c", {"name": "a", "subject": "cn:a", "scopes": ["read"]})
    found: list[AuditRecord] = []
    shown = Credentials(subjects=("cn:intern", "dns:h"), peer="10.0.0.1:1")
    with pytest.raises(UnauthenticatedError):
        identity.authenticate(shown)
    CallAudit(found.append, lambda: NOW_S).record_refusal("GetCluster", "UNAUTHENTICATED", shown)
    assert (found[0].subject, found[0].peer) == ("certificate of cn:intern, dns:h", "10.0.0.1:1")


async def test_every_refusal_of_a_flood_has_a_record() -> None:
    found: list[AuditRecord] = []
    audit = CallAudit(found.append, lambda: NOW_S)
    for port in range(1000):
        audit.record_refusal("Place", "UNAUTHENTICATED", Credentials(peer=f"10.0.0.1:{port}"))
        audit.record_turned_away("http", "malformed", f"10.0.0.2:{port}")
    peers = [each.peer for each in found]
    assert peers == [peer for port in range(1000) for peer in (f"10.0.0.1:{port}", f"10.0.0.2:{port}")]


@pytest.mark.parametrize(
    ("method", "path", "status", "result"),
    [
        ("GET", "/v2/clusters?token=pw_secret", 404, "NO_SUCH_PATH"),
        ("POST", "/placewise.v1.DecisionService/Replace", 404, "NO_SUCH_PATH"),
        ("PATCH", "/healthz/x", 404, "NO_SUCH_PATH"),
        ("DELETE", PLACE, 405, "METHOD_NOT_ALLOWED"),
        ("POST", "/metrics", 405, "METHOD_NOT_ALLOWED"),
        ("GET", RPCS["Place"].path, 405, "METHOD_NOT_ALLOWED"),
    ],
)
async def test_a_path_or_method_that_does_not_exist_is_on_record(
    method: str, path: str, status: int, result: str, tmp_path: Path
) -> None:
    create_token(tmp_path / "t", "reader", [AccessScope.READ])
    async with recorded(by_tokens(tmp_path / "t")) as at:
        assert await at.rest(method, path, token="pw_wrong") == status
        [found] = at.take()
        assert (found.call, found.result, found.subject) == ("http", result, f"{method} {path.partition('?')[0]}")
        assert found.peer.startswith("127.0.0.1:")


async def never() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


@pytest.mark.parametrize("path", ["/placewise.v1.DecisionService/Replace", "/grpc.health.v1.Health/List", "/nowhere"])
async def test_a_grpc_method_that_does_not_exist_is_on_record(path: str) -> None:
    async with recorded() as at:
        channel: Any = at.running.channel
        call = channel.unary_unary(path)(b"")
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
        # It sends nothing: gRPC's client calls it an internal error if the answer comes between two of its messages.
        stream = channel.stream_stream(path)(never())
        assert await stream.code() is grpc.StatusCode.UNIMPLEMENTED
        found = at.take()
        assert [(each.call, each.result, each.subject) for each in found] == [("grpc", "UNIMPLEMENTED", path)] * 2
        assert all(each.peer.startswith("127.0.0.1:") for each in found)


async def test_records_that_cannot_be_written_turn_readiness_red() -> None:
    async with recorded() as at:
        failing = ""
        at.running.gateway.checks.append(lambda: failing)
        assert await at.rest("GET", "/readyz") == 200
        failing = "audit records cannot be written: No space left on device"
        answer = await at.running.http.get("/readyz")
        assert (answer.status_code, answer.json()["problem"]) == (503, failing)
