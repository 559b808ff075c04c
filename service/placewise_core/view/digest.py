"""A digest of a view as a policy reads it: the same for equal views on any machine. Cheap enough for every decision."""

import zlib
from itertools import islice
from typing import Final

from placewise_core.view.view import ClusterView

_MOST_NODES: Final = 64  # of a larger view every k-th node; which of them depends on the version
_LAST_JOBS: Final = 8  # jobs whose order counts: those of decisions in flight are the last


def digest_of(view: ClusterView) -> int:
    """32 bits over usage and telemetry of at most some hundred nodes, the number of jobs, and the last of them."""
    step = max(1, view.size // _MOST_NODES)
    at = slice(view.version % step, None, step)
    found = zlib.crc32("\n".join(islice(reversed(view.jobs), _LAST_JOBS)).encode(), len(view.jobs))
    for columns in (view.free, view.telemetry):
        found = zlib.crc32(columns[:, at].tobytes(), found)
    for rows in (view.gpu_tenant_count, view.gpu_memory_free, view.task_count, view.is_ready, view.observe_time_s):
        found = zlib.crc32(rows[at].tobytes(), found)
    return found
