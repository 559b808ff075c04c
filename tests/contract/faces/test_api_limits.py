"""The limits of a request and of a cluster, through both faces: a request over them is refused by the field's name."""

from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from tests.fakes.engine import running_engine
from tests.fakes.servers.faces import Faces, faces

from placewise.v1.cluster_pb2 import Node, ReportNodesRequest
from placewise.v1.decision_pb2 import PlaceRequest
from placewise.v1.job_pb2 import Job, Resources, TaskGroup
from placewise_core.domain.errors import DeadlineExceededError
from placewise_service.api.calls.rpcs import RPCS
from placewise_service.api.identity.auth import NOBODY
from placewise_service.settings import LimitSettings


def node(name: str) -> Node:
    return Node(id=name, capacity=Resources(cpu_cores=8, gpus=1, memory_gib=8))


def report(*names: str, full: bool = False) -> ReportNodesRequest:
    return ReportNodesRequest(cluster="prod", nodes=[node(name) for name in names], full=full)


def place(count: int) -> PlaceRequest:
    group = TaskGroup(count=1, demand=Resources(cpu_cores=0.01))
    jobs = [Job(id=f"j{i}", groups=[group]) for i in range(count)]
    return PlaceRequest(cluster="prod", jobs=jobs, dry_run=True)


async def by_grpc(running: Faces, name: str, request: Any) -> str:
    """ "" or the message of the refusal."""
    rpc = RPCS[name]
    call = running.channel.unary_unary(rpc.path, lambda m: m.SerializeToString(), rpc.response.FromString)
    try:
        await call(request)
    except grpc.aio.AioRpcError as error:
        return (error.details() or "?") if error.code() is grpc.StatusCode.INVALID_ARGUMENT else f"not that: {error}"
    return ""


async def by_rest(running: Faces, name: str, request: Any) -> str:
    body = json_format.MessageToDict(request)
    cluster = body.pop("cluster")
    method, path = {"Place": ("POST", "jobs:place"), "ReportNodes": ("PUT", "nodes")}[name]
    response = await running.http.request(method, f"/v1/clusters/{cluster}/{path}", json=body)
    assert response.status_code in (200, 400)
    return "" if response.status_code == 200 else str(response.json()["detail"])


FACES = pytest.mark.parametrize("ask", [by_grpc, by_rest])


@FACES
async def test_256_jobs_are_answered_and_257_are_not(ask: Any) -> None:
    async with running_engine(nodes=0) as engine, faces(engine) as running:  # type: ignore[arg-type]
        assert await ask(running, "ReportNodes", report("n0")) == ""
        assert await ask(running, "Place", place(256)) == ""
        assert (await ask(running, "Place", place(257))).startswith("jobs: ")


@FACES
async def test_the_tasks_of_all_jobs_together_are_bounded(ask: Any) -> None:
    limits = LimitSettings(tasks_per_request=3)
    async with running_engine(nodes=0) as engine, faces(engine, limits) as running:  # type: ignore[arg-type]
        assert await ask(running, "ReportNodes", report("n0")) == ""
        assert await ask(running, "Place", place(3)) == ""
        assert (await ask(running, "Place", place(4))).startswith("jobs.groups: at most 3 are allowed")


@FACES
async def test_the_subtasks_of_all_jobs_together_are_bounded(ask: Any) -> None:
    limits = LimitSettings(tasks_per_request=3)

    def pipelines(subtasks: int) -> PlaceRequest:
        request = PlaceRequest(cluster="prod", scope=PlaceRequest.NODE, node_id="n0")
        for i in range(2):
            job = request.jobs.add(id=f"p{i}")
            for k in range(subtasks if i else 1):
                job.subtasks.add(id=f"s{k}", kind="k")
        return request

    async with running_engine(nodes=0) as engine, faces(engine, limits) as running:  # type: ignore[arg-type]
        assert await ask(running, "ReportNodes", report("n0")) == ""
        assert await ask(running, "Place", pipelines(2)) == ""
        assert (await ask(running, "Place", pipelines(3))).startswith("jobs.subtasks: at most 3 are allowed")


@FACES
async def test_a_cluster_grows_to_its_limit_and_no_further(ask: Any) -> None:
    limits = LimitSettings(nodes_per_cluster=4)
    async with running_engine(nodes=0) as engine, faces(engine, limits) as running:  # type: ignore[arg-type]
        assert "nodes: " in await ask(running, "ReportNodes", report(*"abcde"))
        assert await ask(running, "ReportNodes", report("a", "b", "c")) == ""
        assert "the cluster would have 5 nodes" in await ask(running, "ReportNodes", report("d", "e"))
        assert await ask(running, "ReportNodes", report("a", "d")) == "", "a node that is known counts once"
        assert await ask(running, "ReportNodes", report("v", "w", "x", "y", full=True)) == "", "all others go"
        assert (await engine.get_cluster("prod")).view.nodes.size == 4


@pytest.mark.parametrize("name", sorted(RPCS))
async def test_no_call_is_begun_after_its_deadline(name: str) -> None:
    async with running_engine() as engine, faces(engine) as running:  # type: ignore[arg-type]
        request = RPCS[name].request()
        with pytest.raises(DeadlineExceededError):
            await running.gateway.call(RPCS[name], request, NOBODY, running.gateway.clock.monotonic_s() - 0.001)
