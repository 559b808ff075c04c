"""The REST face: FastAPI around the same gateway, with the contract's own JSON. Knows no decision and no store."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import resources
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException

from placewise_core.domain.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    PlacewiseError,
    StateUnavailableError,
)
from placewise_service.api.calls.gateway import Call, Gateway, unforeseen
from placewise_service.api.calls.statuses import (
    PROBLEM_TYPE,
    UNSUPPORTED_MEDIA_TYPE,
    problem,
    problem_body,
    problem_headers,
)
from placewise_service.api.convert.json_codec import set_from_text
from placewise_service.api.docs.openapi import document
from placewise_service.api.docs.routes import ROUTES, Route
from placewise_service.api.faces.bodies import read_body
from placewise_service.api.faces.callers import (
    METHOD_NOT_ALLOWED,
    NO_SUCH_PATH,
    of_request,
    record_strange_request,
    trace_of,
)
from placewise_service.api.faces.health import health_app
from placewise_service.api.faces.pages import Hosts, refuse_foreign_hosts, refuse_foreign_pages
from placewise_service.api.identity.auth import AccessScope
from placewise_service.telemetry import METRICS_CONTENT_TYPE

TIMEOUT_HEADER = "placewise-timeout-ms"
_MAX_TIMEOUT_MS = 3_600_000.0
# The page polls this service and nothing else, and runs no script but its own.
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; connect-src 'self'; script-src 'self'; style-src 'self'; "
    "frame-ancestors 'none'; form-action 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

Endpoint = Callable[[Request], Awaitable[Response]]


def rest_app(gateway: Gateway, hosts: Hosts = None) -> FastAPI:
    """The application; it starts nothing. `hosts`: names by which it may be asked, None for any."""
    app = FastAPI(title="Placewise", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    for route in ROUTES:
        app.add_api_route(route.path, _endpoint(gateway, route, hosts), methods=[route.method], name=route.rpc.name)
    _add_operations(app, gateway, hosts)
    _add_page(app, gateway, hosts)
    app.add_exception_handler(PlacewiseError, _on_error)
    app.add_exception_handler(HTTPException, partial(_on_http_error, gateway))
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(Exception, _on_unforeseen)
    return app


def _endpoint(gateway: Gateway, route: Route, hosts: Hosts) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        if route.body:
            _check_content_type(gateway, route, request)
        caller, trace = of_request(gateway, request.scope, request.headers), trace_of(gateway, request.headers)
        try:
            timeout_s = _timeout_s(request)
        except InvalidRequestError as error:
            gateway.record_refusal(route.rpc.name, error.reason, caller)
            raise
        deadline_s = gateway.clock.monotonic_s() + timeout_s
        try:
            async with asyncio.timeout(None if math.isinf(timeout_s) else timeout_s):
                with gateway.enter(route.rpc, caller, deadline_s, trace) as call:
                    refuse_foreign_hosts(request.headers, hosts, call.principal)
                    refuse_foreign_pages(request.headers)
                    if "cluster" in request.path_params:
                        call.authorise(request.path_params["cluster"])
                    content = await gateway.json.rendered(await call.answer(await _message(call, route, request)))
        except TimeoutError:
            raise DeadlineExceededError(f"no answer within {timeout_s * 1000.0:g} ms") from None
        return Response(content, media_type="application/json")

    return endpoint


async def _message(call: Call, route: Route, request: Request) -> Any:
    gateway = call.gateway
    message: Any = route.rpc.request()
    if route.body:
        body = await read_body(call, request.headers, request.receive)
        if route.body == "*":
            await gateway.json.parsed(body, message, request.receive)
        else:
            part = getattr(message, route.body)
            part.SetInParent()
            message.update_mask.paths.extend(await gateway.json.parsed(body, part, request.receive))
    for field, value in request.path_params.items():
        if getattr(message, field) not in ("", value):
            raise InvalidRequestError("differs from the path", field)
        _set_text(message, field, value)
    for field, value in request.query_params.items():
        name = _query_field(route, field)
        set_from_text(message, name, value)
    return message


def _set_text(message: Any, field: str, value: str) -> None:
    try:
        setattr(message, field, value)
    except ValueError:
        raise InvalidRequestError("not valid text", field) from None


def _query_field(route: Route, name: str) -> str:
    for field in route.query:
        if name in (field, route.rpc.request.DESCRIPTOR.fields_by_name[field].camelcase_name):
            return field
    raise InvalidRequestError("unknown query parameter", name[:64])


def _check_content_type(gateway: Gateway, route: Route, request: Request) -> None:
    """Raises HTTPException unless the request says that its body, if only an empty one, is JSON.

    A browser sends other types, or none, for any page without asking first.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        gateway.record_refusal(
            route.rpc.name, UNSUPPORTED_MEDIA_TYPE, of_request(gateway, request.scope, request.headers)
        )
        raise HTTPException(415, "send Content-Type: application/json, also with an empty body")


