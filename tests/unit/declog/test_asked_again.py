"""Questions that come again: refusals are logged once, draws are the slot's, Place names the decision that admitted."""

import dataclasses
from contextlib import AsyncExitStack

import pytest
from tests.fakes.cluster import make_job
from tests.fakes.engine import CLUSTER, answer_is_on_its_way, ask_admit, ask_place, logged, place, running_engine

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import ClusterSettings, ExplorerSettings, QueueSettings
from placewise_core.domain.commands import AdmitCommand, JobEvent, JobEventKind
from placewise_core.domain.decision import Verdict
from placewise_core.domain.job import ElasticRange, Job, JobId
from placewise_log.record import DecisionRecord, decode_entry, encode
from placewise_service.declog.tables import row_of
from placewise_service.engine import Engine
from placewise_service.state.reference.memory import MemoryStore


async def records_of(engine: Engine) -> list[DecisionRecord]:
    assert await logged(engine)
    found = [decode_entry(data) for _, data in await engine._parts.store.read_decisions(CLUSTER, "0", 1000)]
    return [entry for entry in found if isinstance(entry, DecisionRecord)]


def columns(record: DecisionRecord) -> dict[str, object]:
    return row_of(CLUSTER, "1-0", encode(record))[2]


def ended(name: str) -> JobEvent:
    return JobEvent(JobId(name), JobEventKind.FINISHED)


def asked(*jobs: Job, policy: str = "fifo") -> AdmitCommand:
    return AdmitCommand(CLUSTER, "q", jobs, policy=policy)


@pytest.mark.parametrize("policy", ["fifo", "proteus", "proteus-paper"])
async def test_an_unchanged_refusal_is_logged_once_and_counted(policy: str) -> None:
    clock = ManualClock(1_000_000.0)
    async with running_engine(nodes=1, gpus=2, clock=clock) as engine:
        await ask_place(engine, place(make_job("before", gpus=2.0)))
        ids = []
        for _ in range(5):
            clock.advance(10.0)
            answer = await ask_admit(engine, asked(make_job("a", gpus=2.0), policy=policy))
            assert answer.plan.admissions[0].verdict is Verdict.WAIT
            ids.append(answer.meta.decision_id)
        assert len(set(ids[1:])) == 1
        assert await logged(engine)
        assert (await engine.get_decision(CLUSTER, ids[-1])).jobs[0].id == "a"
        await ask_admit(engine, asked(make_job("a", gpus=2.0), make_job("b", gpus=2.0), policy=policy))
        refused = [record for record in await records_of(engine) if record.admit is not None]
        text = engine._parts.telemetry.render().decode()
    left_out = [columns(record)["refusals_left_out"] for record in refused]
    assert sum(left_out) == 5 - (len(refused) - 1)
    assert len(refused) <= 3, "proteus-paper refuses the first time for another reason than later"
    counted = next(line for line in text.splitlines() if line.startswith('placewise_decisions_total{outcome="WAIT"'))
    assert counted.endswith(" 6.0"), "every answer is counted"


@pytest.mark.parametrize(
    "change",
    [{"policy": "fifo-strict"}, {"caller": "another"}, {"is_dry_run": True}, {"jobs": (make_job("a", gpus=1.5),)}],
    ids=["policy", "caller", "dry run", "job"],
)
async def test_a_refusal_of_another_question_is_another_one(change: dict[str, object]) -> None:
    async with running_engine(nodes=1, gpus=1) as engine:
        await ask_place(engine, place(make_job("before")))
        for command in (asked(make_job("a")), dataclasses.replace(asked(make_job("a")), **change)):  # type: ignore[arg-type]
            await ask_admit(engine, command)
        assert len([record for record in await records_of(engine) if record.admit is not None]) == 2


async def test_a_refusal_after_an_admission_is_a_new_one() -> None:
    async with running_engine(nodes=1, gpus=1) as engine:
        for i in range(2):
            await ask_place(engine, place(make_job(f"before{i}")))
            await answer_is_on_its_way()
            await ask_admit(engine, asked(make_job("a"), policy="fifo-strict"))
            await engine.report_job_events(CLUSTER, [ended(f"before{i}")])
            await ask_admit(engine, asked(make_job("a"), policy="fifo-strict"))
        verdicts = [record.admit.plan.admissions[0].verdict for record in await records_of(engine) if record.admit]
    assert verdicts == [Verdict.WAIT, Verdict.ADMIT] * 2


