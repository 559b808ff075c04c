"""The metrics of an adapter: counters since the start of its process, and two histograms of latencies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, generate_latest

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
        self.overrides = self._counter("overrides", "Jobs that did not start where the service said")
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


async def serve_metrics(metrics: AdapterMetrics, host: str, port: int) -> asyncio.Server:
    """Answers `GET /metrics` and `GET /healthz` over plain HTTP (port 0 picks a free one) until it is closed."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), timeout=5)
            writer.write(_response(head.split(b" ", 2)[1:2], metrics))
            await writer.drain()
        writer.close()

    return await asyncio.start_server(answer, host, port)


def _response(path: list[bytes], metrics: AdapterMetrics) -> bytes:
    if path == [b"/metrics"]:
        status, body = "200 OK", metrics.text()
    elif path == [b"/healthz"]:
        status, body = "200 OK", "ok\n"
    else:
        status, body = "404 Not Found", "not found\n"
    payload = body.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len(payload)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + payload
