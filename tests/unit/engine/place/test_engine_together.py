"""`keep_together` and `exclusive_network` by the whole engine: batches, jobs in flight, reports, and the reasons."""

import asyncio

from tests.fakes.cluster import make_job, make_node
from tests.fakes.engine import CLUSTER, answer_is_on_its_way, ask_place, place, running_engine

from placewise_core.domain.cluster import Assignment
from placewise_core.domain.commands import JobEvent, JobEventKind
from placewise_core.domain.decision import Blocker, JobDecision, Outcome, Reason
from placewise_core.domain.job import Job, KeepTogether, NodeId, Resources, Role
from placewise_service.engine import Engine


def gang(name: str, workers: int = 2, gpus: float = 3.0, **wishes: object) -> Job:
    """By default one that needs a node per task."""
    return make_job(name, workers, gpus, **wishes)


async def placed(engine: Engine, *jobs: Job, **changes: object) -> list[JobDecision]:
    decision = await ask_place(engine, place(*jobs, **changes))
    await answer_is_on_its_way()
    return list(decision.decisions)


def nodes(decision: JobDecision) -> set[str]:
    return {task.node for task in decision.assignments}


async def test_gangs_of_one_request_keep_their_networks_apart() -> None:
    async with running_engine(nodes=3) as engine:
        jobs = (gang("a", exclusive_network=True), gang("b", 5, 1.0), gang("c", 4, 1.0))
        first, second, third = await placed(engine, *jobs)
        assert len(nodes(first)) == 2
        assert (second.outcome, [why.reason for why in second.blockers]) == (Outcome.WAIT, [Reason.EXCLUSIVE_NETWORK])
        assert len(nodes(third)) == 1


async def test_a_gang_waits_for_a_network_that_another_has_and_says_so() -> None:
    async with running_engine() as engine:
        [first] = await placed(engine, gang("a", 3, 1.0, exclusive_network=True), policy="load-balance")
        assert len(nodes(first)) == 3
        [other] = await placed(engine, gang("b", 3, 2.0), policy="load-balance")
        message = "nodes with room have a job that wants its network for itself"
        assert other.blockers == (Blocker(Reason.EXCLUSIVE_NETWORK, 3, message=message),)
        [small] = await placed(engine, gang("c", 3, 1.0), policy="load-balance")
        assert len(nodes(small)) == 1, "on one node it uses no network"
        await engine.report_job_events(CLUSTER, [JobEvent(first.job_id, JobEventKind.FINISHED)])
        [again] = await placed(engine, gang("b", 3, 2.0), policy="load-balance")
        assert again.outcome is Outcome.PLACED


async def test_a_gang_that_wants_a_network_waits_for_those_that_use_it() -> None:
    async with running_engine() as engine:
        [first] = await placed(engine, gang("a", 3, 1.0), policy="load-balance")
        [other] = await placed(engine, gang("b", 3, 2.0, exclusive_network=True), policy="load-balance")
        message = "jobs that span several nodes use the network of nodes with room; this job wants it for itself"
        assert other.blockers == (Blocker(Reason.EXCLUSIVE_NETWORK, 3, message=message),)
        await engine.report_job_events(CLUSTER, [JobEvent(first.job_id, JobEventKind.CANCELLED)])
        [again] = await placed(engine, gang("b", 3, 2.0, exclusive_network=True), policy="load-balance")
        assert again.outcome is Outcome.PLACED


async def test_gangs_that_are_asked_for_at_once_keep_their_networks_apart() -> None:
    async with running_engine() as engine:
        jobs = [gang(f"j{i}", gpus=2.0, exclusive_network=i % 2 == 0) for i in range(6)]
        asked = [ask_place(engine, place(job, policy="load-balance")) for job in jobs]
        given = [decision.decisions[0] for decision in await asyncio.gather(*asked)]
        spanning = {jobs[i].id: nodes(d) for i, d in enumerate(given) if len(nodes(d)) > 1}
        for job in jobs:
            for other, there in spanning.items():
                if job.exclusive_network and job.id in spanning and other != job.id:
                    assert there.isdisjoint(spanning[job.id])
        assert sum(len(found) > 1 for found in spanning.values()) >= 2


async def test_a_job_that_a_host_started_has_its_network_by_its_word() -> None:
    async with running_engine() as engine:
        job = gang("a", exclusive_network=True)
        tasks = tuple(
            Assignment(f"worker-{i}", Role.WORKER, NodeId(f"n{i}"), (0,), Resources(gpus=1.0)) for i in range(3)
        )
        started = JobEvent(job.id, JobEventKind.STARTED, placement=tasks, job=job)
        await engine.report_job_events(CLUSTER, [started])
        [other] = await placed(engine, gang("b"))
        assert other.outcome is Outcome.WAIT
        assert [blocker.reason for blocker in other.blockers] == [Reason.EXCLUSIVE_NETWORK]


async def test_no_rack_holds_the_gang() -> None:
    async with running_engine(nodes=0) as engine:
        racks = [make_node(f"n{i}", 2, rack=f"r{i // 3}") for i in range(7)]
        await engine.report_nodes(CLUSTER, racks, full=True)
        [one, two] = await placed(
            engine,
            make_job("a", 8, keep_together=KeepTogether.RACK),
            make_job("b", 6, keep_together=KeepTogether.RACK),
            policy="load-balance",
        )
        message = "no rack holds the 8 tasks together; the best holds 6"
        assert one.outcome is Outcome.NO_FIT
        assert one.blockers == (Blocker(Reason.KEEP_TOGETHER, 0, 2.0, "tasks", message),)
        assert nodes(two) in ({"n0", "n1", "n2"}, {"n3", "n4", "n5"})
        [three, four] = await placed(engine, *(make_job(name, 6, keep_together=KeepTogether.RACK) for name in "cd"))
        assert three.outcome is Outcome.PLACED
        assert four.outcome is Outcome.WAIT
        assert [blocker.reason for blocker in four.blockers] == [Reason.INSUFFICIENT_GPU]
        [five] = await placed(engine, make_job("e", 2, 1.0, keep_together=KeepTogether.RACK))
        assert nodes(five) == {"n6"}, "a node without a neighbour in its rack"
