"""The one way in for both faces: credentials, overload, the call, its errors and its metrics. Knows no transport.

Whatever a handler raises leaves here as a PlacewiseError whose text may be shown: anything unforeseen is logged under
an incident id and becomes INTERNAL "internal error".
"""

import asyncio
import uuid
from collections.abc import Mapping
from typing import Any

import structlog
from google.protobuf.message import DecodeError, Message

from placewise_core.clock import Clock
from placewise_core.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    OverloadedError,
    PlacewiseError,
    StateUnavailableError,
)
from placewise_core.validate import Limits
from placewise_service.api.auth import Authenticator, Open, Principal
from placewise_service.api.ports import DecisionEngine
from placewise_service.api.rpcs import Office, Reach, Rpc
from placewise_service.settings import LimitSettings
from placewise_service.telemetry import Telemetry

log = structlog.get_logger(__name__)


class Desk:
    """Takes calls for one engine. Single-threaded: it counts what is in flight without a lock."""

    def __init__(
        self,
        engine: DecisionEngine,
        clock: Clock,
        limits: LimitSettings,
        authenticator: Authenticator,
        telemetry: Telemetry,
        max_reserve_ttl_s: float = 3600.0,
    ) -> None:
        self.engine = engine
        self.clock = clock
        self.limits = limits
        self.telemetry = telemetry
        self._authenticator = authenticator
        self.needs_token = not isinstance(authenticator, Open)
        self._office = Office(engine, clock, _request_limits(limits, max_reserve_ttl_s))
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.is_preparing = False
        self.is_draining = False

    @property
    def is_ready(self) -> bool:
        """True while questions are welcome."""
        return self.engine.is_ready and not self.is_preparing and not self.is_draining

    def authenticate(self, token: str | None) -> Principal:
        """Raises UnauthenticatedError."""
        return self._authenticator.authenticate(token)

    async def call(
        self,
        rpc: Rpc,
        request: Message,
        token: str | None,
        deadline_s: float,
        trace: Mapping[str, str] | None = None,
    ) -> Message:
        """Answers one request. Raises PlacewiseError, and nothing else but cancellation.

        `deadline_s` is a reading of Clock.monotonic_s; `trace` is what the caller sent of TRACE_HEADERS, None where
        nobody records traces.
        """
        started_s = self.clock.monotonic_s()
        code = "OK"
        self._in_flight += 1
        self.telemetry.afterwards.add(self._show_in_flight)
        try:
            self._admit(rpc, started_s, deadline_s)
            principal = self._authenticator.authenticate(token)
            _authorise(principal, rpc, request)
            if trace is None:  # nobody records it
                return await rpc.handle(self._office, request, principal, deadline_s)
            with self.telemetry.span(rpc.name, trace):
                return await rpc.handle(self._office, request, principal, deadline_s)
        except PlacewiseError as error:
            code = error.reason
            raise
        except asyncio.CancelledError:
            code = "CANCELLED"
            raise
        except Exception as error:
            code = "INTERNAL"
            raise unforeseen(error, rpc.name) from None
        finally:
            self._leave()
            seconds = self.clock.monotonic_s() - started_s
            self.telemetry.afterwards.add(self._count, rpc.name, code, seconds)

    def parse(self, rpc: Rpc, raw: bytes) -> Message:
        """The request in its binary form. Raises InvalidRequestError."""
        self.check_size(len(raw))
        try:
            return rpc.request.FromString(raw)
        except DecodeError:
            raise InvalidRequestError(f"not a {rpc.request.DESCRIPTOR.name}") from None

    def check_size(self, size: int) -> None:
        """Raises InvalidRequestError for a message over the limit."""
        if size > self.limits.message_bytes:
            raise InvalidRequestError(f"the message has {size} bytes; the limit is {self.limits.message_bytes}")

    async def drain(self, timeout_s: float) -> bool:
        """Takes no more calls and waits for those in flight; False if some were left after the time."""
        self.is_draining = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def _admit(self, rpc: Rpc, now_s: float, deadline_s: float) -> None:
        if self._in_flight == 1:
            self._idle.clear()
        if self._in_flight > self.limits.in_flight:
            self.telemetry.shed(rpc.name)
            raise OverloadedError(f"more than {self.limits.in_flight} requests are in flight")
        if self.is_draining:
            raise StateUnavailableError("this process is shutting down")
        if now_s >= deadline_s:
            raise DeadlineExceededError("the deadline had passed when the request was read")

    def _leave(self) -> None:
        self._in_flight -= 1
        if self._in_flight == 0:
            self._idle.set()

    def _count(self, rpc: str, code: str, seconds: float) -> None:
        self.telemetry.rpc(rpc, code, seconds)
        self._show_in_flight()

    def _show_in_flight(self) -> None:
        self.telemetry.in_flight(self._in_flight)

    @property
    def in_flight(self) -> int:
        """Calls being worked on."""
        return self._in_flight


def unforeseen(error: Exception, where: str) -> PlacewiseError:
    """What the caller sees of an error nobody thought of: an incident id, under which the log has the rest."""
    incident = uuid.uuid4().hex
    log.error("unforeseen error", incident=incident, rpc=where, exc_info=error)
    return PlacewiseError("internal error", {"incident": incident})


def _authorise(principal: Principal, rpc: Rpc, request: Any) -> None:
    if rpc.reach is Reach.CLUSTER:
        principal.require(rpc.scope, request.cluster)
    elif rpc.reach is Reach.ALL:
        principal.require(rpc.scope, None)
    else:
        principal.require_scope(rpc.scope)


def _request_limits(limits: LimitSettings, max_reserve_ttl_s: float) -> Limits:
    return Limits(
        jobs=limits.jobs_per_request,
        tasks_per_gang=limits.tasks_per_gang,
        tasks=limits.tasks_per_request,
        subtasks=limits.subtasks_per_job,
        nodes=limits.nodes_per_cluster,
        events=limits.events_per_report,
        reserve_ttl_s=max_reserve_ttl_s,
    )
