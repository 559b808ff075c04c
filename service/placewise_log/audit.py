"""The audit log as a file: one JSON object a line, in a file or on standard output. Never holds a token or a body.

Writers share a file: each write holds whole lines and is appended at once. If the file is moved away (logrotate), a new
one is created.
"""

import contextlib
import json
import os
import stat
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from placewise_core.basics.frozen import frozen

STDOUT: Final = "-"
_STDOUT_FD = 1
_PIPE_BYTES = 4096  # PIPE_BUF: the largest atomic write to a pipe, so that writers' lines do not mix
_LONGEST_TEXT = 256
_encode = json.JSONEncoder(separators=(",", ":")).encode  # made once: `dumps` makes one each time


class AuditError(Exception):
    """The audit file cannot be written; the text says why."""

    exit_code = 1


@frozen
class AuditRecord:
    """One action or refusal, and its caller. `method` is the way of authentication; `result` is "OK" or the error's
    reason; `reason` says why the service acted by itself."""

    time_s: float
    call: str
    result: str
    caller: str = ""
    method: str = ""
    peer: str = ""
    cluster: str = ""
    subject: str = ""
    request_id: str = ""
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
        if self.reason:
            row["reason"] = self.reason[:longest]
        return _encode(row).encode() + b"\n"


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
