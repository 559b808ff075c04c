"""One HTTP/1.1 connection of uvicorn's, within limits of size and time: over one it is answered 4xx, or closed.

uvicorn itself bounds neither headers nor their time, and httptools keeps unparsed bytes to the end. So
bytes are counted as they arrive, and every phase of a connection has a time by which it must be over. The time is
looked at by the listener, for all connections together: a timer for each would cost every request two.
"""

import asyncio
import enum
import json
import logging
import math
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from placewise_service.api.calls.statuses import PROBLEM_TYPE, problem_body
from placewise_service.api.faces.callers import SUBJECTS
from placewise_service.api.identity.certificates import subjects_of_der
from placewise_service.settings import LimitSettings

_LINGER_S = 1.0  # how long a peer has to read a refusal before its connection is cut
_MOST_PIPELINED = 16
_MOST_JOINED = 65_536  # bytes of a body that are copied behind their head
_BYTES_PER_HEADER = 32  # the overhead of a header, as RFC 9113 §6.5.2 counts
# uvicorn writes a line per malformed request, which would be a way to fill a disk: they are counted instead.
_QUIET = logging.getLogger("uvicorn.error.connection")
_QUIET.setLevel(logging.ERROR)

Refused = Callable[[str, str], None]  # called with the limit and the peer's address


class _Phase(enum.Enum):
    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    ANSWER = "answer"
    OVER = "over"


class _OverLimitError(Exception):
    """Raised in a callback of the parser, which then stops."""


class HttpConnection(HttpToolsProtocol):
    """Tells `crowd` when it waits for a request, and its requests the names in the client's certificate."""

    def __init__(self, config: Config, state: ServerState, crowd: "Crowd") -> None:
        super().__init__(config, state, {})
        self.logger = _QUIET
        self.due_s = math.inf
        self._crowd = crowd
        self._limits = crowd.limits
        self._phase = _Phase.IDLE
        self._bare: Any = None
        self._exit: _Exit
        self._head_bytes = 0  # as they came
        self._header_bytes = 0  # as they were parsed
        self._body_bytes = 0  # with all that frames them
        self._keeps_alive = True
        self._refusal = (HTTPStatus.BAD_REQUEST, "malformed", "this is no HTTP/1.1 request")

    # -- the transport's calls ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._bare, self._exit = transport, _Exit(transport, self)
        super().connection_made(self._exit)  # type: ignore[arg-type]
        encrypted = transport.get_extra_info("ssl_object")
        certificate = None if encrypted is None else encrypted.getpeercert(binary_form=True)
        if certificate is not None:
            self.app_state = {**self.app_state, SUBJECTS: subjects_of_der(certificate)}
        self._rest(self._limits.header_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._phase = _Phase.OVER
        self._crowd.idle.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        phase = self._phase
        if phase is _Phase.OVER:
            return
        if phase is _Phase.IDLE or phase is _Phase.HEAD:
            self._head_bytes += len(data)
        elif phase is _Phase.BODY:
            self._body_bytes += len(data)
        super().data_received(data)
        if self._phase is _Phase.HEAD and self._head_bytes > self._limits.header_bytes + self._limits.url_bytes:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "header_bytes", self._too_long)
        elif self._phase is _Phase.BODY and self._body_bytes > 2 * self._limits.message_bytes:
            text = f"the message is larger than {self._limits.message_bytes} bytes"
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "message_bytes", text)

    # -- the parser's calls -------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._phase = _Phase.HEAD
        self._header_bytes = 0
        self.due_s = self._crowd.now_s() + self._limits.header_s

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self._limits.url_bytes:
            self._refusal = (HTTPStatus.REQUEST_URI_TOO_LONG, "url_bytes",
                             f"the URL is longer than {self._limits.url_bytes} bytes")  # fmt: skip
            raise _OverLimitError

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value) + _BYTES_PER_HEADER
        if self._header_bytes > self._limits.header_bytes:
            self._refusal = (HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "header_bytes", self._too_long)
            raise _OverLimitError
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= _MOST_PIPELINED:
            self._refusal = (HTTPStatus.TOO_MANY_REQUESTS, "pipelined", "too many requests wait on one connection")
            raise _OverLimitError
        self._crowd.idle.pop(self, None)
        super().on_headers_complete()
        self._phase = _Phase.BODY
        self._head_bytes = self._body_bytes = 0
        self.due_s = math.inf if self.pipeline else self._crowd.now_s() + self._limits.body_s
        # An answer before the whole message ends the connection, and its headers announce it: the rest is not read.
        self._keeps_alive, self.cycle.keep_alive = self.cycle.keep_alive, False

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.cycle.keep_alive = self._keeps_alive
        self._phase = _Phase.ANSWER
        self.due_s = math.inf

    def on_response_complete(self) -> None:
        self._exit.flush()
        super().on_response_complete()
        if self._phase is _Phase.ANSWER and self.cycle.response_complete:
            self._rest(self._limits.idle_s)
        elif self._phase is _Phase.BODY:  # of a request that waited behind others
            self.due_s = self._crowd.now_s() + self._limits.body_s

    # -- ends ---------------------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        self._refuse(*self._refusal)

    def on_due(self) -> None:
        """The time of the phase is up."""
        phase = self._phase
        if phase is _Phase.OVER:
            self._bare.abort()
        elif phase is _Phase.HEAD:
            text = f"the headers took more than {self._limits.header_s:g} s"
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, "header_time", text)
        elif phase is _Phase.BODY:
            text = f"the message took more than {self._limits.body_s:g} s"
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, "body_time", text)
        else:
            self._crowd.refused("idle_time" if self.cycle is not None else "header_time", self.peer)
            self.transport.close()

    def evict(self) -> None:
        """Makes room for another."""
        self._end()
        self._bare.abort()

    def leave(self) -> None:
        """Closes; a peer that is still sending has a moment to read the answer, which a reset would take from it."""
        if self._phase is _Phase.OVER:
            return
        is_sending = self._phase is _Phase.BODY or self._phase is _Phase.HEAD
        self._end()
        if is_sending:
            self._bare.pause_reading()
        else:
            self._bare.close()

    def shutdown(self) -> None:
        self._keeps_alive = False
        super().shutdown()

    @property
    def is_over(self) -> bool:
        return self._phase is _Phase.OVER

    @property
    def peer(self) -> str:
        """Address and port of the other end; "" if it has none."""
        return address(self.client)

    @property
    def _too_long(self) -> str:
        return f"the headers are longer than {self._limits.header_bytes} bytes"

    def _rest(self, span_s: float) -> None:
        self._phase = _Phase.IDLE
        self._head_bytes = 0
        self.due_s = self._crowd.now_s() + span_s
        self._crowd.idle[self] = None

    def _end(self) -> None:
        self._phase = _Phase.OVER
        self._crowd.idle.pop(self, None)
        self.due_s = self._crowd.now_s() + _LINGER_S

    def _refuse(self, status: HTTPStatus, limit: str, text: str) -> None:
        """Answers and closes; only closes if an earlier request still waits for its own answer."""
        self._crowd.refused(limit, self.peer)
        is_own = self._phase is _Phase.BODY and not self.pipeline and not self.cycle.response_started
        if is_own or self.cycle is None or self.cycle.response_complete:
            body = json.dumps(problem_body(status, status.name, text)).encode()
            head = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: {PROBLEM_TYPE}\r\nconnection: close\r\n"
            self._bare.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        if self.cycle is not None:
            self.cycle.disconnected = True  # its handler learns that nobody listens any more
            self.cycle.message_event.set()
        self.leave()


