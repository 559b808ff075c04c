"""Studies behind the answers: how many are taken, in which share of the time, and how they are spread over it."""

import asyncio

import pytest
from tests.fakes.slices import TickingClock

from placewise_core.basics.clock import ManualClock
from placewise_core.basics.slices import Slices
from placewise_service.engine.place.studying import Studying

STUDY_S = 0.01
TIME_SHARE = 0.01
EACH_S = STUDY_S / TIME_SHARE  # a study in so many seconds
MOST = 8
AT_ONCE = 3


class Lasting:
    """A study that takes a hundredth of a second."""

    decision_id = ""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.is_shed = self.is_finished = False

    def study(self, _: Slices) -> None:
        self._clock.advance(STUDY_S)

    def finish(self) -> None:
        self.is_finished = True

    def shed(self) -> None:
        self.is_shed = True


async def offered(studying: Studying, clock: ManualClock, count: int) -> int:
    """How many of so many that come at once are done."""
    studies = [Lasting(clock) for _ in range(count)]
    for study in studies:
        studying.offer(study)
    await studying.finish()
    assert all(study.is_shed != study.is_finished for study in studies)
    return sum(study.is_finished for study in studies)


@pytest.mark.parametrize(("costs", "fewest", "most"), [(1.0, 18, 21), (3.0, 5, 7)])
async def test_under_load_studies_come_one_by_one_within_their_share_of_the_time(
    costs: float, fewest: int, most: int
) -> None:
    clock = ManualClock(1_000_000.0)
    studying = Studying(clock, TIME_SHARE, MOST, costs)
    assert await offered(studying, clock, MOST + 1) == MOST, "the first ones, after a quiet time"
    began_s, done = clock.monotonic_s(), []
    while clock.monotonic_s() < began_s + 20 * EACH_S:
        clock.advance(0.01)
        done.append(await offered(studying, clock, AT_ONCE))
    assert max(done) == 1, "several at once would hold up the calls beside them for long"
    assert fewest <= sum(done) <= most


async def test_after_a_quiet_time_as_many_as_may_wait_are_taken_at_once_or_one_after_another() -> None:
    clock = ManualClock(1_000_000.0)
    studying = Studying(clock, TIME_SHARE, MOST)
    await offered(studying, clock, 1)
    for at_once in (MOST, 1):
        clock.advance(2 * MOST * EACH_S)
        assert sum([await offered(studying, clock, at_once) for _ in range(MOST // at_once)]) == MOST
        assert await offered(studying, clock, 1) == 0


class Pausing(Lasting):
    def study(self, slices: Slices) -> None:
        for _ in range(20):
            slices.pause()


@pytest.mark.parametrize(("time_share", "rest"), [(1.0, 0.0), (0.2, 4.0), (0.01, 9.0)])
async def test_a_rest_follows_each_slice_until_the_service_ends(
    time_share: float, rest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []
    sleep = asyncio.sleep

    async def noting(seconds: float) -> None:
        rests.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", noting)
    clock = TickingClock(1_000_000.0)
    studying = Studying(clock, time_share)
    study = Pausing(clock)
    studying.offer(study)
    while not study.is_finished:
        await sleep(0)
    assert len(rests) > 10
    assert rests[0] == 0.0
    assert all(rest * 0.001 - 1e-6 <= each <= rest * 0.01 for each in rests[1:]), "a slice is a few ticks long"
    rests.clear()
    clock.advance(1_000.0)
    studying.offer(Pausing(clock))
    await studying.finish()
    assert rests, "it was worked out"
    assert set(rests) == {0.0}
