"""The socket of REST and Connect: uvicorn on the loop of the service, whose signals it leaves alone."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from placewise_service.api.callers import SUBJECTS
from placewise_service.api.certificates import subjects_of_der
from placewise_service.api.connect import ConnectFace
from placewise_service.api.desk import Desk
from placewise_service.api.rest import rest_app
from placewise_service.api.tls import Certificates
from placewise_service.settings import LOOPBACK, ServerSettings

_BACKLOG = 2048
_STOP_TIMEOUT_S = 2
# Longer than clients keep an idle connection, so that none is closed under a request that is just being sent.
_KEEP_ALIVE_S = 75


class RestFace:
    """The server; constructing it binds, and `port` is then the one that was bound."""

    def __init__(
        self,
        desk: Desk,
        settings: ServerSettings,
        certificates: Certificates | None = None,
        shares_port: bool = False,
    ) -> None:
        self._socket = bound_socket(settings.rest_host, settings.rest_port, shares_port)
        self.port: int = self._socket.getsockname()[1]
        is_local = not desk.needs_token and certificates is None and settings.rest_host in LOOPBACK
        config = uvicorn.Config(
            ConnectFace(desk, rest_app(desk, is_local), is_local),
            lifespan="off",
            http=_Connection,
            timeout_keep_alive=_KEEP_ALIVE_S,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_STOP_TIMEOUT_S,
        )
        config.load()
        if certificates is not None:
            config.ssl = certificates.context()
        self._server = _Server(config)
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when it listens."""
        self._serving = asyncio.create_task(self._server.serve([self._socket]), name="rest")
        await self._server.is_up.wait()

    async def stop(self) -> None:
        """Closes idle connections, waits a little for the others."""
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving


class _Connection(HttpToolsProtocol):
    """A connection whose requests carry the names in the client's certificate."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        encrypted = transport.get_extra_info("ssl_object")
        certificate = None if encrypted is None else encrypted.getpeercert(binary_form=True)
        if certificate is not None:
            self.app_state = {**self.app_state, SUBJECTS: subjects_of_der(certificate)}


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bound_socket(host: str, port: int, shares_port: bool) -> socket.socket:
    """A TCP socket bound to an address. Raises OSError naming the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG, reuse_port=shares_port)
    except OSError as error:
        raise OSError(error.errno, f"cannot bind {host}:{port}: {error.strerror}") from None
