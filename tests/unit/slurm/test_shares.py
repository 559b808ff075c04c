"""Shares of a divisible job: the tasks' beginning and end become each share's time."""

from __future__ import annotations

from dataclasses import replace
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
# As slurmrestd shows it: started at wall time 5000, which is 1000 of the clock below.
RUNNING = SlurmJob(7, "RUNNING", nodes="n[1-2]", start_time_s=5000, end_time_s=9000)
WALL_OFFSET_S = 4000.0


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
    found = JobShares(client, AdapterSettings("c"), tmp_path, clock, lambda: clock() + WALL_OFFSET_S)
    await found(JOB, PLACED)
    (request,) = client.requests
    assert list(request.units) == ["n1/gpu0", "n1/gpu1", "n2/gpu3"]
    assert not request.dry_run  # a dry run's decision is joined by no outcome
    return found


def ended(lasted_s: float = 100) -> SlurmJob:
    return replace(RUNNING, state="COMPLETED", end_time_s=RUNNING.start_time_s + lasted_s)


def took(shares: JobShares, lasted_s: float = 100) -> dict[str, float]:
    shares.finish(ended(lasted_s))
    return taken(shares)


def taken(shares: JobShares) -> dict[str, float]:
    settled = shares.take()
    if not settled:
        return {}
    ((job, done),) = settled
    assert job.id == 7
    assert done.decision_id == "cut-1"
    assert {outcome.task_kind for outcome in done.outcomes} == {"render"}
    return {f"{outcome.node}/{outcome.unit}": outcome.seconds for outcome in done.outcomes}


def begin(shares: JobShares, node: str, rank: int = 0, *, step: str = "0") -> bool:
    """A task that really begins: slurmrestd shows its job running."""
    is_news = shares.hear("begin", 7, step, node, rank)
    shares.see(RUNNING)
    return is_news


async def test_each_share_takes_the_time_of_its_task(shares: JobShares, clock: Clock) -> None:
    for node, rank in (("n1", 0), ("n1", 1), ("n2", 0)):
        assert begin(shares, node, rank)  # wants to know whether the job runs
    for seconds, node, rank in ((2.0, "n1", 1), (1.5, "n1", 0), (4.0, "n2", 0)):
        clock.now_s += seconds
        assert not shares.hear("end", 7, "0", node, rank)
    assert took(shares) == {"n1/gpu0": 3.5, "n1/gpu1": 2.0, "n2/gpu3": 7.5}


async def test_the_batch_script_counts_only_where_it_starts_no_step(shares: JobShares, clock: Clock) -> None:
    begin(shares, "n1", step=BATCH)
    clock.now_s += 1
    begin(shares, "n1")
    clock.now_s += 5
    shares.hear("end", 7, "0", "n1", 0)
    clock.now_s += 1
    shares.hear("end", 7, BATCH, "n1", 0)
    assert took(shares) == {"n1/gpu0": 5.0}


async def test_a_script_without_steps_is_the_share(shares: JobShares, clock: Clock) -> None:
    begin(shares, "n1", step="batch")
    clock.now_s += 3
    shares.hear("end", 7, "batch", "n1", 0)
    assert took(shares) == {"n1/gpu0": 3.0}


async def test_of_several_steps_the_one_that_ends_last_counts(shares: JobShares, clock: Clock) -> None:
    for step, seconds in (("0", 4.0), ("1", 2.0)):
        begin(shares, "n1", step=step)
        clock.now_s += seconds
        shares.hear("end", 7, step, "n1", 0)
    assert took(shares) == {"n1/gpu0": 2.0}


async def test_a_share_that_was_not_given_is_not_listened_to(shares: JobShares) -> None:
    """A datagram may be forged: it can name no job, node or rank that was given no share, nor end what never began."""
    assert not shares.hear("begin", 8, "0", "n1", 0)
    assert not begin(shares, "n9")
    assert not begin(shares, "n2", 1)
    for node, rank in (("n9", 0), ("n2", 1), ("n1", 0)):
        shares.hear("end", 7, "0", node, rank)
    assert took(shares) == {}


@pytest.mark.parametrize(
    "shown",
    [
        SlurmJob(7, "PENDING"),
        replace(RUNNING, state="CONFIGURING"),
        replace(RUNNING, nodes="n2"),
        replace(RUNNING, id=8),
        replace(RUNNING, start_time_s=RUNNING.start_time_s + 3),  # the begin was heard before the job had started
        None,
    ],
)
async def test_a_time_counts_only_where_slurm_shows_the_job_running_on_the_node(
    shares: JobShares, clock: Clock, shown: SlurmJob | None
) -> None:
    shares.hear("begin", 7, "0", "n1", 0)
    clock.now_s += 3
    if shown is not None:
        shares.see(shown)
    shares.hear("end", 7, "0", "n1", 0)
    assert took(shares) == {}


async def test_a_begin_that_slurm_did_not_bear_out_does_not_stand_in_the_way_of_the_real_one(
    shares: JobShares, clock: Clock
) -> None:
    shares.hear("begin", 7, "0", "n1", 0)
    shares.see(SlurmJob(7, "PENDING"))
    clock.now_s += 50
    assert begin(shares, "n1")
    clock.now_s += 2
    shares.hear("end", 7, "0", "n1", 0)
    assert took(shares) == {"n1/gpu0": 2.0}


async def test_begin_and_end_count_once(shares: JobShares, clock: Clock) -> None:
    begin(shares, "n1")
    clock.now_s += 5
    assert not begin(shares, "n1")
    clock.now_s += 5
    shares.hear("end", 7, "0", "n1", 0)
    clock.now_s += 5
    shares.hear("end", 7, "0", "n1", 0)
    assert not begin(shares, "n1")
    clock.now_s += 5
    shares.hear("end", 7, "0", "n1", 0)
    assert took(shares) == {"n1/gpu0": 10.0}


@pytest.mark.parametrize(("lasted_s", "wanted"), [(29, {"n1/gpu0": 30.0}), (20, {})])  # Slurm's seconds are whole
async def test_a_time_beyond_the_jobs_own_does_not_count(
    shares: JobShares, clock: Clock, lasted_s: float, wanted: dict[str, float]
) -> None:
    begin(shares, "n1")
    clock.now_s += 30
    shares.hear("end", 7, "0", "n1", 0)
    assert took(shares, lasted_s=lasted_s) == wanted


async def test_invented_steps_take_a_bounded_room(shares: JobShares) -> None:
    heard = [shares.hear("begin", 7, str(step), "n1", 0) for step in range(1000)]
    assert sum(heard) == 16
    assert begin(shares, "n2")  # each share has a room of its own


async def test_a_job_that_is_over_is_forgotten_with_its_file(shares: JobShares, tmp_path: Path) -> None:
    begin(shares, "n1")
    shares.hear("end", 7, "0", "n1", 0)
    shares.clean({7})
    assert (tmp_path / "7").exists()
    shares.clean(set())
    assert not (tmp_path / "7").exists()
    assert took(shares) == {}


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
    reported: list[tuple[object, ...]] = []
    listener = PokeListener()
    listener.on_task = lambda *task: bool(reported.append(task))
    listener.datagram_received(datagram, ("127.0.0.1", 1))
    assert reported == heard
    assert not await listener.wait(0.0)  # nothing to look at in Slurm


async def test_a_task_that_begins_is_a_hint_to_look_at_its_job() -> None:
    listener = PokeListener()
    listener.on_task = lambda *_: True
    listener.datagram_received(b"share begin 7 0 n1 0", ("127.0.0.1", 1))
    assert await listener.wait(0.0)
    assert listener.take().job_ids == {7}
