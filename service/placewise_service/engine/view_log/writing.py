"""Writes the log of views: each view's snapshots and refused gangs, and the events of every cluster. Behind decisions.

The first replica that comes copies the events (StateStore.copy_events). A store that does not answer is asked
again in the next round. Entries that wait are bounded, and so is the log: entries that fall off it unexported count.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from placewise_core.basics.clock import Clock
from placewise_core.domain.errors import StateUnavailableError
from placewise_log.logs import Log
from placewise_log.views import Snapshot, encode_gangs, encode_snapshot
from placewise_service.aside import aside
from placewise_service.background import cancel_and_wait
from placewise_service.engine.views import LiveView, Views
from placewise_service.state.store import StateStore

_PERIOD_S: Final = 0.5
_LARGE: Final = 200  # nodes and jobs from which a snapshot is written beside the loop
_MOST_COPIES: Final = 64  # in a row for one cluster: others have their turn


class ViewLog:
    """One event loop owns it. `on_drop(n)` hears of entries that fell off the log."""

    def __init__(self, views: Views, store: StateStore, clock: Clock, on_drop: Callable[[int], None]) -> None:
        self._views = views
        self._store = store
        self._clock = clock
        self._on_drop = on_drop
        self._copied: dict[str, int] = {}  # cluster → version up to which its events were copied
        self._writing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to write. Needs a running event loop."""
        self._task = asyncio.create_task(self._run(), name="log of views")

    async def close(self) -> None:
        await cancel_and_wait((self._task,))
        self._task = None

    async def write(self) -> None:
        """Writes all that waits; leaves out clusters whose store does not answer."""
        async with self._writing:
            for live in self._views:
                with contextlib.suppress(StateUnavailableError):
                    await self._write(live)
            self._copied = {live.cluster: self._copied.get(live.cluster, 0) for live in self._views}

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_PERIOD_S)
            await self.write()

    async def _write(self, live: LiveView) -> None:
        notes = live.notes
        notes.take_if_due(live.view, self._clock.now_s())
        while notes.snapshots:
            snapshot = notes.snapshots[0]
            await self._append(live.cluster, await _encoded(snapshot))
            if notes.snapshots and notes.snapshots[0] is snapshot:  # else there were too many
                notes.snapshots.popleft()
        if refused := list(notes.refused):
            notes.refused.clear()
            try:
                await self._append(live.cluster, encode_gangs(notes.name, refused))
            except StateUnavailableError:
                notes.refused.extendleft(reversed(refused))
                raise
        version, copies = live.view.version, 0
        is_left = version != self._copied.get(live.cluster)
        while is_left and copies < _MOST_COPIES:
            is_left, lost = await self._store.copy_events(live.cluster)
            self._on_drop(lost)
            copies += 1
        if not is_left:
            self._copied[live.cluster] = version

    async def _append(self, cluster: str, record: bytes) -> None:
        self._on_drop(await self._store.append_decisions(cluster, [record], Log.VIEWS))


async def _encoded(snapshot: Snapshot) -> bytes:
    records = snapshot.records
    is_large = len(records.nodes) + len(records.jobs) > _LARGE
    return await aside(encode_snapshot, snapshot) if is_large else encode_snapshot(snapshot)
