"""Requests in slices beside others, in any order: gangs whole, no GPU twice, nothing left behind."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.fakes.cluster import make_job, make_node
from tests.fakes.engine import CLUSTER, ask_place, running_engine
from tests.fakes.quick.examples import examples
from tests.fakes.slices import TickingClock, every_round

from placewise_core.domain.cluster import RunningJob
from placewise_core.domain.commands import PlaceCommand
from placewise_core.domain.decision import Outcome, PlaceDecision
from placewise_core.domain.errors import StaleSnapshotError
from placewise_core.domain.job import Job
from placewise_core.view.view import ClusterView
from placewise_service.engine import Engine
from placewise_service.state.reference.memory import MemoryStore

NODES, GPUS = 60, 4
BY_NODE = ("task_count", "gpu_tenant_count", "free_gpus", "load", "tightness")
LAST = 60  # round in which something begins
POLICIES = ("consolidate", "tetris", "load-balance", "bin-packing", "random")


@dataclass(frozen=True)
class Act:
    """What somebody does in some round of the event loop: ask for gangs of these sizes, or let nodes leave and come."""

    round: int
    gangs: tuple[int, ...] = ()
    policy: str = ""
    is_dry_run: bool = False
    leaves_after: int = 0  # rounds until the caller gives up; 0: never
    nodes: int = 0


REQUESTS = st.builds(
    Act,
    round=st.integers(0, LAST),
    gangs=st.lists(st.sampled_from([1, 3, 8, 70, 130, 150]), min_size=1, max_size=3).map(tuple),
    policy=st.sampled_from(POLICIES),
    is_dry_run=st.booleans(),
    leaves_after=st.sampled_from([0, 0, 0, 10, 40]),
)
REPORTS = st.builds(Act, round=st.integers(0, LAST), nodes=st.integers(50, NODES))


@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.one_of(REQUESTS, REQUESTS, REQUESTS, REPORTS), min_size=2, max_size=8))
@example([Act(38, (1,), POLICIES[0]), Act(0, (1, 130, 1), POLICIES[0], leaves_after=40)])  # it leaves as its draft ends
def test_gangs_stay_whole_beside_whatever_others_do(acts: list[Act]) -> None:
    asyncio.run(_played(acts))


async def _played(acts: list[Act]) -> None:
    clock = TickingClock(1_000_000.0)
    store = MemoryStore(clock)
    async with running_engine(NODES, GPUS, store, clock) as engine:
        engine._placing.sliced.slicing._slice_s = 0.0
        live = await engine._parts.views.get(CLUSTER)
        tasks: list[tuple[Act, asyncio.Task[Any]]] = []
        ending: list[tuple[int, asyncio.Task[Any]]] = []

        def play(turn: int) -> None:
            _check_whole(live.view)
            for number, act in enumerate(acts):
                if act.round == turn:
                    task = asyncio.create_task(_done(engine, number, act))
                    tasks.append((act, task))
                    if act.leaves_after:
                        ending.append((turn + act.leaves_after, task))
            for at, task in ending:
                if at == turn:
                    task.cancel()

        async with every_round(play):
            await _rounds(LAST + 5)
            await asyncio.wait([task for _, task in tasks])
            await _rounds(5)  # the view hears that a reservation is made after the answer
        loaded = await store.load(CLUSTER)
        assert loaded is not None
        records = loaded[0]
        _check_apart(records.jobs)
        for act, task in tasks:
            answer = _answer(act, task)
            if answer is not None:
                _check_held(answer, {job.id: job for job in records.jobs})
        assert not live.is_deciding
        assert not live.is_closed
        _check_same(live.view, ClusterView(records))


async def _rounds(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def _done(engine: Engine, number: int, act: Act) -> PlaceDecision | None:
    if act.nodes:
        await engine.report_nodes(CLUSTER, [make_node(f"n{i}", GPUS) for i in range(act.nodes)], full=True)
        return None
    jobs = tuple(_gang(f"{number}-{i}", size) for i, size in enumerate(act.gangs))
    command = PlaceCommand(CLUSTER, jobs, policy=act.policy, is_dry_run=act.is_dry_run, reserve_ttl_s=3000.0)
    return await ask_place(engine, command, float("inf"))


def _gang(name: str, size: int) -> Job:
    return make_job(name, size, cpu_cores=1.0)


def _answer(act: Act, task: "asyncio.Task[PlaceDecision | None]") -> PlaceDecision | None:
    """The promise, if there is one. A caller may have left, or the cluster changed too fast for its gang."""
    if task.cancelled():
        assert act.leaves_after
        return None
    error = task.exception()
    assert error is None or isinstance(error, StaleSnapshotError), error
    return None if error is not None or act.is_dry_run else task.result()


def _check_whole(view: ClusterView) -> None:
    """Nobody sees a part of a gang, at any time."""
    there = sum(task.node in view.nodes.index for job in view.jobs.values() for task in job.assignments)
    assert int(view.usage.task_count.sum()) == there
    assert all(len(job.assignments) == job.job.task_count for job in view.jobs.values())


def _check_apart(jobs: Sequence[RunningJob]) -> None:
    gpus = [(task.node, g) for job in jobs for task in job.assignments for g in task.gpu_indices]
    assert len(set(gpus)) == len(gpus) == sum(job.job.task_count for job in jobs)


def _check_held(answer: PlaceDecision, jobs: dict[Any, RunningJob]) -> None:
    for decision in answer.decisions:
        if decision.outcome is Outcome.PLACED:
            assert jobs[decision.job_id].assignments == decision.assignments


def _check_same(view: ClusterView, anew: ClusterView) -> None:
    order = [anew.nodes.index[node.id] for node in view.nodes.records]
    assert view.jobs.keys() == anew.jobs.keys()
    for name in ("free", "countable_free", *BY_NODE):
        mine, other = getattr(view.usage, name), getattr(anew.usage, name)
        assert np.array_equal(mine, other[order] if name in BY_NODE else other[:, order]), name
    assert view.usage._idle_gpus == [anew.usage._idle_gpus[m] for m in order]
