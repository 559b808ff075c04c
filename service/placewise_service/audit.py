"""Who did it: one JSON object a line, in a file or on standard output. Never holds a token or a body, and never waits.

Records are queued by the event loop and written by a thread of their own. Workers share a file: each write holds whole
lines and is appended at once. If the file is moved away (logrotate), a new one is created. A record that cannot be
written is kept, counted and retried, and `problem` reports it; beyond the queue's capacity records are lost
and counted.
"""

import contextlib
import json
import os
import stat
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

import structlog

from placewise_core.basics.frozen import frozen

log = structlog.get_logger(__name__)

STDOUT: Final = "-"
_STDOUT_FD = 1
_CAPACITY = 50_000  # records: half a minute of a busy process, some 20 MB
_BATCH = 32
_PIPE_BYTES = 4096  # PIPE_BUF: the largest atomic write to a pipe, so that workers' lines do not mix
_RETRY_S = 0.5
_STUCK_S = 5.0  # a write that takes so long is one that fails: a pipe that nobody empties
_LONGEST_TEXT = 256
_encode = json.JSONEncoder(separators=(",", ":")).encode  # made once: `dumps` makes one each time


class AuditError(ValueError):
    """The audit file cannot be written; the text says why."""


@frozen
class AuditRecord:
    """One action or refusal, and its caller. `method` is the way of authentication; `result` is "OK" or the error's
    reason; `count` is above 1 if one record stands for many refusals of unknown callers; `reason` says why the service
    acted by itself."""

    time_s: float
    call: str
    result: str
    caller: str = ""
    method: str = ""
    peer: str = ""
    cluster: str = ""
    subject: str = ""
    request_id: str = ""
    count: int = 1
    reason: str = ""

    def line(self) -> bytes:
        """One line of ASCII: JSON escapes control characters and all that may end a line."""
        line = self._line(_LONGEST_TEXT)
        return line if len(line) <= _PIPE_BYTES else self._line(_LONGEST_TEXT // 8)

    def _line(self, longest: int) -> bytes:
        row: dict[str, object] = {
            "record": "audit",
            "time": datetime.fromtimestamp(self.time_s, UTC).isoformat(timespec="microseconds"),
            "caller": self.caller[:longest],
            "method": self.method,
            "peer": self.peer[:longest],
            "call": self.call,
            "cluster": self.cluster[:longest],
            "subject": self.subject[:longest],
            "result": self.result,
            "request_id": self.request_id[:longest],
        }
        if self.count > 1:
            row["count"] = self.count
        if self.reason:
            row["reason"] = self.reason[:longest]
        return _encode(row).encode() + b"\n"


class AuditCounters(Protocol):
    """Counts the records that were written late or lost."""

    def audit_unwritten(self, count: int) -> None: ...
    def audit_lost(self, count: int) -> None: ...


class AuditSink(Protocol):
    """Takes records of acts of the service itself."""

    def add(self, record: AuditRecord) -> None: ...


class NoAudit:
    """Keeps no record."""

    def add(self, record: AuditRecord) -> None:
        return


class AuditFile:
    """An open audit file, or standard output. Not thread-safe. Raises AuditError when built."""

    def __init__(self, target: str) -> None:
        self._path = None if target == STDOUT else Path(target)
        self._is_torn = False
        try:
            self._fd = _STDOUT_FD if self._path is None else _opened(self._path)
            self._is_pipe = not stat.S_ISREG(os.fstat(self._fd).st_mode)
        except OSError as error:
            raise AuditError(f"audit file {target}: {error.strerror}") from None

    def write(self, lines: Sequence[bytes]) -> int:
        """How many of the lines were written, from the first on: fewer than all only with an OSError to follow.

        Raises OSError when not even the first could be.
        """
        self._follow()
        data = b"".join(lines[: self._fitting(lines)])
        begun = b"\n" if self._is_torn else b""  # a line that was cut off ends here, and comes again whole
        count = os.write(self._fd, begun + data) - len(begun)
        if count < 0:
            return 0
        written = data[:count]
        self._is_torn = bool(written) and not written.endswith(b"\n")
        return written.count(b"\n")

    def close(self) -> None:
        if self._path is not None:
            os.close(self._fd)

    def _fitting(self, lines: Sequence[bytes]) -> int:
        if not self._is_pipe:
            return len(lines)
        size = 1
        for index, line in enumerate(lines):
            size += len(line)
            if size > _PIPE_BYTES:
                return max(1, index)
        return len(lines)

    def _follow(self) -> None:
        """Creates the file again after it was moved away. Raises OSError."""
        if self._path is None:
            return
        ours = os.fstat(self._fd)
        with contextlib.suppress(FileNotFoundError):
            there = self._path.stat()
            if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
                return
        fresh = _opened(self._path)
        os.close(self._fd)
        self._fd, self._is_torn = fresh, False


def _opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)


