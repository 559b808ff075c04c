"""A canary answers its share of the jobs on every replica, is logged with both arms, promoted, ended, rolled back."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.fakes.bundles import copy_bundle, rewrite
from tests.fakes.cluster import make_job, make_node
from tests.fakes.engine import ask_place, logged

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import ClusterSettings
from placewise_core.domain.commands import PlaceCommand
from placewise_core.domain.decision import LearnedSpeed, Outcome, PlaceDecision
from placewise_core.domain.errors import InvalidRequestError, NotFoundError
from placewise_core.domain.job import Job
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import PlacementPolicy, Proposal
from placewise_core.policies.load_balance import LoadBalance
from placewise_core.policies.trial.arms import Arm, Arms, Unit
from placewise_core.view.view import ClusterView
from placewise_log.audit import AuditRecord
from placewise_log.record import DecisionRecord, decode_entry, encode
from placewise_models.bundle import load
from placewise_service.declog.tables import row_of
from placewise_service.engine import Engine, EngineOptions
from placewise_service.engine.build import build_engine
from placewise_service.engine.registry import BundleState
from placewise_service.state.reference.memory import MemoryStore
from placewise_service.state.store import BundleChange, ChangeKind
from placewise_service.telemetry import Telemetry

LAB, FARM = "lab", "farm"
NAMES = [f"job-{i}" for i in range(40)]


@pytest.fixture(autouse=True)
def salts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The salts are the same in every run: one run in seventy had all of a test's twelve jobs in one arm."""
    rng = random.Random(1)
    monkeypatch.setattr("placewise_service.engine.bundles.secrets.token_hex", lambda count: rng.randbytes(count).hex())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("default", "next", "later"):
        copy_bundle(tmp_path / name, created=f"2026-01-0{len(name) - 3}T00:00:00Z")
    return tmp_path


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000.0)


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture
async def pair(root: Path, store: MemoryStore, clock: ManualClock) -> AsyncIterator[tuple[Engine, Engine]]:
    """Two replicas; both clusters exist."""
    engines = [replica(store, root, clock) for _ in range(2)]
    for engine in engines:
        await engine.start()
    for cluster in (LAB, FARM):
        await engines[0].report_nodes(cluster, [make_node(f"n{i}", 8) for i in range(8)], full=True)
    yield engines[0], engines[1]
    for engine in engines:
        await engine.close()


class MemoryAudit:
    """An audit in memory."""

    def __init__(self, records: list[AuditRecord]) -> None:
        self.records = records

    def add(self, record: AuditRecord) -> None:
        self.records.append(record)


def replica(store: MemoryStore, root: Path, clock: ManualClock, audit: MemoryAudit | None = None) -> Engine:
    return build_engine(store, clock, Telemetry(), EngineOptions(), root, audit=audit)


async def place(engine: Engine, name: str, cluster: str = LAB, **more: object) -> PlaceDecision:
    return await ask_place(engine, PlaceCommand(cluster, (make_job(name),), policy="harmony", **more))  # type: ignore[arg-type]


async def records_of(engine: Engine, store: MemoryStore, cluster: str = LAB) -> list[DecisionRecord]:
    assert await logged(engine)
    entries = [decode_entry(data) for _, data in await store.read_decisions(cluster, "0", 1000)]
    return [entry for entry in entries if isinstance(entry, DecisionRecord)]


async def changes(engine: Engine, cluster: str = "") -> list[BundleChange]:
    return list(await engine.bundles.history(cluster, 100))


async def arms_of(engine: Engine, names: list[str] = NAMES) -> set[str]:
    """Jobs that the bundle `next` answers."""
    found = {name: (await place(engine, name, is_dry_run=True)).meta.bundle for name in names}
    assert set(found.values()) <= {"default", "next"}
    return {name for name, bundle in found.items() if bundle == "next"}


async def test_jobs_below_the_share_are_the_canarys_on_every_replica_and_after_a_restart(
    root: Path, store: MemoryStore, clock: ManualClock, pair: tuple[Engine, Engine]
) -> None:
    one, other = pair
    status, chosen = await one.bundles.set_canary("next", LAB, Arms("", 0.3), "ops")
    assert (status.name, status.state, chosen.share, len(chosen.salt)) == ("next", BundleState.CANARY, 0.3, 16)
    rule = Arms(chosen.salt, 0.3)
    wanted = {name for name in NAMES if rule.of(name, 0.0) is Arm.CANARY}
    assert 0 < len(wanted) < len(NAMES)
    await other.bundles.refresh()
    third = replica(store, root, clock)
    await third.start()
    for engine in (one, other, third):
        assert await arms_of(engine) == wanted
        assert {status.name: status.state for status in await engine.bundles.list()}["next"] is BundleState.CANARY
        assert engine.bundles.canaries == {LAB: chosen}
        name = next(iter(wanted))
        assert (await place(engine, f"{name}")).meta.bundle == ("next" if engine is one else "default"), "it is placed"
    assert (await place(one, next(iter(wanted)), FARM)).meta.bundle == "default"
    await third.close()


