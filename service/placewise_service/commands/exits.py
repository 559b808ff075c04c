"""Exit codes, and the one place where errors become them. Knows no command."""

import enum
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import structlog
import typer

from placewise_core.domain.errors import (
    NotFoundError,
    PlacewiseError,
    StateUnavailableError,
)
from placewise_core.domain.traces import TraceError
from placewise_log.auditing import OutcomeError


class Exit(enum.IntEnum):
    """What scripts can rely on; docs/cli.md explains each."""

    OK = 0
    FAILED = 1  # a defect, or something this table has no word for
    USAGE = 2  # the command line makes no sense (Typer's own code)
    UNREACHABLE = 3  # the service, Redis or Ray does not answer
    REFUSED = 4  # the service refused: invalid, not found, not allowed
    NEGATIVE = 5  # it worked, and the answer is no: does not fit, check failed, limit missed
    BAD_INPUT = 6  # an input file is malformed
    INTERRUPTED = 130  # Ctrl-C, or the user declined


class CommandError(OutcomeError):
    """Ends a command with a message on stderr and this exit code."""

    def __init__(self, message: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(message, code.name)
        self.code = code


class BadInputError(CommandError):
    """A file is malformed: says which, and where."""

    def __init__(self, source: str, message: str, line: int = 0, column: int = 0) -> None:
        place = ":".join(str(part) for part in (source, line, column) if part)
        super().__init__(f"{place}: {message}", Exit.BAD_INPUT)


def run(command: Callable[..., Any], args: Sequence[str] | None = None) -> int:
    """Runs a click command; its exit code. Errors a user can act on are one line; defects keep their trace.

    Log lines go to standard error: standard output is the command's answer, which scripts parse.
    """
    structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))  # of that moment
    try:
        result = command(None if args is None else list(args), standalone_mode=False)
    except Exception as error:
        return _report(error)
    return int(result) if isinstance(result, int) else Exit.OK


def _report(error: Exception) -> int:
    code = exit_code(error)
    if code is None:
        raise error
    show = getattr(error, "show", None)  # click's own errors print their usage line
    if callable(show):
        show()
    elif not isinstance(error, typer.Abort):
        print(f"placewise: {error}", file=sys.stderr)
    return code


def exit_code(error: Exception) -> int | None:
    """The code for an error a user can act on; None for a defect."""
    if isinstance(error, CommandError):
        return error.code
    if isinstance(error, typer.Abort):  # Ctrl-C, or "no" at a prompt
        return Exit.INTERRUPTED
    if isinstance(error, TraceError):
        return Exit.BAD_INPUT
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    if isinstance(error, PlacewiseError):
        if isinstance(error, StateUnavailableError):
            return Exit.UNREACHABLE
        return Exit.REFUSED if isinstance(error, NotFoundError) or error.http_status < 500 else Exit.FAILED
    own = getattr(error, "exit_code", None)  # click's errors carry theirs
    return own if isinstance(own, int) else _client_code(error)


def _client_code(error: Exception) -> int | None:
    """Exit code of a client library's error, by its name: importing the classes would cost every command gRPC."""
    names = {base.__name__ for base in type(error).__mro__ if base.__module__.startswith("placewise_client")}
    if not names:
        return None
    if names & {"StateUnavailableError", "DeadlineExceededError"}:
        return Exit.UNREACHABLE
    return Exit.FAILED if "InternalError" in names else Exit.REFUSED
