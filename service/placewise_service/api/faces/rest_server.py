"""The socket of REST and Connect."""

from functools import partial

from placewise_service.api.calls.gateway import Gateway
from placewise_service.api.faces.connect import ConnectFace
from placewise_service.api.faces.listener import Listener, bound_socket, connection_limit
from placewise_service.api.faces.pages import allowed_hosts
from placewise_service.api.faces.rest import rest_app
from placewise_service.api.faces.tls import Certificates
from placewise_service.settings import ServerSettings


class RestFace:
    """The server; constructing it binds, and `port` is then the one that was bound."""

    def __init__(
        self,
        gateway: Gateway,
        settings: ServerSettings,
        certificates: Certificates | None = None,
        shares_port: bool = False,
    ) -> None:
        bound = bound_socket(settings.rest_host, settings.rest_port, shares_port)
        self.port: int = bound.getsockname()[1]
        certified = certificates.names() if certificates is not None else frozenset()
        is_token_demanded = gateway.asks_tokens and not gateway.reads_certificates
        hosts = None if is_token_demanded else allowed_hosts(settings.rest_host, settings.host_names, certified)
        self._listener = Listener(
            bound,
            ConnectFace(gateway, rest_app(gateway, hosts), hosts),
            gateway.limits,
            connection_limit(gateway.limits.connections),
            partial(gateway.note_turned_away, "http"),
            certificates.context() if certificates is not None else None,
        )

    async def start(self) -> None:
        """Returns when it listens."""
        await self._listener.start()

    async def stop(self) -> None:
        """Closes idle connections, waits a little for the others."""
        await self._listener.stop()
