"""Work in slices: how long a slice is, who has a turn in between, and how it ends before its time."""

import asyncio
import threading
from itertools import pairwise

import pytest
from tests.fakes.slices import TickingClock, every_round

from placewise_core.basics.slices import Slices
from placewise_core.domain.errors import DeadlineExceededError
from placewise_service.engine.slicing import SLICE_S, Slicing

STEPS = 200
STEPS_PER_SLICE = round(SLICE_S / 0.001) + 1  # the ticking clock moves a millisecond at every pause


def ticking() -> Slicing:
    return Slicing(TickingClock(0.0).monotonic_s)


async def test_a_slice_has_few_steps_and_others_have_a_round_between_two() -> None:
    done: list[int] = []
    seen: list[int] = []

    def work(slices: Slices) -> str:
        for step in range(STEPS):
            done.append(step)
            slices.pause()
        return "result"

    async with every_round(lambda _: seen.append(len(done))):
        assert await ticking().run(work) == "result"
    seen.append(len(done))
    longest = max(b - a for a, b in pairwise(seen))
    assert 1 < longest <= STEPS_PER_SLICE
    assert sum(b > a for a, b in pairwise(seen)) >= STEPS // STEPS_PER_SLICE


async def test_of_several_pieces_of_work_one_slice_runs_per_round_and_all_advance() -> None:
    slicing = ticking()
    done = [0, 0, 0]
    seen: list[tuple[int, ...]] = []

    def work(mine: int, slices: Slices) -> None:
        for _ in range(STEPS):
            done[mine] += 1
            slices.pause()

    async with every_round(lambda _: seen.append(tuple(done))):
        await asyncio.gather(*(slicing.run(lambda slices, i=i: work(i, slices)) for i in range(3)))
    for before, after in pairwise(seen):
        assert sum(b > a for a, b in zip(before, after, strict=True)) <= 1
    middle = seen[len(seen) // 2]
    assert min(middle) > STEPS // 4, "one of them waits for the others"


async def test_what_is_done_aside_holds_up_nobody() -> None:
    may_end = threading.Event()
    main = threading.get_ident()

    def long() -> int:
        assert may_end.wait(10.0)
        return threading.get_ident()

    async def let_it_end() -> None:
        await asyncio.sleep(0.01)
        may_end.set()

    thread, _ = await asyncio.gather(ticking().run(lambda slices: slices.aside(long)), let_it_end())
    assert thread != main


async def test_an_error_aside_is_raised_where_the_work_asked() -> None:
    def work(slices: Slices) -> str:
        try:
            slices.aside(lambda: 1 / 0)
        except ZeroDivisionError:
            slices.pause()
            return "the heuristic answers"
        raise AssertionError

    assert await ticking().run(work) == "the heuristic answers"


async def test_an_error_of_the_work_is_the_callers() -> None:
    def work(slices: Slices) -> None:
        for _ in range(STEPS):
            slices.pause()
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await ticking().run(work)


@pytest.mark.parametrize("begun", [0, 20])
async def test_a_cancelled_caller_ends_the_work_with_what_it_has_to_give_back(begun: int) -> None:
    printed: list[str] = []

    def work(slices: Slices) -> None:
        try:
            printed.append("begun")
            while True:
                slices.pause()
        except Exception:
            printed.append("taken for an error of the policy")
        finally:
            printed.append("given back")

    task = asyncio.create_task(ticking().run(work))
    for _ in range(begun):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert printed == (["begun", "given back"] if begun else [])


async def test_the_deadline_ends_the_work_at_a_pause() -> None:
    clock = TickingClock(0.0)
    printed: list[str] = []

    def work(slices: Slices) -> None:
        try:
            while True:
                slices.pause()
        except Exception:
            printed.append("taken for an error of the policy")
        finally:
            printed.append("given back")

    with pytest.raises(DeadlineExceededError):
        await Slicing(clock.monotonic_s).run(work, clock.monotonic_s() + 0.1)
    assert printed == ["given back"]
    assert clock.readings < 150
