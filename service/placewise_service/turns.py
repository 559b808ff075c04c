"""Asks the kernel for short turns on the processor: a decision needs it soon, and only for a moment.

The adapters ask for the same, in a module of their own (`placewise_client.adapter.process`): neither side imports the
other.
"""

import ctypes
import os
import platform
import sys

# The kernel's own turns take 1.4 ms on two cores and more on many: a decision passes through a dozen threads.
TURN_NS = 300_000
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}  # sched_setattr(2), which glibc knows by name only since 2.41


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


def take_short_turns() -> None:
    """On a busy machine, who needs the processor for a short time only gets it sooner, and no larger a share of it.

    It holds for the thread that calls it, and for the threads and processes that this one starts later. Linux 6.12 and
    later; it needs no privilege. Elsewhere, and under another policy than the usual, nothing changes.
    """
    number = _SCHED_SETATTR.get(platform.machine()) if sys.platform == "linux" else None
    if number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _Attributes(size=ctypes.sizeof(_Attributes), nice=nice, runtime_ns=TURN_NS)
    ctypes.CDLL(None).syscall(number, 0, ctypes.byref(attributes), 0)
