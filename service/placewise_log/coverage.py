"""Which views of decisions the log still has the snapshots, events and gangs for."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from placewise_core.domain.events import JobsChanged
from placewise_log.views import EVENTS, SNAPSHOT, Events, Gangs, decode_view_entry

Headings = Iterable[tuple[str, str, str, int, int]]


class Coverage:
    """Snapshots and events of a log of views, from kind, cluster, name, first and last version of each entry.

    Whether a view differs from the one that was read shows itself when it is rebuilt.
    """

    def __init__(self, headings: Headings) -> None:
        self._snapshots: dict[tuple[str, str], list[int]] = {}
        self._runs: dict[tuple[str, str], list[tuple[int, int]]] = {}  # events without a gap: first and last version
        events: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for kind, cluster, name, first, last in headings:
            if kind == SNAPSHOT:
                self._snapshots.setdefault((cluster, name), []).append(first)
            elif kind == EVENTS:
                events.setdefault((cluster, name), []).append((first, last))
        for versions in self._snapshots.values():
            versions.sort()
        for key, spans in events.items():
            runs = self._runs[key] = []
            for first, last in sorted(spans):
                if runs and first <= runs[-1][1] + 1:
                    runs[-1] = (runs[-1][0], max(last, runs[-1][1]))
                else:
                    runs.append((first, last))

    def has(self, cluster: str, epoch: str, view: str, version: int) -> bool:
        """True if no snapshot and no event is missing for this view at this version."""
        snapshots = self._snapshots.get((cluster, view), [])
        at = bisect_right(snapshots, version) - 1
        if at < 0:
            return False
        if snapshots[at] == version:
            return True
        runs = self._runs.get((cluster, epoch), [])
        i = bisect_right(runs, snapshots[at] + 1, key=lambda run: run[0]) - 1
        return i >= 0 and version <= runs[i][1]


def gangs_of(data: bytes) -> Iterator[str]:
    """The reservations that an entry of the log of views names: refused ones, or held ones by its events. Raises
    CorruptEntryError."""
    entry = decode_view_entry(data)
    if isinstance(entry, Gangs):
        yield from (gang.reservation_id for gang in entry.gangs)
    elif isinstance(entry, Events):
        changes = (event.change for event in entry.events)
        yield from (job.reservation_id for each in changes if isinstance(each, JobsChanged) for job in each.jobs)
