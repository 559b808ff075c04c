"""Settings of the kernel and of Python by the processes of the service and of the adapters; each in one of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from placewise_client.adapter.process import TURN_NS


def _has_turns() -> bool:
    release, shown = Path("/proc/sys/kernel/osrelease"), Path("/proc/self/sched")
    if not (release.exists() and shown.exists()):
        return False
    kernel = [int(number) for number in re.findall(r"\d+", release.read_text())[:2]]
    return kernel >= [6, 12] and "se.slice" in shown.read_text()


def _told(*lines: str, prefix: tuple[str, ...] = ()) -> str:
    command = (*prefix, sys.executable, "-c", "\n".join(lines))
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


TURNS = (
    "import os, threading",
    "from pathlib import Path",
    "take_short_turns()",
    "def show(): print(Path(f'/proc/{os.getpid()}/task/{threading.get_native_id()}/sched').read_text())",
    "thread = threading.Thread(target=show)",
    "thread.start()",
    "thread.join()",
    "print('nice', os.getpriority(os.PRIO_PROCESS, 0), 'policy', os.sched_getscheduler(0))",
)


WHOSE = ("placewise_client.adapter.process", "placewise_service.turns")


@pytest.mark.process
@pytest.mark.parametrize("module", WHOSE)
@pytest.mark.skipif(not _has_turns(), reason="the kernel knows no turns of a thread's own, or does not show them")
def test_turns_are_short_for_later_threads_too_and_nothing_else_changes(module: str) -> None:
    reported = _told(f"from {module} import take_short_turns", *TURNS, prefix=("nice", "-n", "3"))
    assert re.search(rf"se\.slice +: +{TURN_NS}\n", reported)
    assert f"nice {min(19, os.getpriority(os.PRIO_PROCESS, 0) + 3)} policy 0" in reported


@pytest.mark.process
@pytest.mark.parametrize("module", WHOSE)
def test_another_policy_is_left_alone(module: str) -> None:
    batch = "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))"
    assert "policy 3" in _told("import os", f"from {module} import take_short_turns", batch, *TURNS)


@pytest.mark.process
def test_what_is_loaded_is_walked_no_more() -> None:
    reported = _told(
        "import gc",
        "from placewise_client.adapter.process import settle_garbage_collector",
        "settle_garbage_collector()",
        "print(gc.get_freeze_count() > 1000, len(gc.get_objects()) < 1000)",
    )
    assert reported == "True True\n"