async def test_a_larger_share_keeps_the_jobs_and_the_salt(pair: tuple[Engine, Engine]) -> None:
    one, other = pair
    _, first = await one.bundles.set_canary("next", LAB, Arms("", 0.2))
    small = await arms_of(one)
    assert small
    await other.bundles.refresh()
    _, second = await other.bundles.set_canary("next", LAB, Arms("", 0.6))
    assert (second.salt, second.start_time_s) == (first.salt, first.start_time_s)
    assert small < await arms_of(other)
    _, third = await other.bundles.set_canary("later", LAB, Arms("", 0.6))
    assert third.salt != first.salt


async def test_what_is_no_canary_is_refused(pair: tuple[Engine, Engine]) -> None:
    one, _ = pair
    for name, error in (("default", InvalidRequestError), ("none", NotFoundError)):
        with pytest.raises(error):
            await one.bundles.set_canary(name, LAB, Arms("", 0.1))
    with pytest.raises(NotFoundError, match="no canary for 'lab' alone"):
        await one.bundles.promote(LAB)
    assert not one.bundles.canaries
    assert await changes(one) == []


@pytest.mark.parametrize("rate", [0.0, 0.4])
async def test_the_log_has_both_arms_and_the_propensity_over_both(
    store: MemoryStore, pair: tuple[Engine, Engine], rate: float
) -> None:
    """The two bundles hold the same nets, so the propensity over both is that of either."""
    one, _ = pair
    await one.update_settings(LAB, ClusterSettings(exploration_rate=rate))
    _, chosen = await one.bundles.set_canary("next", LAB, Arms("", 0.3))
    for name in NAMES[:12]:
        await place(one, name)
        await logged(one)
        one._mixing._rests_until_s = 0.0
    records = await records_of(one, store)
    assert len(records) == 12
    for record in records:
        seen = record.canary
        assert seen is not None
        assert (seen.bundle, seen.digest, seen.salt, seen.share) == ("next", chosen.digest, chosen.salt, 0.3)
        (arm,) = seen.arms
        assert arm.arm == Arms(chosen.salt, 0.3).of(arm.job_id, 0.0).value
        assert (arm.arm == "canary") == (record.meta.bundle == "next")
        assert arm.unknown == ""
        assert arm.mixed_propensity == pytest.approx(record.meta.propensity)
        row = row_of(LAB, "1-0", encode(record))[2]
        assert (row["canary_salt"], row["canary_share"], row["canary_unit"]) == (chosen.salt, 0.3, "job")
        assert (row["job_arms"], row["job_mixed_propensities"]) == ([arm.arm], [arm.mixed_propensity])
        assert row["job_mixtures_unknown"] == [None]
    assert len({record.meta.bundle for record in records}) == 2


class Elsewhere(LoadBalance):
    """Another policy than the incumbent's, under its name."""

    name = "harmony"


class Fails(PlacementPolicy):
    name = "harmony"

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        raise RuntimeError("as the test asked")


def let_decide(engine: Engine, policy: PlacementPolicy) -> None:
    """As if the canary's bundle had this policy in place of harmony."""
    placement = engine._parts.registry.canaries[LAB].serving.policies.placement
    placement["harmony"] = policy  # type: ignore[index]


async def test_of_arms_that_differ_each_has_its_share(store: MemoryStore, pair: tuple[Engine, Engine]) -> None:
    one, _ = pair
    await one.bundles.set_canary("next", LAB, Arms("", 0.3))
    let_decide(one, Elsewhere())
    await ask_place(one, PlaceCommand(LAB, (make_job("full", workers=2, gpus=4.0),), policy="consolidate"))
    for name in NAMES[:12]:
        gang = make_job(name, workers=2)
        await ask_place(one, PlaceCommand(LAB, (gang,), policy="harmony"))
        await logged(one)
        one._mixing._rests_until_s = 0.0
    _, *records = await records_of(one, store)
    arms = [record.canary.arms[0] for record in records if record.canary]
    stated = {(each.arm, round(each.mixed_propensity or 0.0, 9)) for each in arms}
    assert {("incumbent", 0.7), ("canary", 0.3)} <= stated
    assert {share for _, share in stated} <= {0.3, 0.7, 1.0}


