"""Whether the process lives and takes questions, for probes: on the REST port, and on a plain port of its own.

A kubelet, a load balancer or a container's health check carries neither token nor client certificate, and need not
trust ours. The port of its own says nothing else, and says it in clear.
"""

from functools import partial
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from placewise_service.api.calls.gateway import Gateway
from placewise_service.api.faces.callers import METHOD_NOT_ALLOWED, NO_SUCH_PATH, record_strange_request
from placewise_service.api.faces.listener import Listener, bound_socket
from placewise_service.settings import ServerSettings

_MOST_CONNECTIONS = 32


class HealthFace:
    """The plain listener; constructing it binds, and `port` is then the one that was bound. Raises OSError."""

    def __init__(self, gateway: Gateway, settings: ServerSettings, shares_port: bool = False) -> None:
        bound = bound_socket(settings.health_host, settings.health_port or 0, shares_port)
        self.port: int = bound.getsockname()[1]
        refused = partial(gateway.note_turned_away, "health")
        self._listener = Listener(bound, health_app(gateway), gateway.limits, _MOST_CONNECTIONS, refused)

    async def start(self) -> None:
        """Returns when it listens."""
        await self._listener.start()

    async def stop(self) -> None:
        """Closes."""
        await self._listener.stop()


def health_app(gateway: Gateway) -> Starlette:
    """/healthz: the process is alive. /readyz: questions are welcome, or what keeps them from being so."""

    async def healthz(request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    async def readyz(request: Request) -> JSONResponse:
        if gateway.is_ready:
            return JSONResponse({"status": "ready"})
        problem = gateway.problem()
        return JSONResponse({"status": "not ready", **({"problem": problem} if problem else {})}, 503)

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        reason = NO_SUCH_PATH if error.status_code == HTTPStatus.NOT_FOUND else METHOD_NOT_ALLOWED
        record_strange_request(gateway, request.scope, request.headers, reason)
        return Response(error.detail, error.status_code, headers=error.headers, media_type="text/plain")

    routes = [Route("/healthz", healthz), Route("/readyz", readyz)]
    return Starlette(routes=routes, exception_handlers={HTTPException: refused})