def _timeout_s(request: Request) -> float:
    text = request.headers.get(TIMEOUT_HEADER)
    if text is None:
        return math.inf
    try:
        timeout_ms = float(text)
    except ValueError:
        timeout_ms = math.nan
    if not 0.0 < timeout_ms <= _MAX_TIMEOUT_MS:
        raise InvalidRequestError(f"must be milliseconds, at most {_MAX_TIMEOUT_MS:g}", "Placewise-Timeout-Ms")
    return timeout_ms / 1000.0


def _add_operations(app: FastAPI, gateway: Gateway, hosts: Hosts) -> None:
    """Probes are open, as kubelets and load balancers carry no token; metrics name clusters and need `read`.
    While a file of credentials cannot be used and nobody is recognised, metrics say that, and nothing else."""

    async def metrics(request: Request) -> Response:
        with _refusals_on_record(gateway, request, "metrics"):
            refuse_foreign_pages(request.headers)
        try:
            gateway.require(AccessScope.READ, of_request(gateway, request.scope, request.headers), "metrics")
        except StateUnavailableError:  # nobody can be recognised: an alert on that goes on
            return Response(gateway.telemetry.render_credentials(), media_type=METRICS_CONTENT_TYPE)
        return Response(await asyncio.to_thread(gateway.telemetry.render), media_type=METRICS_CONTENT_TYPE)

    schema = document()

    async def openapi(request: Request) -> Response:
        with _refusals_on_record(gateway, request, "page"):
            refuse_foreign_hosts(request.headers, hosts)
        return JSONResponse(schema)

    app.add_api_route("/metrics", metrics, methods=["GET"])
    app.add_api_route("/openapi.json", openapi, methods=["GET"])
    app.router.routes.extend(health_app(gateway).routes)


def _add_page(app: FastAPI, gateway: Gateway, hosts: Hosts) -> None:
    """Serves the page that shows the clusters. It holds no data; its script calls the API as any client would."""
    folder = resources.files("placewise_service.api.docs").joinpath("page")

    def file(name: str, media_type: str) -> Endpoint:
        content = folder.joinpath(name).read_bytes()

        async def endpoint(request: Request) -> Response:
            with _refusals_on_record(gateway, request, "page"):
                refuse_foreign_hosts(request.headers, hosts)
            return Response(content, media_type=media_type, headers=_PAGE_HEADERS)

        return endpoint

    app.add_api_route("/", file("index.html", "text/html"), methods=["GET"], response_class=HTMLResponse)
    app.add_api_route("/page/page.js", file("page.js", "text/javascript"), methods=["GET"])
    app.add_api_route("/page/page.css", file("page.css", "text/css"), methods=["GET"])


@contextmanager
def _refusals_on_record(gateway: Gateway, request: Request, name: str) -> Iterator[None]:
    """Records the refusal of a request outside the contract; it is raised all the same."""
    try:
        yield
    except PlacewiseError as error:
        gateway.record_refusal(name, error.reason, of_request(gateway, request.scope, request.headers))
        raise


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, PlacewiseError)
    return JSONResponse(problem(error), error.http_status, headers=problem_headers(error), media_type=PROBLEM_TYPE)


async def _on_http_error(gateway: Gateway, request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    reason = {404: NO_SUCH_PATH, 405: METHOD_NOT_ALLOWED, 415: UNSUPPORTED_MEDIA_TYPE}.get(
        error.status_code, "HTTP_ERROR"
    )
    if reason != UNSUPPORTED_MEDIA_TYPE:  # which names its call on record
        record_strange_request(gateway, request.scope, request.headers, reason)
    body = problem_body(error.status_code, reason, str(error.detail))
    return JSONResponse(body, error.status_code, headers=error.headers, media_type=PROBLEM_TYPE)


async def _on_validation_error(request: Request, error: Exception) -> Response:
    return await _on_error(request, InvalidRequestError("parameters are missing or malformed: see /openapi.json"))


async def _on_unforeseen(request: Request, error: Exception) -> Response:
    return await _on_error(request, unforeseen(error, request.url.path))
