"""The HTTP(S) face of the adapter: extender and Volcano calls, health, metrics. Never decides anything itself."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web
from msgspec import json

from placewise_client.adapter.metrics import AdapterMetrics, Histogram
from placewise_kubernetes.config import ListenConfig
from placewise_kubernetes.extender import Extender
from placewise_kubernetes.volcano import VolcanoExtender

log = logging.getLogger(__name__)

# A pod is some KiB; Volcano sends a NodeInfo with all its tasks for each candidate node.
BODY_LIMIT_BYTES = 64 * 2**20

STANDING_BY = "another replica decides"

Answer = Callable[[Mapping[str, Any]], Awaitable[Any]]
Handler = Callable[[web.BaseRequest], Awaitable[web.Response]]


def build_server(
    extender: Extender,
    volcano: VolcanoExtender,
    metrics: AdapterMetrics,
    is_synced: Callable[[], bool],
    is_leading: Callable[[], bool] = lambda: True,
) -> web.Server:
    """POST /filter /prioritize /bind, /volcano/jobEnqueueable /volcano/prioritize; GET /healthz /readyz /metrics.

    A replica that does not lead answers no scheduler: what it said could differ from what the leader says.
    Without aiohttp's application around it: a scheduler waits for each call, and a table of paths is all the routing.
    """
    calls: dict[str, Answer] = {
        "/filter": extender.filter,
        "/prioritize": extender.prioritize,
        "/bind": extender.bind,
        "/volcano/jobEnqueueable": volcano.job_enqueueable,
        "/volcano/prioritize": volcano.prioritize,
    }
    histograms = [_histogram(path) for path in calls]
    routes: dict[tuple[str, str], Handler] = {
        ("POST", path): _handler(answer, histogram, is_leading)
        for (path, answer), histogram in zip(calls.items(), histograms, strict=True)
    }
    routes["GET", "/healthz"] = _text("ok\n")
    routes["GET", "/readyz"] = _readiness(is_synced, is_leading)
    routes["GET", "/metrics"] = _metrics(metrics, histograms)
    return web.Server(_routed(routes), request_factory=_request, access_log=None)


def _routed(routes: Mapping[tuple[str, str], Handler]) -> Handler:
    async def handle(request: web.BaseRequest) -> web.Response:
        method = "GET" if request.method == "HEAD" else request.method  # a probe may ask for no more than the head
        handler = routes.get((method, request.path))
        return await handler(request) if handler is not None else web.Response(text="no such page\n", status=404)

    return handle


def _request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    """As the server makes it by itself, which cannot be told of a limit."""
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=BODY_LIMIT_BYTES)


def server_tls(listen: ListenConfig) -> ssl.SSLContext | None:
    """TLS settings of the listener; None for plain HTTP."""
    if not listen.certificate_path:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(listen.certificate_path, listen.key_path)
    if listen.client_ca_path:
        context.load_verify_locations(listen.client_ca_path)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _handler(answer: Answer, histogram: Histogram, is_leading: Callable[[], bool]) -> Handler:
    async def handle(request: web.BaseRequest) -> web.Response:
        if not is_leading():
            return web.json_response({"Error": STANDING_BY}, status=503)
        started_s = time.monotonic()
        try:
            result = await answer(json.decode(await request.read()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            # A caller that is ignorable goes on without us; the text is for whoever reads the scheduler's log.
            log.warning("%s: %r", request.path, error)
            return web.json_response({"Error": f"bad request: {error!r}"}, status=400)
        histogram.observe(time.monotonic() - started_s)
        return web.Response(body=json.encode(result), content_type="application/json")

    return handle


def _histogram(path: str) -> Histogram:
    name = path.strip("/").replace("/", "_").lower()
    return Histogram(f"placewise_kubernetes_{name}_seconds", f"Time to answer {path}")


def _text(text: str) -> Handler:
    async def handle(_: web.BaseRequest) -> web.Response:
        return web.Response(text=text)

    return handle


def _readiness(is_synced: Callable[[], bool], is_leading: Callable[[], bool]) -> Handler:
    async def handle(_: web.BaseRequest) -> web.Response:
        problem = "nodes and pods are not listed yet" if not is_synced() else "" if is_leading() else STANDING_BY
        return web.Response(text=f"{problem or 'ok'}\n", status=503 if problem else 200)

    return handle


def _metrics(metrics: AdapterMetrics, histograms: list[Histogram]) -> Handler:
    async def handle(_: web.BaseRequest) -> web.Response:
        own = "\n".join(line for histogram in histograms for line in histogram.lines())
        return web.Response(text=f"{metrics.text()}{own}\n")

    return handle
