"""The engine on the in-memory store: reservations, repeats and refusals."""

import asyncio
import dataclasses

import pytest
from tests.fakes.cluster import make_job, make_node
from tests.fakes.engine import (
    CLUSTER,
    ConflictOnce,
    answer_is_on_its_way,
    ask_admit,
    ask_place,
    logged,
    place,
    running_engine,
)

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import Assignment, ClusterSettings
from placewise_core.domain.commands import AdmitCommand, JobEvent, JobEventKind, PartitionCommand
from placewise_core.domain.decision import Outcome, Reason, Verdict
from placewise_core.domain.divisible import DivisibleTask
from placewise_core.domain.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    NotFoundError,
    StateUnavailableError,
)
from placewise_core.domain.job import ElasticRange, Job, JobId, NodeId, Resources, Role
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import PlacementPolicy, Proposal
from placewise_core.view.view import ClusterView
from placewise_service.engine import Engine
from placewise_service.state.codec import encode
from placewise_service.state.reference.memory import MemoryStore
from placewise_service.state.store import ReserveRequest, ReserveResult


async def free_gpus(engine: Engine) -> int:
    return int((await engine.get_cluster(CLUSTER)).view.usage.free_gpus.sum())


async def test_a_gang_is_held_until_it_ends() -> None:
    async with running_engine() as engine:
        decision = await ask_place(engine, place(make_job("a", workers=3)))
        (job,) = decision.decisions
        assert job.outcome is Outcome.PLACED
        assert len(job.assignments) == 3
        assert job.reservation_id
        assert job.expire_time_s == pytest.approx(1_000_060.0)
        assert await free_gpus(engine) == 13
        await answer_is_on_its_way()
        await engine.report_job_events(CLUSTER, [JobEvent(JobId("a"), JobEventKind.STARTED)])
        assert await free_gpus(engine) == 13
        await engine.report_job_events(CLUSTER, [JobEvent(JobId("a"), JobEventKind.FINISHED)])
        assert await free_gpus(engine) == 16


async def test_a_dry_run_changes_nothing() -> None:
    async with running_engine() as engine:
        held = await ask_place(engine, place(make_job("a")))
        before = (await engine.get_cluster(CLUSTER)).view
        version, free = before.version, before.usage.free.copy()
        decision = await ask_place(engine, place(make_job("a"), make_job("b", workers=4), is_dry_run=True))
        after = (await engine.get_cluster(CLUSTER)).view
        assert [d.outcome for d in decision.decisions] == [Outcome.PLACED, Outcome.PLACED]
        assert not any(d.reservation_id or d.expire_time_s for d in decision.decisions)
        assert after.version == version
        assert (after.usage.free == free).all()
        assert after.jobs[JobId("a")].reservation_id == held.decisions[0].reservation_id


async def test_a_dry_run_never_explores_moves_no_queue_and_is_marked_in_the_log() -> None:
    async with running_engine() as engine:
        await engine.update_settings(CLUSTER, ClusterSettings(exploration_rate=1.0))
        view = (await engine.get_cluster(CLUSTER)).view
        before = encode(view.jobs), dict(view.queues), view.version
        asked = await ask_place(engine, place(make_job("a"), is_dry_run=True, request_id="r"))
        assert (asked.meta.is_explored, asked.meta.propensity) == (False, 1.0)
        command = AdmitCommand(CLUSTER, "q", (make_job("b"),), request_id="r2", is_dry_run=True)
        admitted = await ask_admit(engine, command)
        split = await engine.partition(PartitionCommand(CLUSTER, DivisibleTask("t", 100.0), is_dry_run=True))
        assert (encode(view.jobs), dict(view.queues), view.version) == before
        again = await ask_place(engine, place(make_job("a"), request_id="r"))
        assert not again.meta.is_repeated, "a dry run is not remembered"
        assert await logged(engine)
        for decision in (asked, admitted, split):
            assert (await engine.get_decision(CLUSTER, decision.meta.decision_id)).is_dry_run
        await asyncio.sleep(0)
        assert 'queue="q"' not in engine._parts.telemetry.render().decode()
        assert not (await engine.get_decision(CLUSTER, again.meta.decision_id)).is_dry_run


async def test_jobs_of_one_request_see_each_other() -> None:
    async with running_engine(nodes=1, gpus=4) as engine:
        decision = await ask_place(engine, place(*(make_job(f"j{i}", gpus=2.0) for i in range(3))))
        assert [d.outcome for d in decision.decisions] == [Outcome.PLACED, Outcome.PLACED, Outcome.WAIT]
        used = [g for d in decision.decisions for a in d.assignments for g in a.gpu_indices]
        assert sorted(used) == [0, 1, 2, 3]


