"""Both clients, over gRPC and over HTTP, against a real server: one table of cases, so that they cannot differ."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

import grpc
import pytest
from tests.fakes.servers.oracle import OracleServer, SmallService
from tests.fakes.servers.oracle_http import OracleHttpServer

from placewise.v1 import cluster_pb2, decision_pb2
from placewise.v1.job_pb2 import Job, Resources, TaskGroup
from placewise_client import (
    AsyncClient,
    Client,
    DeadlineExceededError,
    OverloadedError,
    PlacewiseError,
    RetryPolicy,
    StateUnavailableError,
    Target,
    TargetError,
    decide_or,
    decide_or_async,
)
from placewise_client.errors import ERRORS, error_from_stream
from placewise_client.results import admitted, blocker_text, decisions_by_job, gpus_by_node, is_placed, nodes_of
from placewise_client.rpcs import Rpc, Rpcs

NODES = cluster_pb2.ReportNodesRequest(
    cluster="c", nodes=[cluster_pb2.Node(id=f"n{i}", capacity=Resources(cpu_cores=8, gpus=4)) for i in range(4)]
)


def gang(count: int = 2, gpus: int = 2) -> Job:
    group = TaskGroup(role=TaskGroup.WORKER, count=count, demand=Resources(cpu_cores=1, gpus=gpus), max_per_node=1)
    return Job(id="j", groups=[group])


def question(**fields: Any) -> decision_pb2.PlaceRequest:
    return decision_pb2.PlaceRequest(cluster="c", jobs=[gang()], **fields)


class Face(Protocol):
    """A client of either kind, called in one way."""

    sleeps: list[float]

    async def call(self, name: str, request: Any, **options: Any) -> Any: ...
    async def stream(self, requests: list[decision_pb2.PlaceRequest]) -> list[decision_pb2.PlaceResponse]: ...


Server = OracleServer | OracleHttpServer


class SyncFace:
    server = OracleServer

    def __init__(self, target: Target | str) -> None:
        self.sleeps: list[float] = []
        self.client = Client(target, rng=random.Random(1), sleep=self.sleeps.append)

    async def call(self, name: str, request: Any, **options: Any) -> Any:
        return await asyncio.to_thread(getattr(self.client, name), request, **options)

    async def stream(self, requests: list[decision_pb2.PlaceRequest]) -> list[decision_pb2.PlaceResponse]:
        return await asyncio.to_thread(lambda: list(self.client.stream_place(requests)))

    async def close(self) -> None:
        self.client.close()


class AsyncFace:
    server: type[Server] = OracleServer

    def __init__(self, target: Target | str) -> None:
        self.sleeps: list[float] = []
        self.client = AsyncClient(target, rng=random.Random(1), sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)

    async def call(self, name: str, request: Any, **options: Any) -> Any:
        return await getattr(self.client, name)(request, **options)

    async def stream(self, requests: list[decision_pb2.PlaceRequest]) -> list[decision_pb2.PlaceResponse]:
        return [response async for response in self.client.stream_place(requests)]

    async def close(self) -> None:
        await self.client.close()


class HttpFace(AsyncFace):
    server = OracleHttpServer


Make = type[SyncFace] | type[AsyncFace]
FACES: dict[str, Make] = {"sync": SyncFace, "asyncio": AsyncFace, "http": HttpFace}


@pytest.fixture(params=FACES.values(), ids=FACES)
def make(request: pytest.FixtureRequest) -> Make:
    """The kind of client that a test is about."""
    kind: Make = request.param
    return kind


@pytest.fixture
async def server(make: Make) -> AsyncIterator[Server]:
    server = await make.server(SmallService()).start()
    server.oracle.report_nodes(NODES)
    yield server
    await server.stop()


@pytest.fixture
async def face(make: Make, server: Server) -> AsyncIterator[Face]:
    face = make(server.target)
    yield face
    await face.close()


async def test_an_answer_is_typed_and_readable(face: Face) -> None:
    response = await face.call("place", question(request_id="r"))
    decision = decisions_by_job(response)["j"]
    assert is_placed(decision)
    assert nodes_of(decision) == ["n3", "n2"]
    assert gpus_by_node(decision.assignments) == {"n3": (0, 1), "n2": (0, 1)}


async def test_a_new_client_does_not_wait_because_another_has_failed(face: Face, server: Server) -> None:
    await server.stop()
    with pytest.raises(PlacewiseError):
        await face.call("place", question(request_id="lost"), timeout_s=0.2)
    await server.start()
    another = type(face)(server.target)  # type: ignore[call-arg]
    try:
        assert is_placed((await another.call("place", question(request_id="r"))).decisions[0])
        assert not another.sleeps, "it was turned away at its first try"
    finally:
        await another.close()  # type: ignore[attr-defined]


async def test_every_rpc_of_the_table_exists_on_both_clients() -> None:
    names = {name for name, value in vars(Rpcs).items() if isinstance(value, Rpc)}
    services = {
        file.services_by_name[name]
        for file, name in (
            (decision_pb2.DESCRIPTOR, "DecisionService"),
            (cluster_pb2.DESCRIPTOR, "ClusterService"),
        )
    }
    wanted = {method.name for service in services for method in service.methods} - {"StreamPlace"}
    assert wanted <= {getattr(Rpcs, name).path.rpartition("/")[2] for name in names}
    for name in names:
        assert getattr(Rpcs, name).request.DESCRIPTOR.full_name.startswith("placewise.v1.")


async def test_waiting_has_reasons_in_words(face: Face) -> None:
    response = await face.call("place", decision_pb2.PlaceRequest(cluster="c", jobs=[gang(5, 4)]))
    decision = response.decisions[0]
    assert not is_placed(decision)
    assert blocker_text(decision.blockers) == "insufficient gpu on 4 nodes"


async def test_admissions_come_in_rank_order(face: Face, server: Server) -> None:
    server.oracle.waits.add("b")
    jobs = [Job(id=name, groups=gang().groups) for name in "abc"]
    response = await face.call("admit_or_wait", decision_pb2.AdmitOrWaitRequest(cluster="c", jobs=jobs))
    assert [admission.job_id for admission in admitted(response)] == ["a", "c"]


@pytest.mark.parametrize("kind", ERRORS)
async def test_errors_come_back_as_what_they_were(face: Face, server: Server, kind: type[PlacewiseError]) -> None:
    server.oracle.fail.append(kind("said so", reason="BECAUSE", metadata={"job": "7"}, retry_delay_s=1.5))
    with pytest.raises(kind) as caught:
        await face.call("place", question(), retry=None)
    error = caught.value
    assert (error.message, error.reason, error.metadata) == ("said so", "BECAUSE", {"job": "7"})
    assert error.retry_delay_s == 1.5


async def test_what_may_pass_is_tried_again(face: Face, server: Server) -> None:
    server.oracle.fail += [StateUnavailableError("away"), OverloadedError("busy", retry_delay_s=0.5)]
    response = await face.call("place", question())
    assert is_placed(response.decisions[0])
    assert len(server.oracle.calls) == 3
    assert face.sleeps[0] < 0.05
    assert 0.5 <= face.sleeps[1] < 0.6


async def test_a_delay_beyond_the_deadline_is_not_waited(face: Face, server: Server) -> None:
    server.oracle.fail.append(OverloadedError("busy", retry_delay_s=60.0))
    with pytest.raises(OverloadedError):
        await face.call("place", question(), timeout_s=5.0)
    assert face.sleeps == []


async def test_the_deadline_spans_all_tries(face: Face, server: Server) -> None:
    server.oracle.blocked = asyncio.Event()
    with pytest.raises(DeadlineExceededError):
        await face.call("place", question(), timeout_s=0.1, retry=RetryPolicy(attempts=100))
    server.oracle.blocked.set()


@pytest.mark.parametrize("request_id", ["named", ""])
async def test_a_restart_of_the_only_server_is_outlasted(make: Make, server: Server, request_id: str) -> None:
    """It is away for more than four tries. A refused connection has carried nothing out, so no id is needed."""
    client, away = make(server.target).client, 12

    async def ask() -> Any:
        if isinstance(client, AsyncClient):
            return await client.place(question(request_id=request_id))
        return await asyncio.to_thread(client.place, question(request_id=request_id))

    slept: list[float] = []
    waiting = asyncio.Event()

    def note(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) >= away:
            loop.call_soon_threadsafe(waiting.set)

    loop = asyncio.get_running_loop()
    _sleep_shortly(client, note)
    await server.stop()
    asked = asyncio.create_task(ask())
    await asyncio.wait([asked, asyncio.ensure_future(waiting.wait())], return_when=asyncio.FIRST_COMPLETED)
    assert not asked.done()
    await server.start()
    assert is_placed((await asked).decisions[0])
    closing: Awaitable[None] | None = client.close()
    if closing is not None:
        await closing


def _sleep_shortly(client: Client | AsyncClient, note: Callable[[float], None]) -> None:
    """The client's delays are noted, and take a hundredth of a second."""

    def block(seconds: float) -> None:
        note(seconds)
        time.sleep(0.01)

    async def wait(seconds: float) -> None:
        note(seconds)
        await asyncio.sleep(0.01)

    client._sleep = wait if isinstance(client, AsyncClient) else block  # type: ignore[assignment]