async def test_forecasts_of_place_are_the_incumbents_in_both_arms(pair: tuple[Engine, Engine]) -> None:
    one, arms, registry = pair[0], set(), pair[0]._parts.registry
    await one.update_settings(LAB, ClusterSettings(learn_throughput=True))
    await one.bundles.set_canary("next", LAB, Arms("", 0.3))
    for name, policies in (
        ("default", registry.policies_of(LAB)),
        ("next", registry.canaries[LAB].serving.policies),
    ):
        known = LearnedSpeed("a", "V100", 1, 1, 1.0, 1.0, 1.0, 1.0, 1.0, name)
        object.__setattr__(policies, "learned_speed", lambda *_, known=known: known)
        object.__setattr__(policies, "solo_speed", lambda *_, name=name: {"default": 3.0, "next": 5.0}[name])
    object.__setattr__(one._placing.placer, "solo_speed", registry.policies_of(LAB).solo_speed)
    for name in NAMES[:12]:
        answer = await place(one, name)
        (placed,) = answer.decisions
        assert (placed.predicted_speed, [speed.source for speed in answer.meta.speeds]) == (3.0, ["default"])
        arms.add(answer.meta.bundle)
    assert arms == {"default", "next"}


async def test_a_mixture_that_nobody_knows_is_unknown(store: MemoryStore, pair: tuple[Engine, Engine]) -> None:
    one, _ = pair
    _, chosen = await one.bundles.set_canary("next", LAB, Arms("", 0.5))
    let_decide(one, Fails())
    rule = Arms(chosen.salt, 0.5)
    arms = {arm: next(name for name in NAMES if rule.of(name, 0.0) is arm) for arm in Arm}
    for name in arms.values():
        assert (await place(one, name)).decisions[0].outcome is Outcome.PLACED
        await logged(one)
        one._mixing._rests_until_s = 0.0
    many = tuple(make_job(f"many-{i}") for i in range(6))
    await ask_place(one, PlaceCommand(LAB, many, policy="consolidate"))
    await logged(one)
    one._mixing._rests_until_s = 1e12
    await place(one, "late")
    found = [arm for record in await records_of(one, store) if record.canary for arm in record.canary.arms]
    unknown = {arm.job_id: arm.unknown for arm in found}
    assert unknown[arms[Arm.CANARY]] == "harmony: harmony: RuntimeError"
    assert unknown[arms[Arm.INCUMBENT]] == "RuntimeError"
    assert sorted(unknown[job.id] for job in many) == [""] * 4 + ["more jobs than are worked out"] * 2
    assert unknown["late"] == "busy"
    assert all((arm.mixed_propensity is None) == bool(arm.unknown) for arm in found)
    text = one._parts.telemetry.render().decode()
    assert 'placewise_canary_decisions_total{arm="canary",bundle="next",mixture="unknown"}' in text


async def test_by_time_all_jobs_of_a_block_have_one_arm(
    store: MemoryStore, clock: ManualClock, pair: tuple[Engine, Engine]
) -> None:
    one, _ = pair
    await one.bundles.set_canary("next", LAB, Arms("", 0.5, Unit.TIME, 600.0, 30.0))
    blocks = []
    for block in range(4):
        names = [f"{name}-{block}" for name in NAMES[:4]]
        blocks.append({(await place(one, name)).meta.bundle for name in names})
        clock.advance(300.0)
    assert all(len(bundles) == 1 for bundles in blocks)
    records = await records_of(one, store)
    assert {record.canary.unit for record in records if record.canary} == {"time"}


