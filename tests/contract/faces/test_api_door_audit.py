"""Who is turned away before a call begins: each refusal of the HTTP faces on record."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.fakes.callers.tls import Authority
from tests.fakes.servers.faces import FakeEngine
from tests.fakes.servers.listening import Listening, listening

from placewise_core.basics.clock import SystemClock
from placewise_log.audit import AuditRecord
from placewise_service.api.calls.call_audit import CallAudit
from placewise_service.api.calls.gateway import Gateway
from placewise_service.api.faces.health import HealthFace
from placewise_service.api.faces.http_connection import address
from placewise_service.api.faces.rest_server import RestFace
from placewise_service.api.faces.tls import Certificates
from placewise_service.api.identity.auth import Open
from placewise_service.settings import LimitSettings, ServerSettings, TlsSettings
from placewise_service.telemetry import Telemetry

NOW_S = 1_800_000_000.0
PLACE = b"POST /v1/clusters/prod/jobs:place HTTP/1.1\r\nHost: localhost\r\n"
TIMES = LimitSettings(header_s=0.1, body_s=0.1, idle_s=0.1)


@asynccontextmanager
async def recorded(limits: LimitSettings | None = None) -> AsyncIterator[tuple[Listening, list[AuditRecord]]]:
    records: list[AuditRecord] = []
    async with listening(limits=limits, audit=CallAudit(records.append, lambda: NOW_S)) as at:
        yield at, records


async def say(port: int, sent: bytes) -> str:
    """Says it on a connection of its own and waits for an answer, or the end; our address."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    ours = address(writer.get_extra_info("sockname"))
    writer.write(sent)
    async with asyncio.timeout(20):
        with contextlib.suppress(ConnectionError):
            await reader.read(1)
    writer.close()
    return ours


@pytest.mark.parametrize(
    ("sent", "result", "limits"),
    [
        (b"GET /healthz HTTP/1.1\r\nX-A: " + b"a" * 65_536 + b"\r\n\r\n", "header_bytes", None),
        (b"GET /?" + b"a" * 8192 + b" HTTP/1.1\r\n\r\n", "url_bytes", None),
        (b"GARBAGE\r\n\r\n", "malformed", None),
        (b"", "header_time", TIMES),
        (b"GET /healthz HT", "header_time", TIMES),
        (PLACE + b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n", "body_time", TIMES),
    ],
    ids=["headers too long", "URL too long", "garbage", "nothing", "half a head", "no body"],
)
async def test_who_is_turned_away_is_on_record(sent: bytes, result: str, limits: LimitSettings | None) -> None:
    async with recorded(limits) as (at, records):
        peer = await say(at.rest_port, sent)
        assert AuditRecord(NOW_S, "http", result, peer=peer) in records


async def test_an_idle_connection_that_is_closed_was_refused_nothing() -> None:
    async with recorded(TIMES) as (at, records):
        reader, writer = await asyncio.open_connection("127.0.0.1", at.rest_port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.read()
        writer.close()
        assert 'limit="idle_time"} 1.0' in at.metrics()
        assert records == []


async def test_who_makes_room_for_another_is_on_record() -> None:
    async with recorded(LimitSettings(connections=1)) as (at, records):
        _, writer = await asyncio.open_connection("127.0.0.1", at.rest_port)
        await say(at.rest_port, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        peer = address(writer.get_extra_info("sockname"))
        assert records == [AuditRecord(NOW_S, "http", "connections", peer=peer)]
        writer.close()


async def test_who_finds_all_places_taken_is_on_record() -> None:
    async with recorded(LimitSettings(connections=1)) as (at, records):
        _, writer = await asyncio.open_connection("127.0.0.1", at.rest_port)
        writer.write(PLACE + b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n")
        async with asyncio.timeout(20):
            while not at.gateway.in_flight:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        peer = await say(at.rest_port, b"")
        assert records == [AuditRecord(NOW_S, "http", "connections", peer=peer)]
        writer.close()


async def test_who_breaks_the_handshake_is_on_record(tmp_path: Path) -> None:
    records: list[AuditRecord] = []
    gateway = Gateway(
        FakeEngine(), SystemClock(), LimitSettings(), Open(), Telemetry(),
        audit=CallAudit(records.append, lambda: NOW_S),
    )  # fmt: skip
    cert, key = Authority("servers").write(tmp_path, "server")
    face = RestFace(gateway, ServerSettings(rest_port=0), Certificates(TlsSettings(cert_file=cert, key_file=key)))
    await face.start()
    peer = await say(face.port, b"GET / HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(20):
        while not records:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    await face.stop()
    assert records == [AuditRecord(NOW_S, "http", "handshake", peer=peer)]


@pytest.mark.parametrize(
    "sent",
    [
        PLACE + b"Content-Length: 2\r\n\r\n{}",
        b"POST /placewise.v1.DecisionService/Place HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=["REST", "Connect"],
)
async def test_a_body_of_another_kind_is_on_record(sent: bytes) -> None:
    async with recorded(TIMES) as (at, records):
        peer = await say(at.rest_port, sent)
        assert records == [AuditRecord(NOW_S, "Place", "UNSUPPORTED_MEDIA_TYPE", peer=peer)]


@pytest.mark.parametrize("path", ["/", "/openapi.json", "/page/page.js"])
async def test_who_asks_by_a_foreign_name_is_on_record(path: str) -> None:
    async with recorded(TIMES) as (at, records):
        peer = await say(at.rest_port, f"GET {path} HTTP/1.1\r\nHost: evil.example\r\n\r\n".encode())
        assert records == [AuditRecord(NOW_S, "page", "PERMISSION_DENIED", peer=peer)]


@pytest.mark.parametrize(
    "foreign",
    ["Host: evil.example", "Host: localhost\r\nOrigin: http://evil.example"],
    ids=["Host", "Origin"],
)
@pytest.mark.parametrize("carrier", ["REST", "Connect"])
async def test_a_call_by_a_foreign_name_or_from_a_foreign_page_is_on_record(carrier: str, foreign: str) -> None:
    lines = {"REST": "DELETE /v1/clusters/prod", "Connect": "POST /placewise.v1.ClusterService/DeleteCluster"}
    body = '\r\nContent-Type: application/json\r\nContent-Length: 18\r\n\r\n{"cluster":"prod"}'
    async with recorded() as (at, records):
        peer = await say(at.rest_port, f"{lines[carrier]} HTTP/1.1\r\n{foreign}{body}".encode())
        at.gateway.telemetry.afterwards.run()
        assert records == [AuditRecord(NOW_S, "DeleteCluster", "PERMISSION_DENIED", "anyone", "open", peer)]
        assert list(at.engine.views) == ["prod"]


@pytest.mark.parametrize(
    ("sent", "result"),
    [("GET /metrics", "NO_SUCH_PATH"), ("POST /readyz", "METHOD_NOT_ALLOWED")],
)
async def test_what_the_port_for_probes_does_not_serve_is_on_record(sent: str, result: str) -> None:
    records: list[AuditRecord] = []
    gateway = Gateway(
        FakeEngine(), SystemClock(), LimitSettings(), Open(), Telemetry(),
        audit=CallAudit(records.append, lambda: NOW_S),
    )  # fmt: skip
    face = HealthFace(gateway, ServerSettings(health_port=0))
    await face.start()
    peer = await say(face.port, f"{sent} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    await face.stop()
    assert records == [AuditRecord(NOW_S, "http", result, peer=peer, subject=sent)]
