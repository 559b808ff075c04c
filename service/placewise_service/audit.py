"""Who did it: audit records, written by a thread of their own. Never waits.

Records are queued by the event loop. A record that cannot be written is kept, counted and retried, and `problem`
reports it; beyond the queue's capacity records are lost and counted.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from placewise_log.audit import AuditFile, AuditRecord

log = structlog.get_logger(__name__)

_CAPACITY: Final = 50_000  # records: half a minute of a busy process, some 20 MB
_BATCH = 32
_RETRY_S = 0.5
_GATHER_S = 0.02  # one write for the records of this time: a thread that wakes for each takes turns with the loop
_STUCK_S = 5.0  # a write that takes so long is one that fails: a pipe that nobody empties


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
            self._closing.wait(_GATHER_S)
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
