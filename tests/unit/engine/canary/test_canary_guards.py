"""Guards end a canary that does worse, for every replica at once, and leave one that does as well alone."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.fakes.bundles import copy_bundle
from tests.fakes.cluster import make_job, make_node
from tests.fakes.engine import ask_place

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.commands import JobEvent, JobEventKind, PlaceCommand
from placewise_core.domain.errors import StateUnavailableError
from placewise_core.domain.job import Job, JobId
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import PlacementPolicy, Proposal
from placewise_core.policies.trial.arms import Arm, Arms, Unit
from placewise_core.view.view import ClusterView
from placewise_service.engine import Engine, EngineOptions
from placewise_service.engine.build import build_engine
from placewise_service.state.reference.memory import MemoryStore
from placewise_service.state.store import ChangeKind
from placewise_service.telemetry import Telemetry

LAB = "lab"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000.0)


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture
async def pair(tmp_path: Path, store: MemoryStore, clock: ManualClock) -> AsyncIterator[tuple[Engine, Engine]]:
    """Two replicas with a canary on half of the jobs. They look when the test asks."""
    for name in ("default", "next"):
        copy_bundle(tmp_path / name, created=f"2026-01-0{len(name) - 3}T00:00:00Z")
    engines = [build_engine(store, clock, Telemetry(), EngineOptions(), tmp_path) for _ in range(2)]
    await engines[0].report_nodes(LAB, [make_node(f"n{i}", 8) for i in range(25)], full=True)
    await engines[0].bundles.set_canary("next", LAB, Arms("", 0.5))
    await engines[1].bundles.refresh()
    yield engines[0], engines[1]
    for engine in engines:
        await engine.close()


class Fails(PlacementPolicy):
    name = "consolidate"

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        raise RuntimeError("as the test asked")


class FindsNone(PlacementPolicy):
    name = "consolidate"

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        return None


def let_decide(engine: Engine, policy: PlacementPolicy) -> None:
    """As if the canary's bundle had this policy in place of its own."""
    engine._parts.registry.canaries[LAB].serving.policies.placement["consolidate"] = policy  # type: ignore[index]


def names_of(engine: Engine, arm: Arm, count: int, prefix: str = "job") -> list[str]:
    rule = engine._parts.registry.canaries[LAB].rule
    names = (f"{prefix}-{i}" for i in range(100 * count))
    return [name for name in names if rule.of(name, 0.0) is arm][:count]


async def ask(engine: Engine, *names: str) -> None:
    """Each job is placed and counted."""
    for name in names:
        await ask_place(engine, PlaceCommand(LAB, (make_job(name),), policy="consolidate"))
        engine._parts.telemetry.afterwards.run()


async def follow(pair: tuple[Engine, Engine]) -> None:
    """Both replicas have seen every event."""
    async with asyncio.timeout(30):
        while len({(await engine._parts.views.get(LAB)).view.version for engine in pair}) > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def last_change(engine: Engine) -> tuple[ChangeKind, str]:
    change = (await engine.bundles.history(LAB, 1))[0]
    return change.kind, change.reason


async def test_ten_failures_in_a_row_end_it_and_nine_do_not(pair: tuple[Engine, Engine]) -> None:
    one, other = pair
    let_decide(one, Fails())
    names = names_of(one, Arm.CANARY, 10)
    await ask(one, *names[:9])
    await one._watching.look()
    assert one.bundles.canaries
    await ask(one, names[9])
    assert one._watching._wakes.is_set(), "at once"
    await one._watching.look()
    assert not one.bundles.canaries
    await other.bundles.refresh()
    assert not other._parts.registry.canaries
    assert await last_change(other) == (ChangeKind.CANARY_ROLLED_BACK, "its policy failed 10 times in a row")
    assert 'placewise_canary_rollbacks_total{bundle="next"} 1.0' in one._parts.telemetry.render().decode()


async def test_the_sums_of_both_replicas_end_one_that_finds_no_place(pair: tuple[Engine, Engine]) -> None:
    for engine in pair:
        let_decide(engine, FindsNone())
    asked = 0
    while pair[0].bundles.canaries and asked < 60:
        for engine in pair:
            name = f"both-{asked}"
            await ask(engine, name)
            await follow(pair)  # else a busy machine may answer three times that the cluster changed
            asked += 1
        for engine in pair:
            await engine._watching.look()
            await engine.bundles.refresh()
    assert 8 <= asked < 60
    kind, reason = await last_change(pair[0])
    assert kind is ChangeKind.CANARY_ROLLED_BACK
    assert reason.startswith("no fit: ")
    assert "0 of" in reason.split("canary, ")[1]


