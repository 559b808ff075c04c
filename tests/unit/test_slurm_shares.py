"""Shares of a divisible job: what the tasks say of their beginning and end becomes each share's time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from placewise.v1.cluster_pb2 import Assignment
from placewise.v1.decision_pb2 import PartitionRequest, PartitionResponse, Share
from placewise_client.adapter.native import AdapterSettings, Placement
from placewise_slurm.pokes import PokeListener
from placewise_slurm.records import SlurmJob
from placewise_slurm.shares import JobShares

PLACED = Placement((Assignment(node="n1", gpu_indices=[0, 1]), Assignment(node="n2", gpu_indices=[3])))
CUT = [("n1", "gpu0", 50.0), ("n1", "gpu1", 30.0), ("n2", "gpu3", 20.0)]
JOB = SlurmJob(7, "PENDING", comment="divisible=100 kind=render")
BATCH = "4294967291"


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class FakeClient:
    """Answers Partition by a fixed cut."""

    def __init__(self) -> None:
        self.requests: list[PartitionRequest] = []

    async def partition(self, request: PartitionRequest, **_: Any) -> PartitionResponse:
        self.requests.append(request)
        response = PartitionResponse(shares=[Share(node=n, unit=u, scale=s) for n, u, s in CUT])
        response.meta.decision_id = "cut-1"
        return response


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def shares(tmp_path: Path, clock: Clock) -> JobShares:
    client: Any = FakeClient()
    found = JobShares(client, AdapterSettings("c"), tmp_path, clock)
    await found(JOB, PLACED)
    (request,) = client.requests
    assert list(request.units) == ["n1/gpu0", "n1/gpu1", "n2/gpu3"]
    assert not request.dry_run  # a dry run's decision is joined by no outcome
    return found


def took(shares: JobShares) -> dict[str, float]:
    done = shares.done(7)
    assert done is not None
    assert done.decision_id == "cut-1"
    assert {outcome.task_kind for outcome in done.outcomes} == {"render"}
    return {f"{outcome.node}/{outcome.unit}": outcome.seconds for outcome in done.outcomes}


async def test_each_share_takes_the_time_of_its_task(shares: JobShares, clock: Clock) -> None:
    for node, rank in (("n1", 0), ("n1", 1), ("n2", 0)):
        shares.hear("begin", 7, "0", node, rank)
    for seconds, node, rank in ((2.0, "n1", 1), (1.5, "n1", 0), (4.0, "n2", 0)):
        clock.now_s += seconds
        shares.hear("end", 7, "0", node, rank)
    assert took(shares) == {"n1/gpu0": 3.5, "n1/gpu1": 2.0, "n2/gpu3": 7.5}


async def test_the_batch_script_counts_only_where_it_starts_no_step(shares: JobShares, clock: Clock) -> None:
    shares.hear("begin", 7, BATCH, "n1", 0)
    clock.now_s += 1
    shares.hear("begin", 7, "0", "n1", 0)
    clock.now_s += 5
    shares.hear("end", 7, "0", "n1", 0)
    clock.now_s += 1
    shares.hear("end", 7, BATCH, "n1", 0)
    assert took(shares) == {"n1/gpu0": 5.0}


async def test_a_script_without_steps_is_the_share(shares: JobShares, clock: Clock) -> None:
    shares.hear("begin", 7, "batch", "n1", 0)
    clock.now_s += 3
    shares.hear("end", 7, "batch", "n1", 0)
    assert took(shares) == {"n1/gpu0": 3.0}


async def test_what_was_not_given_is_not_believed(shares: JobShares, clock: Clock) -> None:
    """A datagram may be forged: it can name no job, node or rank that was given no share, nor end what never began."""
    for what in ("begin", "end"):
        shares.hear(what, 8, "0", "n1", 0)
        shares.hear(what, 7, "0", "n9", 0)
        shares.hear(what, 7, "0", "n2", 1)
    shares.hear("end", 7, "0", "n1", 0)
    assert shares.done(8) is None
    done = shares.done(7)
    assert done is None or done.outcomes == ()


async def test_a_job_that_is_over_is_forgotten_with_its_file(shares: JobShares, tmp_path: Path) -> None:
    shares.hear("begin", 7, "0", "n1", 0)
    shares.hear("end", 7, "0", "n1", 0)
    shares.clean({7})
    assert (tmp_path / "7").exists()
    shares.clean(set())
    assert not (tmp_path / "7").exists()
    assert shares.done(7) is None


@pytest.mark.parametrize(
    ("datagram", "heard"),
    [
        (b"share begin 7 0 n1 2", [("begin", 7, "0", "n1", 2)]),
        (b"share end 7 batch n1 0", [("end", 7, "batch", "n1", 0)]),
        (b"share end x batch n1 0", []),
        (b"share end 7 batch n1", []),
        (b"share pause 7 0 n1 0", []),
    ],
)
async def test_the_ear_passes_on_what_tasks_say(datagram: bytes, heard: list[tuple[object, ...]]) -> None:
    told: list[tuple[object, ...]] = []
    listener = PokeListener()
    listener.on_task = lambda what, job_id, step, node, rank: told.append((what, job_id, step, node, rank))
    listener.datagram_received(datagram, ("127.0.0.1", 1))
    assert told == heard
    assert not await listener.wait(0.0)  # nothing to look at in Slurm
