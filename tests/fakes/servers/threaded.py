"""Both faces around a real engine in a thread of their own, for clients that are not asyncio."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.fakes.cluster import make_node
from tests.fakes.engine import running_engine

from placewise_core.basics.clock import SystemClock
from placewise_service.api.calls.gateway import Gateway
from placewise_service.api.faces.grpc_server import GrpcFace
from placewise_service.api.faces.rest_server import RestFace
from placewise_service.api.identity.auth import Open
from placewise_service.settings import LimitSettings, ServerSettings
from placewise_service.telemetry import Telemetry


@dataclass
class Ports:
    grpc: int
    rest: int


@contextmanager
def threaded_faces() -> Iterator[Ports]:
    """Ports of both faces; cluster "prod" has four nodes."""
    found: list[Ports] = []
    up = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        server = ServerSettings(grpc_port=0, rest_port=0)
        async with running_engine(nodes=0) as engine:
            await engine.report_nodes("prod", [make_node(f"n{i}") for i in range(4)], full=True)
            gateway = Gateway(engine, SystemClock(), LimitSettings(), Open(), Telemetry())
            grpc_face, rest_face = GrpcFace(gateway, server), RestFace(gateway, server)
            await grpc_face.start()
            await rest_face.start()
            found.append(Ports(grpc_face.port, rest_face.port))
            up.set()
            await stop.wait()
            await grpc_face.stop(0)
            await rest_face.stop()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert up.wait(30)
        yield found[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()
