"""Saves the decision log of a replayed cluster before the cluster, and with it the log, is deleted."""

import asyncio
import time
from pathlib import Path

from placewise_service.declog.export import ExportRing, export

_MOST_S = 20.0  # the service writes its log behind its answers, usually within a tenth of a second
_PAUSE_S = 0.2


async def save_log(ring: ExportRing, directory: Path, cluster: str, decisions: int) -> int:
    """Exports until all `decisions` of the cluster and the outcomes behind them are in the files; how many are missing.

    Raises as `export` does.
    """
    written, until_s = 0, time.monotonic() + _MOST_S
    while True:
        report = await export(ring, directory, clusters=(cluster,))
        written += report.written["decisions"]
        is_quiet = not report.written.total()
        if (written >= decisions and is_quiet) or time.monotonic() > until_s:
            return max(0, decisions - written)
        await asyncio.sleep(_PAUSE_S)
