"""Decisions of a shadow: on the view that was answered, in the log beside the answer, and of no effect on it."""

import itertools
from collections.abc import Iterator

import msgspec
import pytest
from tests.fakes.cluster import make_job
from tests.fakes.engine import CLUSTER, answer_is_on_its_way, ask_admit, ask_place, logged, place, running_engine

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import ClusterSettings, ExplorerSettings
from placewise_core.domain.commands import AdmitCommand, PartitionCommand, Scope
from placewise_core.domain.decision import Outcome, PlaceDecision
from placewise_core.domain.divisible import DivisibleTask
from placewise_core.domain.job import Job
from placewise_core.policies.load_balance import LoadBalance
from placewise_core.policies.search import BestOfK
from placewise_core.policies.studies.shadow import Shadowed, shadowed
from placewise_core.view.view import ClusterView
from placewise_log.record import DecisionRecord, decode_entry, encode
from placewise_service.declog.tables import row_of
from placewise_service.engine import Engine
from placewise_service.engine.place import placing, shadowing


async def records_of(engine: Engine) -> list[DecisionRecord]:
    assert await logged(engine)
    found = [decode_entry(data) for _, data in await engine._parts.store.read_decisions(CLUSTER, "0", 1000)]
    return [entry for entry in found if isinstance(entry, DecisionRecord)]


async def shadows_of(engine: Engine) -> list[DecisionRecord]:
    return [record for record in await records_of(engine) if record.shadow_of]


def left_out(engine: Engine) -> dict[str, float]:
    found = {}
    for line in engine._parts.telemetry.render().decode().splitlines():
        if line.startswith("placewise_shadow_left_out_total{"):
            found[line.split('"')[1]] = float(line.split()[-1])
    return found


async def test_a_shadow_decides_on_the_view_that_was_answered_and_not_on_a_later_one() -> None:
    async with running_engine(nodes=3, gpus=2) as engine:
        await engine.bundles.set_shadow("", policy="load-balance")
        first = await engine.place(place(make_job("a", gpus=2.0), policy="consolidate"))
        answer = await first.settled()
        for other in ("b", "c"):  # now every node is full
            await ask_place(engine, place(make_job(other, gpus=2.0), policy="consolidate"))
        await answer_is_on_its_way()
        view = (await engine.get_cluster(CLUSTER)).view
        assert LoadBalance().propose(make_job("d", gpus=2.0), view, placing.PlaceContext(0.0, 0)) is None
        record = next(each for each in await shadows_of(engine) if each.shadow_of == answer.meta.decision_id)
    assert record.place is not None
    (decided,) = record.place.decisions
    assert decided.outcome is Outcome.PLACED, "all nodes were free then"
    assert record.meta.snapshot_version == answer.meta.snapshot_version


async def test_its_record_has_its_own_policy_propensity_forecast_and_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock(1_000_000.0)

    def lasting(self: LoadBalance, *given: object) -> object:
        clock.advance(0.004)
        return propose(self, *given)  # type: ignore[arg-type]

    propose = LoadBalance.propose
    monkeypatch.setattr(LoadBalance, "propose", lasting)
    async with running_engine(nodes=4, gpus=4, clock=clock) as engine:
        await engine.bundles.set_shadow("", policy="load-balance")
        job = make_job("a", workers=2, single_gpu_s=100.0)
        answer = await ask_place(engine, place(job, policy="consolidate", seed=7))
        answered, record = await records_of(engine)
        text = engine._parts.telemetry.render().decode()
    assert (answered.decision_id, answered.shadow_of) == (answer.meta.decision_id, "")
    assert record.shadow_of == answer.meta.decision_id != record.decision_id
    assert (record.meta.policy, record.requested_policy) == ("load-balance", "load-balance")
    assert (record.meta.bundle, record.meta.bundle_digest) == (answer.meta.bundle, answer.meta.bundle_digest)
    assert (record.meta.propensity, record.draws[0].own_propensity, record.seed) == (1.0, 1.0, 7)
    assert record.latency_ms == record.meta.decide_ms == pytest.approx(4.0)
    assert record.place is not None
    (decided,) = record.place.decisions
    assert decided.predicted_speed > 0
    assert (decided.reservation_id, decided.expire_time_s) == ("", 0.0)
    (compared,) = record.compared
    assert not compared.is_same
    assert (len(set(compared.answer_nodes)), len(set(compared.shadow_nodes))) == (1, 2)
    assert decode_entry(encode(record)) == record
    labels = f'bundle="{record.meta.bundle}",policy="load-balance"'
    assert f'placewise_shadow_decisions_total{{agreement="other",{labels}}} 1.0' in text
    assert f"placewise_shadow_seconds_sum{{{labels}}} 0.004" in text