async def test_a_client_that_fails_fast_does_so_in_every_call(server: Server, make: Make) -> None:
    client = (Client if make is SyncFace else AsyncClient)(server.target, retry=None)
    server.oracle.fail.append(StateUnavailableError("away"))
    answered = (
        client.place(question()) if isinstance(client, AsyncClient) else asyncio.to_thread(client.place, question())
    )
    with pytest.raises(StateUnavailableError):
        await answered
    assert len(server.oracle.calls) == 1
    closing: Awaitable[None] | None = client.close()
    if closing is not None:
        await closing


async def test_a_stream_answers_in_order_and_survives_a_bad_question(face: Face) -> None:
    if isinstance(face, HttpFace):
        with pytest.raises(TargetError, match="stream_place needs the service's gRPC address"):
            await face.stream([question()])
        return
    requests = [
        question(request_id="1"),
        decision_pb2.PlaceRequest(cluster="c", request_id="2"),
        question(request_id="3"),
    ]
    responses = await face.stream(requests)
    assert [response.request_id for response in responses] == ["1", "2", "3"]
    error = responses[1].error
    typed = error_from_stream(error.code, error.reason, error.message, None)
    assert (type(typed).__name__, typed.reason) == ("InvalidRequestError", "NO_JOBS")


async def test_a_token_is_sent_with_every_call(server: Server, make: Make) -> None:
    face = make(Target((server.target,), token="secret"))
    await face.call("place", question())
    assert server.oracle.metadata[-1]["authorization"] == "Bearer secret"
    await face.close()


