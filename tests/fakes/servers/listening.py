"""Both faces on sockets of their own, around the engine of the tests, with any limits."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.fakes.cluster import make_node
from tests.fakes.servers.faces import FakeEngine

from placewise_core.basics.clock import SystemClock
from placewise_service.api.calls.call_audit import CallAudit
from placewise_service.api.calls.gateway import Gateway
from placewise_service.api.faces.grpc_server import GrpcFace
from placewise_service.api.faces.rest_server import RestFace
from placewise_service.api.faces.tls import Certificates, grpc_credentials
from placewise_service.api.identity.auth import Authenticator, Open
from placewise_service.settings import LimitSettings, ServerSettings
from placewise_service.telemetry import Telemetry


@dataclass
class Listening:
    engine: FakeEngine
    gateway: Gateway
    grpc_port: int
    rest_port: int

    def metrics(self) -> str:
        return self.gateway.telemetry.render().decode()


@asynccontextmanager
async def listening(
    authenticator: Authenticator | None = None,
    limits: LimitSettings | None = None,
    audit: CallAudit | None = None,
    host: str = "127.0.0.1",
    certificates: Certificates | None = None,
) -> AsyncIterator[Listening]:
    """Both faces on sockets of their own, with TLS where there are certificates."""
    engine = FakeEngine()
    await engine.report_nodes("prod", [make_node("n0")], full=True)
    identity, telemetry = authenticator or Open(), Telemetry()
    gateway = Gateway(engine, SystemClock(), limits or LimitSettings(), identity, telemetry, audit=audit)
    settings = ServerSettings(grpc_host=host, grpc_port=0, rest_port=0)
    secret = grpc_credentials(certificates, demands_client=False) if certificates is not None else None
    grpc_face, rest_face = GrpcFace(gateway, settings, secret), RestFace(gateway, settings, certificates)
    await grpc_face.start()
    await rest_face.start()
    try:
        yield Listening(engine, gateway, grpc_face.port, rest_face.port)
    finally:
        await grpc_face.stop(0)
        await rest_face.stop()
