"""A canary in two running services on one Redis: a guard ends it, or it is promoted, and nothing is dropped."""

import asyncio
import datetime
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.bundles import copy_bundle

from placewise.v1.cluster_pb2 import JobEvent, Node, ReportJobEventsRequest, ReportNodesRequest
from placewise.v1.decision_pb2 import PLACED, PlaceRequest
from placewise.v1.job_pb2 import Job, Resources, TaskGroup
from placewise_client.aio import AsyncClient
from placewise_models.folder import DEFAULT_BUNDLE
from placewise_service.bench.processes import redis_process, service_process
from placewise_service.cli import invoke

pytestmark = pytest.mark.e2e

CLUSTER = "c"
PATIENCE_S = 60.0  # of a busy machine
FOLLOWS_S = 1.0  # from a verdict, or a promotion, to every service
SETTLED_S = 2.0  # without an answer by another bundle: then none comes any more


@dataclass
class Answers:
    """What two callers heard, each of its own service: (time, bundle) in order. Jobs of the bundle `slow` run at half
    of the others' speed."""

    clients: tuple[AsyncClient, AsyncClient]
    slow: str = ""
    heard: tuple[list[tuple[float, str]], list[tuple[float, str]]] = field(default_factory=lambda: ([], []))
    numbers: "count[int]" = field(default_factory=count)

    async def ask(self, which: int) -> None:
        """Asks until it is cancelled. Each job runs, tells its speed once and ends. An error ends the test."""
        client = self.clients[which]
        while True:
            name = f"job-{next(self.numbers)}"
            group = TaskGroup(role=TaskGroup.WORKER, count=1, demand=Resources(cpu_cores=1, gpus=1, memory_gib=4))
            job = Job(id=name, model="ResNet-50", groups=[group], single_gpu_seconds=3600, total_epochs=10)
            answer = await client.place(PlaceRequest(cluster=CLUSTER, jobs=[job], policy="consolidate"))
            (decision,) = answer.decisions
            assert decision.outcome == PLACED
            bundle = answer.meta.bundle
            self.heard[which].append((time.time(), bundle))
            kinds = (JobEvent.STARTED, JobEvent.PROGRESS, JobEvent.FINISHED)
            events = [JobEvent(job_id=name, kind=kind, reservation_id=decision.reservation_id) for kind in kinds]
            events[0].placement.extend(decision.assignments)
            events[1].speed = 0.5 if bundle == self.slow else 1.0
            await client.report_job_events(ReportJobEventsRequest(cluster=CLUSTER, events=events))

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.ask(which)) for which in (0, 1)]
            yield
            for task in tasks:
                task.cancel()

    def bundles_since(self, time_s: float) -> list[set[str]]:
        """Bundles that answered each caller since."""
        return [{bundle for at_s, bundle in heard if at_s >= time_s} for heard in self.heard]


async def command(capsys: pytest.CaptureFixture[str], *args: object) -> Any:
    assert await asyncio.to_thread(invoke, ["bundle", *(str(arg) for arg in args), "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


async def settled(answers: Answers, bundle: str, since_s: float) -> float:
    """Seconds from then to the last answer by another bundle, of the slower service; over once there was none for
    SETTLED_S."""
    last_s = since_s
    async with asyncio.timeout(PATIENCE_S):
        while time.time() < last_s + SETTLED_S or not all(answers.bundles_since(last_s + 0.1)):
            await asyncio.sleep(0.1)
            others = [at_s for heard in answers.heard for at_s, by in heard if by != bundle]
            last_s = max([last_s, *others])
    return last_s - since_s


async def test_a_canary_that_turns_bad_ends_everywhere_and_a_good_one_is_promoted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, day in ((DEFAULT_BUNDLE, "01"), ("next", "02")):
        copy_bundle(tmp_path / name, created=f"2026-02-{day}T00:00:00Z")
    with redis_process() as redis:
        environment = {"PLACEWISE_BUNDLE_DIR": str(tmp_path), "PLACEWISE_REDIS_URL": redis.url}
        async with (
            service_process(environment) as one,
            service_process(environment) as two,
            AsyncClient(one.target) as client,
            AsyncClient(two.target) as other,
        ):
            nodes = [Node(id=f"n{n}", capacity=Resources(cpu_cores=64, gpus=8, memory_gib=512)) for n in range(4)]
            await client.report_nodes(ReportNodesRequest(cluster=CLUSTER, nodes=nodes))
            answers = Answers((client, other), slow="next")
            async with answers.asking():
                began_s = time.time()
                change = await ended_by_its_jobs(capsys, one.target, two.target)
                assert change["bundle"] == "next"
                assert change["reason"].startswith("slow job: ")
                assert answers.bundles_since(began_s) == [{DEFAULT_BUNDLE, "next"}, {DEFAULT_BUNDLE, "next"}]
                took_s = await settled(answers, DEFAULT_BUNDLE, stamp(change["changeTime"]))
                answers.slow = ""
                await command(capsys, "canary", "next", "-c", CLUSTER, "--share", 0.2, "--target", two.target)
                await command(capsys, "promote", "next", "-c", CLUSTER, "--ungated", "--target", two.target)
                promotion_took_s = await settled(answers, "next", time.time())
            print(f"verdict to both services: {took_s:.2f} s; promotion: {promotion_took_s:.2f} s")
            assert max(took_s, promotion_took_s) < FOLLOWS_S


async def ended_by_its_jobs(capsys: pytest.CaptureFixture[str], one: str, two: str) -> dict[str, Any]:
    """Starts the canary and waits for a verdict; again, up to three times, if its decisions were slow. Both bundles
    hold the same nets, but on a busy machine the guard of latency may be the first to end it."""
    for _ in range(3):
        await command(capsys, "canary", "next", "-c", CLUSTER, "--share", 0.5, "--target", one)
        change = await rolled_back(capsys, two)
        if not change["reason"].startswith("slow decision: "):
            break
    return change


async def rolled_back(capsys: pytest.CaptureFixture[str], target: str) -> dict[str, Any]:
    """The last change of the cluster's bundles, once that is a guard's verdict."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await command(capsys, "history", "-c", CLUSTER, "--target", target)
            if found["changes"][0]["kind"] == "CANARY_ROLLED_BACK":
                return dict(found["changes"][0])
            await asyncio.sleep(0.2)


def stamp(text: str) -> float:
    """Seconds since 1970 of a time as JSON has it."""
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
