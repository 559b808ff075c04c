"""The one way in for both faces: credentials, overload, the call, its errors and its metrics. Knows no transport.

A call comes in two steps. `with gateway.enter(…) as call` checks the headers: the number in flight,
credentials, scope, deadline. Only then is the message read; `call.answer(message)` authorises its cluster and answers.

Every error of a handler leaves here as a PlacewiseError whose text may be shown: an unforeseen one is logged under
an incident id and becomes INTERNAL "internal error".
"""

import asyncio
import math
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import structlog
from google.protobuf.message import DecodeError, Message

from placewise_core.basics.clock import Clock
from placewise_core.domain.errors import (
    DeadlineExceededError,
    DrainingError,
    InvalidRequestError,
    OverloadedError,
    PlacewiseError,
)
from placewise_core.domain.validate import Limits
from placewise_service.api.calls.body_room import SMALL_BYTES, BodyRoom
from placewise_service.api.calls.call_audit import CallAudit
from placewise_service.api.calls.context import CallContext
from placewise_service.api.calls.counts import check_counts, check_raw_counts, least_counted_bytes
from placewise_service.api.calls.ports import DecisionEngine
from placewise_service.api.calls.rpcs import Reach, Rpc
from placewise_service.api.calls.wire import parsed_in_pieces
from placewise_service.api.convert.json_codec import JsonCodec
from placewise_service.api.identity.auth import AccessScope, Authenticator, Credentials, Method, Principal
from placewise_service.aside import ASIDE_BYTES, aside
from placewise_service.settings import LimitSettings
from placewise_service.telemetry import Telemetry

log = structlog.get_logger(__name__)


