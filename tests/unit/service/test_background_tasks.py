"""Background tasks end although a cancellation gets lost on the way."""

import asyncio
import contextlib

from placewise_core.domain.commands import JobEvent, JobEventKind
from placewise_core.domain.job import JobId
from placewise_log.record import OutcomeRecord
from placewise_service.background import cancel_and_wait
from placewise_service.declog.sink import DecisionSink


async def deaf(times: int) -> None:
    """Loses as many cancellations as a client library might."""
    for _ in range(times):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
    await asyncio.Event().wait()


async def failing() -> None:
    raise OSError("as the test asked")


async def test_a_lost_cancellation_is_asked_again() -> None:
    tasks = [asyncio.create_task(deaf(times)) for times in (0, 1, 3)]
    tasks.append(asyncio.create_task(failing()))
    await asyncio.sleep(0)
    await cancel_and_wait([*tasks, None])
    assert all(task.done() for task in tasks)


class DeafRing:
    """A decision log ring whose client loses the first cancellation."""

    def __init__(self) -> None:
        self.is_asked = asyncio.Event()

    async def append_decisions(self, cluster: str, records: object, lost: int = 0) -> int:
        self.is_asked.set()
        await deaf(1)
        return 0


async def test_a_sink_whose_store_loses_a_cancellation_still_closes() -> None:
    ring = DeafRing()
    sink = DecisionSink(ring, flush_interval_s=0.0)
    sink.start()
    sink.offer(OutcomeRecord("c", 1.0, JobEvent(JobId("a"), JobEventKind.STARTED)))
    await ring.is_asked.wait()
    await asyncio.wait_for(sink.close(timeout_s=0.1), 30)
    assert sink.dropped == 1
