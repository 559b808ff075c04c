"""The metrics of an adapter: counters since the start of its process, and two histograms of latencies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Seconds. The budget of a decision, 0.1 s, is one of them.
BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class _Registry(CollectorRegistry):
    """Leaves out the time at which each metric was created: it would double the number of series."""

    def collect(self) -> Iterator[Metric]:
        for family in super().collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


class AdapterMetrics:
    """All metrics of an adapter; the names are the same for every scheduler."""

    def __init__(self) -> None:
        self.registry = _Registry()
        self.verdicts = self._counter("verdicts", "Answers of the service, by kind", "verdict")
        self.undecided = self._counter("undecided", "Questions that got no decision within the budget")
        self.applied = self._counter("applied", "Attempts to apply a placement, by what came of them", "result")
        self.released = self._counter("released", "Jobs left to the host's own scheduling, by reason", "reason")
        self.withdrawn = self._counter("withdrawn", "Applied placements taken back because they did not start")
        self.events = self._counter("events", "Job events acknowledged by the service", "kind")
        self.events_dropped = self._counter(
            "events_dropped", "Job events lost: too many waited, or the service refused it"
        )
        self.overrides = self._counter("overrides", "Jobs that did not start where the service placed them")
        self.shares = self._counter("shares", "Shares of finished divisible jobs, by what came of their time", "result")
        self.host_errors = self._counter("host_errors", "Looks at the host that failed")
        self.passes = self._counter("passes", "Passes of the loop")
        self.decide_s = self.histogram("placewise_adapter_decide_seconds", "One pass of questions, per queue")
        self.apply_s = self.histogram("placewise_adapter_apply_seconds", "One placement applied to the host")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"placewise_adapter_{name}", text, labels, registry=self.registry)

    def histogram(self, name: str, text: str) -> Histogram:
        """A new histogram of seconds that is shown with the others."""
        return Histogram(name, text, buckets=BUCKETS_S, registry=self.registry)

    def text(self) -> str:
        """All metrics in Prometheus' text exposition format."""
        return generate_latest(self.registry).decode()


@asynccontextmanager
async def serve_metrics(metrics: AdapterMetrics, host: str, port: int) -> AsyncIterator[int]:
    """Answers `GET /metrics` and `GET /healthz` over plain HTTP while the context is open.

    Yields the port (0 picks a free one). Raises OSError.
    """

    async def show(_: web.Request) -> web.Response:
        return web.Response(text=metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def live(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    app = web.Application()
    app.add_routes([web.get("/metrics", show), web.get("/healthz", live)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
