"""Records of Python's logging, without pytest's plugin: it takes three per cent of the fast tests' time."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def warnings_logged() -> Iterator[list[logging.LogRecord]]:
    """The warnings and errors of all loggers, as they come."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = records.append  # type: ignore[method-assign]
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield records
    finally:
        root.removeHandler(handler)