async def test_asking_again_for_a_job_that_holds_gives_the_same_placement() -> None:
    async with running_engine() as engine:
        first = await ask_place(engine, place(make_job("a", workers=2)))
        again = await ask_place(engine, place(make_job("a", workers=2)))
        assert again.decisions[0].assignments == first.decisions[0].assignments
        assert again.decisions[0].reservation_id == first.decisions[0].reservation_id
        assert await free_gpus(engine) == 14


async def test_a_repeated_request_id_gets_the_first_answer() -> None:
    async with running_engine() as engine:
        first = await ask_place(engine, place(make_job("a"), request_id="r1"))
        await answer_is_on_its_way()
        await engine.report_job_events(CLUSTER, [JobEvent(JobId("a"), JobEventKind.CANCELLED)])
        again = await ask_place(engine, place(make_job("a"), request_id="r1"))
        assert again.meta.is_repeated
        assert again.meta.decision_id == first.meta.decision_id
        assert again.decisions[0].assignments == first.decisions[0].assignments
        assert await free_gpus(engine) == 16, "a repeated answer holds nothing new"


async def test_a_repeated_answer_says_when_its_reservations_expire() -> None:
    clock = ManualClock(1_000_000.0)
    async with running_engine(store=MemoryStore(clock), clock=clock) as engine:
        await ask_place(engine, place(make_job("runs")))
        await engine.report_job_events(CLUSTER, [JobEvent(JobId("runs"), JobEventKind.STARTED)])
        command = place(make_job("runs"), make_job("a"), reserve_ttl_s=30.0, request_id="r1")
        first = await ask_place(engine, command)
        clock.advance(5.0)
        again = await ask_place(engine, command)
        assert again.meta.is_repeated
        assert [d.expire_time_s for d in again.decisions] == [0.0, pytest.approx(1_000_030.0)]
        assert again.decisions == first.decisions


class UnseenStart(MemoryStore):
    """The view hears of nothing: as if this replica's tail were far behind."""

    async def tail(self, cluster: str, position: str):  # type: ignore[no-untyped-def, override]
        await asyncio.Event().wait()
        yield position, []


async def test_a_job_that_runs_already_is_answered_with_its_placement_at_once() -> None:
    clock = ManualClock(1_000_000.0)
    store = UnseenStart(clock)
    async with running_engine(store=store, clock=clock) as engine, running_engine(0, store=store, clock=clock) as late:
        await late.get_cluster(CLUSTER)
        first = await ask_place(engine, place(make_job("a", workers=2)))
        await engine.report_job_events(CLUSTER, [JobEvent(JobId("a"), JobEventKind.STARTED)])
        (known,) = (await ask_place(late, place(make_job("a", workers=2)))).decisions
        assert known.assignments == first.decisions[0].assignments
        assert known.reservation_id == first.decisions[0].reservation_id
        assert known.expire_time_s == 0


async def test_a_request_id_belongs_to_one_rpc() -> None:
    async with running_engine() as engine:
        await ask_place(engine, place(make_job("a"), request_id="r1"))
        with pytest.raises(InvalidRequestError, match="another kind"):
            await ask_admit(engine, AdmitCommand(CLUSTER, "q", (make_job("b"),), request_id="r1"))


async def test_no_fit_and_wait_are_told_apart() -> None:
    async with running_engine(nodes=2, gpus=4) as engine:
        await ask_place(engine, place(make_job("a", gpus=4.0)))
        decision = await ask_place(engine, place(make_job("wait", workers=2, gpus=4.0), make_job("never", gpus=8.0)))
        wait, never = decision.decisions
        assert wait.outcome is Outcome.WAIT
        assert wait.blockers[0].reason is Reason.INSUFFICIENT_GPU
        assert never.outcome is Outcome.NO_FIT


async def test_a_reservation_that_is_not_confirmed_expires() -> None:
    clock = ManualClock(1_000_000.0)
    store = MemoryStore(clock)
    async with running_engine(store=store, clock=clock) as engine:
        await ask_place(engine, place(make_job("a"), reserve_ttl_s=5.0))
        clock.advance(6.0)
        result = await store.expire(CLUSTER)
        assert result.applied == 1
        for _ in range(100):
            if await free_gpus(engine) == 16:
                break
            await asyncio.sleep(0.02)
        assert await free_gpus(engine) == 16


