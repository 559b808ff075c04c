"""The contract's calls over HTTP/1.1 beside REST: both codecs, every error in the protocol's words, and who may ask."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from google.protobuf import json_format
from google.rpc import error_details_pb2
from tests.contract.faces.test_api_grpc import until
from tests.fakes.callers.identity import by_tokens
from tests.fakes.cluster import make_node
from tests.fakes.servers.faces import ASKED_BY_PAGES, DECISION_ID, SECRET, Faces, FakeEngine, faces

from placewise.v1.decision_pb2 import PlaceRequest
from placewise.v1.job_pb2 import Job, Resources, TaskGroup
from placewise_core.basics.clock import ManualClock, SystemClock
from placewise_core.domain.errors import PlacewiseError
from placewise_core.policies.trial.arms import Arms
from placewise_service.api.calls.gateway import Gateway
from placewise_service.api.calls.rpcs import RPCS, STREAM_PLACE
from placewise_service.api.calls.statuses import connect_error
from placewise_service.api.docs.routes import ROUTES, Route
from placewise_service.api.faces.connect import ConnectFace
from placewise_service.api.faces.rest import rest_app
from placewise_service.api.faces.rest_server import RestFace
from placewise_service.api.identity.auth import AccessScope, Open
from placewise_service.api.identity.token_changes import create_token
from placewise_service.settings import LOOPBACK, LimitSettings, ServerSettings
from placewise_service.telemetry import Telemetry

PLACE = RPCS["Place"].path
LIST = RPCS["ListClusters"].path
PROTO, JSON = "application/proto", "application/json"


async def engine_with_node() -> FakeEngine:
    engine = FakeEngine()
    await engine.report_nodes("prod", [make_node("n0")], full=True)
    return engine


def question(model: str = "", request_id: str = "") -> bytes:
    group = TaskGroup(role=TaskGroup.WORKER, count=1, demand=Resources(gpus=1))
    jobs = [Job(id="j", model=model, groups=[group])]
    return PlaceRequest(cluster="prod", request_id=request_id, jobs=jobs).SerializeToString()


async def ask(running: Faces, content: Any = None, path: str = PLACE, **headers: str) -> httpx.Response:
    """`headers` with underscores for hyphens."""
    sent = {"content-type": PROTO} | {name.replace("_", "-"): value for name, value in headers.items()}
    return await running.http.post(path, content=question() if content is None else content, headers=sent)


def reported(response: httpx.Response) -> tuple[int, str, str]:
    """Status, code and message of an error."""
    assert response.headers["content-type"] == JSON
    return response.status_code, response.json()["code"], response.json()["message"]


def details(response: httpx.Response) -> tuple[error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo | None]:
    found = {}
    for detail in response.json()["details"]:
        assert "=" not in detail["value"]
        found[detail["type"]] = base64.b64decode(detail["value"] + "=" * (-len(detail["value"]) % 4))
    info = error_details_pb2.ErrorInfo.FromString(found.pop("google.rpc.ErrorInfo"))
    retry = found.pop("google.rpc.RetryInfo", None)
    assert not found
    return info, None if retry is None else error_details_pb2.RetryInfo.FromString(retry)


# -- Answers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES, ids=[route.rpc.name for route in ROUTES])
async def test_every_call_is_answered_as_by_grpc_in_both_codecs(route: Route) -> None:
    rpc = route.rpc
    example = dict(route.example)
    request: Any = json_format.ParseDict(
        {route.body: example} if route.body not in ("", "*") else example, rpc.request()
    )
    for name, value in (("cluster", "prod"), ("name", "other"), ("decision_id", DECISION_ID)):
        if name in rpc.request.DESCRIPTOR.fields_by_name:
            setattr(request, name, value)
    answers = []
    for kind in ("grpc", PROTO, JSON):
        async with faces(await engine_with_node(), clock=ManualClock(1e6)) as running:
            running.engine.bundles.active = "other"
            await running.engine.bundles.set_canary("other", "prod", Arms("salt", 0.1))  # for PromoteBundle
            if kind == "grpc":
                call = running.channel.unary_unary(rpc.path, lambda m: m.SerializeToString(), rpc.response.FromString)
                answers.append(await call(request))
                continue
            is_json = kind == JSON
            body = json_format.MessageToJson(request).encode() if is_json else request.SerializeToString()
            response = await ask(running, body, rpc.path, content_type=kind)
            assert (response.status_code, response.headers["content-type"]) == (200, kind), response.text
            answers.append(
                json_format.Parse(response.content, rpc.response())
                if is_json
                else rpc.response.FromString(response.content)
            )
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON ;charset=UTF-8"])
async def test_a_content_type_may_say_the_charset(kind: str) -> None:
    async with faces(await engine_with_node()) as running:
        response = await ask(running, b"{}", LIST, content_type=kind)
    assert response.json() == {"clusters": ["prod"]}


async def test_an_empty_message_has_no_bytes() -> None:
    async with faces(await engine_with_node()) as running:
        for kind in (PROTO, JSON):
            assert (await ask(running, b"", LIST, content_type=kind)).status_code == 200


async def test_other_paths_are_those_of_rest() -> None:
    async with faces(await engine_with_node()) as running:
        assert (await running.http.get("/healthz")).json() == {"status": "ok"}
        assert (await running.http.get("/v1/clusters")).json() == {"clusters": ["prod"]}
        for path in (STREAM_PLACE.path, f"{PLACE}/", "/placewise.v1.DecisionService/Nothing", PLACE.lower()):
            response = await ask(running, path=path)
            assert (response.status_code, response.json()["reason"]) == (404, "NO_SUCH_PATH"), path


# -- Errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "status", "code", "retry_s"),
    [
        ("OVERLOADED", 429, "resource_exhausted", 0.1),
        ("STATE_UNAVAILABLE", 503, "unavailable", 1.0),
        ("STALE_SNAPSHOT", 409, "aborted", 0.05),
        ("NOT_FOUND", 404, "not_found", None),
        ("DEADLINE_EXCEEDED", 504, "deadline_exceeded", None),
    ],
)
@pytest.mark.parametrize("kind", [PROTO, JSON])
async def test_an_error_carries_its_reason_and_when_to_ask_again(
    model: str, status: int, code: str, retry_s: float | None, kind: str
) -> None:
    async with faces(await engine_with_node()) as running:
        body = question(model)
        if kind == JSON:
            body = json_format.MessageToJson(PlaceRequest.FromString(body)).encode()
        response = await ask(running, body, content_type=kind)
    info, retry = details(response)
    assert reported(response) == (status, code, "as the test asked")
    assert (info.reason, info.domain) == (model, "placewise")
    assert (retry.retry_delay.ToTimedelta().total_seconds() if retry else None) == retry_s
    assert ("retry-after" in response.headers) == (retry_s is not None)


def test_every_error_has_a_word_of_the_protocol() -> None:
    """The words of https://connectrpc.com/docs/protocol/#error-codes that an error of ours can have."""
    words = {
        "invalid_argument": 400,
        "unauthenticated": 401,
        "permission_denied": 403,
        "not_found": 404,
        "already_exists": 409,
        "aborted": 409,
        "resource_exhausted": 429,
        "internal": 500,
        "unavailable": 503,
        "deadline_exceeded": 504,
    }
    found = {}
    for kind in (PlacewiseError, *PlacewiseError.__subclasses__()):
        found[json.loads(connect_error(kind("m")))["code"]] = kind.http_status
    assert found == words


