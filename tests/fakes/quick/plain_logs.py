"""Tracebacks as the service writes them. By default structlog paints each with every local variable, for a second."""

import structlog


def log_plainly() -> None:
    *others, _ = structlog.get_config()["processors"]
    renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*others, renderer])
