"""GPUs that the service counts on running jobs: as first reported, and as an earlier life has reported them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from placewise.v1.cluster_pb2 import Assignment
from placewise.v1.job_pb2 import Job
from placewise_client.adapter.native import NativeJob, Stage
from placewise_kubernetes.gang.devices.reported import GpusByNode, ReportedGpus


def job(
    *indices: int, stage: Stage = Stage.RUNNING, is_exact: bool = True, key: str = "j", can_move: bool = False
) -> NativeJob:
    task = Assignment(node="n1", gpu_indices=indices)
    return NativeJob(key, Job(id=key), stage, placement=(task,), are_gpus_exact=is_exact, can_move=can_move)


async def reported(known: GpusByNode | None = None) -> ReportedGpus:
    """`known`: of the job in the service."""
    found = ReportedGpus()

    async def ask(_: int) -> Mapping[str, GpusByNode]:
        return {"j": known} if known is not None else {}

    found.ask = ask
    assert await found.learn(4)
    return found


async def test_the_first_report_counts() -> None:
    found = await reported()
    assert found.gpus("j", "n1") is None
    assert found.note(job(1, 2))
    assert not found.note(job(3))
    assert (found.gpus("j", "n1"), found.gpus("j", "n2")) == ({1, 2}, set())


async def test_indices_that_were_guessed_count_for_none() -> None:
    found = await reported()
    found.note(job(1, 2, is_exact=False))
    found.note(job(1, 2))
    assert found.gpus("j", "n1") == set()


async def test_a_job_that_waits_again_is_reported_again() -> None:
    found = await reported({"n1": frozenset({1})})
    found.note(job(1))
    found.note(job(stage=Stage.WAITING))
    assert found.gpus("j", "n1") is None
    found.note(job(2))
    assert found.gpus("j", "n1") == {2}


async def test_what_an_earlier_life_has_reported_has_to_agree() -> None:
    found = await reported({"n1": frozenset({1})})
    found.note(job(1, 2))
    assert found.gpus("j", "n1") == {1}


async def test_before_the_service_has_answered_nothing_counts() -> None:
    found, answers = ReportedGpus(), [None, {"j": {"n1": frozenset({1})}}]

    async def ask(_: int) -> Mapping[str, GpusByNode] | None:
        return answers.pop(0)

    found.ask = ask
    found.note(job(1))
    assert not await found.learn(4)
    assert found.gpus("j", "n1") == set()
    assert await found.learn(4)
    assert found.gpus("j", "n1") == {1}
    assert not await found.learn(4)


async def test_only_the_first_question_is_waited_for() -> None:
    notified: list[str] = []
    found, asked, answers = ReportedGpus(lambda: notified.append("answered")), [], asyncio.Event()

    async def ask(nodes: int) -> Mapping[str, GpusByNode] | None:
        asked.append(nodes)
        if len(asked) == 1:
            return None
        await answers.wait()
        return {}

    found.ask = ask
    for _ in range(3):
        assert not await asyncio.wait_for(found.learn(4), 2.0)
    assert (asked, notified) == ([4, 4], [])
    answers.set()
    assert await found.learn(4)
    assert (asked, notified) == ([4, 4], ["answered"])


async def test_a_job_that_is_over_or_gone_is_forgotten() -> None:
    found = await reported()
    for key in ("j", "k"):
        found.note(job(1, key=key))
    assert found.note(job(stage=Stage.ENDED))
    assert not found.note(job(stage=Stage.ENDED))
    found.keep(())
    assert (found.gpus("j", "n1"), found.gpus("k", "n1")) == (None, None)


async def test_a_job_that_can_move_counts_with_the_gpus_that_it_has_now() -> None:
    found = await reported({"n1": frozenset({1})})
    found.note(job(1, can_move=True))
    assert found.note(job(2, 3, can_move=True))
    assert found.gpus("j", "n1") == {2, 3}


async def test_of_guessed_gpus_of_a_job_that_can_move_those_count_that_were_reported() -> None:
    found = await reported()
    found.note(job(1, 2, can_move=True))
    found.note(job(2, 3, can_move=True, is_exact=False))
    assert found.gpus("j", "n1") == {2}
    found.note(job(2, 3, can_move=True))
    assert found.gpus("j", "n1") == {2, 3}
