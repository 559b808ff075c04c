"""Background tasks end although a cancellation gets lost on the way; acts after the answers come in turns."""

import asyncio
import contextlib
import gc

import pytest

from placewise_core.domain.commands import JobEvent, JobEventKind
from placewise_core.domain.job import JobId
from placewise_log.record import OutcomeRecord
from placewise_service.afterwards import Afterwards
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


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placewise_service.background._ASK_AGAIN_S", 0.02)


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


async def test_a_question_that_came_meanwhile_waits_for_a_part_of_many_acts() -> None:
    afterwards, done = Afterwards(), list[int]()
    loop = asyncio.get_running_loop()
    seen: list[int] = []
    afterwards.add(lambda: loop.call_soon(lambda: seen.append(len(done))))
    for i in range(300):
        afterwards.add(done.append, i)
    all_done = asyncio.Event()
    afterwards.add(all_done.set)
    await asyncio.wait_for(all_done.wait(), 5.0)
    assert done == list(range(300))
    assert 0 < seen[0] < 150


async def test_an_act_that_fails_fails_alone_and_one_added_by_an_act_comes_later() -> None:
    afterwards, done, failures = Afterwards(), list[str](), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))

    def fail() -> None:
        raise ValueError

    afterwards.add(fail)
    all_done = asyncio.Event()

    def add() -> None:
        afterwards.add(done.append, "later")
        afterwards.add(all_done.set)

    afterwards.add(add)
    afterwards.add(done.append, "first")
    await asyncio.wait_for(all_done.wait(), 5.0)
    assert done == ["first", "later"]
    assert [type(failure) for failure in failures] == [ValueError]


async def test_run_carries_out_all_at_once() -> None:
    afterwards, done = Afterwards(), list[int]()
    for i in range(300):
        afterwards.add(done.append, i)
    afterwards.run()
    assert done == list(range(300))


async def test_an_error_that_comes_after_the_wait_was_cancelled_is_not_logged() -> None:
    """A stop asks its reader again after a while, which then waits for its own task no longer."""
    logged: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    may_end = asyncio.Event()

    async def fails_late() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await may_end.wait()
            raise ConnectionError("the server is gone") from None

    reading = asyncio.create_task(fails_late())
    await asyncio.sleep(0)
    waiting = asyncio.create_task(cancel_and_wait([reading]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    may_end.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert reading.done()
    del reading, waiting
    gc.collect()
    assert logged == []