async def test_an_unforeseen_error_leaks_nothing() -> None:
    async with faces(await engine_with_node()) as running:
        response = await ask(running, question("LEAK"))
    info, _ = details(response)
    assert reported(response) == (500, "internal", "internal error")
    assert len(info.metadata["incident"]) == 32
    for leak in (SECRET, "hunter2", "Traceback", "RuntimeError"):
        assert leak not in response.text
        assert leak.encode() not in info.SerializeToString()


async def test_what_fails_before_the_gateway_leaks_nothing_either(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError(SECRET)

    async with faces(await engine_with_node()) as running:
        monkeypatch.setattr(running.gateway, "parsed", fail)
        response = await ask(running)
    assert reported(response) == (500, "internal", "internal error")
    assert details(response)[0].metadata["incident"]
    assert SECRET not in response.text


async def test_the_method_and_the_kind_of_content_are_the_protocols() -> None:
    async with faces(await engine_with_node()) as running:
        for method in ("GET", "PUT", "DELETE", "HEAD", "OPTIONS"):
            response = await running.http.request(method, PLACE, headers={"content-type": PROTO})
            assert (response.status_code, response.headers["allow"], response.content) == (405, "POST", b"")
        for kind in ("", "text/plain", "application/grpc", "application/connect+proto", f"{JSON}; charset=latin-1"):
            response = await ask(running, content_type=kind)
            assert (response.status_code, response.content) == (415, b""), kind
            assert response.headers["accept-post"] == f"{PROTO}, {JSON}"
    assert running.engine.placed == []


@pytest.mark.parametrize(
    ("headers", "field"),
    [
        ({"connect_protocol_version": "2"}, "Connect-Protocol-Version"),
        ({"connect_protocol_version": ""}, "Connect-Protocol-Version"),
        ({"content_encoding": "gzip"}, "Content-Encoding"),
        ({"content_encoding": "br"}, "Content-Encoding"),
        *(({"connect_timeout_ms": text}, "Connect-Timeout-Ms") for text in ("", "x", "-1", "1.5", "1e3", "+1", " 1 s")),
        ({"connect_timeout_ms": "1" * 11}, "Connect-Timeout-Ms"),
    ],
)
async def test_a_header_that_is_not_understood_is_named(headers: dict[str, str], field: str) -> None:
    async with faces(await engine_with_node()) as running:
        response = await ask(running, **headers)
    status, code, message = reported(response)
    assert (status, code, message.partition(":")[0]) == (400, "invalid_argument", field)
    assert details(response)[0].metadata["field"] == field
    assert running.engine.placed == []


@pytest.mark.parametrize(
    "headers", [{"connect_protocol_version": "1", "content_encoding": "identity"}, {"connect_timeout_ms": "9" * 10}]
)
async def test_headers_that_are_understood(headers: dict[str, str]) -> None:
    async with faces(await engine_with_node()) as running:
        assert (await ask(running, **headers)).status_code == 200


async def test_the_timeout_of_a_call_is_its_deadline() -> None:
    async with faces(engine := await engine_with_node()) as running:
        now_s = running.gateway.clock.monotonic_s()
        assert (await ask(running, connect_timeout_ms="5000")).status_code == 200
        assert (await ask(running)).status_code == 200
        assert now_s + 5.0 <= engine.deadlines[0] < now_s + 15.0
        assert engine.deadlines[1] == float("inf")
        late = await ask(running, question("SLEEP"), connect_timeout_ms="20")
        none = await ask(running, connect_timeout_ms="0")
    assert reported(late) == (504, "deadline_exceeded", "no answer within 20 ms")
    assert reported(none)[:2] == (504, "deadline_exceeded")
    assert len(engine.placed) == 3
    assert running.gateway.in_flight == 0


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (PROTO, b"\xff\xff\xff"),
        (PROTO, b'{"cluster": "prod"}'),
        (PROTO, question()[:-1]),
        (JSON, b"{"),
        (JSON, b"[]"),
        (JSON, b'{"jobz": []}'),
        (JSON, b'{"requestId": "\xff"}'),
        (JSON, b"[" * 100_000),
    ],
)
async def test_a_message_that_is_none_is_the_callers_fault(kind: str, body: bytes) -> None:
    async with faces(await engine_with_node()) as running:
        response = await ask(running, body, content_type=kind)
    assert reported(response)[:2] == (400, "invalid_argument")
    assert details(response)[0].reason == "INVALID_REQUEST"