@pytest.mark.parametrize("replicas", [1, 2])
async def test_place_names_the_decision_that_admitted_its_jobs(replicas: int) -> None:
    clock = ManualClock(1_000_000.0)
    store = MemoryStore(clock)
    shaped = dataclasses.replace(make_job("a", single_gpu_s=3600.0), groups=(), elastic=ElasticRange(1, 2))
    async with (
        running_engine(nodes=2, gpus=2, store=store, clock=clock) as engine,
        running_engine(nodes=0, store=store, clock=clock) as other,
    ):
        first = None
        while first is None or first.plan.admissions[0].verdict is Verdict.WAIT:
            first = await ask_admit(engine, asked(shaped, policy="proteus"))
            clock.advance(10.0)
        again = await ask_admit(engine, asked(shaped, policy="proteus"))
        assert again.plan.admissions[0].verdict is Verdict.ADMIT
        placing = engine if replicas == 1 else other
        live = await placing._parts.views.get(CLUSTER)
        while live.view.version < (await engine.get_cluster(CLUSTER)).view.version:
            await live.wait_changed(1.0)
        await ask_place(placing, place(shaped, make_job("b")))
        records = await records_of(placing)
    (placed,) = [record for record in records if record.place is not None]
    assert columns(placed)["job_admit_decisions"] == [first.meta.decision_id, None]


async def test_place_of_a_rigid_job_names_the_decision_that_admitted_it() -> None:
    async with running_engine(nodes=1) as engine:
        admitted = await ask_admit(engine, asked(make_job("a")))
        await ask_place(engine, place(make_job("a")))
        records = await records_of(engine)
    assert columns(records[-1])["job_admit_decisions"] == [admitted.meta.decision_id]


@pytest.mark.parametrize("is_restart", [True, False])
async def test_another_process_knows_who_admitted_a_rigid_job_and_which_questions_are_repeats(is_restart: bool) -> None:
    clock = ManualClock(1_000_000.0)
    store = MemoryStore(clock)
    async with AsyncExitStack() as stack:
        async with running_engine(nodes=1, gpus=2, store=store, clock=clock) as engine:
            admitted = await ask_admit(engine, asked(make_job("a")))
            await ask_place(engine, place(make_job("big", gpus=9.0)))
            assert await logged(engine)
            if not is_restart:
                other = await stack.enter_async_context(running_engine(nodes=0, store=store, clock=clock))
                await ask_place(other, place(make_job("a"), make_job("big", gpus=9.0), make_job("new")))
                record = (await records_of(other))[-1]
        if is_restart:
            other = await stack.enter_async_context(running_engine(nodes=0, store=store, clock=clock))
            await ask_place(other, place(make_job("a"), make_job("big", gpus=9.0), make_job("new")))
            record = (await records_of(other))[-1]
    row = columns(record)
    assert row["job_admit_decisions"] == [admitted.meta.decision_id, None, None]
    assert row["job_is_repeat"] == [False, True, False]


async def test_another_process_knows_which_questions_of_admission_are_repeats() -> None:
    clock = ManualClock(1_000_000.0)
    store = MemoryStore(clock)
    waiting, small = make_job("waits", gpus=9.0), make_job("small")
    async with running_engine(nodes=1, gpus=2, store=store, clock=clock) as engine:
        await ask_admit(engine, dataclasses.replace(asked(make_job("new")), is_dry_run=True))
        await ask_admit(engine, asked(waiting, small))
        assert await logged(engine)
        async with running_engine(nodes=0, store=store, clock=clock) as other:
            await ask_admit(other, asked(waiting, make_job("new"), small))
            row = columns((await records_of(other))[-1])
    assert row["job_is_repeat"] == [True, False, True]


async def test_a_dry_run_of_another_process_is_no_question() -> None:
    clock = ManualClock(1_000_000.0)
    store = MemoryStore(clock)
    async with running_engine(nodes=1, store=store, clock=clock) as engine:
        await ask_admit(engine, dataclasses.replace(asked(make_job("a")), is_dry_run=True))
        await ask_place(engine, place(make_job("a"), is_dry_run=True))
        assert await logged(engine)
        async with running_engine(nodes=0, store=store, clock=clock) as other:
            await ask_place(other, place(make_job("a")))
            row = columns((await records_of(other))[-1])
    assert (row["job_admit_decisions"], row["job_is_repeat"]) == ([None], [False])


