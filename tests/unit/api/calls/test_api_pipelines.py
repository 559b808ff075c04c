"""Pipelines through both faces: placed without a task group, their subtasks by the policies of NODE scope alone."""

from typing import Any

import pytest
from google.protobuf import json_format
from tests.contract.faces.test_api_limits import FACES, by_grpc, report
from tests.fakes.engine import running_engine
from tests.fakes.servers.faces import Faces, faces

from placewise.v1.decision_pb2 import Outcome, PlaceRequest, PlaceResponse
from placewise.v1.job_pb2 import Job, Subtask
from placewise_service.api.calls.rpcs import RPCS

NODE_POLICIES = ("ect", "iawp", "iawp-paper", "pats", "random")


def pipelines(count: int, **more: Any) -> PlaceRequest:
    jobs = [Job(id=f"p{i}", subtasks=[Subtask(id="decode", kind="decode")]) for i in range(count)]
    return PlaceRequest(cluster="prod", jobs=jobs, **more)


async def answer_by_grpc(running: Faces, request: PlaceRequest) -> PlaceResponse:
    call = running.channel.unary_unary(RPCS["Place"].path, PlaceRequest.SerializeToString, PlaceResponse.FromString)
    answer: PlaceResponse = await call(request)
    return answer


async def answer_by_rest(running: Faces, request: PlaceRequest) -> PlaceResponse:
    body = json_format.MessageToDict(request)
    response = await running.http.post(f"/v1/clusters/{body.pop('cluster')}/jobs:place", json=body)
    assert response.status_code == 200, response.text
    return json_format.ParseDict(response.json(), PlaceResponse())


@pytest.mark.parametrize("answer", [answer_by_grpc, answer_by_rest])
@pytest.mark.parametrize("policy", ["", "consolidate", "ect", "ldwp", "pats"])
async def test_a_pipeline_without_a_task_group_gets_a_node(answer: Any, policy: str) -> None:
    async with running_engine(nodes=0) as engine, faces(engine) as running:
        assert await by_grpc(running, "ReportNodes", report("n0", "n1")) == ""
        placed = await answer(running, pipelines(2, policy=policy))
        assert [Outcome.Name(decision.outcome) for decision in placed.decisions] == ["PLACED", "PLACED"]
        for decision in placed.decisions:
            (assignment,) = decision.assignments
            assert assignment.node in ("n0", "n1")
            assert not assignment.gpu_indices


@FACES
@pytest.mark.parametrize("policy", ["consolidate", "ldwp", "ldwp-paper", "harmony", "fifo", "heat-island", "nonsense"])
async def test_node_scope_refuses_policies_that_choose_no_unit(ask: Any, policy: str) -> None:
    async with running_engine(nodes=0) as engine, faces(engine) as running:
        assert await ask(running, "ReportNodes", report("n0")) == ""
        refused = await ask(running, "Place", pipelines(1, scope=PlaceRequest.NODE, node_id="n0", policy=policy))
        assert refused.startswith(f"policy: no policy '{policy}'")
        assert refused.endswith(", ".join(NODE_POLICIES)) or "did you mean" in refused


@FACES
@pytest.mark.parametrize("policy", ["", *NODE_POLICIES])
async def test_node_scope_takes_each_policy_that_chooses_units(ask: Any, policy: str) -> None:
    async with running_engine(nodes=0) as engine, faces(engine) as running:
        assert await ask(running, "ReportNodes", report("n0")) == ""
        assert await ask(running, "Place", pipelines(1, scope=PlaceRequest.NODE, node_id="n0", policy=policy)) == ""