async def test_what_the_host_really_did_stands() -> None:
    async with running_engine() as engine:
        await ask_place(engine, place(make_job("a")))
        await answer_is_on_its_way()
        real = Assignment("worker-0", Role.WORKER, NodeId("n3"), (2,), Resources(cpu_cores=2.0, gpus=1.0))
        await engine.report_job_events(CLUSTER, [JobEvent(JobId("a"), JobEventKind.STARTED, placement=(real,))])
        view = (await engine.get_cluster(CLUSTER)).view
        assert [t.job_id for t in view.usage.tenants(3, 2)] == ["a"]
        assert int(view.usage.free_gpus.sum()) == 15


async def test_a_host_that_names_nodes_only_still_takes_their_gpus() -> None:
    async with running_engine(nodes=2, gpus=4) as engine:
        await ask_place(engine, place(make_job("other", gpus=2.0)))
        await ask_place(engine, place(make_job("a", workers=2, gpus=2.0)))
        named = tuple(Assignment(f"worker-{i}", Role.WORKER, NodeId("n1")) for i in range(2))
        await engine.report_job_events(CLUSTER, [JobEvent(JobId("a"), JobEventKind.STARTED, placement=named)])
        view = (await engine.get_cluster(CLUSTER)).view
        assert [view.usage.tenants(1, g)[0].job_id for g in range(4)] == ["a"] * 4
        assert int(view.usage.free_gpus.sum()) == 2
        assert {a.demand.gpus for a in view.jobs[JobId("a")].assignments} == {2.0}


class _BrokenPolicy(PlacementPolicy):
    name = "broken"

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        raise ZeroDivisionError("a torn model")


async def test_a_policy_that_breaks_is_stood_in_for() -> None:
    async with running_engine() as engine:
        engine._placing.placer.policies["broken"] = _BrokenPolicy()  # type: ignore[index]
        decision = await ask_place(engine, place(make_job("a"), policy="broken"))
        assert decision.decisions[0].outcome is Outcome.PLACED
        assert decision.meta.is_fallback
        assert decision.meta.fallback_reason == "broken: ZeroDivisionError"


async def test_a_conflict_is_decided_again_on_the_newer_view() -> None:
    clock = ManualClock(1_000_000.0)
    async with running_engine(nodes=1, gpus=2, store=ConflictOnce(clock), clock=clock) as engine:
        decision = await ask_place(engine, place(make_job("a")))
        assert decision.decisions[0].outcome is Outcome.PLACED
        assert decision.decisions[0].assignments[0].gpu_indices == (1,)
        view = (await engine.get_cluster(CLUSTER)).view
        assert {t.job_id for g in (0, 1) for t in view.usage.tenants(0, g)} == {"a", "other"}


class _DeadStore(MemoryStore):
    is_dead = False

    async def reserve(self, cluster: str, request: ReserveRequest) -> ReserveResult:
        if self.is_dead:
            raise StateUnavailableError("the state store does not answer")
        return await super().reserve(cluster, request)


async def test_a_dead_store_is_an_error_that_leaves_the_view_as_it_was() -> None:
    clock = ManualClock(1_000_000.0)
    store = _DeadStore(clock)
    async with running_engine(store=store, clock=clock) as engine:
        store.is_dead = True
        with pytest.raises(StateUnavailableError):
            await ask_place(engine, place(make_job("a")))
        assert await free_gpus(engine) == 16
        dry = await ask_place(engine, place(make_job("a"), is_dry_run=True))
        assert dry.decisions[0].outcome is Outcome.PLACED


async def test_an_expired_deadline_is_told_before_anything_is_held() -> None:
    async with running_engine() as engine:
        with pytest.raises(DeadlineExceededError):
            await ask_place(engine, place(make_job("a")), deadline_s=-1.0)
        assert await free_gpus(engine) == 16


class _Ticking(ManualClock):
    """Every look at it takes a second."""

    def monotonic_s(self) -> float:
        self.advance(1.0)
        return super().monotonic_s()


@pytest.mark.parametrize("is_dry_run", [True, False])
async def test_a_deadline_that_passes_between_two_jobs_ends_the_decision_and_leaves_nothing(is_dry_run: bool) -> None:
    clock = _Ticking(1_000_000.0)
    async with running_engine(clock=clock) as engine:
        jobs = [make_job(f"j{i}") for i in range(8)]
        with pytest.raises(DeadlineExceededError, match="of 8 jobs"):
            await ask_place(engine, place(*jobs, is_dry_run=is_dry_run), deadline_s=clock.monotonic_s() + 5.0)
        assert await free_gpus(engine) == 16


