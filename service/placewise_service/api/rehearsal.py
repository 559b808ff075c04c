"""Asks every question once before the first caller does, of a cluster that exists in memory only.

This does the work of a first use: numpy imports parts of itself, protobuf builds its classes, tables are looked
up. Without it the first AdmitOrWait of a process takes six times as long as the second. Nothing of it reaches the
state, the decision log or the metrics.
"""

import json
import math
from collections.abc import Sequence
from typing import Any

import structlog

from placewise_core.basics.clock import Clock
from placewise_service.api.calls.gateway import Gateway
from placewise_service.api.calls.ports import DecisionEngine
from placewise_service.api.calls.rpcs import RPCS
from placewise_service.api.docs import examples
from placewise_service.api.identity.auth import NOBODY, Open
from placewise_service.settings import LimitSettings
from placewise_service.telemetry import Telemetry

log = structlog.get_logger(__name__)

_CLUSTER = "rehearsal"
_DEFAULT: dict[str, Any] = {"policy": ""}
SCRIPT: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ReportNodes", examples.NODES),
    ("Place", {**examples.PLACE, **_DEFAULT, "explain": True}),
    ("ReportJobEvents", examples.EVENTS),
    ("AdmitOrWait", {**examples.ADMIT, **_DEFAULT}),
    ("AdmitOrWait", {**examples.ADMIT, "policy": "qos"}),  # the models of job speed, which every other policy uses too
    ("Partition", {**examples.PARTITION, "units": [], "explain": True}),
    ("GetCluster", {"full": True}),
)


async def rehearse(engine: DecisionEngine, clock: Clock) -> None:
    """Asks `engine`, which stands on a store of its own. Never fails: a service that stumbles here may still serve."""
    gateway = Gateway(engine, clock, LimitSettings(), Open(), MutedTelemetry())
    with structlog.contextvars.bound_contextvars(is_rehearsal=True):
        for name, question in SCRIPT:
            try:
                await _ask(gateway, name, question)
            except Exception as error:
                log.warning("rehearsal failed", rpc=name, reason=str(error))


async def _ask(gateway: Gateway, name: str, question: dict[str, Any]) -> None:
    rpc = RPCS[name]
    request = rpc.request()
    await gateway.json.parsed(json.dumps({**question, "cluster": _CLUSTER}).encode(), request)
    answer = await gateway.call(rpc, await gateway.parsed(rpc, request.SerializeToString()), NOBODY, math.inf)
    await gateway.json.rendered(rpc.response.FromString(answer.SerializeToString()))


class MutedTelemetry(Telemetry):
    """Counts nothing: for a rehearsal, which is not the service's work."""

    def _histogram(self, name: str, text: str, *labels: str, buckets: Sequence[float] = ()) -> Any:
        return _Uncounted()

    def _counter(self, name: str, text: str, *labels: str) -> Any:
        return _Uncounted()

    def _gauge(self, name: str, text: str, *labels: str, mode: Any = "") -> Any:
        return _Uncounted()


class _Uncounted:
    """Accepts every call of a counter, a gauge and a histogram, and counts nothing."""

    def labels(self, *values: str) -> "_Uncounted":
        return self

    def inc(self, amount: float = 1.0) -> None:
        pass

    def remove(self, *values: str) -> None:
        pass

    observe = set = inc
