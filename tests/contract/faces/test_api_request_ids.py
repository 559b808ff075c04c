"""A request_id over every face: the same question is the same everywhere, another one is refused everywhere."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from tests.contract.faces.test_api_cases import ROUTE_OF, ask_connect, ask_grpc, ask_rest
from tests.fakes.callers.identity import by_tokens
from tests.fakes.cluster import make_node
from tests.fakes.engine import running_engine
from tests.fakes.servers.faces import Faces, faces

from placewise.v1.cluster_pb2 import ReportJobEventsResponse
from placewise_core.basics.clock import ManualClock
from placewise_service.api.calls.rpcs import RPCS
from placewise_service.api.identity.auth import AccessScope, Authenticator
from placewise_service.api.identity.token_changes import create_token
from placewise_service.state.reference.memory import MemoryStore

FACES = {"grpc": ask_grpc, "rest": ask_rest, "connect": ask_connect}
JOB = {"id": "a", "groups": [{"count": 1, "demand": {"gpus": 1, "cpuCores": 0.1, "extended": {}}}]}
QUESTIONS = {
    "Place": {"cluster": "prod", "requestId": "q", "jobs": [JOB], "reserveTtl": "5s"},
    "Partition": {"cluster": "prod", "requestId": "q", "task": {"id": "t", "parallelScale": 10}},
    "AdmitOrWait": {"cluster": "prod", "requestId": "q", "queue": "x", "jobs": [JOB]},
}
OTHERS = {
    "Place": {"jobs": [JOB | {"id": "b"}]},
    "Partition": {"task": {"id": "t", "parallelScale": 11}},
    "AdmitOrWait": {"place": {}},
}


@asynccontextmanager
async def prod(authenticator: Authenticator | None = None) -> AsyncIterator[tuple[Faces, MemoryStore, ManualClock]]:
    clock = ManualClock(1_000_000.0)
    store = MemoryStore(clock)
    async with running_engine(0, store=store, clock=clock) as engine:
        await engine.report_nodes("prod", [make_node("n0", 1)], full=True)
        async with faces(engine, None, authenticator, clock) as running:  # type: ignore[arg-type]
            yield running, store, clock


@pytest.mark.parametrize("rpc", QUESTIONS)
@pytest.mark.parametrize("first", FACES)
async def test_a_repeat_by_any_face_is_a_repeat_and_another_question_by_any_is_refused(rpc: str, first: str) -> None:
    question = QUESTIONS[rpc]
    async with prod() as (running, _, _):
        answer = await FACES[first](running, {"rpc": rpc, "request": question})
        for ask in FACES.values():
            again = await ask(running, {"rpc": rpc, "request": question})
            assert again["meta"]["repeated"]
            assert again["meta"]["decisionId"] == answer["meta"]["decisionId"]
            refused = await ask(running, {"rpc": rpc, "request": question | OTHERS[rpc]})
            assert (refused["reason"], refused["metadata"]) == ("ALREADY_EXISTS", {"field": "request_id"})


async def status_of(running: Faces, face: str, rpc: str, token: str) -> int | str:
    """The HTTP status, or gRPC's code, of the rpc's question by the caller with this token."""
    question = QUESTIONS[rpc]
    if face == "grpc":
        message = json_format.ParseDict(question, RPCS[rpc].request()).SerializeToString()
        call = running.channel.unary_unary(RPCS[rpc].path)
        return (await call(message, metadata=(("authorization", f"Bearer {token}"),)).code()).name
    path = RPCS[rpc].path if face == "connect" else ROUTE_OF[rpc].path.format(cluster="prod")
    return (await running.http.post(path, json=question, headers={"authorization": f"Bearer {token}"})).status_code


@pytest.mark.parametrize("rpc", QUESTIONS)
@pytest.mark.parametrize("first", FACES)
async def test_the_same_message_by_another_caller_is_refused_by_every_face(
    rpc: str, first: str, tmp_path: Path
) -> None:
    alice, bob = (create_token(tmp_path / "t", name, [AccessScope.DECIDE]) for name in ("alice", "bob"))
    async with prod(by_tokens(tmp_path / "t")) as (running, _, _):
        assert await status_of(running, first, rpc, alice) in (200, "OK")
        refused = {face: await status_of(running, face, rpc, bob) for face in FACES}
        assert refused == {"grpc": "ALREADY_EXISTS", "rest": 409, "connect": 409}
        repeated = {face: await status_of(running, face, rpc, alice) for face in FACES}
        assert repeated == {"grpc": "OK", "rest": 200, "connect": 200}


async def test_json_may_spell_the_question_otherwise() -> None:
    spelt = {
        "jobs": [{"groups": [{"demand": {"cpu_cores": "0.1", "gpus": 1.0}, "count": 1, "max_per_node": 0}], "id": "a"}],
        "reserve_ttl": "5.000s",
        "request_id": "q",
        "dry_run": False,
        "seed": None,
    }
    async with prod() as (running, _, _):
        await ask_grpc(running, {"rpc": "Place", "request": QUESTIONS["Place"]})
        headers = {"content-type": "application/json"}
        response = await running.http.post("/v1/clusters/prod/jobs:place", content=json.dumps(spelt), headers=headers)
        assert response.json()["meta"]["repeated"]


async def test_the_status_of_each_face() -> None:
    async with prod() as (running, _, _):
        await ask_grpc(running, {"rpc": "Place", "request": QUESTIONS["Place"]})
        body = {key: value for key, value in QUESTIONS["Place"].items() if key != "cluster"} | OTHERS["Place"]
        by_rest = await running.http.post("/v1/clusters/prod/jobs:place", json=body)
        assert by_rest.status_code == 409
        assert "retry-after" not in by_rest.headers
        by_connect = await running.http.post("/placewise.v1.DecisionService/Place", json=body | {"cluster": "prod"})
        assert (by_connect.status_code, by_connect.json()["code"]) == (409, "already_exists")


async def test_an_admission_that_places_is_repeated_as_a_whole() -> None:
    inner = {"cluster": "prod", "queue": "x", "jobs": [JOB], "policy": "fifo", "place": {"requestId": "q"}}
    async with prod() as (running, _, _):
        first = await ask_rest(running, {"rpc": "AdmitOrWait", "request": inner})
        again = await ask_connect(running, {"rpc": "AdmitOrWait", "request": inner})
        assert again["placed"]["meta"]["repeated"]
        assert again["placed"]["decisions"] == first["placed"]["decisions"]
        more = inner | {"jobs": [JOB, JOB | {"id": "b"}]}
        assert (await ask_grpc(running, {"rpc": "AdmitOrWait", "request": more}))["reason"] == "ALREADY_EXISTS"


@pytest.mark.parametrize("ask", FACES.values(), ids=FACES)
async def test_who_is_admitted_only_by_a_repeat_is_placed_too(ask: Any) -> None:
    """With an id of the placing alone admission is decided again, and may admit more jobs."""
    place = {"requestId": "q"}
    question = {"cluster": "prod", "queue": "x", "jobs": [JOB, JOB | {"id": "b"}], "policy": "fifo", "place": place}
    async with prod() as (running, _, _):
        first = await ask(running, {"rpc": "AdmitOrWait", "request": question})
        assert [each["jobId"] for each in first["placed"]["decisions"]] == ["a"]
        await running.engine.report_nodes("prod", [make_node("n1", 1)], full=False)
        async with asyncio.timeout(10):
            while len((await running.engine.get_cluster("prod")).view.nodes.records) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        again = await ask(running, {"rpc": "AdmitOrWait", "request": question})
        assert [each["verdict"] for each in again["admissions"]] == ["ADMIT", "ADMIT"]
        a, b = again["placed"]["decisions"]
        assert a == first["placed"]["decisions"][0]
        assert (b["jobId"], b["outcome"], b["assignments"][0]["node"]) == ("b", "PLACED", "n1")
        third = await ask(running, {"rpc": "AdmitOrWait", "request": question})
        assert third["placed"]["meta"]["repeated"]
        assert third["placed"]["decisions"] == [a, b]


@pytest.mark.parametrize("ask", FACES.values(), ids=FACES)
async def test_a_late_start_that_overcommits_is_named_in_the_answer(ask: Any) -> None:
    async with prod() as (running, store, clock):
        await ask(running, {"rpc": "Place", "request": QUESTIONS["Place"]})
        clock.advance(6.0)
        await store.expire("prod")
        other = {"cluster": "prod", "jobs": [JOB | {"id": "b"}]}
        for _ in range(200):  # until the view has heard of the expiry
            if (await ask(running, {"rpc": "Place", "request": other}))["decisions"][0]["outcome"] == "PLACED":
                break
            await asyncio.sleep(0.02)
        started = {"cluster": "prod", "events": [{"jobId": "a", "kind": "STARTED"}]}
        printed = await ask(running, {"rpc": "ReportJobEvents", "request": started})
        (problem,) = json_format.ParseDict(printed, ReportJobEventsResponse()).problems
        assert (problem.job_id, problem.node, list(problem.gpu_indices), list(problem.held_by)) == (
            "a",
            "n0",
            [0],
            ["b"],
        )
        assert problem.message == "job 'a' runs on GPUs 0 of 'n0', which b hold (GPU_TAKEN): stop one of them"


@pytest.mark.parametrize("ask", FACES.values(), ids=FACES)
async def test_a_start_whose_decision_is_not_known_is_named_in_the_answer(ask: Any) -> None:
    async with prod() as (running, _, _):
        started = {"cluster": "prod", "events": [{"jobId": "a", "kind": "STARTED"}]}
        printed = await ask(running, {"rpc": "ReportJobEvents", "request": started})
        (problem,) = json_format.ParseDict(printed, ReportJobEventsResponse()).problems
        assert (problem.job_id, problem.node) == ("a", "")
        assert "no decision about it is known (DECISION_UNKNOWN)" in problem.message