async def test_calls_go_round_and_past_a_dead_replica(server: Server, make: Make) -> None:
    other = await make.server(SmallService()).start()
    other.oracle.report_nodes(NODES)
    face = make(f"{server.target},{other.target}")
    # A connection that is still being made is skipped, so the first calls may all go to one of them.
    while not (server.oracle.calls and other.oracle.calls):
        await face.call("place", question())
    before = len(server.oracle.calls)
    for _ in range(10):
        await face.call("place", question())
    assert len(server.oracle.calls) - before == 5
    await other.stop()
    for _ in range(5):
        await face.call("place", question())
    await face.close()


async def test_decision_or_fallback(server: Server, make: Make) -> None:
    client = make(server.target).client

    async def ask() -> Any:
        if isinstance(client, AsyncClient):
            return await decide_or_async(client.place, question(), lambda: "own choice")
        return await asyncio.to_thread(decide_or, client.place, question(), lambda: "own choice")

    answered = await ask()
    assert not answered.is_fallback
    server.oracle.blocked = asyncio.Event()
    late = await ask()
    assert (late.value, late.is_fallback) == ("own choice", True)
    assert isinstance(late.error, DeadlineExceededError)
    server.oracle.blocked.set()
    server.oracle.blocked = None
    server.oracle.fail_always = StateUnavailableError("away")  # the late question, still on its way, may meet it first
    assert (await ask()).value == "own choice"
    closing: Awaitable[None] | None = client.close()
    if closing is not None:
        await closing


@pytest.mark.parametrize("target", ["127.0.0.1:1", "http://127.0.0.1:1", "https://127.0.0.1:1"])
async def test_a_server_that_is_not_there_is_unavailable(target: str) -> None:
    client = AsyncClient(target)
    with pytest.raises(StateUnavailableError):
        await client.place(question(), retry=None)
    await client.close()


async def test_an_error_without_details_is_still_typed() -> None:
    class Bare:
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.UNIMPLEMENTED

        def details(self) -> str:
            return "no such method"

        def trailing_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
            return (("grpc-status-details-bin", b"\xff\xff"),)

    from placewise_client.errors import InternalError, error_from_call

    error = error_from_call(Bare())
    assert isinstance(error, InternalError)
    assert error.message == "no such method"
