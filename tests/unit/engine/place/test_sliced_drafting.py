"""Large requests decided in slices, on a real engine: as in one go, whole, and beside others."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.fakes.cluster import make_job, make_node
from tests.fakes.engine import CLUSTER, ask_place, running_engine
from tests.fakes.slices import Counting, TickingClock, every_round

from placewise_core.domain.commands import JobEvent, JobEventKind, PlaceCommand
from placewise_core.domain.decision import JobDecision, Outcome, PlaceDecision, Reason
from placewise_core.domain.errors import DeadlineExceededError
from placewise_core.domain.job import GpuSharing, Job, Resources, Role, TaskGroup
from placewise_core.gang.context import PlaceContext
from placewise_core.view.view import ClusterView
from placewise_service.engine import Engine
from placewise_service.engine.place.sliced_drafting import is_large

NODES, GPUS = 60, 4
LARGE = 130  # tasks: on so few nodes a gang has to be this large not to be decided in one go
INF = float("inf")


def large(name: str, workers: int = LARGE, **changes: object) -> Job:
    return make_job(name, workers, cpu_cores=1.0, **changes)


def ask(*jobs: Job, **more: Any) -> PlaceCommand:
    return PlaceCommand(CLUSTER, jobs, **more)


@asynccontextmanager
async def stepping_engine(clock: TickingClock | None = None, gpus: int = GPUS) -> AsyncIterator[Engine]:
    """An engine whose slices are one step long."""
    async with running_engine(NODES, gpus, clock=clock or ticking()) as engine:
        engine._placing.sliced.slicing._slice_s = 0.0
        yield engine


def ticking() -> TickingClock:
    return TickingClock(1_000_000.0)


async def live_view(engine: Engine) -> Any:
    return await engine._parts.views.get(CLUSTER)


def tasks_on(view: ClusterView) -> int:
    return int(view.usage.task_count.sum())


def held(view: ClusterView) -> int:
    return sum(len(job.assignments) for job in view.jobs.values())


def gpus_of(decisions: Sequence[JobDecision]) -> list[tuple[str, int]]:
    return [(task.node, g) for job in decisions for task in job.assignments for g in task.gpu_indices]


@pytest.mark.parametrize("policy", ["consolidate", "tetris", "load-balance", "lif-linear", "harmony", "search"])
@pytest.mark.parametrize("change", [{}, {"max_per_node": 3}])
async def test_a_decision_in_slices_is_the_one_in_one_go(policy: str, change: dict[str, int]) -> None:
    jobs = [large("a"), make_job("b", 4), large("c", 104), large("d", 200)]
    jobs = [replace(job, groups=tuple(replace(group, **change) for group in job.groups)) for job in jobs]
    command = ask(*jobs)
    async with stepping_engine() as engine:
        live, placing = await live_view(engine), engine._placing
        chosen = placing.placer.policies[policy]
        view = live.view.fork()
        whole = placing.placer.draft(command, view, chosen, PlaceContext(1_000_000.0, 7), "d")
        answers = placing.placer.answers(whole, command)
        sliced = await placing.sliced.draft(
            placing.placer, command, live, chosen, PlaceContext(1_000_000.0, 7), "d", {}
        )
    assert all(job.answer is not None for job in sliced.decided)
    assert placing.placer.answers(sliced, command) == answers
    assert sliced.holds == whole.holds
    outcomes = [decision.outcome for decision in answers]
    assert outcomes.count(Outcome.PLACED) == len(whole.holds) >= 2
    assert outcomes.count(Outcome.PLACED) < len(outcomes)


async def test_sharing_and_exploring_gangs_are_decided_alike_in_slices() -> None:
    jobs = [
        replace(large("a", 40), gpu_sharing=GpuSharing(True, 3.0)),
        replace(large("b", 60), gpu_sharing=GpuSharing(True, 3.0)),
    ]
    command = ask(*jobs)
    async with stepping_engine(gpus=1) as engine:
        nodes = [make_node(f"n{i}", 1, max_jobs_per_gpu=2) for i in range(NODES)]
        await engine.report_nodes(CLUSTER, nodes, full=True)
        settings = replace((await live_view(engine)).view.settings, exploration_rate=0.5)
        await engine.update_settings(CLUSTER, settings)
        live, placing = await live_view(engine), engine._placing
        chosen = placing.placer.policies["consolidate"]
        whole = placing.placer.draft(command, live.view.fork(), chosen, PlaceContext(1_000_000.0, 7), "d")
        sliced = await placing.sliced.draft(
            placing.placer, command, live, chosen, PlaceContext(1_000_000.0, 7), "d", {}
        )
    assert is_large(jobs, NODES, False)
    assert sliced.holds == whole.holds
    assert len(sliced.holds) == 2
    assert sliced.tenants == whole.tenants
    assert sliced.tenants, "nothing is shared"
    assert sliced.propensity == whole.propensity < 1.0
    assert len(sliced.choices) == 2


async def test_others_have_a_turn_while_an_explorer_tries_completions_of_a_small_gang() -> None:
    """Of gangs that may share GPUs, the random explorer tries best fit after each of many nodes."""
    job = replace(make_job("a", 8, cpu_cores=1.0), gpu_sharing=GpuSharing(True, 3.0))
    async with stepping_engine(gpus=2) as engine:
        nodes = [make_node(f"n{i}", 2, max_jobs_per_gpu=2) for i in range(NODES)]
        await engine.report_nodes(CLUSTER, nodes, full=True)
        await ask_place(engine, ask(replace(job, id="before")))
        settings = (await live_view(engine)).view.settings
        turns = dict[float, int]()
        for rate in (0.0, 0.5):
            await engine.update_settings(CLUSTER, replace(settings, exploration_rate=rate))
            asked = asyncio.create_task(ask_place(engine, ask(replace(job, id=f"rate {rate}"))))
            turns[rate] = 0
            while not asked.done():
                await asyncio.sleep(0)
                turns[rate] += 1
            assert asked.result().decisions[0].outcome is Outcome.PLACED
    assert turns[0.0] < 5, "in one go"
    assert turns[0.5] > 20


async def test_others_have_a_turn_within_a_gang_and_see_none_of_it_or_all() -> None:
    seen: list[int] = []

    async with stepping_engine() as engine:
        live = await live_view(engine)

        def look(_: int) -> None:
            assert tasks_on(live.view) == held(live.view)
            seen.append(held(live.view))

        async with every_round(look):
            decision = await ask_place(engine, ask(large("a")), INF)
        assert held(live.view) == LARGE
    assert decision.decisions[0].outcome is Outcome.PLACED
    assert set(seen) <= {0, LARGE}
    assert seen.count(0) > 10, "the gang was decided in one go"


async def test_a_small_request_pays_for_no_slices() -> None:
    async with stepping_engine() as engine:
        seen: list[int] = []
        async with every_round(seen.append):
            await ask_place(engine, ask(make_job("a", 8)), INF)
    assert len(seen) < 5


@pytest.mark.parametrize("policy", ["consolidate", "tetris", "load-balance", "lif-linear", "harmony", "search"])
@pytest.mark.parametrize("change", [{}, {"max_per_node": 1}])
def test_a_policy_may_be_interrupted_at_every_task(policy: str, change: dict[str, int]) -> None:
    job = large("a")
    slices = proposing(policy, replace(job, groups=(replace(job.groups[0], **change),)), LARGE)
    assert slices.pauses >= LARGE - 1, "steps of several tasks"
    assert bool(slices.asides) is (policy in ("harmony", "search"))


@pytest.mark.parametrize("policy", ["harmony", "search"])
def test_a_net_that_answers_within_a_millisecond_is_not_asked_in_another_thread(policy: str) -> None:
    assert proposing(policy, make_job("a", 4), nodes=8).asides == 0


def proposing(policy: str, job: Job, nodes: int) -> Counting:
    """The slices of one proposal on empty nodes."""
    from tests.fakes.place_cases import view_of

    from placewise_service.engine.build import build_engine
    from placewise_service.engine.parts import EngineOptions
    from placewise_service.state.reference.memory import MemoryStore
    from placewise_service.telemetry import Telemetry

    clock, slices = ticking(), Counting()
    engine = build_engine(MemoryStore(clock), clock, Telemetry(), EngineOptions())
    view = view_of([make_node(f"n{i}", 1) for i in range(nodes)])
    context = PlaceContext(1_000_000.0, 7, slices=slices)
    assert engine._placing.placer.policies[policy].propose(job, view, context) is not None
    return slices


async def test_the_next_job_sees_what_others_took_in_between() -> None:
    """Alone, all four would fit; beside a gang that is placed after the first, two do."""
    jobs = [large(name, 60) for name in "abcd"]
    other = make_job("other", 25, gpus=4.0, cpu_cores=1.0)
    async with stepping_engine() as engine:
        live = await live_view(engine)
        beside: list[asyncio.Task[PlaceDecision]] = []

        def ask_beside(_: int) -> None:
            if held(live.view) == 60 and not beside:
                beside.append(asyncio.create_task(ask_place(engine, ask(other), INF)))

        async with every_round(ask_beside):
            decision = await ask_place(engine, ask(*jobs), INF)
        small = await beside[0]
    assert small.decisions[0].outcome is Outcome.PLACED
    assert [job.outcome for job in decision.decisions] == [*2 * [Outcome.PLACED], *2 * [Outcome.WAIT]]
    given = gpus_of([*decision.decisions, *small.decisions])
    assert len(set(given)) == len(given) == 2 * 60 + 100


async def test_a_gang_whose_nodes_are_taken_meanwhile_is_decided_again_whole() -> None:
    """The next small requests wait for it, so that it finds its place however many there are."""
    async with stepping_engine() as engine:
        live = await live_view(engine)
        small: list[asyncio.Task[PlaceDecision]] = []
        closed: list[bool] = []

        def ask_beside(turn: int) -> None:
            closed.append(live.is_closed)
            if turn % 4 == 3:
                small.append(asyncio.create_task(ask_place(engine, ask(make_job(f"s{turn}")), INF)))

        async with every_round(ask_beside):
            decision = await asyncio.wait_for(ask_place(engine, ask(large("a")), INF), 20.0)
        others = [job for task in small for job in (await task).decisions]
        assert not live.is_closed
    assert any(closed), "nobody was in its way"
    assert decision.decisions[0].outcome is Outcome.PLACED
    assert len(decision.decisions[0].assignments) == LARGE
    assert {job.outcome for job in others} == {Outcome.PLACED}
    given = gpus_of([*decision.decisions, *others])
    assert len(set(given)) == len(given)


async def test_a_node_that_leaves_while_a_gang_is_decided_gets_none_of_it() -> None:
    async with stepping_engine() as engine:
        rest = [make_node(f"n{i}", GPUS) for i in range(20, NODES)]
        left: list[asyncio.Task[Any]] = []

        def leave(turn: int) -> None:
            if turn == 5:
                left.append(asyncio.create_task(engine.report_nodes(CLUSTER, rest, full=True)))

        async with every_round(leave):
            decision = await ask_place(engine, ask(large("a")), INF)
        await left[0]
    assert decision.decisions[0].outcome is Outcome.PLACED
    assert {task.node for task in decision.decisions[0].assignments} <= {node.id for node in rest}


async def test_a_dry_run_in_slices_sets_nothing_aside_that_others_see() -> None:
    async with stepping_engine() as engine:
        live = await live_view(engine)
        first = await ask_place(engine, ask(large("a")), INF)
        seen: list[tuple[int, int]] = []

        def look(_: int) -> None:
            seen.append((tasks_on(live.view), held(live.view)))

        async with every_round(look):
            again = await ask_place(engine, ask(large("a"), large("b", 104), large("c"), is_dry_run=True), INF)
    assert set(seen) == {(LARGE, LARGE)}
    assert len(seen) > 10
    assert [job.outcome for job in again.decisions] == [Outcome.PLACED, Outcome.PLACED, Outcome.WAIT]
    assert again.decisions[0].assignments == first.decisions[0].assignments
    assert not any(job.reservation_id for job in again.decisions)


async def test_why_a_large_gang_waits_is_found_out_in_slices() -> None:
    gang = Job(
        id=large("a").id,
        groups=(
            TaskGroup(Role.WORKER, LARGE, Resources(cpu_cores=1.0, gpus=1.0)),
            TaskGroup(Role.PARAMETER_SERVER, 1, Resources(cpu_cores=33.0)),
        ),
    )
    seen: list[int] = []
    async with stepping_engine() as engine, every_round(seen.append):
        decision = await ask_place(engine, ask(gang), INF)
    assert decision.decisions[0].outcome is Outcome.NO_FIT
    assert decision.decisions[0].blockers[0].reason is Reason.INSUFFICIENT_CPU
    full = replace(gang, groups=gang.groups[:1])
    async with stepping_engine() as engine:
        await ask_place(engine, ask(large("b", 200)), INF)
        async with every_round(seen.append):
            decision = await ask_place(engine, ask(full), INF)
    assert decision.decisions[0].outcome is Outcome.WAIT


@pytest.mark.parametrize("ends", ["cancelled", "late"])
async def test_a_large_request_that_ends_early_leaves_nothing_behind(ends: str) -> None:
    clock = ticking()
    async with stepping_engine(clock) as engine:
        live = await live_view(engine)
        first = asyncio.Event()
        deadline_s = clock.monotonic_s() + 1000.0
        task = asyncio.create_task(ask_place(engine, ask(large("a", 70), large("b"), large("c", 20)), deadline_s))
        async with every_round(lambda _: first.set() if live.view.jobs else None):
            await asyncio.wait_for(first.wait(), 10.0)
        assert list(live.view.jobs) == ["a"], "the first gang is not there yet"
        if ends == "cancelled":
            task.cancel()
        else:
            clock.advance(1000.0)
        with pytest.raises(asyncio.CancelledError if ends == "cancelled" else DeadlineExceededError):
            await task
        assert not live.view.jobs
        assert tasks_on(live.view) == 0
        assert not live.is_deciding
        assert not live.is_closed
        again = await ask_place(engine, ask(large("a", 200)), INF)
    assert again.decisions[0].outcome is Outcome.PLACED


async def test_many_gangs_that_nobody_holds_are_given_back_in_steps_each_whole() -> None:
    async with stepping_engine() as engine:
        live = await live_view(engine)
        jobs = [large(f"g{i}", 3) for i in range(64)]
        draft = engine._placing.placer.draft(
            ask(*jobs), live.view, engine._placing.placer.fallback, PlaceContext(0.0, 7), "d"
        )
        live.assume(draft.holds)
        seen: list[int] = []

        def look(_: int) -> None:
            assert tasks_on(live.view) == held(live.view)
            seen.append(len(live.view.jobs))

        async with every_round(look):
            await live.give_back(draft.holds)
        assert not live.view.jobs
        assert not live.is_deciding
        live.assume(draft.holds)
        task = asyncio.create_task(live.give_back(draft.holds))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert not live.view.jobs
    assert len(set(seen)) >= 3


async def test_a_job_that_somebody_else_places_meanwhile_is_answered_with_that_placement() -> None:
    async with stepping_engine() as engine:
        first, second = await asyncio.gather(
            ask_place(engine, ask(large("a")), INF), ask_place(engine, ask(large("a"), large("b", 20)), INF)
        )
    assert first.decisions[0].assignments == second.decisions[0].assignments
    assert first.decisions[0].reservation_id == second.decisions[0].reservation_id


async def test_a_job_that_ends_between_two_slices_is_not_put_back() -> None:
    async with stepping_engine() as engine:
        live = await live_view(engine)
        running = await ask_place(engine, ask(make_job("old", 8)), INF)
        started = JobEvent(make_job("old").id, JobEventKind.STARTED, reservation_id=running.decisions[0].reservation_id)
        await engine.report_job_events(CLUSTER, [started])
        ended: list[asyncio.Task[Any]] = []

        def end(turn: int) -> None:
            if turn == 5:
                event = JobEvent(make_job("old").id, JobEventKind.FINISHED)
                ended.append(asyncio.create_task(engine.report_job_events(CLUSTER, [event])))

        async with every_round(end):
            await ask_place(engine, ask(large("a")), INF)
        await ended[0]
        assert list(live.view.jobs) == ["a"]
        assert tasks_on(live.view) == LARGE
