"""A look at all jobs reads the changed ones, with the rest of their array or heterogeneous job, and all at times."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import pytest

from placewise_slurm.records import SlurmJob
from placewise_slurm.rest import known
from placewise_slurm.rest.known import KnownJobs


class Rest:
    """slurmrestd of today, with `jobs` and their names in its list of states. `asked` has every reading."""

    has_states = True
    has_layouts = True

    def __init__(self, jobs: Iterable[tuple[str, SlurmJob]]) -> None:
        self.named = dict(jobs)
        self.asked: list[str] = []

    async def states(self) -> dict[str, str]:
        return {name: job.state for name, job in self.named.items()}

    async def jobs(self) -> list[SlurmJob]:
        self.asked.append("all")
        return list(self.named.values())

    async def group(self, job_id: int) -> list[SlurmJob]:
        self.asked.append(f"group {job_id}")
        return [job for job in self.named.values() if job.group == job_id]

    async def layout(self, job_id: int) -> dict[str, tuple[int, ...]]:
        self.asked.append(f"layout {job_id}")
        return {"n1": (job_id % 8,)}

    def change(self, name: str, **changes: Any) -> None:
        self.named[name] = dataclasses.replace(self.named[name], **changes)


def plain(*numbers: int, state: str = "PENDING") -> list[tuple[str, SlurmJob]]:
    return [(str(number), SlurmJob(number, state, group=number)) for number in numbers]


def looking(rest: Any) -> KnownJobs:
    return KnownJobs(rest, clock=lambda: 0.0)


async def test_jobs_of_an_array_and_of_a_heterogeneous_job_are_read_together() -> None:
    array = [
        ("4_[2-9]", SlurmJob(4, "PENDING", group=4)),
        ("4_1", SlurmJob(5, "RUNNING", group=4)),
    ]
    parts = [("6+0", SlurmJob(6, "RUNNING", group=6)), ("7+1", SlurmJob(7, "RUNNING", group=6))]
    rest = Rest([*plain(1, 2), *array, *parts])
    jobs = looking(rest)
    await jobs.look(afresh=True)
    rest.asked.clear()
    rest.named["4_2"] = SlurmJob(8, "RUNNING", group=4)
    rest.named["4_[3-9]"] = rest.named.pop("4_[2-9]")
    found, fresh = await jobs.look(afresh=False)
    assert rest.asked == ["group 4"]
    assert {job.id for job in found} == {1, 2, 4, 5, 6, 7, 8}
    assert {job.id for job in fresh} == {4, 5, 8}


async def test_a_job_that_slurm_has_forgotten_is_gone() -> None:
    rest = Rest(plain(1, 2, 3))
    jobs = looking(rest)
    await jobs.look(afresh=True)
    del rest.named["2"]
    found, fresh = await jobs.look(afresh=False)
    assert ([job.id for job in found], fresh, rest.asked) == ([1, 3], [], ["all"])


async def test_a_task_of_an_array_that_slurm_has_forgotten_is_gone() -> None:
    rest = Rest([("4_1", SlurmJob(5, "COMPLETED", group=4)), ("4_2", SlurmJob(4, "RUNNING", group=4))])
    jobs = looking(rest)
    await jobs.look(afresh=True)
    del rest.named["4_1"]
    found, _ = await jobs.look(afresh=False)
    assert [job.id for job in found] == [4]


async def test_many_changes_are_one_reading() -> None:
    rest = Rest(plain(*range(1, 101)))
    jobs = looking(rest)
    await jobs.look(afresh=True)
    for number in range(1, known._MOST_CHANGED + 2):
        rest.change(str(number), state="COMPLETED")
    await jobs.look(afresh=False)
    assert rest.asked == ["all", "all"]


async def test_everything_is_read_again_after_a_while() -> None:
    now_s = 0.0
    rest: Any = Rest(plain(1))
    jobs = KnownJobs(rest, clock=lambda: now_s)
    await jobs.look(afresh=True)
    rest.change("1", partition="other")
    assert (await jobs.look(afresh=False))[0][0].partition == ""
    now_s = known._WHOLE_S
    assert (await jobs.look(afresh=False))[0][0].partition == "other"


async def test_a_job_that_was_read_alone_is_not_read_again_and_one_that_was_changed_is() -> None:
    rest = Rest(plain(1, 2))
    jobs = looking(rest)
    await jobs.look(afresh=True)
    rest.change("1", state="COMPLETED")
    await jobs.note([rest.named["1"]])
    jobs.expire(2)
    rest.asked.clear()
    found, _ = await jobs.look(afresh=False)
    assert rest.asked == ["group 2"]
    assert {job.id: job.state for job in found} == {1: "COMPLETED", 2: "PENDING"}


async def test_a_layout_is_asked_for_once_in_the_life_of_a_job() -> None:
    rest = Rest(plain(1, 2))
    jobs = looking(rest)
    await jobs.look(afresh=True)
    rest.change("1", state="RUNNING", nodes="n1", gres_detail=("gpu:1(IDX:0)",))
    rest.change("2", state="RUNNING", nodes="n1")  # without GPUs
    for _ in range(2):
        found, _ = await jobs.look(afresh=False)
        assert [job.gpu_layout for job in found] == [{"n1": (1,)}, None]
    await jobs.look(afresh=True)
    assert [name for name in rest.asked if name.startswith("layout")] == ["layout 1"]
    rest.change("1", nodes="n2", restarts=1)
    await jobs.look(afresh=True)
    assert [name for name in rest.asked if name.startswith("layout")] == ["layout 1", "layout 1"]


@pytest.mark.parametrize("running", [known._MOST_LAYOUTS, known._MOST_LAYOUTS + 10])
async def test_no_more_layouts_are_asked_for_in_one_look_than_so_many(running: int) -> None:
    rest = Rest(plain(*range(1, running + 1), state="RUNNING"))
    for name in rest.named:
        rest.change(name, gres_detail=("gpu:1(IDX:0)",), nodes="n1")
    await looking(rest).look(afresh=True)
    assert sum(name.startswith("layout") for name in rest.asked) == known._MOST_LAYOUTS