async def test_promotion_and_rollback_reach_every_replica_and_the_history(
    root: Path, store: MemoryStore, pair: tuple[Engine, Engine]
) -> None:
    one, other = pair
    await one.bundles.set_canary("next", LAB, Arms("", 0.3), "ops")
    with pytest.raises(InvalidRequestError, match="the canary is 'next', not 'later'"):
        await one.bundles.promote(LAB, "later")
    await other.bundles.refresh()
    assert (await other.bundles.promote(LAB, "next", "ann", allow_ungated=True)).state is BundleState.ACTIVE
    await one.bundles.refresh()
    for engine in pair:
        assert (await place(engine, "a")).meta.bundle == "next"
        assert (await place(engine, "a", FARM)).meta.bundle == "default"
        assert not engine.bundles.canaries
    await one.bundles.rollback(LAB, "ann")
    assert (await place(one, "b")).meta.bundle == "default"
    digest = load(root / "next").digest
    why = "has no verdict of the gate"
    promoted = BundleChange(1_000_000.0, LAB, ChangeKind.PROMOTED, "next", digest, "default", caller="ann", reason=why)
    rolled_back, promotion, began = await changes(one, LAB)
    assert promotion == promoted
    assert (rolled_back.kind, rolled_back.previous, rolled_back.caller) == (ChangeKind.ROLLED_BACK, "next", "ann")
    assert (began.kind, began.bundle, began.share, began.caller) == (ChangeKind.CANARY_SET, "next", 0.3, "ops")
    assert await changes(one, FARM) == []


PASSED = {"verdict": "promoted", "cluster": LAB, "policy": "harmony"}


@pytest.mark.parametrize(
    ("gate", "cluster", "why"),
    [
        (PASSED, LAB, ""),
        ({}, LAB, "has no verdict of the gate"),
        ({**PASSED, "verdict": "refused"}, LAB, "was refused by the gate on cluster 'lab'"),
        (PASSED, FARM, "passed the gate on cluster 'lab'; no gate has judged it on 'farm'"),
        (PASSED, "", "passed the gate on cluster 'lab'; no gate has judged it on 'farm'"),
    ],
)
async def test_only_a_bundle_that_passed_the_gate_there_is_promoted_unless_the_caller_allows_it(
    root: Path, pair: tuple[Engine, Engine], gate: dict[str, str], cluster: str, why: str
) -> None:
    one, _ = pair
    rewrite(root / "next", gate=gate)
    await one.bundles.set_canary("next", cluster, Arms("", 0.3))
    if why:
        with pytest.raises(InvalidRequestError, match=f"'next' {why}.*--ungated") as refused:
            await one.bundles.promote(cluster)
        assert refused.value.metadata["field"] == "allow_ungated"
        assert cluster in one.bundles.canaries, "it goes on"
        assert (await changes(one))[0].kind is ChangeKind.CANARY_SET
    await one.bundles.promote(cluster, allow_ungated=bool(why))
    last = (await changes(one))[0]
    assert (last.kind, last.bundle, last.reason) == (ChangeKind.PROMOTED, "next", why)
    assert (await place(one, "a", cluster or FARM)).meta.bundle == "next"


async def test_for_all_clusters_the_verdict_has_to_be_on_each_that_has_no_bundle_of_its_own(
    root: Path, pair: tuple[Engine, Engine]
) -> None:
    one, _ = pair
    rewrite(root / "next", gate=PASSED)
    await one.bundles.activate("later", FARM)
    await one.bundles.set_canary("next", "", Arms("", 0.3))
    await one.bundles.promote("")
    assert [(await place(one, "a", cluster)).meta.bundle for cluster in (LAB, FARM)] == ["next", "later"]


async def test_an_activation_ends_the_canary_there(pair: tuple[Engine, Engine]) -> None:
    one, _ = pair
    await one.bundles.set_canary("next", LAB, Arms("", 0.3))
    await one.bundles.set_canary("next", "", Arms("", 0.3))
    await one.bundles.activate("later", LAB)
    assert set(one.bundles.canaries) == {""} == set(one._parts.registry.canaries)
    await one.bundles.end_canary("")
    await one.bundles.end_canary("")
    assert [change.kind for change in await changes(one)][:2] == [ChangeKind.CANARY_ENDED, ChangeKind.ACTIVATED]
    assert not one._parts.registry.canaries