async def test_a_body_over_the_limit_is_refused_in_words() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b" " * 500

    async with faces(limits=LimitSettings(message_bytes=1024)) as running:
        for content in (b"x" * 2000, chunks()):
            for kind in (PROTO, JSON):
                status, code, message = reported(await ask(running, content, content_type=kind))
                assert (status, code) == (400, "invalid_argument")
                assert "1024" in message
                content = b"x" * 2000  # noqa: PLW2901 - a stream is read once


# -- Who may ask -------------------------------------------------------------------------------------------------------


async def test_tokens_are_asked_for(tmp_path: Path) -> None:
    reader = create_token(tmp_path / "t", "reader", [AccessScope.READ])
    decider = create_token(tmp_path / "t", "decider", [AccessScope.DECIDE])
    async with faces(await engine_with_node(), authenticator=by_tokens(tmp_path / "t", SystemClock())) as running:
        for header in (None, "", "Bearer", "Bearer wrong", f"Basic {decider}", decider):
            refused = await ask(running, **({} if header is None else {"authorization": header}))
            assert reported(refused)[:2] == (401, "unauthenticated"), header
            assert refused.headers["www-authenticate"].startswith("Bearer")
        assert reported(await ask(running, authorization=f"Bearer {reader}"))[:2] == (403, "permission_denied")
        assert (await ask(running, authorization=f"Bearer {decider}")).status_code == 200
        assert (await ask(running, authorization=f"bearer  {decider} ")).status_code == 200
        assert len(running.engine.placed) == 2