EXPLORING = ClusterSettings(
    exploration_rate=0.5,
    explorers=(ExplorerSettings("random"),),
    queues={"slow": QueueSettings(slot_s=1000.0)},
)


async def test_a_job_draws_once_in_a_slot_however_often_and_with_whomever_it_is_asked() -> None:
    clock = ManualClock(1_000_000.0)
    draws = []
    for others in ((), ("x", "y")):
        async with running_engine(nodes=8, gpus=8, clock=clock) as engine:
            await engine.update_settings(CLUSTER, EXPLORING)
            for name in others:
                await ask_place(engine, place(make_job(name)))
            jobs = [make_job(f"j{i}") for i in range(20)]
            await ask_place(engine, place(*(jobs if others else reversed(jobs))))
            record = (await records_of(engine))[-1]
        draws.append({draw.job_id: (draw.explorer, draw.seed) for draw in record.draws})
        clock.advance(9.0)  # the same slot
    assert draws[0] == draws[1]
    assert {explorer for explorer, _ in draws[0].values()} == {"", "random"}


async def test_the_next_slot_draws_anew_and_a_seed_of_the_caller_comes_first() -> None:
    clock = ManualClock(1_000_000.0)
    async with running_engine(nodes=8, gpus=8, clock=clock) as engine:
        await engine.update_settings(CLUSTER, EXPLORING)
        seeds = []
        for i, queue in enumerate(("", "", "slow", "slow")):
            job = dataclasses.replace(make_job("j"), queue=queue)
            await ask_place(engine, place(job))
            seeds.append((await records_of(engine))[-1].draws[0].seed)
            await engine.report_job_events(CLUSTER, [ended("j")])
            clock.advance(10.0 * (i % 2 == 0))
        await ask_place(engine, place(make_job("k"), seed=7))
        last = (await records_of(engine))[-1]
    assert seeds[0] != seeds[1]
    assert seeds[2] == seeds[3]
    assert (last.seed, last.draws[0].seed, columns(last)["job_seeds"]) == (7, None, [None])


async def test_a_policy_that_draws_draws_once_in_a_slot_as_well() -> None:
    clock = ManualClock(1_000_000.0)
    places = []
    for _ in range(4):
        async with running_engine(nodes=16, gpus=1, clock=clock) as engine:
            answer = await ask_place(engine, place(make_job("j", workers=4), policy="random"))
            places.append(tuple(task.node for task in answer.decisions[0].assignments))
            (record,) = await records_of(engine)
            assert columns(record)["job_seeds"] == [record.draws[0].seed]
        clock.advance(5.0)
    assert (places[0], places[2]) == (places[1], places[3])
    assert places[1] != places[2], "the next slot"


async def test_the_logged_seed_of_a_job_repeats_its_placement() -> None:
    jobs = [make_job(f"j{i}", workers=2) for i in range(10)]
    async with running_engine(nodes=6, gpus=4) as engine:
        await engine.update_settings(CLUSTER, EXPLORING)
        answers = [await ask_place(engine, place(job)) for job in jobs]
        seeds = [record.draws[0].seed for record in await records_of(engine)]
    async with running_engine(nodes=6, gpus=4) as engine:
        await engine.update_settings(CLUSTER, EXPLORING)
        again = [await ask_place(engine, place(job, seed=seed)) for job, seed in zip(jobs, seeds, strict=True)]
    assert [a.decisions[0].assignments for a in answers] == [a.decisions[0].assignments for a in again]
    assert [a.meta.propensity for a in answers] == [a.meta.propensity for a in again]


async def test_place_says_which_jobs_it_was_asked_about_before() -> None:
    async with running_engine(nodes=1, gpus=1) as engine:
        await ask_place(engine, place(make_job("dry"), is_dry_run=True))
        await ask_place(engine, place(make_job("big", gpus=9.0), make_job("dry")))
        await ask_place(engine, place(make_job("big", gpus=9.0), make_job("new")))
        rows = [columns(record) for record in await records_of(engine)]
    assert [row["job_is_repeat"] for row in rows] == [[False], [False, False], [True, False]]
    assert all(row["epoch"] for row in rows)
    assert {row["scope"] for row in rows} == {"CLUSTER"}