async def test_a_replica_that_cannot_load_the_canary_rolls_it_back(
    root: Path, tmp_path_factory: pytest.TempPathFactory, store: MemoryStore, clock: ManualClock
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    copy_bundle(elsewhere / "default", created="2026-01-04T00:00:00Z")
    kept: list[AuditRecord] = []
    here, there = replica(store, root, clock), replica(store, elsewhere, clock, MemoryAudit(kept))
    await here.report_nodes(LAB, [make_node("n0", 4)], full=True)
    await here.bundles.set_canary("next", LAB, Arms("", 0.3))
    await there.bundles.refresh()
    assert (await store.bundles()).canaries == {}
    await here.bundles.refresh()
    assert not here._parts.registry.canaries
    last = (await changes(here))[0]
    assert (last.kind, last.bundle, last.caller) == (ChangeKind.CANARY_ROLLED_BACK, "next", "")
    assert "cannot be used: no bundle 'next'" in last.reason
    assert there.problem() == "", "its answers are those of everybody else"
    (record,) = kept
    assert record == AuditRecord(
        1_000_000.0, "canary guard", "OK", method="guard", cluster=LAB, subject="next", reason=last.reason
    )
    for engine in (here, there):
        await engine.close()


async def test_a_verdict_on_one_canary_leaves_a_later_one_alone(pair: tuple[Engine, Engine]) -> None:
    one, other = pair
    _, first = await one.bundles.set_canary("next", LAB, Arms("", 0.3))
    _, second = await other.bundles.set_canary("later", LAB, Arms("", 0.3))
    await one.bundles.roll_back_canary(LAB, "as the test asked", first.salt)
    await one.bundles.refresh()
    assert one.bundles.canaries == {LAB: second}
    await one.bundles.roll_back_canary(LAB, "as the test asked", second.salt)
    assert not one.bundles.canaries


async def test_the_kill_switch_lets_a_heuristic_answer_everywhere_and_keeps_bundles_from_exploring(
    pair: tuple[Engine, Engine],
) -> None:
    one, other = pair
    await one.bundles.set_canary("next", LAB, Arms("", 0.5))
    with pytest.raises(InvalidRequestError, match="no policy 'harmony'"):
        await one.bundles.set_kill_switch("harmony", LAB)
    await one.bundles.set_kill_switch("load-balance", LAB, "ops")
    await other.bundles.refresh()
    for engine in pair:
        for name in NAMES[:6]:
            meta = (await place(engine, name, is_dry_run=True)).meta
            assert (meta.policy, meta.bundle, meta.is_fallback) == ("harmony", "default", True)
            assert meta.fallback_reason == "harmony: kill switch"
        assert not (await place(engine, "a", FARM, is_dry_run=True)).meta.is_fallback
        placed = await ask_place(engine, PlaceCommand(LAB, (make_job("b"),), policy="tetris", is_dry_run=True))
        assert not placed.meta.is_fallback
    await other.bundles.set_kill_switch("", LAB)
    await one.bundles.refresh()
    assert not (await place(one, "a", is_dry_run=True)).meta.is_fallback
    kinds = [change.kind for change in await changes(one, LAB)]
    assert kinds == [ChangeKind.KILL_ENDED, ChangeKind.KILLED, ChangeKind.CANARY_SET]


async def test_a_deleted_cluster_leaves_no_canary_and_no_kill_switch(
    store: MemoryStore, pair: tuple[Engine, Engine]
) -> None:
    one, other = pair
    await one.bundles.set_canary("next", LAB, Arms("", 0.5))
    await one.bundles.set_kill_switch("consolidate", LAB)
    await one.delete_cluster(LAB)
    await other.bundles.refresh()
    for engine in pair:
        assert (engine._parts.registry.canaries, engine._parts.registry.kills) == ({}, {})
    assert ((await store.bundles()).canaries, (await store.bundles()).kills) == ({}, {})


async def test_a_verdict_is_in_force_on_the_other_replica_within_a_second_and_drops_nothing(
    pair: tuple[Engine, Engine],
) -> None:
    one, other = pair
    asked, is_over = 0, False

    async def load(engine: Engine) -> None:
        nonlocal asked
        while not is_over:
            asked += 1
            decision = await place(engine, f"{id(engine)}-{asked}", is_dry_run=asked % 2 == 0)
            assert decision.decisions[0].outcome in (Outcome.PLACED, Outcome.WAIT)
            await asyncio.sleep(0.01)

    callers = [asyncio.create_task(load(engine)) for engine in pair]
    delays = []
    for turn in range(4):
        if turn % 2 == 0:
            await one.bundles.set_canary("next", LAB, Arms("", 0.5))
        else:
            await one.bundles.roll_back_canary(LAB, "as the test asked", one.bundles.canaries[LAB].salt)
        began_s = time.monotonic()
        async with asyncio.timeout(30.0):
            while dict(other.bundles.canaries) != dict(one.bundles.canaries):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        delays.append(time.monotonic() - began_s)
    is_over = True
    await asyncio.gather(*callers)
    assert asked > 20
    assert max(delays[1::2]) < 1.0, "each verdict"
