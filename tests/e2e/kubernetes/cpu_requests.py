"""Weighs processes against each other as a kubelet does: by the CPU that their pods request, through cgroups.

Without that, all processes of a control plane that runs on one machine count alike, which they do in no cluster. Where
cgroups cannot be written (no root, a container that was given none), they count alike all the same; `are_kept` tells.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

# `off`: all count alike.
SWITCH = "PLACEWISE_TEST_CPU_REQUESTS"
# What kubeadm's manifests request, in thousandths of a processor. The tests take the controllers' place.
APISERVER, ETCD, SCHEDULER, CONTROLLERS = 250, 100, 100, 200
_JOIN = 'echo $$ > "$0" && exec "$@"'
_MOUNT = Path("/sys/fs/cgroup")


def requesting(name: str, milli_cpu: int, command: Sequence[str]) -> list[str]:
    """The command, to be run as the one process of this name that has this request."""
    group = _group(name, milli_cpu)
    return list(command) if group is None else ["/bin/sh", "-c", _JOIN, str(group / "cgroup.procs"), *command]


def request(name: str, milli_cpu: int) -> None:
    """The same for this process, until it ends."""
    group = _group(name, milli_cpu)
    if group is not None:
        (group / "cgroup.procs").write_text(str(os.getpid()))


def are_kept() -> bool:
    """Whether requests have any effect here."""
    return _parent() is not None


@cache
def _parent() -> Path | None:
    """A group of our own with the weight of the whole machine, as that of all pods has."""
    if os.environ.get(SWITCH) == "off":
        return None
    for root in (_MOUNT / "cpu", _MOUNT):
        parent = root / f"placewise-test-{os.getpid()}"
        with suppress(OSError):
            if _is_cpu_controller(root):
                parent.mkdir()
                atexit.register(_remove, parent)
                _weigh(parent, 1000 * (os.cpu_count() or 1))
                if not (parent / "cpu.shares").exists():
                    (parent / "cgroup.subtree_control").write_text("+cpu")
                return parent
    return None


def _is_cpu_controller(root: Path) -> bool:
    """Of either version of cgroups."""
    controllers = root / "cgroup.controllers"
    return (root / "cpu.shares").exists() or (controllers.exists() and "cpu" in controllers.read_text().split())


def _group(name: str, milli_cpu: int) -> Path | None:
    parent = _parent()
    if parent is None:
        return None
    group = parent / name
    group.mkdir(exist_ok=True)
    _weigh(group, milli_cpu)
    return group


def _weigh(group: Path, milli_cpu: int) -> None:
    """As a kubelet converts requests."""
    shares = max(2, milli_cpu * 1024 // 1000)
    if (group / "cpu.shares").exists():
        (group / "cpu.shares").write_text(str(shares))
    else:
        (group / "cpu.weight").write_text(str(1 + (shares - 2) * 9999 // 262142))


def _remove(parent: Path) -> None:
    with suppress(OSError):
        (parent.parent / "cgroup.procs").write_text(str(os.getpid()))
    for group in (*parent.glob("*/"), parent):
        with suppress(OSError):  # a process that outlives us keeps its own
            group.rmdir()