class Gateway:
    """Takes calls for one engine. Single-threaded: it counts the calls in flight without a lock."""

    def __init__(
        self,
        engine: DecisionEngine,
        clock: Clock,
        limits: LimitSettings,
        authenticator: Authenticator,
        telemetry: Telemetry,
        max_reserve_ttl_s: float = 3600.0,
        audit: CallAudit | None = None,
    ) -> None:
        self.engine = engine
        self.clock = clock
        self.limits = limits
        self.telemetry = telemetry
        self._authenticator = authenticator
        self.needs_credentials = authenticator.asks_tokens or authenticator.reads_certificates
        self.reads_certificates = authenticator.reads_certificates
        self.asks_tokens = authenticator.asks_tokens
        self.audit = audit
        # Each returns a problem that should keep calls away until an operator solves it; "" for none.
        self.checks: list[Callable[[], str]] = [authenticator.problem]
        self.context = CallContext(engine, clock, _request_limits(limits, max_reserve_ttl_s))
        self.counted_bytes = least_counted_bytes(self.context.limits)
        self.json = JsonCodec(limits.json_objects, partial(telemetry.count_refused, "http"))
        self._in_flight = 0
        self._shows_in_flight = False  # soon: one look serves all calls that begin until then
        self._held: dict[str, int] = {}  # in flight, by the caller's name
        self._streams: Counter[str] = Counter()  # open, by the caller's name
        self._most_held = max(1, int(limits.caller_share * limits.in_flight))
        self._room = BodyRoom(limits.bodies_bytes, limits.caller_share)
        self._idle = asyncio.Event()
        self._idle.set()
        self.is_preparing = False
        self.is_draining = False

    @property
    def is_ready(self) -> bool:
        """True while questions are welcome."""
        return self.engine.is_ready and not self.is_preparing and not self.is_draining and not self.problem()

    def problem(self) -> str:
        """A problem that an operator has to solve before this replica should get calls again; "" for none."""
        return next(filter(None, (check() for check in self.checks)), "") or self.engine.problem()

    def require(self, scope: AccessScope, credentials: Credentials, name: str) -> None:
        """For requests outside the contract: raises unless the caller has the scope on every cluster."""
        principal = None
        try:
            principal = self._authenticator.authenticate(credentials)
            principal.require(scope, None)
        except PlacewiseError as error:
            if self.audit is not None:
                self.telemetry.afterwards.add(self.audit.record_refusal, name, error.reason, credentials, principal)
            raise

    def record_refusal(self, name: str, reason: str, credentials: Credentials, subject: str = "") -> None:
        """Puts on record that a request was refused before it became a call."""
        if self.audit is not None:
            self.audit.record_refusal(name, reason, credentials, subject=subject)

    def note_turned_away(self, face: str, limit: str, peer: str = "") -> None:
        """Counts a connection, or a request before its call began, that was refused; puts it on record."""
        self.telemetry.count_refused(face, limit)
        self.record_turned_away(face, limit, peer)

    def record_turned_away(self, face: str, limit: str, peer: str) -> None:
        """As `note_turned_away` for a refusal that is counted already."""
        if self.audit is not None:
            self.audit.record_turned_away(face, limit, peer)

    def enter(
        self, rpc: Rpc, credentials: Credentials, deadline_s: float, trace: Mapping[str, str] | None = None
    ) -> "Call":
        """A call, by its headers alone: `with` admits or refuses it, before any of its body is read.

        `deadline_s` is a reading of Clock.monotonic_s; `trace` holds the caller's TRACE_HEADERS, None if nobody records
        traces.
        """
        return Call(self, rpc, credentials, deadline_s, trace)

    async def call(self, rpc: Rpc, message: Message, credentials: Credentials, deadline_s: float) -> Message:
        """Answers one message that is there already. Raises PlacewiseError, and nothing else but cancellation."""
        with self.enter(rpc, credentials, deadline_s) as call:
            return await call.answer(message)

    @contextmanager
    def stream(self, rpc: Rpc, credentials: Credentials) -> Iterator[None]:
        """A stream, while it is open. Each of its messages is a call of its own, and enters as one.

        Raises PlacewiseError for a caller who may make no call of it, and for a stream too many.
        """
        call = self.enter(rpc, credentials, math.inf)
        try:
            call.principal = self._authenticator.authenticate(credentials)
            _admit_scope(call.principal, rpc)
            name = self._take_stream(rpc, call.principal)
        except PlacewiseError as error:
            call.reason = error.reason
            self._finish(call)
            raise
        try:
            yield
        finally:
            self._streams -= Counter((name,))

    async def parsed(self, rpc: Rpc, raw: bytes) -> Message:
        """The request in its binary form. Raises InvalidRequestError; of a large one, before anything is built."""
        if len(raw) <= ASIDE_BYTES:
            return self.parsed_small(rpc, raw)
        self.check_size(len(raw))
        try:
            await aside(check_raw_counts, raw, rpc.request, self.context.limits)
            return await aside(parsed_in_pieces, raw, rpc.request)
        except DecodeError:
            raise _not_a(rpc) from None

    def parsed_small(self, rpc: Rpc, raw: bytes) -> Message:
        """As `parsed`, for at most ASIDE_BYTES."""
        self.check_size(len(raw))
        try:
            return rpc.request.FromString(raw)
        except DecodeError:
            raise _not_a(rpc) from None

    def check_size(self, size: int) -> None:
        """Raises InvalidRequestError for a message over the limit."""
        if size > self.limits.message_bytes:
            self.telemetry.count_refused("all", "message_bytes")
            text = f"the message has {size} bytes; the limit is {self.limits.message_bytes}"
            raise InvalidRequestError(text, limit="message_bytes")

    async def drain(self, timeout_s: float) -> bool:
        """Takes no more calls and waits for those in flight; False if some were left after the time."""
        self.is_draining = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def _admit(self, call: "Call") -> None:
        """Settles all that the headers can tell. Raises PlacewiseError."""
        self._in_flight += 1
        if not self._shows_in_flight:
            self._shows_in_flight = True
            self.telemetry.afterwards.add(self._show_in_flight)
        if self._in_flight == 1:
            self._idle.clear()
        if self._in_flight > self.limits.in_flight:
            self._shed(call.rpc, "in_flight")
            raise OverloadedError(f"more than {self.limits.in_flight} requests are in flight")
        if self.is_draining:
            raise DrainingError()
        if call.start_s >= call.deadline_s:
            raise DeadlineExceededError("the deadline passed before the request was read")
        call.principal = self._authenticator.authenticate(call.credentials)
        _admit_scope(call.principal, call.rpc)
        if call.principal.method is not Method.OPEN:  # else callers have no names
            self._take_share(call, call.principal.name)

    def _take_share(self, call: "Call", name: str) -> None:
        held = self._held.get(name, 0)
        if held >= self._most_held:
            self._shed(call.rpc, "caller_share")
            raise OverloadedError(f"this caller has {held} requests in flight; its share is {self._most_held}")
        self._held[name] = held + 1
        call.has_share = True

    def _take_stream(self, rpc: Rpc, principal: Principal) -> str:
        """Counts an open stream, which may read a message at any time; the name to count it by. As many may be open as
        calls may be in flight, and one caller has the same share of them."""
        name, problem = principal.name, ""
        if (count := self._streams.total()) >= self.limits.in_flight:
            problem = f"{count} streams are open; the limit is {self.limits.in_flight}"
        elif (held := self._streams[name]) >= self._most_held and principal.method is not Method.OPEN:
            problem = f"this caller has {held} streams open; its share is {self._most_held}"
        if problem:
            self._shed(rpc, "streams")
            raise OverloadedError(problem)
        self._streams[name] += 1
        return name

    def _take_room(self, call: "Call", size: int) -> None:
        problem = self._room.problem(call.distinct_caller, size)
        if problem:
            self._shed(call.rpc, "bodies_bytes")
            raise OverloadedError(problem)
        self._room.take(call.distinct_caller, size)
        call.room_bytes += size

    def _give_share_back(self, name: str) -> None:
        left = self._held[name] - 1
        if left:
            self._held[name] = left
        else:
            del self._held[name]

    def _shed(self, rpc: Rpc, limit: str) -> None:
        self.telemetry.shed(rpc.name)
        self.telemetry.count_refused("all", limit)

    def _leave(self, call: "Call") -> None:
        self._in_flight -= 1
        if self._in_flight == 0:
            self._idle.set()
        if call.has_share:
            assert call.principal is not None
            self._give_share_back(call.principal.name)
        if call.room_bytes:
            self._room.give_back(call.distinct_caller, call.room_bytes)
        self._finish(call)

    def _finish(self, call: "Call") -> None:
        """Runs at the end of every call: answered, refused, failed or left by its caller."""
        self.telemetry.afterwards.add(self._count, call, self.clock.monotonic_s() - call.start_s)

    def _count(self, call: "Call", seconds: float) -> None:
        self.telemetry.rpc(call.rpc.name, call.reason, seconds)
        self._show_in_flight()
        if self.audit is not None:
            self.audit.record_call(call)

    def _show_in_flight(self) -> None:
        self._shows_in_flight = False
        self.telemetry.in_flight(self._in_flight)

    @property
    def in_flight(self) -> int:
        """Calls being worked on."""
        return self._in_flight


