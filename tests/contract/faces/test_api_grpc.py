"""The gRPC face: details of errors, overload, deadlines, streams, draining, health and reflection."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.fakes.cluster import make_node
from tests.fakes.servers.faces import SECRET, Faces, FakeEngine, faces

from placewise.v1.decision_pb2 import PlaceRequest, PlaceResponse
from placewise.v1.decision_pb2_grpc import DecisionServiceStub
from placewise.v1.job_pb2 import Job, Resources, TaskGroup
from placewise_service.settings import LimitSettings

PLACE = "/placewise.v1.DecisionService/Place"


async def engine_with_node() -> FakeEngine:
    engine = FakeEngine()
    await engine.report_nodes("prod", [make_node("n0")], full=True)
    return engine


def question(request_id: str = "", model: str = "", job_id: str = "j") -> PlaceRequest:
    group = TaskGroup(role=TaskGroup.WORKER, count=1, demand=Resources(gpus=1))
    return PlaceRequest(cluster="prod", request_id=request_id, jobs=[Job(id=job_id, model=model, groups=[group])])


def details(error: grpc.aio.AioRpcError) -> status_pb2.Status:
    return status_pb2.Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])


@pytest.mark.parametrize(
    ("model", "code", "retry_s"),
    [
        ("OVERLOADED", grpc.StatusCode.RESOURCE_EXHAUSTED, 0.1),
        ("STATE_UNAVAILABLE", grpc.StatusCode.UNAVAILABLE, 1.0),
        ("STALE_SNAPSHOT", grpc.StatusCode.ABORTED, 0.05),
        ("NOT_FOUND", grpc.StatusCode.NOT_FOUND, None),
        ("DEADLINE_EXCEEDED", grpc.StatusCode.DEADLINE_EXCEEDED, None),
    ],
)
async def test_an_error_carries_its_reason_and_when_to_ask_again(
    model: str, code: grpc.StatusCode, retry_s: float | None
) -> None:
    async with faces(await engine_with_node()) as running:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await DecisionServiceStub(running.channel).Place(question(model=model))
    status = details(caught.value)
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert caught.value.code() is code
    assert status.details[0].Unpack(info)
    assert info.reason == model
    assert len(status.details) == (1 if retry_s is None else 2)
    if retry_s is not None:
        assert status.details[1].Unpack(retry)
        assert retry.retry_delay.ToTimedelta().total_seconds() == pytest.approx(retry_s)


async def test_an_unforeseen_error_leaks_nothing() -> None:
    async with faces(await engine_with_node()) as running:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await DecisionServiceStub(running.channel).Place(question(model="LEAK"))
    error = caught.value
    assert (error.code(), error.details()) == (grpc.StatusCode.INTERNAL, "internal error")
    assert SECRET not in str(error.debug_error_string())
    assert b"hunter2" not in details(error).SerializeToString()


async def test_a_malformed_message_is_the_callers_fault() -> None:
    async with faces() as running:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await running.channel.unary_unary(PLACE)(b"\xff\xff\xff")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_message_over_the_limit_is_refused_in_words() -> None:
    async with faces(limits=LimitSettings(message_bytes=2048)) as running:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await DecisionServiceStub(running.channel).Place(question(request_id="x" * 3000))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "2048" in (caught.value.details() or "")


async def test_the_deadline_of_the_call_reaches_the_engine() -> None:
    async with faces(engine := await engine_with_node()) as running:
        before_s = time.monotonic()
        await DecisionServiceStub(running.channel).Place(question(), timeout=5.0)
        await DecisionServiceStub(running.channel).Place(question())
    assert before_s + 4.0 < engine.deadlines[0] < time.monotonic() + 6.0
    assert engine.deadlines[1] == float("inf")


async def test_more_than_the_limit_in_flight_is_shed() -> None:
    async with faces(engine := await engine_with_node(), LimitSettings(in_flight=2)) as running:
        stub = DecisionServiceStub(running.channel)
        held = [stub.Place(question(model="GATE")) for _ in range(2)]
        await until(lambda: len(engine.placed) == 2)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Place(question())
        engine.gate.set()
        assert [answer.decisions[0].job_id for answer in await asyncio.gather(*held)] == ["j", "j"]
        assert (await stub.Place(question())).decisions
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert 'placewise_shed_total{rpc="Place"} 1.0' in running.gateway.telemetry.render().decode()


async def test_a_stream_answers_in_order_and_goes_on_after_an_error() -> None:
    models = ["", "STALE_SNAPSHOT", "WAIT", "LEAK", ""]

    async def questions() -> AsyncIterator[PlaceRequest]:
        for i, model in enumerate(models):
            yield question(str(i), model)

    async with faces(await engine_with_node()) as running:
        answers = [answer async for answer in DecisionServiceStub(running.channel).StreamPlace(questions())]
    assert [answer.request_id for answer in answers] == ["0", "1", "2", "3", "4"]
    assert [answer.error.reason for answer in answers] == ["", "STALE_SNAPSHOT", "", "INTERNAL", ""]
    assert answers[1].error.code == 10
    assert answers[1].error.retry_delay.nanos == 50_000_000
    assert "hunter2" not in answers[3].error.message


async def test_a_slow_question_does_not_reorder_the_stream_and_bounds_the_pipeline() -> None:
    engine = await engine_with_node()
    sent = 0

    async def questions() -> AsyncIterator[PlaceRequest]:
        nonlocal sent
        for i in range(50):
            sent += 1
            yield question(str(i), "GATE" if i == 0 else "")

    async with faces(engine, LimitSettings(stream_pipeline=4)) as running:
        call = DecisionServiceStub(running.channel).StreamPlace(questions())
        await until(lambda: len(engine.placed) >= 4)
        await asyncio.sleep(0.05)
        assert len(engine.placed) == 4  # the fifth waits for the first to be answered
        engine.gate.set()
        assert [answer.request_id async for answer in call] == [str(i) for i in range(50)]


class GoneCaller:
    """A call whose deadline passes just before its answer is written."""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def time_remaining(self) -> float | None:
        return None

    def invocation_metadata(self) -> tuple[()]:
        return ()

    async def write(self, answer: bytes) -> None:
        raise grpc.aio.InternalError


async def test_a_stream_whose_caller_has_gone_ends_as_cancelled() -> None:
    async def questions() -> AsyncIterator[bytes]:
        for i in range(3):
            yield question(str(i)).SerializeToString()

    async with faces(await engine_with_node()) as running:
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(5.0):
                await running.grpc._stream_place(questions(), GoneCaller())  # type: ignore[arg-type]
        assert running.gateway.in_flight == 0
        assert running.grpc._streams == set()


async def test_an_answer_that_nobody_takes_is_no_error_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    library = logging.getLogger("grpc._cython.cygrpc")
    async with faces():
        for failure in (grpc.aio.InternalError(), ValueError("ours")):
            try:
                raise failure
            except Exception:
                library.exception("raised by servicer method")
    assert [record.exc_info and record.exc_info[0] for record in caplog.records] == [ValueError]


async def test_many_streams_at_once() -> None:
    async def ask(running: Faces, name: int) -> list[str]:
        async def questions() -> AsyncIterator[PlaceRequest]:
            for i in range(100):
                yield question(f"{name}-{i}")

        return [answer.request_id async for answer in DecisionServiceStub(running.channel).StreamPlace(questions())]

    async with faces(await engine_with_node()) as running:
        answers = await asyncio.gather(*(ask(running, name) for name in range(16)))
    assert answers == [[f"{name}-{i}" for i in range(100)] for name in range(16)]


async def test_a_cancelled_stream_leaves_nothing_in_flight() -> None:
    async def questions() -> AsyncIterator[PlaceRequest]:
        for i in range(3):
            yield question(str(i), "SLEEP")
        await asyncio.sleep(60)

    async with faces(engine := await engine_with_node()) as running:
        call = DecisionServiceStub(running.channel).StreamPlace(questions())
        await until(lambda: len(engine.placed) == 3)
        call.cancel()
        await until(lambda: running.gateway.in_flight == 0)


async def test_draining_finishes_what_is_in_flight_and_refuses_the_rest() -> None:
    async with faces(engine := await engine_with_node()) as running:
        stub = DecisionServiceStub(running.channel)
        held = stub.Place(question(model="GATE"))
        stream = stub.StreamPlace()
        await stream.write(question("on-stream", "GATE"))
        await until(lambda: len(engine.placed) == 2)
        await running.grpc.drain()
        drained = asyncio.create_task(running.gateway.drain(5.0))
        health = health_pb2_grpc.HealthStub(running.channel)
        state = await health.Check(health_pb2.HealthCheckRequest())
        assert state.status == health_pb2.HealthCheckResponse.NOT_SERVING
        await until(lambda: running.gateway.is_draining)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Place(question())
        engine.gate.set()
        assert (await held).decisions[0].job_id == "j"
        answer = await stream.read()
        assert isinstance(answer, PlaceResponse)
        assert answer.request_id == "on-stream"
        assert not answer.error.reason
        assert await drained
        assert await stream.code() is grpc.StatusCode.UNAVAILABLE
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_draining_is_bounded() -> None:
    async with faces(engine := await engine_with_node()) as running:
        call = DecisionServiceStub(running.channel).Place(question(model="GATE"))
        await until(lambda: len(engine.placed) == 1)
        assert not await running.gateway.drain(0.01)
        call.cancel()


async def test_health_follows_readiness() -> None:
    engine, stop = await engine_with_node(), asyncio.Event()
    async with faces(engine) as running:
        following = asyncio.create_task(running.grpc.show_readiness(stop, period_s=0.01))
        health = health_pb2_grpc.HealthStub(running.channel)
        states = health.Watch(health_pb2.HealthCheckRequest())
        seen = [(await states.read()).status]
        for trouble in ("a bundle was chosen and is refused here", ""):
            engine.trouble = trouble
            seen.append((await states.read()).status)
        stop.set()
        await following
    answer = health_pb2.HealthCheckResponse
    assert seen == [answer.SERVING, answer.NOT_SERVING, answer.SERVING]


async def test_health_and_reflection_name_the_services() -> None:
    async with faces() as running:
        health = health_pb2_grpc.HealthStub(running.channel)
        for name in ("", "placewise.v1.DecisionService", "placewise.v1.ClusterService", "placewise.v1.BundleService"):
            state = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert state.status == health_pb2.HealthCheckResponse.SERVING
        call = reflection_pb2_grpc.ServerReflectionStub(running.channel).ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = await call.read()
        await call.done_writing()
        names = {service.name for service in answer.list_services_response.service}  # type: ignore[union-attr]
    assert {"placewise.v1.DecisionService", "grpc.health.v1.Health"} <= names


async def until(is_true: object) -> None:
    """Waits for a condition that the event loop brings about."""
    async with asyncio.timeout(10):
        while not is_true():  # type: ignore[operator]  # noqa: ASYNC110
            await asyncio.sleep(0.001)
