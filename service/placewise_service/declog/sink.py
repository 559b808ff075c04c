"""The queue between a decision and its log: bounded, in this process, emptied by one task. Never fails a decision.

An entry that finds the queue full is dropped and counted. A store that does not answer is asked again until then; an
append that failed half-way is repeated, so a record may be in the ring twice (the export drops repeats by id).
A process that is killed loses its queue: at most one flush interval of entries while the store answers.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from placewise_log.logs import Log
from placewise_log.record import Entry, encode
from placewise_service.background import cancel_and_wait
from placewise_service.declog.asked import Linking, linked
from placewise_service.declog.large import encode_in_turns, is_large

_MOST_LOGGED = 2000
_PORTION_BYTES = 65_536  # of one append: a reservation may have to wait behind it, here and in the store


class LogRing(Linking, Protocol):
    """The part of the state store that the sink needs."""

    async def append_decisions(
        self, cluster: str, records: Sequence[bytes], log: Log = Log.DECISIONS, lost: int = 0
    ) -> int:
        """See StateStore."""
        ...


class LogMetrics(Protocol):
    """Counts the records that were lost."""

    def log_drops(self, count: int) -> None:
        """So many more."""
        ...


class DecisionSink:
    """Takes records from decisions and appends them to the ring in batches.

    `metrics` counts every lost record: those refused by the full queue, and those that fell off the ring before
    they were exported. The log counts them as well, once the store answers. `logged` has the latest entries that the
    ring took, oldest first, until a reader removes them. One event loop owns the sink; `batch` is small because writing
    a batch to the store holds it.
    """

    def __init__(
        self,
        ring: LogRing,
        *,
        capacity: int = 20_000,
        batch: int = 16,
        flush_interval_s: float = 0.05,
        retry_interval_s: float = 0.5,
        metrics: LogMetrics | None = None,
    ) -> None:
        self._ring = ring
        self._capacity = capacity
        self._batch = batch
        self._flush_interval_s = flush_interval_s
        self._retry_interval_s = retry_interval_s
        self._metrics = metrics
        self.logged: deque[Entry] = deque(maxlen=_MOST_LOGGED)
        self._queue: deque[Entry] = deque()
        self._lost: Counter[str] = Counter()  # by cluster: drops that its log has not heard of
        self._wake = asyncio.Event()
        self._appending = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._in_flight = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._queue) + self._in_flight

    def offer(self, entry: Entry) -> None:
        """Queues an entry. Never blocks, never raises."""
        if len(self) >= self._capacity:
            self._lose(entry)
            return
        self._queue.append(entry)
        self._wake.set()

    def start(self) -> None:
        """Starts the task that empties the queue. Needs a running event loop; idempotent."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="decision-sink")

    async def flush(self) -> bool:
        """Appends everything that is queued, after a batch that is on its way; False if the store did not take it (it
        stays queued)."""
        async with self._appending:
            while self._queue or self._lost:
                if not await self._append_batch():
                    return False
        return True

    async def close(self, timeout_s: float = 5.0) -> None:
        """Stops the task and appends the rest; entries that it cannot append in time are dropped and counted."""
        await cancel_and_wait((self._task,))
        self._task = None
        last = asyncio.create_task(self._flush_all(min(self._retry_interval_s, timeout_s / 4)))
        await asyncio.wait({last}, timeout=timeout_s)
        await cancel_and_wait((last,))
        self._count_drops(len(self._queue))
        self._queue.clear()

    async def _flush_all(self, pause_s: float) -> None:
        while not await self.flush():  # noqa: ASYNC110 - a store that is down has no event to wait for
            await asyncio.sleep(pause_s)

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if await self.flush():
                # Let a batch gather: one append for many decisions costs the store far less than one each.
                await asyncio.sleep(self._flush_interval_s)
            else:
                self._wake.set()
                await asyncio.sleep(self._retry_interval_s)

    async def _append_batch(self) -> bool:
        """Appends the oldest entries; those that the store did not accept go back to the head of the queue."""
        by_cluster: dict[str, list[Entry]] = {cluster: [] for cluster in self._lost}
        for _ in range(min(self._batch, len(self._queue))):
            entry = self._queue.popleft()
            by_cluster.setdefault(entry.cluster, []).append(entry)
            self._in_flight += 1
        try:
            for cluster in list(by_cluster):
                by_cluster[cluster] = await linked(self._ring, cluster, by_cluster[cluster])
                encoded = await self._encoded(by_cluster[cluster])
                for portion in _portions(encoded):
                    lost = self._lost[cluster]
                    self._count_drops(await self._ring.append_decisions(cluster, portion, lost=lost))
                    self._lost[cluster] -= lost
                self.logged.extend(by_cluster.pop(cluster))
        except Exception:  # no error of the log may reach a decision or end this task
            return False
        finally:
            self._queue.extendleft(reversed([entry for group in by_cluster.values() for entry in group]))
            self._in_flight = 0
            self._lost = +self._lost
        return True

    async def _encoded(self, entries: list[Entry]) -> list[bytes]:
        """The bytes of the entries; one that has none is taken out and counted, so that it cannot block the rest."""
        encoded = []
        for entry in tuple(entries):
            await asyncio.sleep(0)  # a question that came meanwhile waits for one record, not for all of them
            try:
                encoded.append(await encode_in_turns(entry) if is_large(entry) else encode(entry))
            except (TypeError, ValueError, OverflowError):
                entries.remove(entry)
                self._lose(entry)
        return encoded

    def _lose(self, entry: Entry) -> None:
        self._lost[entry.cluster] += 1
        self._count_drops(1)

    def _count_drops(self, count: int) -> None:
        if count > 0:
            self.dropped += count
            if self._metrics is not None:
                self._metrics.log_drops(count)


def _portions(records: list[bytes]) -> Iterator[list[bytes]]:
    """The records in order, as many at a time as are of `_PORTION_BYTES` together, but one at least. Without records
    one portion of none."""
    portion: list[bytes] = []
    size = 0
    for record in records:
        if portion and size + len(record) > _PORTION_BYTES:
            yield portion
            portion, size = [], 0
        portion.append(record)
        size += len(record)
    if portion or not records:
        yield portion
