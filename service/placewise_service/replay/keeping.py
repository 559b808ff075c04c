"""Saves the decision log of a replayed cluster before the cluster, and with it the log, is deleted."""

import asyncio
import time
from collections.abc import Set
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.dataset as ds

from placewise_service.declog.export import ExportRing, export
from placewise_service.declog.tables import DECISIONS

_MOST_S = 20.0  # the service writes its log behind its answers, usually within a tenth of a second
_PAUSE_S = 0.2


async def save_log(ring: ExportRing, directory: Path, cluster: str, decisions: Set[str]) -> int:
    """Exports until all `decisions` of the cluster and the outcomes behind them are in the files; how many are missing.

    Raises as `export` does.
    """
    until_s = time.monotonic() + _MOST_S
    while True:
        report = await export(ring, directory, clusters=(cluster,))
        missing = decisions - await asyncio.to_thread(_logged, directory, cluster)
        is_quiet = not report.written.total()
        if (is_quiet and not missing) or time.monotonic() > until_s:
            return len(missing)
        await asyncio.sleep(_PAUSE_S)


def _logged(directory: Path, cluster: str) -> Set[str]:
    """Ids of the cluster's decisions in the files."""
    folder = directory / DECISIONS
    if not folder.is_dir():
        return frozenset()
    found = ds.dataset(folder, format="parquet").to_table(columns=["id"], filter=pc.field("cluster") == cluster)
    return frozenset(found.column("id").to_pylist())
