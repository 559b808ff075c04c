"""Records commands that change state themselves in the audit log, as the service records its calls."""

import os
import pwd
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from placewise_log.audit import AuditError, AuditFile, AuditRecord

_VARIABLE = "PLACEWISE_AUDIT__FILE"
_METHOD = "local"


class OutcomeError(Exception):
    """Ends a command; `result` is what its record says of it."""

    def __init__(self, message: str, result: str) -> None:
        super().__init__(message)
        self.result = result


@dataclass(slots=True)
class Outcome:
    """The result for the record of a command that ends without an error."""

    result: str = "OK"


@contextmanager
def audited(command: str, subject: str = "", cluster: str = "") -> Iterator[Outcome]:
    """Records the command when the block is done, however it ends.

    The record goes to the service's audit file (PLACEWISE_AUDIT__FILE). If none is set, or it is `-`, it goes to
    standard error: standard output is the command's answer. Raises AuditError before the block if the file cannot be
    opened, and after it if the record cannot be written.
    """
    file = _opened()
    outcome = Outcome()
    result = "INTERRUPTED"
    try:
        yield outcome
        result = outcome.result
    except OutcomeError as error:
        result = error.result
        raise
    except Exception as error:
        result = type(error).__name__
        raise
    finally:
        record = AuditRecord(time.time(), command, result, _caller(), _METHOD, "", cluster, subject)
        _write(file, record)


def _opened() -> AuditFile | None:
    target = os.environ.get(_VARIABLE, "")
    if target in ("", "-", "off"):
        return None
    try:
        return AuditFile(target)
    except AuditError as error:
        remedy = "nothing was changed, because the audit log cannot be written. Check PLACEWISE_AUDIT__FILE"
        raise AuditError(f"{error}: {remedy}") from None


def _write(file: AuditFile | None, record: AuditRecord) -> None:
    line = record.line()
    if file is None:
        if os.environ.get(_VARIABLE) != "off":
            sys.stderr.write(line.decode())
        return
    try:
        written = file.write([line])
    except OSError as error:
        raise AuditError(f"{record.call}: {record.result}, but not in the audit log: {error.strerror}") from None
    finally:
        file.close()
    if not written:
        raise AuditError(f"{record.call}: {record.result}, but its audit record is incomplete: check the disk")


def _caller() -> str:
    """The user of this process, with the user who called sudo beside it."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user may have no name
        name = str(os.getuid())
    before = os.environ.get("SUDO_USER")
    return f"{name} (sudo: {before})" if before else name
