"""Jobs that want their network for themselves: whom they meet on a node, and whom a decision did not see there. On
every store (conftest.py)."""

import asyncio
import itertools
import random
from dataclasses import replace

import pytest
from tests.fakes.cluster import make_job
from tests.fakes.engine import ask_place, place, running_engine
from tests.fakes.state import CLUSTER, Harness, demand, ended, hold, job, records, started, task

from placewise_core.domain.cluster import Assignment, RunningJob
from placewise_core.domain.commands import JobEvent, JobEventKind
from placewise_core.domain.decision import PlaceDecision
from placewise_core.domain.errors import StaleSnapshotError
from placewise_core.domain.job import Job
from placewise_core.view.domains import spans
from placewise_core.view.view import ClusterView
from placewise_service.state.holdings import seen_nodes
from placewise_service.state.store import Conflict, Reserved, StateStore


def spread(name: str, gpu: int = 0, *, wants_network: bool = False) -> RunningJob:
    """A gang with a GPU of n0 and one of s0."""
    return (
        exclusive(job(name, task(gpus=(gpu,)), task("s0", (gpu,), id_="w1")))
        if wants_network
        else job(name, task(gpus=(gpu,)), task("s0", (gpu,), id_="w1"))
    )


def exclusive(running: RunningJob) -> RunningJob:
    return replace(running, job=replace(running.job, exclusive_network=True))


def on_one(name: str, gpu: int) -> RunningJob:
    return job(name, task(gpus=(gpu,)), task(gpus=(gpu + 1,), id_="w1"))


async def held(store: StateStore, *jobs: RunningJob, seen: ClusterView | None = None, **more: object) -> object:
    """Reserves the jobs, as a decision does that saw this; by default the store as it is."""
    view = seen or ClusterView(await records(store))
    expected = {}
    for running in jobs:
        expected.update(seen_nodes(running, view))
        view.add_job(running)
    return await hold(store, *jobs, expected_nodes=expected, **more)


@pytest.mark.parametrize("seed", range(4))
async def test_two_replicas_that_decide_at_once_keep_networks_apart(harness: Harness, seed: int) -> None:
    """Each decides on its own view; the store finds whom they did not see."""
    draw = random.Random(seed)
    async with (
        running_engine(6, store=harness.store, clock=harness.clock) as engine,
        running_engine(0, store=harness.other(), clock=harness.clock) as other,
    ):
        for turn in range(6):
            jobs = [_drawn(f"{turn}-{i}", draw) for i in range(6)]
            asked = [ask_place(draw.choice((engine, other)), place(job, policy="random")) for job in jobs]
            done = await asyncio.gather(*asked, return_exceptions=True)
            assert all(isinstance(each, PlaceDecision | StaleSnapshotError) for each in done), done
            there = (await records(harness.store, "c")).jobs
            for one, two in itertools.permutations(there, 2):
                if one.job.exclusive_network and spans(one) and spans(two):
                    assert nodes_of(one).isdisjoint(nodes_of(two)), (one.id, two.id)
            gone = draw.sample(there, len(there) // 2)
            await engine.report_job_events("c", [JobEvent(each.id, JobEventKind.FINISHED) for each in gone])


def _drawn(name: str, draw: random.Random) -> Job:
    wants_network = draw.random() < 0.5
    return make_job(name, draw.choice((2, 2, 3)), draw.choice((0.0, 1.0)), exclusive_network=wants_network)


def nodes_of(running: RunningJob) -> set[str]:
    return {each.node for each in running.assignments}


async def test_no_other_gang_on_several_nodes_comes_beside_it(store: StateStore) -> None:
    assert isinstance(await held(store, spread("a", wants_network=True)), Reserved)
    assert await held(store, spread("b", 1)) == Conflict("n0", "NETWORK_TAKEN")
    assert await held(store, spread("b", 1, wants_network=True)) == Conflict("n0", "NETWORK_TAKEN")
    assert isinstance(await held(store, on_one("c", 1)), Reserved)
    assert isinstance(await held(store, exclusive(on_one("d", 1))), Conflict)  # its GPUs are taken, nothing else
    await store.report_jobs(CLUSTER, [ended("a")])
    assert isinstance(await held(store, spread("b", 3)), Reserved)


async def test_a_gang_that_the_decision_did_not_see_conflicts(store: StateStore) -> None:
    before = ClusterView(await records(store))
    assert isinstance(await held(store, spread("b")), Reserved)
    assert await held(store, spread("a", 1, wants_network=True), seen=before) == Conflict("n0", "NETWORK_CHANGED")


@pytest.mark.parametrize(
    "unseen",
    [
        (task("s0", (), demand(cpu=0.5, gpus=0.0, memory=0.0)),),
        (task("s0", (), demand(cpu=0.0, gpus=0.0, memory=0.5)),),
        (task("s0", (), demand(cpu=0.0, gpus=0.0, memory=0.0, network_gbps=0.5)),),
        (task("s0", (3,), demand(cpu=0.0, memory=0.0)),),
    ],
)
async def test_any_change_on_its_nodes_conflicts(store: StateStore, unseen: tuple[Assignment, ...]) -> None:
    before = ClusterView(await records(store))
    assert isinstance(await held(store, job("b", *unseen)), Reserved)
    assert await held(store, spread("a", wants_network=True), seen=before) == Conflict("s0", "NETWORK_CHANGED")
    before.add_job(job("b", *unseen))
    assert isinstance(await held(store, spread("a", wants_network=True), seen=before), Reserved)


async def test_a_job_that_left_unseen_conflicts_too(store: StateStore) -> None:
    assert isinstance(await held(store, job("b", task("s0", (3,), demand(cpu=0.0, memory=0.0)))), Reserved)
    before = ClusterView(await records(store))
    await store.release(CLUSTER, ["r-b"])
    assert await held(store, spread("a", wants_network=True), seen=before) == Conflict("s0", "NETWORK_CHANGED")


async def test_jobs_of_one_request_count_in_their_order(store: StateStore) -> None:
    assert isinstance(await held(store, on_one("a", 0), spread("b", 2, wants_network=True), on_one("c", 3)), Conflict)
    assert isinstance(
        await held(store, on_one("a", 0), spread("b", 2, wants_network=True), job("c", task(gpus=(3,)))), Reserved
    )
    assert await held(store, spread("d", 3)) == Conflict("n0", "NETWORK_TAKEN")


async def test_a_reservation_may_be_decided_again_and_confirmed(store: StateStore) -> None:
    assert isinstance(await held(store, spread("a", wants_network=True)), Reserved)
    assert isinstance(await held(store, spread("a", 1, wants_network=True)), Reserved)
    [confirmed] = (await store.report_jobs(CLUSTER, [started(spread("a", 1, wants_network=True))])).events
    assert await held(store, spread("b", 2)) == Conflict("n0", "NETWORK_TAKEN")
    [kept] = (await records(store)).jobs
    assert kept.job.exclusive_network
    assert confirmed.change.jobs[0].job.exclusive_network  # type: ignore[union-attr]


async def test_the_host_is_right_and_is_told_of_no_overcommitment(store: StateStore) -> None:
    assert isinstance(await held(store, spread("b")), Reserved)
    result = await store.report_jobs(CLUSTER, [started(spread("a", 1, wants_network=True))])
    assert not result.overcommits
    await store.report_jobs(CLUSTER, [ended("a"), ended("b")])
    assert not (await records(store)).jobs
    assert isinstance(await held(store, spread("c")), Reserved)