async def test_a_shadow_of_the_bundle_in_force_asks_its_reward_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, judge = [], BestOfK.judge

    def noting(self: BestOfK, job: Job, *given: object) -> object:
        asked.append(job.id)
        return judge(self, job, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(BestOfK, "judge", noting)
    async with running_engine(nodes=4, gpus=4) as engine:
        await engine.bundles.set_shadow("", policy="load-balance")
        await ask_place(engine, place(make_job("a", workers=2), policy="consolidate"))
        assert len(await shadows_of(engine)) == 1
    assert asked == ["a"]


async def test_both_reward_models_score_both_placements() -> None:
    async with running_engine(nodes=4, gpus=4) as engine:
        await ask_place(engine, place(make_job("near", workers=3, single_gpu_s=50.0)))
        await engine.bundles.set_shadow("", policy="load-balance")
        await ask_place(engine, place(make_job("a", workers=2, single_gpu_s=100.0), policy="consolidate"))
        (record,) = await shadows_of(engine)
        row = row_of(CLUSTER, "1-0", encode(record))[2]
    (compared,) = record.compared
    for found in (compared.by_active, compared.by_shadow):
        assert found is not None
        assert found.answer_per_s is not None
        assert found.own_answer_per_s is not None
        assert found.shadow_per_s is not None
        assert 0 < found.own_answer_per_s <= found.answer_per_s
        assert found.answer_per_s != found.shadow_per_s
    assert compared.by_active == compared.by_shadow, "one bundle"
    (columns,) = row["compared"]
    assert compared.by_active is not None
    assert columns["by_active_answer_per_s"] == compared.by_active.answer_per_s
    assert columns["shadow_nodes"] == compared.shadow_nodes
    assert row["shadow_of"] == record.shadow_of


async def test_a_policy_agrees_with_itself() -> None:
    async with running_engine(nodes=4, gpus=4) as engine:
        await engine.bundles.set_shadow("", policy="search")
        for i in range(4):
            engine._shadowed._rests_until_s = 0.0
            await ask_place(engine, place(make_job(f"j{i}", workers=3, single_gpu_s=100.0), policy="search"))
            await logged(engine)
        records = await shadows_of(engine)
        text = engine._parts.telemetry.render().decode()
    assert [each.is_same for record in records for each in record.compared] == [True] * 4
    assert 'agreement="same"' in text
    assert 'agreement="other"' not in text


def numbered() -> Iterator[str]:
    return (f"01a20c5c-0000-7000-8000-{i:012x}" for i in itertools.count())


@pytest.mark.parametrize("policy", ["search", "random"])
async def test_answers_are_the_same_byte_for_byte(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = []
    for is_shadowed in (False, True):
        ids = numbered()
        monkeypatch.setattr(placing, "uuid7", lambda ids=ids: next(ids))
        async with running_engine(nodes=4, gpus=4) as engine:
            await engine.update_settings(CLUSTER, ClusterSettings(exploration_rate=0.5))
            if is_shadowed:
                await engine.bundles.set_shadow("", policy=policy)
            given = []
            for i in range(12):
                command = place(make_job(f"j{i}", workers=2), make_job(f"k{i}", gpus=99.0), seed=i, request_id=f"r{i}")
                given.append(encode_answer_of(await ask_place(engine, command)))
                engine._shadowed._rests_until_s = 0.0
                if i % 3 == 0:
                    await logged(engine)
            answers.append(given)
            count = len(await shadows_of(engine))
        assert (count > 0) is is_shadowed
    assert answers[0] == answers[1]


def encode_answer_of(decision: PlaceDecision) -> bytes:
    return msgspec.msgpack.encode(decision)


async def test_shadows_are_shed_under_load_and_counted_and_every_answer_is_logged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = []
    for shadow in ("", "load-balance"):
        ids = numbered()
        monkeypatch.setattr(placing, "uuid7", lambda ids=ids: next(ids))
        async with running_engine(nodes=8, gpus=8) as engine:
            await engine.bundles.set_shadow("", policy=shadow)
            commands = [place(make_job(f"j{i}"), make_job(f"k{i}")) for i in range(20)]
            answers.append([encode_answer_of(await ask_place(engine, command)) for command in commands])
            engine._parts.telemetry.afterwards.run()  # all at once: only so many wait
            records = await records_of(engine)
            counted = left_out(engine)
    assert answers[0] == answers[1]
    shadows = [record for record in records if record.shadow_of]
    assert (len(records) - len(shadows), len(shadows)) == (20, 8)
    assert counted == {"busy": 24.0}, "jobs"


async def test_once_shadows_have_used_up_their_time_no_copy_is_made_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock(1_000_000.0)

    def lasting(*given: object) -> Shadowed:
        clock.advance(0.02)
        return shadowed(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(shadowing, "shadowed", lasting)
    found, copies = [], []
    async with running_engine(nodes=4, clock=clock) as engine:
        fork = ClusterView.fork
        monkeypatch.setattr(ClusterView, "fork", lambda view: copies.append(clock.now_s()) or fork(view))
        await engine.bundles.set_shadow("", policy="load-balance")
        for pause_s in (0.0,) * 9 + (6.0,):
            clock.advance(pause_s)
            await ask_place(engine, place(make_job(f"j{len(found)}")))
            await logged(engine)
            found.append(len(await shadows_of(engine)))
        assert left_out(engine) == {"busy": 1.0}
    assert found == [*range(1, 9), 8, 9]
    assert len(copies) == 9


async def test_what_is_not_shadowed_is_counted() -> None:
    async with running_engine(nodes=4, gpus=8) as engine:
        await engine.bundles.set_shadow("", policy="load-balance")
        await ask_place(engine, place(*(make_job(f"j{i}") for i in range(6))))
        await logged(engine)
        assert left_out(engine) == {"jobs": 2.0}
        engine._shadowed._rests_until_s = 0.0
        await ask_place(engine, place(make_job("dry"), is_dry_run=True))
        await ask_place(engine, place(make_job("j0")))  # has its answer already
        await ask_place(engine, place(make_job("n"), scope=Scope.NODE, node_id="n0"))
        await ask_admit(engine, AdmitCommand(CLUSTER, "q", (make_job("q1"), make_job("q2"))))
        await engine.partition(PartitionCommand(CLUSTER, DivisibleTask("t", 100.0, serial_scale=10.0, overhead_s=1.0)))
        records = await shadows_of(engine)
        assert left_out(engine) == {"jobs": 2.0, "call": 4.0}
    assert [len(record.jobs) for record in records] == [4]


async def test_a_job_that_found_no_place_is_shadowed_too() -> None:
    async with running_engine(nodes=2, gpus=2) as engine:
        await engine.bundles.set_shadow("", policy="load-balance")
        await ask_place(engine, place(make_job("big", gpus=9.0)))
        (record,) = await shadows_of(engine)
        row = row_of(CLUSTER, "1-0", encode(record))[2]
    assert record.place is not None
    assert (record.place.decisions[0].outcome, record.draws) == (Outcome.NO_FIT, ())
    assert (record.compared[0].is_same, record.compared[0].by_active) == (True, None)
    assert row["outcome"] == "NO_FIT"


async def test_an_answer_of_an_explorer_counts_as_such() -> None:
    async with running_engine(nodes=4, gpus=4) as engine:
        settings = ClusterSettings(exploration_rate=1.0, explorers=(ExplorerSettings("load-balance", 1),))
        await engine.update_settings(CLUSTER, settings)
        await engine.bundles.set_shadow("", policy="load-balance")
        await ask_place(engine, place(make_job("a", workers=2), policy="consolidate"))
        (record,) = await shadows_of(engine)
        text = engine._parts.telemetry.render().decode()
    assert (record.compared[0].explorer, record.compared[0].is_same) == ("load-balance", True)
    assert 'agreement="explored"' in text


async def test_a_shadow_that_fails_is_counted_and_answers_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_engine(nodes=4, gpus=4) as engine:
        await engine.bundles.set_shadow("", policy="load-balance")

        def failing(self: LoadBalance, job: Job, *_: object) -> None:
            if job.id == "b":
                raise RuntimeError("torn")

        monkeypatch.setattr(LoadBalance, "propose", failing)
        answer = await ask_place(engine, place(make_job("a"), make_job("b"), make_job("c"), policy="consolidate"))
        (record,) = await shadows_of(engine)
        assert left_out(engine) == {"failed": 2.0}
    assert [decided.outcome for decided in answer.decisions] == [Outcome.PLACED] * 3
    assert [job.id for job in record.jobs] == ["a"]


async def test_what_waits_when_the_service_ends_is_counted() -> None:
    async with running_engine(nodes=2) as engine:
        await engine.bundles.set_shadow("", policy="load-balance")
        await ask_place(engine, place(make_job("a")))
        engine._parts.telemetry.afterwards.run()
        await engine._shadowed.close()
        assert left_out(engine) == {"busy": 1.0}


async def test_alternatives_and_a_shadow_of_one_decision() -> None:
    async with running_engine(nodes=4, gpus=4, alternatives_share=1.0) as engine:
        await engine.bundles.set_shadow("", policy="load-balance")
        await ask_place(engine, place(make_job("a", workers=2), make_job("big", gpus=99.0)))
        records = await records_of(engine)
    answered, record = sorted(records, key=lambda each: each.shadow_of)
    assert {each.job_id for each in answered.alternatives or ()} == {"a"}
    assert record.shadow_of == answered.decision_id
    assert record.alternatives is None
