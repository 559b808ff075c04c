"""Partition and AdmitOrWait in slices: the same answers as in one go, with a pause between any two steps."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
from tests.fakes.cluster import make_job, make_node
from tests.fakes.engine import CLUSTER, ask_admit, running_engine
from tests.fakes.slices import Counting

from placewise_core.basics.clock import ManualClock
from placewise_core.basics.slices import ONE_SLICE, spaced
from placewise_core.domain.cluster import NodeTelemetry
from placewise_core.domain.commands import AdmitCommand, PartitionCommand
from placewise_core.domain.decision import AdmitDecision, PartitionDecision
from placewise_core.domain.divisible import DivisibleTask, ShareProgress
from placewise_core.domain.events import ClusterRecords
from placewise_core.domain.job import ElasticRange
from placewise_core.partition import heat_island, units
from placewise_core.partition.policy import PartitionContext
from placewise_core.view.view import ClusterView
from placewise_service.engine import admitting
from placewise_service.engine import engine as engine_module

TASK = DivisibleTask("t", parallel_scale=1e6, serial_scale=1.0)
JOBS = tuple(replace(make_job(f"j{i}"), groups=(), elastic=ElasticRange(1, 4)) for i in range(40))
POLICIES = ["capacity", "fifo", "proteus", "proteus-qos", "qos", "qos-savable", "tetris-cer", "weighted-fair"]


class AtOnce:
    """A Slicing that counts, in place of one that shares a loop."""

    def __init__(self) -> None:
        self.slices = Counting()

    async def run(self, work: Any, deadline_s: float = 0.0) -> Any:
        return work(self.slices)


def test_items_are_spaced_by_pauses() -> None:
    slices = Counting()
    assert list(spaced(range(100), slices, 10)) == list(range(100))
    assert slices.pauses == 10
    items = [1, 2]
    assert spaced(items, ONE_SLICE) is items


async def _partitioned(command: PartitionCommand, counted: AtOnce | None) -> PartitionDecision:
    async with running_engine(nodes=100, gpus=8, clock=ManualClock(1000.0)) as engine:
        if counted is not None:
            engine._slicing = counted  # type: ignore[assignment]
        return await engine.partition(command)


def _progress(decision: PartitionDecision) -> tuple[ShareProgress, ...]:
    return tuple(
        ShareProgress(s.node, s.unit, s.scale, s.predicted_s, s.capability, 0.5, 1.0, i % 2 == 0)
        for i, s in enumerate(decision.plan.shares)
    )


async def test_a_large_partition_pauses_and_answers_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = await _partitioned(PartitionCommand(CLUSTER, TASK), None)
    named = tuple(f"{share.node}/{share.unit}" for share in whole.plan.shares)
    assert len(named) == 900
    commands = [
        PartitionCommand(CLUSTER, TASK),
        PartitionCommand(CLUSTER, TASK, units=(*named, "n0/gpu99"), is_explaining=True),
        PartitionCommand(CLUSTER, TASK, progress=_progress(whole)),
    ]
    expected = [await _partitioned(command, None) for command in commands]
    monkeypatch.setattr(engine_module, "_MOST_IN_ONE_GO", 0)
    for command, wanted in zip(commands, expected, strict=True):
        counted = AtOnce()
        assert (await _partitioned(command, counted)).plan == wanted.plan
        assert counted.slices.pauses >= 800 // 64


async def test_a_partition_pauses_between_its_steps_over_all_units(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    class Noting(Counting):
        def pause(self) -> None:
            steps.append("pause")

    def noted(module: Any, name: str) -> None:
        work = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args: (steps.append(name), work(*args))[1])

    noted(units, "units_of")
    noted(heat_island, "node_capabilities")
    noted(heat_island, "excluded_units")
    noted(heat_island, "peak_celsius")
    node = replace(make_node("n0", gpus=4), telemetry=NodeTelemetry(gpu_celsius=60.0, limit_celsius=90.0))
    view = ClusterView(ClusterRecords("c", 1, "life", (node,), ()))
    async with running_engine(clock=ManualClock(1000.0)) as engine:
        policy = engine._parts.registry.shadows.active.partition[engine_module.PARTITION_POLICY]
        plan = policy.partition(TASK, view, PartitionContext(1000.0, ("n0",), slices=Noting()))
    assert plan.shares
    works = [step for step in steps if step != "pause"]
    assert works == ["units_of", "node_capabilities", "excluded_units", "peak_celsius"]
    assert all("pause" in steps[steps.index(a) : steps.index(b)] for a, b in itertools.pairwise(works))


async def _admitted(policy: str, counted: AtOnce | None) -> AdmitDecision:
    async with running_engine(nodes=6, gpus=4, clock=ManualClock(1000.0)) as engine:
        if counted is not None:
            engine._admitting.slicing = counted  # type: ignore[assignment]
        return await ask_admit(engine, AdmitCommand(CLUSTER, "q", JOBS, policy))


@pytest.mark.parametrize("policy", POLICIES)
async def test_many_jobs_to_admit_pause_and_are_answered_the_same(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = await _admitted(policy, None)
    monkeypatch.setattr(admitting, "_MOST_IN_ONE_GO", 0)
    counted = AtOnce()
    assert (await _admitted(policy, counted)).plan == expected.plan
    assert counted.slices.pauses >= len(JOBS) // 4
