"""AdmitOrWait on a cluster that explores admission: one draw per job and slot on every replica, and its record."""

import math
from dataclasses import replace

from tests.fakes.cluster import make_job
from tests.fakes.engine import CLUSTER, answer_is_on_its_way, ask_admit, ask_place, place, running_engine
from tests.unit.declog.test_asked_again import columns, ended, records_of

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import ClusterSettings, ExplorationGuard
from placewise_core.domain.commands import AdmitCommand
from placewise_core.domain.decision import AdmitDecision, Reason, Verdict
from placewise_core.domain.job import ElasticRange, Job, Priority
from placewise_service.api.convert import convert_out
from placewise_service.state.reference.memory import MemoryStore


def elastic(name: str) -> Job:
    return replace(make_job(name, single_gpu_s=600.0), groups=(), elastic=ElasticRange(1, 4))


JOBS = (elastic("a"), make_job("b"))


def asked(*jobs: Job, **more: object) -> AdmitCommand:
    return AdmitCommand(CLUSTER, "q", jobs or JOBS, policy="tetris-cer", **more)  # type: ignore[arg-type]


def exploring(rate: float, guard: ExplorationGuard = ExplorationGuard()) -> ClusterSettings:  # noqa: B008 - frozen
    return ClusterSettings(admit_exploration_rate=rate, exploration_guard=guard)


def seen(decision: AdmitDecision) -> list[tuple[Verdict, int, int, float | None]]:
    return [
        (given.verdict, given.nodes, given.gpus_per_node, given.draw and given.draw.propensity)
        for given in decision.plan.admissions
    ]


async def test_replicas_and_polls_within_the_slot_have_one_draw() -> None:
    clock = ManualClock(1_000_000.0)
    store = MemoryStore(clock)
    async with (
        running_engine(nodes=2, gpus=4, store=store, clock=clock) as engine,
        running_engine(nodes=0, store=store, clock=clock) as other,
    ):
        await engine.update_settings(CLUSTER, exploring(0.7))
        live = await other._parts.views.get(CLUSTER)
        while live.view.version < (await engine.get_cluster(CLUSTER)).view.version:
            await live.wait_changed(1.0)
        found = []
        for i in range(40):
            jobs = elastic(f"a{i}"), make_job(f"b{i}")
            answers = [await ask_admit(each, asked(*jobs)) for each in (engine, other, engine)]
            assert seen(answers[1]) == seen(answers[0])
            assert seen(answers[2]) == seen(answers[0])
            found.append(seen(answers[0]))
            clock.advance(10.0)
    assert len({tuple(each) for each in found}) > 3


async def test_the_record_and_the_answer_say_how_each_job_was_drawn() -> None:
    clock = ManualClock(1_000_000.0)
    async with running_engine(nodes=2, gpus=4, clock=clock) as engine:
        await engine.update_settings(CLUSTER, exploring(1.0, ExplorationGuard(is_urgent_spared=True)))
        urgent = make_job("urgent", priority=Priority.URGENT)
        answers = {}
        for i in range(20):
            answer = await ask_admit(engine, asked(elastic(f"a{i}"), make_job(f"b{i}"), urgent))
            answers[answer.meta.decision_id] = answer
            clock.advance(10.0)
        records = [record for record in await records_of(engine) if record.admit is not None]
    assert len(records) == len(answers) == 20, "the refusals of each slot are its own"
    held_back = 0
    for record in records:
        answer, row = answers[record.decision_id], columns(record)
        draws = [given.draw for given in answer.plan.admissions]
        assert row["job_explorers"] == ["chance", "chance", ""]
        assert row["job_is_explored"] == [True, True, False]
        assert row["job_exploration_rates"] == [1.0, 1.0, 0.0]
        assert row["job_guards"][2] == "URGENT"
        assert row["job_propensities"] == [draw and draw.propensity for draw in draws]
        assert row["propensity"] == math.prod(row["job_propensities"])
        assert row["is_explored"] is True
        assert row["free_gpus"] == 8
        assert row["job_seeds"][2] is None
        message = convert_out.admit_response(answer, engine.queue_settings(CLUSTER, "q"))
        assert [given.propensity for given in message.admissions] == row["job_propensities"]
        for given in answer.plan.admissions:
            reasons = {why.reason for why in given.blockers}
            held_back += given.verdict is Verdict.WAIT
            assert (given.verdict is Verdict.WAIT) == (reasons == {Reason.EXPLORATION}), "nothing else makes them wait"
    assert held_back


async def test_a_seed_repeats_the_draw_and_a_dry_run_has_none() -> None:
    async with running_engine(nodes=2, gpus=4) as engine:
        await engine.update_settings(CLUSTER, exploring(1.0))
        given = [seen(await ask_admit(engine, asked(JOBS[0], seed=seed))) for seed in (1, 1, 2, 3, 4, 5)]
        dry = await ask_admit(engine, asked(seed=1, is_dry_run=True))
    assert given[0] == given[1]
    assert len({tuple(each) for each in given}) > 1
    assert [each.draw for each in dry.plan.admissions] == [None, None]
    assert (dry.meta.is_explored, dry.meta.propensity) == (False, 1.0)


async def test_place_honours_the_shape_that_was_drawn() -> None:
    shapes = set()
    async with running_engine(nodes=2, gpus=4) as engine:
        await engine.update_settings(CLUSTER, exploring(1.0))
        for i in range(60):
            job = elastic(f"a{i}")
            (given,) = (await ask_admit(engine, asked(job))).plan.admissions
            if given.verdict is Verdict.WAIT:
                continue
            shapes.add((given.nodes, given.gpus_per_node))
            (placed,) = (await ask_place(engine, place(job))).decisions
            assert len({task.node for task in placed.assignments}) == given.nodes
            assert sum(len(task.gpu_indices) for task in placed.assignments) == given.gpus
            await answer_is_on_its_way()
            await engine.report_job_events(CLUSTER, [ended(job.id)])
    assert len(shapes) > 3


async def test_a_policy_of_one_decision_a_slot_draws_at_the_first_question_for_every_replica() -> None:
    clock = ManualClock(1_000_000.0)
    store = MemoryStore(clock)
    verdicts = set()
    async with (
        running_engine(nodes=2, gpus=4, store=store, clock=clock) as engine,
        running_engine(nodes=0, store=store, clock=clock) as other,
    ):
        await engine.update_settings(CLUSTER, exploring(0.7))
        for i in range(25):  # of 15 draws, one run in a hundred had only two kinds
            command = replace(asked(elastic(f"a{i}")), policy="proteus-paper", queue=f"q{i}")
            await ask_admit(engine, command)  # it arrives, and counts from the next slot on
            clock.advance(10.0)
            first = await ask_admit(engine, command)
            live = await other._parts.views.get(CLUSTER)
            while live.view.version < (await engine.get_cluster(CLUSTER)).view.version:
                await live.wait_changed(1.0)
            again = await ask_admit(other, command)
            (given,), (same,) = first.plan.admissions, again.plan.admissions
            assert given.draw is not None
            assert same.draw is None
            assert first.meta.propensity == given.draw.propensity
            assert (same.verdict, same.nodes, same.gpus_per_node) == (given.verdict, given.nodes, given.gpus_per_node)
            verdicts.add((given.verdict, given.draw.explorer))
    assert len(verdicts) >= 3
