"""Reads the message of a gRPC call within a time, writes answers, and ends calls that are refused."""

import asyncio
from typing import Any

import grpc

from placewise_core.domain.errors import InvalidRequestError, PlacewiseError
from placewise_service.api.calls.statuses import shown, status_metadata
from placewise_service.telemetry import Telemetry

_CODES = {code.value[0]: code for code in grpc.StatusCode}

Context = grpc.aio.ServicerContext[bytes, bytes]


class MessageReader:
    """Reads the one message of each unary call within a time.

    A timer a call would cost as much as a small decision's own part of the loop. Here one timer serves all that read:
    it looks at the one that began first, and again when that one's time is up.
    """

    def __init__(self, limit_s: float, telemetry: Telemetry) -> None:
        self._limit_s = limit_s
        self._telemetry = telemetry
        self._loop = asyncio.get_running_loop()
        self._began_s: dict[asyncio.Task[Any], float] = {}  # by the loop's clock, the earliest first
        self._late: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def read(self, context: Context) -> bytes:
        """Raises InvalidRequestError if there is no message, or none in time."""
        task = asyncio.current_task(self._loop)
        assert task is not None
        self._began_s[task] = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._limit_s, self._end_late)
        try:
            raw = await context.read()
        except asyncio.CancelledError:
            if task not in self._late:
                raise
            task.uncancel()
            self._telemetry.count_refused("grpc", "body_time")
            raise InvalidRequestError(f"the message took more than {self._limit_s:g} s", limit="body_time") from None
        finally:
            del self._began_s[task]
            if self._late:
                self._late.discard(task)
        if isinstance(raw, bytes):
            return raw
        raise InvalidRequestError("the call ended without a message")

    def _end_late(self) -> None:
        self._timer = None
        for task, began_s in self._began_s.items():
            left_s = began_s + self._limit_s - self._loop.time()
            if left_s > 0.0:
                self._timer = self._loop.call_later(left_s, self._end_late)
                return
            if task not in self._late:
                self._late.add(task)
                task.cancel()


async def write(context: Context, answer: bytes) -> None:
    """Ends the call as cancelled where its caller has gone: gRPC would log a failure that is none of ours."""
    try:
        await context.write(answer)
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None


def end_refused(context: Context, error: PlacewiseError) -> bytes:
    """Ends a call with an error, once its handler returns; the answer to return.

    Not by `context.abort`: the error that raises and the call refer to each other, which keeps all of the call's
    metadata until the garbage collector comes by.
    """
    context.set_code(_CODES[error.grpc_code])
    context.set_details(shown(error))
    context.set_trailing_metadata(status_metadata(error))
    return b""
