"""The socket of REST and Connect."""

import socket
from functools import partial

from placewise_service.api.connect import ConnectFace
from placewise_service.api.desk import Desk
from placewise_service.api.listener import BACKLOG, Listener, connection_limit
from placewise_service.api.rest import rest_app
from placewise_service.api.tls import Certificates
from placewise_service.settings import LOOPBACK, ServerSettings


class RestFace:
    """The server; constructing it binds, and `port` is then the one that was bound."""

    def __init__(
        self,
        desk: Desk,
        settings: ServerSettings,
        certificates: Certificates | None = None,
        shares_port: bool = False,
    ) -> None:
        bound = bound_socket(settings.rest_host, settings.rest_port, shares_port)
        self.port: int = bound.getsockname()[1]
        is_local = not desk.needs_token and certificates is None and settings.rest_host in LOOPBACK
        self._listener = Listener(
            bound,
            ConnectFace(desk, rest_app(desk, is_local), is_local),
            desk.limits,
            connection_limit(desk.limits.connections),
            partial(desk.telemetry.refused, "http"),
            certificates.context() if certificates is not None else None,
        )

    async def start(self) -> None:
        """Returns when it listens."""
        await self._listener.start()

    async def stop(self) -> None:
        """Closes idle connections, waits a little for the others."""
        await self._listener.stop()


def bound_socket(host: str, port: int, shares_port: bool) -> socket.socket:
    """A TCP socket bound to an address. Raises OSError naming the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=shares_port)
    except OSError as error:
        raise OSError(error.errno, f"cannot bind {host}:{port}: {error.strerror}") from None
