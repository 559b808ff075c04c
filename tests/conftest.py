"""For all tests: Hypothesis sets no deadline for an example, as a machine that others use may stand still at times. Its
profile `fast` tries a quarter of the examples (`make test-fast`).

A unit or property test that starts a process without the marker `process` fails: `make test-fast` leaves those out.
"""

import gc
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Generator
from importlib import import_module
from typing import Any

import pytest
from hypothesis import settings
from tests.fakes.quick.order import quick_reproductions_first

import placewise_service  # noqa: F401 - switches ONNX Runtime's telemetry off before any test imports it

# Their assertions show values, as those of test files do.
pytest.register_assert_rewrite("tests.contract.adapters.adapter_conformance", "tests.contract.adapters.suite")

settings.register_profile("placewise", deadline=None)
settings.register_profile("fast", deadline=None, max_examples=settings.default.max_examples // 4)
settings.load_profile("placewise")

_STARTS = [(subprocess.Popen, "_execute_child"), *((os, name) for name in ("fork", "forkpty", "posix_spawn", "system"))]
_FAST_FOLDERS = ("tests/unit/", "tests/property/")
_forbidding = False
# Seconds of a session after which it begins no slow test: .ci/run has an hour for everything.
_SLOW_LIMIT_S = float(os.environ.get("PLACEWISE_TEST_SLOW_LIMIT_S", "inf"))
_began_s = time.monotonic()
_connect = sqlite3.connect


def _forbid_processes(owner: Any, name: str) -> None:
    """No audit hook, which Python calls at every import and open file: two seconds of all fast tests. Matplotlib lists
    a new machine's fonts by `fc-list`, once."""
    start = getattr(owner, name)

    def checked(*given: Any, **named: Any) -> Any:
        if _forbidding and not any(isinstance(words, list) and words[:1] == ["fc-list"] for words in given):
            raise RuntimeError("this test starts a process: mark it with @pytest.mark.process")
        return start(*given, **named)

    setattr(owner, name, checked)


for _owner, _name in _STARTS:
    _forbid_processes(_owner, _name)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collected items stay: garbage is not looked for while they grow in number."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    quick_reproductions_first(items)


def pytest_collection_finish() -> None:
    """Modules and tests live to the end: collections of garbage need not walk them. Modules that no
    collected file has imported are left out: a single file's tests need not wait for ONNX Runtime."""
    if "placewise_models.bundle" in sys.modules:
        import_module("tests.fakes.quick.nets_once").open_once()
    if "structlog" in sys.modules:
        import_module("tests.fakes.quick.plain_logs").log_plainly()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # the few objects of a test are not walked at every 700th


def _connect_without_disk(*given: Any, **named: Any) -> sqlite3.Connection:
    index = _connect(*given, **named)
    index.executescript("PRAGMA synchronous = OFF; PRAGMA journal_mode = MEMORY")
    return index


def pytest_runtest_setup(item: pytest.Item) -> None:
    passed_s = time.monotonic() - _began_s
    if passed_s > _SLOW_LIMIT_S and item.get_closest_marker("slow"):
        pytest.skip(f"{item.nodeid}: not begun, as {passed_s:.0f} s have passed")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    global _forbidding  # noqa: PLW0603 - read by what starts processes
    _forbidding = item.nodeid.startswith(_FAST_FOLDERS) and item.get_closest_marker("process") is None
    flush = os.fsync
    if _forbidding:
        # No test in one process cuts the power: it would only wait for the disk.
        os.fsync = lambda _: None
        sqlite3.connect = _connect_without_disk
    try:
        return (yield)
    finally:
        _forbidding, os.fsync, sqlite3.connect = False, flush, _connect
