"""Settings of Python and the kernel that shorten the answers of an adapter's process."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import sys

# The length of a turn on the processor. The kernel's own is 1.4 ms on two cores and more on many.
TURN_NS = 300_000
# sched_setattr(2): glibc knows it by name only since 2.41.
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}


class _Attributes(ctypes.Structure):
    """struct sched_attr, first version."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime_ns", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    )


def settle_garbage_collector() -> None:
    """Exempts all loaded objects: otherwise each collection would walk them, in the middle of an answer.

    A first generation of 20 000 objects is some hundred answers; the collections in between took up to 0.9 ms each.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


def take_short_turns() -> None:
    """On a busy machine a thread with short turns gets the processor sooner, and no larger a share of it.

    It holds for the thread that calls it, and for those that this one starts later. Linux 6.12 and later; it needs no
    privilege. Elsewhere, and under another policy than the usual, nothing changes.
    """
    number = _SCHED_SETATTR.get(platform.machine()) if sys.platform == "linux" else None
    if number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _Attributes(size=ctypes.sizeof(_Attributes), nice=nice, runtime_ns=TURN_NS)
    ctypes.CDLL(None).syscall(number, 0, ctypes.byref(attributes), 0)
