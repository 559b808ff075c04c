"""The Slurm bridge at 1,000 and 10,000 nodes with 500 and 5,000 waiting jobs: processor time, requests and bytes.

The bridge's own code runs, from the JSON that slurmrestd sends to the answer of the service. The answers are recorded
(tests/cases/slurm), with as many copies of a node and of a held job; each job has the 8 KB that slurmrestd sends.
The service answers that all wait. Ratios are of processor time within one process, whose garbage collector is the
bridge's. Each time is the least of five, as other processes on the machine only add to it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from placewise.v1.cluster_pb2 import (
    Cluster,
    ReportJobEventsRequest,
    ReportJobEventsResponse,
    ReportNodesRequest,
    ReportNodesResponse,
)
from placewise.v1.decision_pb2 import INSUFFICIENT_GPU, Admission, AdmitOrWaitRequest, AdmitOrWaitResponse
from placewise_client import AsyncClient
from placewise_client.adapter.loop import AdapterLoop
from placewise_client.adapter.native import AdapterSettings
from placewise_client.adapter.process import settle_garbage_collector
from placewise_slurm.http import JsonHttp
from placewise_slurm.pokes import PokeListener
from placewise_slurm.rest import SlurmRest
from placewise_slurm.scheduler import SlurmScheduler

pytestmark = [pytest.mark.e2e_heavy, pytest.mark.timeout(900)]
CASES = Path(__file__).parents[1] / "cases" / "slurm"
NODES, JOBS = (1_000, 10_000), (500, 5_000)
JOB_BYTES, UNREAD = 8_192, 100
ROUNDS = 5
MOST_GROWTH = 1.3
MOST_RESYNC_S = 1.0
Note = Callable[[str, object], None]


class RecordedSlurm:
    """slurmrestd's answers as bytes, parsed at every request. It counts the requests."""

    def __init__(self, version: str, nodes: int, jobs: int) -> None:
        case = json.loads((CASES / f"{version}.json").read_text())
        held, node = case["jobs"][0], case["nodes"][0]
        self.is_old = version == "v0.0.38"
        prefix = f"/slurm/{version}/"
        paths = [
            f"{prefix}{name}" for name in ("jobs/", "nodes/", "job/{job_id}", *([] if self.is_old else ["jobs/state/"]))
        ]
        ids = range(1, jobs + 1)
        states = [{"job_id": str(number), "state": ["PENDING"]} for number in ids]
        last_update = 1 if self.is_old else {"set": True, "infinite": False, "number": 1}
        inventory = [{**node, "name": f"n{i}"} for i in range(nodes)]
        self.answers: dict[str, bytes] = {
            "/openapi/v3": _packed({"paths": {path: {} for path in paths}}),
            f"{prefix}jobs": _packed({"errors": [], "jobs": [_padded(held, number, self.is_old) for number in ids]}),
            f"{prefix}jobs/state/": _packed({"errors": [], "jobs": states}),
            f"{prefix}nodes": _packed({"errors": [], "nodes": inventory, "last_update": last_update}),
        }
        self.calls: Counter[str] = Counter()
        self.sent_bytes = 0
        self.address, self.at_once = "recorded", 8

    async def request(self, method: str, path: str, body: Any = None) -> Any:
        assert method == "GET", "all jobs wait"
        self.calls[path.partition("?")[0]] += 1
        answer = self.answers["/openapi/v3" if path == "/openapi/v3" else path.partition("?")[0]]
        if "?update_time=" in path:
            return None  # 304: no node has changed
        self.sent_bytes += len(answer)
        return json.loads(answer)


def _padded(held: dict[str, Any], number: int, is_old: bool) -> dict[str, Any]:
    """A held job with a hundred fields that the bridge does not read, up to the size that slurmrestd sends."""
    job, unread = {**held, "job_id": number}, {"set": False, "infinite": False, "number": 0}
    job |= {f"unread_{i}": "" if is_old else unread for i in range(UNREAD)}
    return job | {"rest": "x" * (JOB_BYTES - len(json.dumps(job)))}


def _packed(answer: Any) -> bytes:
    return json.dumps(answer).encode()


class Waits:
    """A service that lets all wait, and takes every report."""

    def __init__(self) -> None:
        self.asked = 0

    async def admit_or_wait(self, request: AdmitOrWaitRequest, **_: Any) -> AdmitOrWaitResponse:
        self.asked += len(request.jobs)
        response = AdmitOrWaitResponse()
        for job in request.jobs:
            admission = response.admissions.add(job_id=job.id, verdict=Admission.WAIT)
            admission.blockers.add(reason=INSUFFICIENT_GPU)
        return response

    async def get_cluster(self, *_: Any, **__: Any) -> Cluster:
        return Cluster()

    async def report_nodes(self, _: ReportNodesRequest, **__: Any) -> ReportNodesResponse:
        return ReportNodesResponse()

    async def report_job_events(self, _: ReportJobEventsRequest, **__: Any) -> ReportJobEventsResponse:
        return ReportJobEventsResponse()


