"""Counters and a latency histogram of an adapter, in Prometheus' text format, without a dependency.

Never a metrics store: one process, numbers since its start.
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

# Seconds. The budget of a decision, 0.1 s, is one of them.
_BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


@dataclass(slots=True)
class Counter:
    """Counts, by one label value where `label` is given."""

    name: str
    help: str
    label: str = ""
    values: dict[str, float] = field(default_factory=dict)

    def inc(self, value: str = "", by: float = 1) -> None:
        self.values[value] = self.values.get(value, 0) + by

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} counter"
        for value, count in sorted(self.values.items()) or [("", 0.0)]:
            label = f'{{{self.label}="{value}"}}' if self.label and value else ""
            yield f"{self.name}{label} {count:g}"


@dataclass(slots=True)
class Histogram:
    """Seconds, in fixed buckets."""

    name: str
    help: str
    counts: list[int] = field(default_factory=lambda: [0] * (len(_BOUNDS_S) + 1))
    sum_s: float = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect.bisect_left(_BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} histogram"
        seen = 0
        for bound, count in zip((*map(str, _BOUNDS_S), "+Inf"), self.counts, strict=True):
            seen += count
            yield f'{self.name}_bucket{{le="{bound}"}} {seen}'
        yield f"{self.name}_sum {self.sum_s:g}"
        yield f"{self.name}_count {seen}"


def _counter(name: str, text: str, label: str = "") -> Any:
    """A dataclass field; Any as in the standard library's own typing of `field`."""
    return field(default_factory=lambda: Counter(f"placewise_adapter_{name}_total", text, label))


@dataclass(slots=True)
class AdapterMetrics:
    """All metrics of an adapter; the names are the same for every scheduler."""

    verdicts: Counter = _counter("verdicts", "Answers of the service, by kind", "verdict")
    undecided: Counter = _counter("undecided", "Questions that got no decision within the budget")
    applied: Counter = _counter("applied", "Attempts to apply a placement, by what came of them", "result")
    released: Counter = _counter("released", "Jobs left to the host's own scheduling, by reason", "reason")
    withdrawn: Counter = _counter("withdrawn", "Applied placements taken back because they did not start")
    events: Counter = _counter("events", "Job events acknowledged by the service", "kind")
    events_dropped: Counter = _counter("events_dropped", "Job events lost: too many waited, or the service refused it")
    overrides: Counter = _counter("overrides", "Jobs that did not start where the service said")
    shares: Counter = _counter("shares", "Shares of finished divisible jobs, by what came of their time", "result")
    host_errors: Counter = _counter("host_errors", "Looks at the host that failed")
    passes: Counter = _counter("passes", "Passes of the loop")
    decide_s: Histogram = field(
        default_factory=lambda: Histogram("placewise_adapter_decide_seconds", "One pass of questions, per queue")
    )
    apply_s: Histogram = field(
        default_factory=lambda: Histogram("placewise_adapter_apply_seconds", "One placement applied to the host")
    )

    def text(self) -> str:
        """All metrics in Prometheus' text exposition format."""
        parts = (getattr(self, name) for name in self.__slots__)
        return "\n".join(line for part in parts for line in part.lines()) + "\n"


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
