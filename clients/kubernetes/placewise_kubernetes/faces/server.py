"""The HTTP(S) face of the adapter: extender and Volcano calls, health, metrics. Never decides anything itself.

A call's head gives its length: one that is too long is refused before its body is read.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from msgspec import json
from prometheus_client import Counter, Histogram

from placewise_client.adapter.metrics import CONTENT_TYPE, AdapterMetrics
from placewise_client.adapter.sections import ConfigError
from placewise_kubernetes.config import ListenConfig
from placewise_kubernetes.faces.extender import Extender
from placewise_kubernetes.faces.volcano import VolcanoExtender

log = logging.getLogger(__name__)

# A pod is some KiB, and the names of 10 000 nodes are some hundred more.
BODY_LIMIT_BYTES = 2**20

STANDING_BY = "another replica decides"

Answer = Callable[[Mapping[str, Any]], Awaitable[Any]]
Handler = Callable[[web.BaseRequest], Awaitable[web.Response]]


@dataclass(frozen=True, slots=True)
class Face:
    """Answers schedulers' calls on one port, health and metrics there and, if configured, on another.

    A replica that does not lead answers no scheduler: its answers could differ from the leader's.
    """

    extender: Extender
    volcano: VolcanoExtender
    metrics: AdapterMetrics
    is_synced: Callable[[], bool]
    is_leading: Callable[[], bool] = lambda: True
    _histograms: dict[str, Histogram] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.metrics.registry.register(self.extender.host.refused)
        self.metrics.registry.register(self.extender.host.opener.undecided)

    def server(self, listen: ListenConfig) -> web.Server:
        """POST /filter /prioritize, as configured /bind, /volcano/jobEnqueueable /volcano/prioritize; and the pages."""
        calls: dict[str, Answer] = {"/filter": self.extender.filter, "/prioritize": self.extender.prioritize}
        if listen.is_bind_served:
            calls["/bind"] = self.extender.bind
        routes = {("POST", path): self._call(path, answer, BODY_LIMIT_BYTES) for path, answer in calls.items()}
        if listen.is_volcano_served:
            volcano: dict[str, Answer] = {
                "/volcano/jobEnqueueable": self.volcano.job_enqueueable,
                "/volcano/prioritize": self.volcano.prioritize,
            }
            limit = listen.volcano_body_bytes
            routes |= {("POST", path): self._call(path, answer, limit) for path, answer in volcano.items()}
        return self._server(routes | self._pages())

    def health_server(self) -> web.Server:
        """GET /healthz /readyz /metrics."""
        return self._server(self._pages())

    def _server(self, routes: Mapping[tuple[str, str], Handler]) -> web.Server:
        """Without aiohttp's application around it: a scheduler waits for each call, and a table of paths is enough.

        No body is unpacked (none comes packed), and none that was refused is read to its end.
        """

        async def handle(request: web.BaseRequest) -> web.Response:
            method = "GET" if request.method == "HEAD" else request.method  # a probe may ask for no more than the head
            handler = routes.get((method, request.path))
            return await handler(request) if handler is not None else self._not_served(request)

        options: dict[str, Any] = {"access_log": None, "auto_decompress": False, "lingering_time": 0}
        return web.Server(handle, request_factory=_request, **options)

    def _not_served(self, request: web.BaseRequest) -> web.Response:
        if request.method == "POST":
            self.extender.host.refused.labels("not_served").inc()
            log.warning("%r is not served: set listen.is_bind_served or listen.is_volcano_served", request.path)
        return web.Response(text="no such page\n", status=404)

    def _pages(self) -> dict[tuple[str, str], Handler]:
        return {
            ("GET", "/healthz"): _text("ok\n"),
            ("GET", "/readyz"): _readiness(self.is_synced, self.is_leading),
            ("GET", "/metrics"): self._show_metrics,
        }

    def _call(self, path: str, answer: Answer, limit_bytes: int) -> Handler:
        refused, histogram = self.extender.host.refused, self._histogram(path)

        async def handle(request: web.BaseRequest) -> web.Response:
            if not self.is_leading():
                return web.json_response({"Error": STANDING_BY}, status=503)
            if (response := _too_long(request, limit_bytes, refused)) is not None:
                return response
            started_s = time.monotonic()
            try:
                result = await answer(json.decode(await request.read()))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                # A caller that is ignorable goes on without us; the text is for the scheduler's log.
                log.warning("%s: %r", request.path, error)
                return web.json_response({"Error": f"bad request: {error!r}"}, status=400)
            histogram.observe(time.monotonic() - started_s)
            return web.Response(body=json.encode(result), content_type="application/json")

        return handle

    def _histogram(self, path: str) -> Histogram:
        if path not in self._histograms:
            name = path.strip("/").replace("/", "_").lower()
            self._histograms[path] = self.metrics.histogram(
                f"placewise_kubernetes_{name}_seconds", f"Time to answer {path}"
            )
        return self._histograms[path]

    async def _show_metrics(self, _: web.BaseRequest) -> web.Response:
        return web.Response(text=self.metrics.text(), headers={"Content-Type": CONTENT_TYPE})


def _request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    """As the server would make it, without its limit: `_too_long` checks the length."""
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=0)


def _too_long(request: web.BaseRequest, limit_bytes: int, refused: Counter) -> web.Response | None:
    """The refusal of a body that is longer than allowed, or does not say how long it is; None for any other."""
    length = request.content_length
    if length is not None and length <= limit_bytes:
        return None
    reason, status = ("no_length", 411) if length is None else ("body_too_large", 413)
    refused.labels(reason).inc()
    log.warning("%s: %s bytes, at most %d are read", request.path, "unknown" if length is None else length, limit_bytes)
    response = web.json_response({"Error": f"at most {limit_bytes} bytes, and Content-Length"}, status=status)
    response.force_close()
    return response


def server_tls(listen: ListenConfig) -> ssl.SSLContext | None:
    """TLS settings of the listener; None for plain HTTP. Raises ConfigError, OSError."""
    if not listen.certificate_path:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(listen.certificate_path, listen.key_path)
    if listen.client_ca_path:
        try:
            context.load_verify_locations(listen.client_ca_path)
        except OSError as error:
            raise ConfigError(f"listen.client_ca_path: {listen.client_ca_path}: {error}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _text(text: str) -> Handler:
    async def handle(_: web.BaseRequest) -> web.Response:
        return web.Response(text=text)

    return handle


def _readiness(is_synced: Callable[[], bool], is_leading: Callable[[], bool]) -> Handler:
    async def handle(_: web.BaseRequest) -> web.Response:
        problem = "nodes and pods are not listed yet" if not is_synced() else "" if is_leading() else STANDING_BY
        return web.Response(text=f"{problem or 'ok'}\n", status=503 if problem else 200)

    return handle
