"""Health on a plain port of its own, independent of the other ports' demands; and the container's check, which asks
there."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from tests.fakes.callers.identity import by_tokens
from tests.fakes.callers.tls import Authority
from tests.fakes.servers.faces import FakeEngine

from placewise_core.basics.clock import SystemClock
from placewise_service.api.calls.gateway import Gateway
from placewise_service.api.faces.health import HealthFace
from placewise_service.api.faces.rest_server import RestFace
from placewise_service.api.faces.tls import Certificates
from placewise_service.api.identity.auth import AccessScope, Authenticator, Open
from placewise_service.api.identity.token_changes import create_token
from placewise_service.settings import LimitSettings, ServerSettings, TlsSettings
from placewise_service.telemetry import Telemetry

CHECK = Path(__file__).parents[3] / "deploy/healthcheck.py"


@asynccontextmanager
async def serving(
    authenticator: Authenticator | None = None, tls: TlsSettings | None = None
) -> AsyncIterator[tuple[Gateway, int, int]]:
    """A gateway, the REST port and the health port."""
    gateway = Gateway(FakeEngine(), SystemClock(), LimitSettings(), authenticator or Open(), Telemetry())
    settings = ServerSettings(rest_port=0, health_port=0)
    rest = RestFace(gateway, settings, Certificates(tls) if tls is not None else None)
    health = HealthFace(gateway, settings)
    await rest.start()
    await health.start()
    try:
        yield gateway, rest.port, health.port
    finally:
        await rest.stop()
        await health.stop()


async def checked(port: int, host: str = "127.0.0.1") -> int:
    """The exit code of the container's health check."""
    environment = {
        **os.environ,
        "PLACEWISE_SERVER__HEALTH_PORT": str(port),
        "PLACEWISE_SERVER__HEALTH_HOST": host,
        "http_proxy": "http://127.0.0.1:1",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(CHECK), env=environment, stderr=asyncio.subprocess.DEVNULL
    )
    return await process.wait()


@pytest.mark.parametrize("kind", ["open", "tokens", "tls", "mtls"])
async def test_health_needs_neither_certificate_nor_token(kind: str, tmp_path: Path) -> None:
    authority = Authority("test")
    cert, key = authority.write(tmp_path, "server")
    ca = tmp_path / "ca.pem"
    ca.write_bytes(authority.pem)
    create_token(tmp_path / "t", "reader", [AccessScope.READ])
    tls = {
        "tls": TlsSettings(cert_file=cert, key_file=key),
        "mtls": TlsSettings(cert_file=cert, key_file=key, client_ca_file=ca),
    }.get(kind)
    async with (
        serving(by_tokens(tmp_path / "t") if kind == "tokens" else None, tls) as (gateway, _, port),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http,
    ):
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/readyz", headers={"host": "10.0.0.7:8082"})).status_code == 200
        assert await checked(port) == 0
        gateway.is_draining = True
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/readyz")).status_code == 503
        assert await checked(port, "0.0.0.0") == 1


async def test_it_answers_nothing_else() -> None:
    async with serving() as (_, _, port), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        for path in ("/", "/metrics", "/openapi.json", "/v1/clusters", "/placewise.v1.DecisionService/Place"):
            assert (await http.get(path)).status_code == 404
        assert (await http.post("/readyz")).status_code == 405


async def test_a_check_of_nobody_fails() -> None:
    async with serving() as (_, _, port):
        pass
    assert await checked(port) == 1