async def test_one_that_does_as_well_goes_on_and_repeats_count_once(
    store: MemoryStore, pair: tuple[Engine, Engine]
) -> None:
    one, _ = pair
    salt = one._parts.registry.canaries[LAB].rule.salt
    for _ in range(3):
        await ask(one, *[f"same-{i}" for i in range(12)])
    await one._watching.look()
    sums = await store.add_evidence(salt, {})
    assert sum(sums[f"0.5|FALLBACK|{arm.value}"] for arm in Arm) == 12
    assert not any(name.endswith("events") for name in sums)
    assert one.bundles.canaries
    assert f'placewise_canary_evidence{{bundle="next",cluster="{LAB}",guard="no_fit"}} 0.0' in (
        one._parts.telemetry.render().decode()
    )


async def test_slow_jobs_end_it(clock: ManualClock, pair: tuple[Engine, Engine]) -> None:
    one, _ = pair
    rule = one._parts.registry.canaries[LAB].rule
    for i in range(120):
        name = f"runs-{i}"
        await ask_place(one, PlaceCommand(LAB, (make_job(name),), policy="consolidate"))
        one._parts.telemetry.afterwards.run()
        speed = 0.8 if rule.of(name, 0.0) is Arm.CANARY else 1.0
        events = [JobEvent(JobId(name), JobEventKind.PROGRESS, speed=each) for each in (speed, 9.0)]
        await one.report_job_events(LAB, events)
        await one._watching.look()
        if not one.bundles.canaries:
            break
    assert 10 < i < 60
    assert (await last_change(one))[1].startswith("slow job: ")


async def test_slow_decisions_end_it(clock: ManualClock, pair: tuple[Engine, Engine]) -> None:
    one, _ = pair
    rule = one._parts.registry.canaries[LAB].rule
    usual = one._placing.placer.policies["consolidate"]

    class Slow(PlacementPolicy):
        name = "consolidate"

        def __init__(self, seconds: float) -> None:
            self._seconds = seconds

        def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
            clock.advance(self._seconds)
            return usual.propose(job, view, context)

    one._placing.placer.policies["consolidate"] = Slow(0.010)  # type: ignore[index]
    let_decide(one, Slow(0.015))
    for i in range(200):
        await ask(one, f"slow-{i}")
        await one._watching.look()
        if not one.bundles.canaries:
            break
    assert rule.share == 0.5
    assert 30 < i < 120
    assert (await last_change(one))[1].startswith("slow decision: ")


async def test_by_time_finished_periods_are_compared(
    store: MemoryStore, clock: ManualClock, pair: tuple[Engine, Engine]
) -> None:
    one, _ = pair
    await one.bundles.set_canary("next", LAB, Arms("", 0.5, Unit.TIME, 20.0, 1.0))
    let_decide(one, FindsNone())
    while one.bundles.canaries and clock.now_s() < 1_001_000.0:
        clock.advance(2.0)
        await ask(one, f"at-{clock.now_s():.0f}")
        await one._watching.look()
    kind, reason = await last_change(one)
    assert (kind, reason.split(":")[0]) == (ChangeKind.CANARY_ROLLED_BACK, "no fit")
    assert clock.now_s() >= 1_000_000.0 + 5 * 20.0, "one period says little"


async def test_what_the_store_did_not_take_is_sent_again(
    store: MemoryStore, pair: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = pair
    await ask(one, "a", "b")

    async def away(salt: str, counts: object) -> None:
        raise StateUnavailableError("as the test asked")

    with monkeypatch.context() as patched:
        patched.setattr(store, "add_evidence", away)
        with pytest.raises(StateUnavailableError):
            await one._watching.look()
    await one._watching.look()
    sums = await store.add_evidence(one._parts.registry.canaries[LAB].rule.salt, {})
    assert sum(sums.get(f"0.5|NO_FIT|{arm.value}", 0) for arm in Arm) == 2
