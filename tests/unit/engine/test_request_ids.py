"""A request_id: its caller, and the answers to repeats after reservations expired or jobs ran."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from tests.fakes.cluster import make_job
from tests.fakes.engine import CLUSTER, ask_admit, ask_place, running_engine

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import Assignment
from placewise_core.domain.commands import AdmitCommand, JobEvent, JobEventKind, PartitionCommand, PlaceCommand
from placewise_core.domain.decision import JobDecision, Outcome
from placewise_core.domain.divisible import DivisibleTask
from placewise_core.domain.errors import AlreadyExistsError, InvalidRequestError
from placewise_core.domain.job import Job, JobId, NodeId, Resources, Role
from placewise_service.engine import Engine
from placewise_service.engine.reporting.reports import ReportOutcome
from placewise_service.state.reference.memory import MemoryStore

TTL_S = 5.0


def question(*names: str, request_id: str = "q", mark: bytes = b"alice's", gpus: float = 1.0) -> PlaceCommand:
    jobs = tuple(make_job(name, gpus=gpus) for name in names)
    return PlaceCommand(CLUSTER, jobs, request_id=request_id, reserve_ttl_s=TTL_S, fingerprint=mark)


@asynccontextmanager
async def one_gpu(gpus: int = 1) -> AsyncIterator[tuple[Engine, Engine, MemoryStore, ManualClock]]:
    """Two replicas of a cluster of one node."""
    clock = ManualClock(1_000_000.0)
    store = MemoryStore(clock)
    async with (
        running_engine(1, gpus, store=store, clock=clock) as one,
        running_engine(0, store=store, clock=clock) as two,
    ):
        await two.get_cluster(CLUSTER)
        yield one, two, store, clock


async def printed(engine: Engine, name: str, kind: JobEventKind, **more: object) -> ReportOutcome:
    return await engine.report_job_events(CLUSTER, [replace(JobEvent(JobId(name), kind), **more)])  # type: ignore[arg-type]


async def answers(engine: Engine, command: PlaceCommand) -> dict[str, JobDecision]:
    return {str(d.job_id): d for d in (await ask_place(engine, command)).decisions}


def gpus_of(answer: JobDecision) -> list[int]:
    return sorted(g for a in answer.assignments for g in a.gpu_indices)


# -- whose question it is -------------------------------------------------------------------------------------------


async def test_another_question_under_the_same_id_is_refused_and_holds_nothing() -> None:
    async with one_gpu(4) as (one, two, store, _):
        await ask_place(one, question("secret"))
        before = await store.load(CLUSTER)
        for engine, other in ((one, question("b", mark=b"bob's")), (two, question("secret", mark=b"bob's"))):
            with pytest.raises(AlreadyExistsError, match="send a new one"):
                await ask_place(engine, other)
        assert await store.load(CLUSTER) == before
        assert (await ask_place(two, question("secret"))).meta.is_repeated


async def test_an_answer_that_held_nothing_belongs_to_its_question_as_well() -> None:
    async with one_gpu() as (one, two, _, _):
        waits = question("big", gpus=4.0)
        assert (await ask_place(one, waits)).decisions[0].outcome is Outcome.NO_FIT
        with pytest.raises(AlreadyExistsError):
            await ask_place(two, replace(waits, fingerprint=b"bob's"))
        assert (await ask_place(two, waits)).meta.is_repeated


async def test_split_and_admission_are_bound_to_their_question_too() -> None:
    async with one_gpu() as (one, two, _, _):
        split = PartitionCommand(CLUSTER, DivisibleTask("t", 100.0), request_id="p", fingerprint=b"alice's")
        await one.partition(split)
        with pytest.raises(AlreadyExistsError):
            await two.partition(replace(split, fingerprint=b"bob's"))
        assert (await two.partition(split)).meta.is_repeated


async def test_an_admission_that_is_refused_or_repeated_leaves_the_queue_alone() -> None:
    async with one_gpu() as (one, two, store, clock):
        asked = AdmitCommand(CLUSTER, "q", (make_job("a"),), request_id="a", fingerprint=b"alice's")
        first = await ask_admit(one, asked)
        clock.advance(60.0)
        before = await store.load(CLUSTER)
        with pytest.raises(AlreadyExistsError):
            await ask_admit(two, replace(asked, jobs=(make_job("b"),), fingerprint=b"bob's"))
        again = await ask_admit(two, asked)
        assert (again.meta.is_repeated, again.plan) == (True, first.plan)
        assert await store.load(CLUSTER) == before


async def test_one_id_for_an_admission_and_its_placing_is_refused() -> None:
    async with one_gpu() as (one, _, _, _):
        await ask_admit(one, AdmitCommand(CLUSTER, "q", (make_job("a"),), request_id="x", fingerprint=b"1"))
        with pytest.raises(InvalidRequestError, match="another kind"):
            await ask_place(one, question("a", request_id="x", mark=b"1"))


# -- answers to repeats --------------------------------------------------------------------------------------------


async def test_a_repeat_after_the_reservation_expired_is_decided_again() -> None:
    async with one_gpu() as (one, two, store, clock):
        first = await ask_place(one, question("a"))
        clock.advance(TTL_S + 1.0)
        await store.expire(CLUSTER)
        assert (await answers(two, question("b", request_id="r")))["b"].outcome is Outcome.PLACED
        again = await ask_place(one, question("a"))
        assert (again.decisions[0].outcome, again.meta.is_repeated) == (Outcome.WAIT, False)
        assert again.meta.decision_id != first.meta.decision_id
        assert (await ask_place(two, question("a"))).meta.decision_id == again.meta.decision_id, "which then stands"


async def test_a_repeat_may_get_another_place_and_holds_it() -> None:
    async with one_gpu() as (one, two, _, clock):
        await ask_place(one, question("a"))
        clock.advance(TTL_S + 1.0)  # nobody has swept yet
        again = (await answers(two, question("a")))["a"]
        assert (again.outcome, again.expire_time_s) == (Outcome.PLACED, clock.now_s() + TTL_S)
        assert (await answers(one, question("b", request_id="r")))["b"].outcome is Outcome.WAIT


async def test_a_reservation_past_its_time_is_no_answer_to_a_new_question_either() -> None:
    async with one_gpu() as (one, _, _, clock):
        await ask_place(one, question("a"))
        await asyncio.sleep(0.03)
        clock.advance(TTL_S + 1.0)
        again = (await answers(one, question("a", request_id="new")))["a"]
        assert again.expire_time_s == clock.now_s() + TTL_S


async def test_a_placement_that_another_replica_gave_away_is_no_answer_either() -> None:
    async with one_gpu() as (one, two, _, _):
        await ask_place(one, question("a"))
        await asyncio.sleep(0.05)
        await printed(two, "a", JobEventKind.CANCELLED)
        assert (await answers(two, question("b", request_id="r")))["b"].outcome is Outcome.PLACED
        late = question("a", request_id="", mark=b"")  # the first replica has yet to hear of all this
        assert (await answers(one, late))["a"].outcome is Outcome.WAIT


async def test_a_started_job_gets_its_placement_back_for_as_long_as_it_runs() -> None:
    async with one_gpu() as (one, two, store, clock):
        first = (await answers(one, question("a")))["a"]
        await printed(one, "a", JobEventKind.STARTED)
        clock.advance(TTL_S + 1.0)
        await store.expire(CLUSTER)
        again = await ask_place(two, question("a"))
        assert again.meta.is_repeated
        assert again.decisions[0].assignments == first.assignments
        assert again.decisions[0].expire_time_s == 0.0, "what runs does not expire"


async def test_a_job_that_its_host_moved_gets_the_placement_it_runs_on() -> None:
    async with one_gpu(2) as (one, two, _, _):
        (first,) = (await answers(one, question("a"))).values()
        other = 1 - gpus_of(first)[0]
        moved = Assignment("worker-0", Role.WORKER, NodeId("n0"), (other,), Resources(cpu_cores=2.0, gpus=1.0))
        await printed(one, "a", JobEventKind.STARTED, placement=(moved,))
        assert gpus_of((await answers(two, question("a")))["a"]) == [other]


async def test_of_several_jobs_those_that_run_or_have_ended_keep_theirs_and_the_others_are_decided_again() -> None:
    async with one_gpu(4) as (one, two, store, clock):
        command = question("runs", "ends", "late", "waits", gpus=1.0)
        command = replace(command, jobs=(*command.jobs[:3], make_job("waits", gpus=2.0)))
        first = await answers(one, command)
        assert first["waits"].outcome is Outcome.WAIT
        for name in ("runs", "ends"):
            await printed(one, name, JobEventKind.STARTED)
        await printed(one, "ends", JobEventKind.FINISHED)
        clock.advance(TTL_S + 1.0)
        await store.expire(CLUSTER)
        await ask_place(two, question("other", request_id="r"))
        again = await answers(two, command)
        assert again["runs"] == first["runs"].held_until(0.0)
        assert again["ends"] == first["ends"], "a record: it is not placed again"
        assert again["late"].reservation_id != first["late"].reservation_id
        assert {n: again[n].outcome for n in ("late", "waits")} == {"late": Outcome.PLACED, "waits": Outcome.WAIT}
        loaded = await store.load(CLUSTER)
        assert loaded is not None
        assert sorted(job.id for job in loaded[0].jobs) == ["late", "other", "runs"]


async def test_what_was_given_back_before_its_time_is_decided_again_too() -> None:
    async with one_gpu() as (one, two, store, _):
        first = (await answers(one, question("a")))["a"]
        await store.release(CLUSTER, [first.reservation_id])
        assert (await answers(two, question("b", request_id="r")))["b"].outcome is Outcome.PLACED
        assert (await answers(one, question("a")))["a"].outcome is Outcome.WAIT


async def test_two_replicas_that_decide_a_repeat_again_agree() -> None:
    async with one_gpu(4) as (one, two, _, clock):
        await ask_place(one, question("a"))
        clock.advance(TTL_S + 1.0)
        both = await asyncio.gather(ask_place(one, question("a")), ask_place(two, question("a")))
        assert both[0].decisions == both[1].decisions
        assert sorted(answer.meta.is_repeated for answer in both) == [False, True]


# -- late words of hosts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [JobEventKind.STARTED, JobEventKind.PROGRESS])
async def test_a_late_start_restores_the_placement_of_its_decision(kind: JobEventKind) -> None:
    async with one_gpu() as (one, two, store, clock):
        first = (await answers(one, question("a")))["a"]
        clock.advance(TTL_S + 1.0)
        await store.expire(CLUSTER)
        await asyncio.sleep(0.03)
        outcome = await printed(two, "a", kind)
        assert (outcome.applied, outcome.ignored, outcome.overcommits) == (1, 0, ())
        assert (await answers(one, question("b", request_id="r")))["b"].outcome is Outcome.WAIT
        again = await ask_place(one, question("a"))
        assert again.decisions[0].assignments == first.assignments


async def test_a_late_start_that_overcommits_is_accepted_counted_and_named() -> None:
    async with one_gpu() as (one, two, store, clock):
        await ask_place(one, question("a"))
        clock.advance(TTL_S + 1.0)
        await store.expire(CLUSTER)
        await ask_place(two, question("b", request_id="r"))
        outcome = await printed(two, "a", JobEventKind.STARTED)
        (found,) = outcome.overcommits
        assert (found.job_id, found.node, found.gpus, found.others) == ("a", "n0", (0,), ("b",))
        assert outcome.applied == 1
        two._parts.telemetry.afterwards.run()
        assert 'placewise_overcommits_total{cluster="c"} 1.0' in two._parts.telemetry.render().decode()
        assert (await printed(two, "a", JobEventKind.STARTED)).overcommits == (), "reported once"


async def test_a_start_whose_decision_is_not_known_any_more_is_counted_and_named() -> None:
    async with one_gpu() as (one, two, store, clock):
        await ask_place(one, question("a"))
        clock.advance(TTL_S + 1.0)
        await store.expire(CLUSTER)
        clock.advance(86_400.0 - 1.0)
        assert (await printed(two, "a", JobEventKind.STARTED)).applied == 1, "known for a day"
        outcome = await printed(two, "b", JobEventKind.STARTED)
        assert (outcome.applied, outcome.ignored, outcome.unknown) == (0, 1, ("b",))
        two._parts.telemetry.afterwards.run()
        assert 'placewise_unknown_starts_total{cluster="c"} 1.0' in two._parts.telemetry.render().decode()


async def test_a_newer_decision_counts_where_a_job_starts_late() -> None:
    async with one_gpu(2) as (one, two, store, clock):
        (first,) = (await answers(one, question("a"))).values()
        clock.advance(TTL_S + 1.0)
        await store.expire(CLUSTER)
        await asyncio.sleep(0.03)
        await ask_place(two, question("b", request_id="r"))
        newer = (await answers(two, question("a", request_id="s")))["a"]
        assert gpus_of(newer) != gpus_of(first)
        outcome = await printed(one, "a", JobEventKind.STARTED, reservation_id=first.reservation_id)
        assert outcome.overcommits == ()
        assert gpus_of((await answers(two, question("a", request_id="t")))["a"]) == gpus_of(newer)


async def test_ended_jobs_stay_ended() -> None:
    async with one_gpu() as (one, two, store, clock):
        await ask_place(one, question("a"))
        clock.advance(TTL_S + 1.0)
        await store.expire(CLUSTER)
        await printed(one, "a", JobEventKind.CANCELLED)
        assert (await printed(two, "a", JobEventKind.STARTED)).ignored == 1


async def test_a_start_that_nobody_decided_is_ignored_unless_it_says_where() -> None:
    async with one_gpu() as (one, _, _, _):
        assert (await printed(one, "stranger", JobEventKind.STARTED, job=Job(JobId("stranger")))).ignored == 1
