"""Exploration keeps the limits of the policy in force: the head's reservation, its bound, and an admitted shape. A
policy that fails meanwhile leaves no probability."""

from dataclasses import replace

import pytest
from tests.fakes.cluster import make_job
from tests.fakes.engine import CLUSTER, answer_is_on_its_way, ask_admit, ask_place, logged, place, running_engine

from placewise_core.basics.arrays import FloatArray
from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import ClusterSettings, ExplorationGuard, ExplorerSettings
from placewise_core.domain.commands import AdmitCommand
from placewise_core.domain.decision import Outcome, Reason, Verdict
from placewise_core.domain.job import Job
from placewise_core.policies.harmony import NetSteps
from placewise_core.policies.load_balance import LoadBalance
from placewise_service.declog.tables import row_of

EXPLORERS = ("consolidate", "load-balance", "random", "harmony", "harmony-sample", "search")


def exploring(name: str) -> ClusterSettings:
    return ClusterSettings(exploration_rate=1.0, explorers=(ExplorerSettings(name),))


def lasting(name: str, workers: int, length_s: float) -> Job:
    return replace(make_job(name, workers=workers), single_gpu_s=length_s * (1.0 + 0.5 * (workers - 1)))


@pytest.mark.parametrize("explorer", EXPLORERS)
async def test_no_explorer_takes_the_nodes_of_the_head(explorer: str) -> None:
    """A gang of eight waits for both nodes: a long job may not start before it, a short one may."""
    clock = ManualClock(1_000_000.0)
    gang, long, short = lasting("gang", 8, 100.0), lasting("long", 1, 5000.0), lasting("short", 1, 500.0)
    async with running_engine(2, 4, clock=clock) as engine:
        await engine.update_settings(CLUSTER, exploring(explorer))
        await ask_place(engine, place(lasting("runs", 2, 1000.0), policy="consolidate", seed=1))
        await answer_is_on_its_way()
        plan = (await ask_admit(engine, AdmitCommand(CLUSTER, "q", (gang, long, short), policy="fifo"))).plan
        assert {a.job_id for a in plan.admissions if a.verdict is Verdict.ADMIT} == {"short"}
        refused, let_through = (await ask_place(engine, place(long, short, seed=2))).decisions
        assert (refused.outcome, refused.blockers[0].reason) == (Outcome.WAIT, Reason.BEHIND_IN_QUEUE)
        assert let_through.outcome is Outcome.PLACED


@pytest.mark.parametrize("explorer", EXPLORERS)
async def test_no_explorer_changes_an_admitted_shape(explorer: str) -> None:
    clock = ManualClock(1_000_000.0)
    job = make_job("a", gpus=0.0, single_gpu_s=3600.0)
    async with running_engine(4, 4, clock=clock) as engine:
        await engine.update_settings(CLUSTER, exploring(explorer))
        given = None
        while given is None or given.verdict is Verdict.WAIT:
            given = (await ask_admit(engine, AdmitCommand(CLUSTER, "q", (job,), policy="proteus"))).plan.admissions[0]
            clock.advance(10.0)
        answer = await ask_place(engine, place(job, seed=3))
    tasks = answer.decisions[0].assignments
    assert answer.meta.is_explored
    assert [len(task.gpu_indices) for task in tasks] == [given.gpus_per_node] * given.nodes
    assert len({task.node for task in tasks}) == given.nodes


@pytest.mark.parametrize("rate", [0.0, 0.5])
async def test_the_fallback_for_a_failed_policy_states_no_probability_if_the_cluster_explores(
    rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("torn")

    monkeypatch.setattr(LoadBalance, "propose", failing)
    async with running_engine(2, 4) as engine:
        await engine.update_settings(CLUSTER, replace(exploring("load-balance"), exploration_rate=rate))
        await ask_place(engine, place(make_job("a"), policy="load-balance", seed=1))
        assert await logged(engine)
        ((position, data),) = await engine._parts.store.read_decisions(CLUSTER, "0", 10)
    row = row_of(CLUSTER, position, data)[2]
    assert row["fallback_reason"] == "load-balance: RuntimeError"
    found = [row[f"job_{name}"] for name in ("answered_propensities", "own_propensities", "guards")]
    assert found == ([[None], [None], ["FAILED"]] if rate else [[1.0], [1.0], [""]])


@pytest.mark.parametrize("rate", [1e-9, 1.0])
async def test_a_net_that_fails_at_the_second_task_of_a_draw_leaves_no_probability(
    rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if another's turn it is: what the explorer would have given is unknown."""
    whole = NetSteps.odds

    def torn(steps: NetSteps) -> tuple[int, FloatArray] | None:
        if steps.candidates.gang.remaining < 3:
            raise RuntimeError("torn")
        return whole(steps)

    monkeypatch.setattr(NetSteps, "odds", torn)
    async with running_engine(2, 4) as engine:
        await engine.update_settings(CLUSTER, replace(exploring("harmony-sample"), exploration_rate=rate))
        answer = await ask_place(engine, place(make_job("a", workers=3), policy="load-balance", seed=1))
        assert await logged(engine)
        ((position, data),) = await engine._parts.store.read_decisions(CLUSTER, "0", 10)
    assert (answer.decisions[0].outcome, answer.meta.is_fallback) == (Outcome.PLACED, True)
    row = row_of(CLUSTER, position, data)[2]
    assert row["fallback_reason"].endswith(": RuntimeError")
    found = [row[f"job_{name}"] for name in ("answered_propensities", "own_propensities", "guards")]
    assert found == [[None], [None], ["FAILED"]]


async def test_the_verdict_of_the_guard_is_logged_for_a_job_that_finds_no_place_as_well() -> None:
    spared = replace(exploring("load-balance"), exploration_guard=ExplorationGuard(max_gpus=4))
    async with running_engine(2, 4) as engine:
        await engine.update_settings(CLUSTER, spared)
        await ask_place(engine, place(make_job("big", workers=9), make_job("wide", workers=5), make_job("c"), seed=1))
        assert await logged(engine)
        ((position, data),) = await engine._parts.store.read_decisions(CLUSTER, "0", 10)
    row = row_of(CLUSTER, position, data)[2]
    assert row["job_outcomes"] == ["NO_FIT", "PLACED", "PLACED"]
    assert row["job_guards"] == ["MAX_GPUS", "MAX_GPUS", ""]
    assert row["job_own_propensities"] == [None, 1.0, 1.0]
