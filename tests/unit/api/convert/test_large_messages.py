"""Large Place requests and answers are converted beside the loop, with the same result as on it."""

import threading
from typing import Any

import pytest
from tests.fakes.cluster import make_job, make_node
from tests.fakes.place_cases import view_of
from tests.fakes.servers.faces import FakeEngine
from tests.fakes.slices import every_round

from placewise.v1 import decision_pb2, job_pb2
from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import Assignment
from placewise_core.domain.decision import DecisionMeta, JobDecision, Outcome, PlaceDecision
from placewise_core.domain.job import JobId, NodeId, Role
from placewise_core.domain.validate import Limits
from placewise_service.api.calls import rpcs
from placewise_service.api.convert import convert_in, convert_out
from placewise_service.api.convert.json_codec import _render, _render_in_pieces
from placewise_service.api.identity.auth import ANYONE
from placewise_service.aside import ASIDE_BYTES
from placewise_service.engine.pending import Pending

TASKS = 1024


def asked(jobs: int) -> decision_pb2.PlaceRequest:
    groups = [job_pb2.TaskGroup(role=job_pb2.TaskGroup.WORKER, count=2, gpu_model="V" * 200)]
    return decision_pb2.PlaceRequest(
        cluster="prod-a", jobs=[job_pb2.Job(id=f"job-{i}", groups=groups) for i in range(jobs)]
    )


def placed(tasks: int) -> PlaceDecision:
    demand = make_job("j").groups[0].demand
    assignments = [Assignment(f"worker-{i}", Role.WORKER, NodeId(f"n„{i}"), (i % 8,), demand) for i in range(tasks)]
    decision = JobDecision(JobId("j"), Outcome.PLACED, tuple(assignments), reservation_id="d.0", expire_time_s=50.5)
    return PlaceDecision((decision,), DecisionMeta("d", "consolidate"))


class Wide(FakeEngine):
    """Answers with so many tasks."""

    tasks = 1

    async def place(self, command: Any, deadline_s: float = 0.0) -> Pending[PlaceDecision]:
        self.placed.append(command)
        return Pending(placed(self.tasks))


@pytest.mark.parametrize(("jobs", "tasks", "is_aside"), [(1, 8, False), (256, TASKS, True)])
async def test_what_is_large_is_converted_in_another_thread_while_others_have_turns(
    monkeypatch: pytest.MonkeyPatch, jobs: int, tasks: int, is_aside: bool
) -> None:
    threads: list[int] = []

    def noting(convert: Any) -> Any:
        def act(*args: Any) -> Any:
            threads.append(threading.get_ident())
            return convert(*args)

        return act

    monkeypatch.setattr(convert_in, "place_command", noting(convert_in.place_command))
    monkeypatch.setattr(convert_out, "place_response", noting(convert_out.place_response))
    engine = Wide(views={"prod-a": view_of([make_node("n0")])})
    engine.tasks = tasks
    context = rpcs.CallContext(engine, ManualClock(), Limits())
    request = asked(jobs)
    assert (request.ByteSize() > ASIDE_BYTES) is is_aside
    async with every_round(lambda _: None) as rounds:
        answer = await rpcs.PLACE.handle(context, request, ANYONE, float("inf"))
    assert len(threads) == 2, "written more than once"
    assert all((thread != threading.get_ident()) is is_aside for thread in threads)
    assert bool(rounds) is is_aside
    assert [job.id for job in engine.placed[0].jobs] == [f"job-{i}" for i in range(jobs)]
    assert answer == convert_out.place_response(placed(tasks))


@pytest.mark.parametrize("tasks", [1, TASKS])
def test_json_in_pieces_is_the_same_json(tasks: int) -> None:
    answer = convert_out.place_response(placed(tasks), 'a "request"')
    assert _render_in_pieces(answer) == _render(answer)
