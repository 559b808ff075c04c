"""The sink: nothing that happens to the log reaches a decision, and nothing is lost unseen."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from placewise_core.domain.commands import JobEvent, JobEventKind
from placewise_core.domain.errors import StateUnavailableError
from placewise_core.domain.job import JobId
from placewise_log.logs import Log
from placewise_log.record import Entry, OutcomeRecord, decode_entry, encode
from placewise_service.declog.sink import DecisionSink


class FakeRing:
    """Keeps appended entries; refuses while `is_down`."""

    def __init__(self) -> None:
        self.is_down = False
        self.fell_off = 0
        self.appended: dict[str, list[str]] = {}
        self.lost: Counter[str] = Counter()
        self.calls = 0
        self.refused = asyncio.Event()

    async def append_decisions(
        self, cluster: str, records: Sequence[bytes], log: Log = Log.DECISIONS, lost: int = 0
    ) -> int:
        self.calls += 1
        await asyncio.sleep(0)
        if self.is_down:
            self.refused.set()
            raise StateUnavailableError("down")
        self.lost[cluster] += lost
        for data in records:
            entry = decode_entry(data)
            assert isinstance(entry, OutcomeRecord)
            self.appended.setdefault(cluster, []).append(entry.event.job_id)
        return self.fell_off


def entry(job: str, cluster: str = "c") -> OutcomeRecord:
    return OutcomeRecord(cluster, 1.0, JobEvent(JobId(job), JobEventKind.STARTED))


def sink_on(ring: FakeRing, **options: float) -> DecisionSink:
    return DecisionSink(ring, flush_interval_s=0.0, retry_interval_s=0.001, **options)  # type: ignore[arg-type]


async def test_entries_arrive_in_order_by_cluster() -> None:
    ring = FakeRing()
    sink = sink_on(ring, batch=3)
    sink.start()
    for i in range(10):
        sink.offer(entry(f"j{i}", cluster="ab"[i % 2]))
    await sink.close()
    assert ring.appended == {"a": ["j0", "j2", "j4", "j6", "j8"], "b": ["j1", "j3", "j5", "j7", "j9"]}
    assert sink.dropped == 0


async def test_the_first_entry_after_a_quiet_time_does_not_wait_for_others() -> None:
    ring = FakeRing()
    sink = DecisionSink(ring, flush_interval_s=3600.0)
    sink.start()
    sink.offer(entry("a"))
    sink.offer(entry("b"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert ring.appended == {"c": ["a", "b"]}
    sink.offer(entry("next"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert ring.appended == {"c": ["a", "b"]}
    await sink.close()
    assert ring.appended == {"c": ["a", "b", "next"]}


async def test_a_full_queue_drops_and_counts() -> None:
    class Drops(list[int]):
        def log_drops(self, count: int) -> None:
            self.append(count)

    ring, drops = FakeRing(), Drops()
    sink = sink_on(ring, capacity=4, metrics=drops)  # type: ignore[arg-type]
    for i in range(7):
        sink.offer(entry(f"j{i}"))
    assert (sink.dropped, drops) == (3, [1, 1, 1])
    await sink.close()
    assert ring.appended == {"c": ["j0", "j1", "j2", "j3"]}
    assert ring.lost == {"c": 3}


async def test_the_log_hears_of_drops_once_and_when_the_store_is_back() -> None:
    ring = FakeRing()
    ring.is_down = True
    sink = sink_on(ring, capacity=2)
    for cluster in ("a", "a", "b", "b", "a"):
        sink.offer(entry("j", cluster))
    assert not await sink.flush()
    ring.is_down = False
    assert await sink.flush()
    assert await sink.flush()
    assert (ring.appended, ring.lost) == ({"a": ["j", "j"]}, {"a": 1, "b": 2})
    await sink.close()
    assert sink.dropped == 3


async def test_an_unreachable_store_keeps_the_queue_until_it_is_back() -> None:
    ring = FakeRing()
    ring.is_down = True
    sink = sink_on(ring, batch=2)
    sink.start()
    for i in range(5):
        sink.offer(entry(f"j{i}"))
    await ring.refused.wait()
    assert len(sink) == 5
    ring.is_down = False
    await sink.close()
    assert ring.appended == {"c": [f"j{i}" for i in range(5)]}
    assert sink.dropped == 0


async def test_closing_on_a_dead_store_ends_in_time_and_counts_the_loss() -> None:
    ring = FakeRing()
    ring.is_down = True
    sink = sink_on(ring)
    sink.offer(entry("j"))
    await sink.close(timeout_s=0.01)
    assert sink.dropped == 1


async def test_what_falls_off_the_ring_is_counted() -> None:
    ring = FakeRing()
    ring.fell_off = 5
    sink = sink_on(ring)
    sink.offer(entry("j"))
    await sink.close()
    assert sink.dropped == 5


async def test_an_entry_without_bytes_does_not_block_the_rest() -> None:
    ring = FakeRing()
    sink = sink_on(ring)
    sink.offer(entry("j0"))
    sink.offer(OutcomeRecord("c", 1.0, JobEvent(JobId("bad"), JobEventKind.STARTED, reason=object())))  # type: ignore[arg-type]
    sink.offer(entry("j2"))
    await sink.close()
    assert ring.appended == {"c": ["j0", "j2"]}
    assert (sink.dropped, ring.lost) == (1, {"c": 1})


async def test_a_question_waits_for_one_record_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, turn_of = 0, []

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def encoded(entry: Entry) -> bytes:
        turn_of.append(turns)
        return encode(entry)

    monkeypatch.setattr("placewise_service.declog.sink.encode", encoded)
    sink = sink_on(FakeRing())
    for i in range(10):
        sink.offer(entry(f"j{i}"))
    other = asyncio.create_task(take_turns())
    await sink.flush()
    other.cancel()
    assert len(set(turn_of)) == 10


async def test_large_entries_are_appended_a_few_at_a_time() -> None:
    """A reservation may have to wait behind an append: one large in bytes would hold it up."""
    ring = FakeRing()
    sink = sink_on(ring, batch=16)
    for i in range(6):
        sink.offer(entry(f"{i}" * 30_000))
    for i in range(6):
        sink.offer(entry(f"j{i}"))
    assert await sink.flush()
    assert [job[:2] for job in ring.appended["c"]] == [
        "00",
        "11",
        "22",
        "33",
        "44",
        "55",
        "j0",
        "j1",
        "j2",
        "j3",
        "j4",
        "j5",
    ]
    assert ring.calls == 3


async def test_an_entry_larger_than_any_portion_is_appended_alone() -> None:
    ring = FakeRing()
    sink = sink_on(ring)
    for job in ("x" * 100_000, "y", "z"):
        sink.offer(entry(job))
    assert await sink.flush()
    assert (ring.calls, len(ring.appended["c"])) == (2, 3)


async def test_a_flush_waits_for_a_batch_that_is_on_its_way() -> None:
    ring = FakeRing()
    sink = sink_on(ring, batch=8)
    sink.offer(entry("a"))
    first = asyncio.create_task(sink.flush())
    await asyncio.sleep(0)
    assert (len(sink), len(sink._queue)) == (1, 0), "on its way"
    assert await sink.flush()
    assert ring.appended == {"c": ["a"]}
    assert await first