class AuditLog:
    """Takes records from the event loop and has them written. Raises AuditError when built."""

    def __init__(
        self,
        target: str,
        counters: AuditCounters,
        now_s: Callable[[], float],
        capacity: int = _CAPACITY,
        retry_s: float = _RETRY_S,
    ) -> None:
        """`now_s` reads a monotonic clock."""
        self._file = AuditFile(target)
        self._counters = counters
        self._now_s = now_s
        self._capacity = capacity
        self._retry_s = retry_s
        self._queue: deque[AuditRecord] = deque()
        self._pending: list[bytes] = []
        self._counted = 0  # of the pending lines, how many were counted as unwritten
        self._failure = ""
        self._is_losing = False
        self._writing_since_s: float | None = None
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._writer = threading.Thread(target=self._work, name="audit", daemon=True)
        self._writer.start()

    def add(self, record: AuditRecord) -> None:
        """Queues a record; never waits."""
        if len(self._queue) >= self._capacity:
            self._counters.audit_lost(1)
            self._is_losing = True
            return
        self._queue.append(record)
        if not self._wake.is_set():
            self._wake.set()

    def problem(self) -> str:
        """Why records are not written; "" while they are."""
        if self._failure:
            return f"audit records cannot be written: {self._failure}"
        since_s = self._writing_since_s
        if self._is_losing or (since_s is not None and self._now_s() - since_s > _STUCK_S):
            return "audit records cannot be written: nobody takes them"
        return ""

    def close(self, timeout_s: float = 5.0) -> None:
        """Writes the queued records within the time; the rest is lost, counted and logged."""
        self._closing.set()
        self._wake.set()
        self._writer.join(timeout_s)
        left = len(self._queue) + len(self._pending)
        if left:
            self._counters.audit_lost(left)
            log.error("audit records lost", records=left, reason=self._failure or "nobody takes them")
        if not self._writer.is_alive():
            self._file.close()

    def _work(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._pending or self._queue:
                is_last = self._closing.is_set()
                if not self._write():
                    if is_last:
                        return
                    self._closing.wait(self._retry_s)
            if self._closing.is_set():
                return

    def _write(self) -> bool:
        """Writes a batch; False if that failed and has to wait."""
        while len(self._pending) < _BATCH and self._queue:
            self._pending.append(self._queue.popleft().line())
        self._writing_since_s = self._now_s()
        try:
            written = self._file.write(self._pending)
        except OSError as error:
            self._fail(error.strerror or type(error).__name__)
            return False
        finally:
            self._writing_since_s = None
        del self._pending[:written]
        self._counted = max(0, self._counted - written)
        if self._failure and written:
            log.info("audit records are written again")
            self._failure = ""
        if not self._queue:
            self._is_losing = False
        return True

    def _fail(self, reason: str) -> None:
        if reason != self._failure:
            log.error("audit records cannot be written", reason=reason)
        self._failure = reason
        self._counters.audit_unwritten(len(self._pending) - self._counted)
        self._counted = len(self._pending)