@pytest.mark.parametrize(("headers", "status"), ASKED_BY_PAGES)
async def test_no_page_of_another_site_can_ask(headers: dict[str, str], status: int) -> None:
    async with faces(await engine_with_node()) as running:
        transport = httpx.ASGITransport(ConnectFace(running.gateway, rest_app(running.gateway, LOOPBACK), LOOPBACK))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            response = await http.post(PLACE, content=question(), headers={"content-type": PROTO, **headers})
            assert response.status_code == status
            assert status == 200 or reported(response)[1] == "permission_denied"
            probed = 200 if "host" in headers else status  # whom a scraper asks by is nobody's secret
            assert (await http.get("/metrics", headers=headers)).status_code == probed


async def test_a_page_of_another_site_is_refused_wherever_it_listens() -> None:
    async with faces(await engine_with_node()) as running:
        assert reported(await ask(running, sec_fetch_site="cross-site"))[:2] == (403, "permission_denied")
        assert (await ask(running, host="placewise.example")).status_code == 200


# -- Load and end ------------------------------------------------------------------------------------------------------


async def test_more_than_the_limit_in_flight_is_shed() -> None:
    async with faces(engine := await engine_with_node(), LimitSettings(in_flight=2)) as running:
        held = [asyncio.create_task(ask(running, question("GATE"))) for _ in range(2)]
        await until(lambda: len(engine.placed) == 2)
        shed = await ask(running)
        engine.gate.set()
        assert [response.status_code for response in await asyncio.gather(*held)] == [200, 200]
        assert (await ask(running)).status_code == 200
    assert reported(shed)[:2] == (429, "resource_exhausted")
    assert shed.headers["retry-after"] == "1"


async def test_draining_finishes_what_is_in_flight_and_refuses_the_rest() -> None:
    async with faces(engine := await engine_with_node()) as running:
        held = asyncio.create_task(ask(running, question("GATE")))
        await until(lambda: len(engine.placed) == 1)
        drained = asyncio.create_task(running.gateway.drain(5.0))
        await until(lambda: running.gateway.is_draining)
        assert reported(await ask(running)) == (503, "unavailable", "this process is shutting down")
        engine.gate.set()
        assert (await held).status_code == 200
        assert await drained


# -- On a socket -------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def listening(engine: FakeEngine) -> AsyncIterator[tuple[Gateway, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a face that listens."""
    gateway = Gateway(engine, SystemClock(), LimitSettings(), Open(), Telemetry())
    face = RestFace(gateway, ServerSettings(rest_port=0))
    await face.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", face.port)
    try:
        yield gateway, reader, writer
    finally:
        writer.close()
        await writer.wait_closed()
        await face.stop()


def raw(body: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    head = f"POST {PLACE} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {PROTO}\r\nContent-Length: {size}\r\n\r\n"
    return head.encode() + body


async def test_a_connection_carries_one_call_after_another() -> None:
    async with listening(await engine_with_node()) as (_, reader, writer):
        for body, status in ((question(), b"200"), (b"\xff", b"400"), (question("LEAK"), b"500"), (question(), b"200")):
            writer.write(raw(body))
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.split(b" ")[1] == status
            [length] = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            await reader.readexactly(int(length))


async def test_a_connection_ends_with_a_refusal_by_who_is_shutting_down() -> None:
    """Or it would lead to him as long as he is there, past those that could answer."""
    async with listening(await engine_with_node()) as (gateway, reader, writer):
        await gateway.drain(1.0)
        writer.write(raw(question()))
        async with asyncio.timeout(5.0):
            answer = await reader.read()  # up to its end
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"this process is shutting down" in answer


async def test_a_caller_who_goes_within_his_message_is_no_defect_of_ours() -> None:
    engine = await engine_with_node()
    with structlog.testing.capture_logs() as logs:
        async with listening(engine) as (gateway, _, writer):
            writer.write(raw(question()[:5], length=500))
            await asyncio.sleep(0.05)
            writer.close()
            await writer.wait_closed()
            await asyncio.sleep(0.05)
            assert gateway.in_flight == 0
    assert engine.placed == []
    assert [line for line in logs if line["log_level"] == "error"] == []