async def test_admission_moves_the_queue_once_per_slot() -> None:
    clock = ManualClock(1_000_000.0)
    async with running_engine(store=MemoryStore(clock), clock=clock) as engine:
        jobs = tuple(
            Job(JobId(f"q{i}"), model="ResNet-50", single_gpu_s=600.0, elastic=ElasticRange(1, 4), queue="q")
            for i in range(3)
        )
        command = AdmitCommand(CLUSTER, "q", jobs, policy="proteus")
        first = await ask_admit(engine, command)
        again = await ask_admit(engine, command)
        assert again.plan.queue == first.plan.queue
        assert again.plan.admissions == first.plan.admissions
        clock.advance(10.0)
        later = await ask_admit(engine, command)
        assert later.plan.queue.slot == first.plan.queue.slot + 1


async def test_place_honours_the_shape_that_was_admitted() -> None:
    async with running_engine(nodes=2, gpus=4) as engine:
        job = Job(JobId("e"), model="ResNet-50", single_gpu_s=3600.0, elastic=ElasticRange(2, 2), queue="q")
        admitted = None
        for _ in range(3):
            decision = await ask_admit(engine, AdmitCommand(CLUSTER, "q", (job,), policy="qos"))
            admitted = decision.plan.admissions[0]
            if admitted.verdict is Verdict.ADMIT:
                break
        assert admitted is not None
        assert admitted.verdict is Verdict.ADMIT
        assert admitted.gpus == 2
        shaped = dataclasses.replace(job, shape=None)
        decision = await ask_place(engine, place(shaped))
        assert sum(len(a.gpu_indices) for a in decision.decisions[0].assignments) == 2


async def test_admission_shape_and_placement_compose() -> None:
    """The QoS-aware policy says who is next, Proteus on how many GPUs, the placement policy where."""
    clock = ManualClock(1_000_000.0)
    async with running_engine(nodes=2, gpus=4, store=MemoryStore(clock), clock=clock) as engine:
        job = Job(JobId("e"), model="ResNet-50", single_gpu_s=3600.0, elastic=ElasticRange(1, 8), queue="q")
        command = AdmitCommand(CLUSTER, "q", (job,), policy="proteus-qos")
        admitted = (await ask_admit(engine, command)).plan.admissions[0]
        assert admitted.verdict is Verdict.ADMIT
        decision = await ask_place(engine, place(job))
        assignments = decision.decisions[0].assignments
        assert sum(len(a.gpu_indices) for a in assignments) == admitted.gpus
        assert len({a.node for a in assignments}) == admitted.nodes


async def test_admitting_a_rigid_job_writes_nothing() -> None:
    async with running_engine(nodes=2, gpus=4) as engine:
        before = (await engine.get_cluster(CLUSTER)).view.version
        rigid = await ask_admit(engine, AdmitCommand(CLUSTER, "q", (make_job("r"),), policy="fifo"))
        assert rigid.plan.admissions[0].verdict is Verdict.ADMIT
        assert (await engine.get_cluster(CLUSTER)).view.version == before
        elastic = Job(JobId("e"), model="ResNet-50", elastic=ElasticRange(2, 2), queue="q")
        await ask_admit(engine, AdmitCommand(CLUSTER, "q", (elastic,), policy="fifo"))
        assert (await engine.get_cluster(CLUSTER)).view.version == before + 1


async def test_a_partition_uses_every_idle_unit_it_can() -> None:
    async with running_engine(nodes=2, gpus=2) as engine:
        task = DivisibleTask("t", parallel_scale=1000.0, serial_scale=10.0, overhead_s=0.1)
        decision = await engine.partition(PartitionCommand(CLUSTER, task))
        assert decision.plan.outcome is Outcome.PLACED
        assert sum(share.scale for share in decision.plan.shares) == pytest.approx(1000.0)


async def test_decisions_can_be_looked_up() -> None:
    async with running_engine() as engine:
        decision = await ask_place(engine, place(make_job("a")))
        await logged(engine)
        record = await engine.get_decision(CLUSTER, decision.meta.decision_id)
        assert record.place == decision
        with pytest.raises(NotFoundError):
            await engine.get_decision(CLUSTER, "no such id")


async def test_an_unknown_cluster_is_not_found() -> None:
    async with running_engine(nodes=0) as engine:
        with pytest.raises(NotFoundError):
            await ask_place(engine, place(make_job("a")))


async def test_a_drained_node_gets_nothing_new() -> None:
    from placewise_core.domain.cluster import NodeState

    async with running_engine(nodes=2) as engine:
        drained = dataclasses.replace(make_node("n0"), state=NodeState.DRAINING)
        await engine.report_nodes(CLUSTER, [drained], full=False)
        decision = await ask_place(engine, place(make_job("a", workers=4)))
        assert {a.node for a in decision.decisions[0].assignments} == {"n1"}