class Crowd:
    """State shared by the connections of a listener. `idle` has those that wait for a request, the longest first."""

    def __init__(self, limits: LimitSettings, refused: Refused, now_s: Callable[[], float]) -> None:
        self.limits = limits
        self.refused = refused
        self.now_s = now_s
        self.idle: dict[HttpConnection, None] = {}


def address(peer: object) -> str:
    """The address of a socket's peer for audit records; "" if it has no address and port."""
    match peer:
        case (str(host), int(port), *_):
            return f"{host}:{port}"
    return ""


class _Exit:
    """The transport as uvicorn sees it: closing goes by the connection, and the head of an answer waits for its body.

    uvicorn writes the two one after the other. Sent apart they wake the caller twice, the first time for nothing.
    """

    __slots__ = ("_begun", "_connection", "_head", "_transport", "get_extra_info", "pause_reading", "resume_reading")

    def __init__(self, transport: asyncio.Transport, connection: HttpConnection) -> None:
        self._transport = transport
        self._connection = connection
        self._begun: Any = None  # the request whose answer has begun
        self._head = b""
        self.get_extra_info = transport.get_extra_info
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading

    def write(self, data: bytes) -> None:
        cycle = self._connection.cycle
        if cycle is not self._begun and cycle.response_started:
            self._begun, self._head = cycle, data
        elif len(data) > _MOST_JOINED:
            self.flush()
            self._transport.write(data)
        else:
            self._head, head = b"", self._head
            self._transport.write(head + data)

    def flush(self) -> None:
        """Writes a head that has no body."""
        if self._head:
            self._head, head = b"", self._head
            self._transport.write(head)

    def close(self) -> None:
        self.flush()
        self._connection.leave()

    def is_closing(self) -> bool:
        return self._connection.is_over or self._transport.is_closing()