class Call:
    """One call, from its headers to its end. Its fields are filled as it goes on: `principal` by authentication,
    `cluster` by authorisation, then `message` and `response`. `reason` is "OK" or the reason of the error that ended
    it, `limit` the limit of the service that it went over."""

    __slots__ = (
        "cluster", "credentials", "deadline_s", "gateway", "has_share", "limit", "message", "principal", "reason",
        "response", "room_bytes", "rpc", "start_s", "trace",
    )  # fmt: skip

    def __init__(
        self, gateway: Gateway, rpc: Rpc, credentials: Credentials, deadline_s: float, trace: Mapping[str, str] | None
    ) -> None:
        self.gateway = gateway
        self.rpc = rpc
        self.credentials = credentials
        self.deadline_s = deadline_s
        self.trace = trace
        self.start_s = gateway.clock.monotonic_s()
        self.principal: Principal | None = None
        self.cluster: str | None = None
        self.message: Any = None
        self.response: Any = None
        self.has_share = False  # it is counted among its caller's
        self.room_bytes = 0  # bytes reserved for its message, if that is large
        self.reason = "OK"
        self.limit = ""

    @property
    def request_id(self) -> str:
        """Id in the message; "" if it has none or was not read."""
        return getattr(self.message, "request_id", "")

    @property
    def distinct_caller(self) -> str | None:
        """The caller's name, if callers have names."""
        return self.principal.name if self.has_share and self.principal is not None else None

    def make_room(self, size: int) -> None:
        """For a message that has, or announces, so many bytes: until the end of the call. Raises OverloadedError."""
        if size > SMALL_BYTES:
            self.gateway._take_room(self, size)

    def __enter__(self) -> "Call":
        try:
            self.gateway._admit(self)
        except Exception as error:
            failure = self._failure(error)
            self.gateway._leave(self)
            raise failure from None
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        failure = error
        if isinstance(error, Exception):
            failure = self._failure(error)
        elif error is not None:
            self.reason = "CANCELLED"
        self.gateway._leave(self)
        if failure is not error and failure is not None:
            raise failure from None

    def authorise(self, cluster: str) -> None:
        """Raises PermissionDeniedError. Scopes that concern no single cluster were checked before."""
        assert self.principal is not None
        self.cluster = cluster
        if self.rpc.reach is Reach.CLUSTER:
            self.principal.require(self.rpc.scope, cluster)

    async def answer(self, message: Any) -> Message:
        """Raises PlacewiseError; the `with` block turns every other error into one."""
        self.message = message
        rpc, gateway = self.rpc, self.gateway
        if rpc.reach is Reach.CLUSTER:
            self.authorise(message.cluster)
        size = message.ByteSize()
        if size > ASIDE_BYTES:
            await aside(check_counts, message, gateway.context.limits)
        elif size >= gateway.counted_bytes:
            check_counts(message, gateway.context.limits)
        assert self.principal is not None
        if self.trace is None:  # nobody records it
            self.response = await rpc.handle(gateway.context, message, self.principal, self.deadline_s)
        else:
            with gateway.telemetry.span(rpc.name, self.trace):
                self.response = await rpc.handle(gateway.context, message, self.principal, self.deadline_s)
        return self.response  # type: ignore[no-any-return]

    def _failure(self, error: Exception) -> PlacewiseError:
        failure = error if isinstance(error, PlacewiseError) else unforeseen(error, self.rpc.name)
        self.reason = failure.reason
        if isinstance(failure, InvalidRequestError):
            self.limit = failure.limit
        return failure


def unforeseen(error: Exception, where: str) -> PlacewiseError:
    """The caller's view of an unforeseen error: an incident id, under which the log has the rest."""
    incident = uuid.uuid4().hex
    log.error("unforeseen error", incident=incident, rpc=where, exc_info=error)
    return PlacewiseError("internal error", {"incident": incident})


def _admit_scope(principal: Principal, rpc: Rpc) -> None:
    """Raises PermissionDeniedError; the scope on a single cluster is checked once its name is known."""
    if rpc.reach is Reach.ALL:
        principal.require(rpc.scope, None)
    else:
        principal.require_scope(rpc.scope)


def _not_a(rpc: Rpc) -> InvalidRequestError:
    return InvalidRequestError(f"not a {rpc.request.DESCRIPTOR.name}")


def _request_limits(limits: LimitSettings, max_reserve_ttl_s: float) -> Limits:
    return Limits(
        jobs=limits.jobs_per_request,
        tasks_per_gang=limits.tasks_per_gang,
        tasks=limits.tasks_per_request,
        subtasks=limits.subtasks_per_job,
        nodes=limits.nodes_per_cluster,
        events=limits.events_per_report,
        items=limits.items_per_request,
        reserve_ttl_s=max_reserve_ttl_s,
    )
