"""Gangs of many queues: the decider asks once for each queue, and looks as often at each gang as if there were one."""

from __future__ import annotations

from typing import Any, ClassVar, cast

from placewise.v1.decision_pb2 import Admission, AdmitOrWaitRequest, AdmitOrWaitResponse
from placewise.v1.job_pb2 import Job
from placewise_client.adapter.decider import Decider
from placewise_client.adapter.native import AdapterSettings, NativeJob, Stage, Waiting
from placewise_client.aio import AsyncClient


class CountedJob(NativeJob):
    """Counts how often it is looked into."""

    looks: ClassVar[list[str]] = []

    def __getattribute__(self, name: str) -> Any:
        if name == "job":
            CountedJob.looks.append(name)
        return super().__getattribute__(name)


class Service:
    """It lets all wait."""

    def __init__(self) -> None:
        self.asked: dict[str, list[str]] = {}

    async def admit_or_wait(self, request: AdmitOrWaitRequest, **_: Any) -> AdmitOrWaitResponse:
        self.asked.setdefault(request.queue, []).extend(job.id for job in request.jobs)
        admissions = [Admission(job_id=job.id, verdict=Admission.WAIT) for job in request.jobs]
        return AdmitOrWaitResponse(admissions=admissions)


async def decided(queues: int) -> tuple[Service, int]:
    """Two gangs in each queue; how often they were looked into."""
    service = Service()
    decider = Decider(cast(AsyncClient, service), AdapterSettings("c"))
    jobs = [CountedJob(f"g{i}", Job(id=f"g{i}", queue=f"q{i % queues}"), Stage.WAITING) for i in range(2 * queues)]
    CountedJob.looks.clear()
    verdicts = await decider.decide(jobs)
    assert all(isinstance(verdicts[f"g{i}"], Waiting) for i in range(2 * queues))
    return service, len(CountedJob.looks)


async def test_each_queue_is_asked_about_once_with_its_gangs_in_their_order() -> None:
    service, _ = await decided(3)
    assert list(service.asked.items()) == [("q0", ["g0", "g3"]), ("q1", ["g1", "g4"]), ("q2", ["g2", "g5"])]


async def test_ten_times_the_queues_and_gangs_are_ten_times_the_work() -> None:
    looks = [(await decided(queues))[1] for queues in (4, 40)]
    assert looks[1] == 10 * looks[0]