class Bridge:
    """One bridge; `clock` moves only here."""

    def __init__(self, version: str, nodes: int, jobs: int) -> None:
        self.slurm, self.service, self.now_s = RecordedSlurm(version, nodes, jobs), Waits(), 1_800_000_000.0
        rest = SlurmRest(cast(JsonHttp, self.slurm), wanted=version)
        self.native = SlurmScheduler(rest, PokeListener())
        settings = AdapterSettings("scale", decide_budget_s=60.0)
        client = cast(AsyncClient, self.service)
        self.loop = AdapterLoop(self.native, client, settings, clock=lambda: self.now_s, now=lambda: self.now_s)

    async def resync_s(self) -> float:
        """Processor time of one complete pass."""
        self.now_s += self.loop.settings.resync_s
        before_s = time.process_time()
        await self.loop.run_pass(full=True)
        return time.process_time() - before_s

    async def whole_s(self) -> float:
        """As `resync_s`, of a pass that reads everything again, as one does every five minutes."""
        self.native._known._whole_at_s = float("-inf")
        return await self.resync_s()


async def measure(version: str, nodes: int, jobs: int) -> tuple[tuple[float, ...], str]:
    """Processor time of the first pass, of a later one and of one that reads everything again, and all in words."""
    bridge = Bridge(version, nodes, jobs)
    first_s = await bridge.resync_s()
    assert len(bridge.loop.book.waiting()) == jobs
    bridge.slurm.calls.clear()
    bridge.slurm.sent_bytes = bridge.service.asked = 0
    resyncs_s = [await bridge.resync_s() for _ in range(ROUNDS)]
    calls, asked = bridge.slurm.calls.total() / ROUNDS, bridge.service.asked / ROUNDS
    sent_mb = bridge.slurm.sent_bytes / ROUNDS / 1e6
    whole_s = min([await bridge.whole_s() for _ in range(ROUNDS)])
    words = (
        f"first look {first_s:.2f} s of processor, a resync {min(resyncs_s):.3f} s with {calls:.0f} requests, "
        f"{sent_mb:.2f} MB and {asked:.0f} jobs asked about; every five minutes {whole_s:.2f} s"
    )
    return (first_s, min(resyncs_s), whole_s), words


@pytest.fixture
def collector() -> Iterator[None]:
    """The garbage collector as the bridge has it."""
    before = gc.get_threshold()
    settle_garbage_collector()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("version", ["v0.0.38", "v0.0.45"])
def test_the_cost_grows_linearly_and_a_resync_takes_a_second_at_most(version: str, record_property: Note) -> None:
    found = {}
    for nodes in NODES:
        for jobs in JOBS:
            found[nodes, jobs] = asyncio.run(measure(version, nodes, jobs))
            line = f"{version}, {nodes:,} nodes, {jobs:,} waiting: {found[nodes, jobs][1]}"
            record_property("scale", line)
            print(f"\n{line}", end="")
    for part, what in enumerate(("first look", "resync", "complete resync")):
        cost = {size: costs_s[part] for size, (costs_s, _) in found.items()}
        growths = [cost[NODES[1], jobs] / cost[NODES[0], jobs] / (NODES[1] / NODES[0]) for jobs in JOBS]
        growths += [cost[nodes, JOBS[1]] / cost[nodes, JOBS[0]] / (JOBS[1] / JOBS[0]) for nodes in NODES]
        line = f"{version}, {what}: ten times the nodes or jobs cost at most {max(growths):.2f} times ten times as much"
        record_property("scale", line)
        print(f"\n{line}", end="")
        assert max(growths) <= MOST_GROWTH
    assert max(max(costs_s[1:]) for costs_s, _ in found.values()) <= MOST_RESYNC_S


@pytest.mark.usefixtures("collector")
def test_a_resync_of_10_000_jobs_reads_their_states_alone(record_property: Note) -> None:
    async def sent_mb() -> tuple[float, float]:
        bridge = Bridge("v0.0.45", 1_000, 10_000)
        await bridge.resync_s()
        first = bridge.slurm.sent_bytes
        await bridge.resync_s()
        return first / 1e6, (bridge.slurm.sent_bytes - first) / 1e6

    first, later = asyncio.run(sent_mb())
    line = f"v0.0.45, 1,000 nodes, 10,000 waiting: first look {first:.0f} MB, a resync {later:.1f} MB"
    record_property("scale", line)
    print(f"\n{line}", end="")
    assert later < first / 100
