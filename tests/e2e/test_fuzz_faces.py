"""Random questions to both faces: none may crash the service, be answered with a server error, or leak its insides.

PLACEWISE_TEST_FUZZ_CASES sets how many there are in all (`make fuzz`: 20 000); half of them go to each face, those to
gRPC to its HTTP/1.1 sibling as well.
"""

import os
import random
import string
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import CHECKS
from tests.fakes.cluster import make_node
from tests.fakes.engine import running_engine
from tests.fakes.faces import Faces, faces
from tests.fakes.threaded import threaded_faces

from placewise.v1.decision_pb2 import PlaceResponse
from placewise_service.api.openapi import document
from placewise_service.api.routes import ROUTES
from placewise_service.api.rpcs import RPCS, STREAM_PLACE

CASES = int(os.environ.get("PLACEWISE_TEST_FUZZ_CASES", "640"))
PER_CALL = max(1, CASES // 2 // (len(RPCS) + 1))
PER_ROUTE = max(1, CASES // 2 // len(ROUTES))
# What our own code or its libraries would say of themselves.
LEAKS = ("Traceback", "/service/", "site-packages", "placewise_", "0x7f", "Exception", "redis")
CALLERS_FAULTS = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ABORTED,
}

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


# -- gRPC ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(RPCS))
async def test_random_messages(name: str) -> None:
    rpc = RPCS[name]
    rng = random.Random(name)
    async with fuzzed() as running:
        call = running.channel.unary_unary(rpc.path, response_deserializer=rpc.response.FromString)
        for i in range(PER_CALL):
            raw = random_bytes(rng, rpc.request)
            answered = call(raw)
            code, text = await answered.code(), await answered.details()
            assert code in CALLERS_FAULTS, f"case {i}: {code} {text} for {raw!r}"
            assert_no_leak(text or "", raw)
            response = await running.http.post(rpc.path, content=raw, headers={"content-type": "application/proto"})
            assert response.status_code in (200, 400, 404, 409), f"case {i}: {response.text} for {raw!r}"
            if response.status_code != 200:
                assert_no_leak(response.text, raw)


async def test_random_streams() -> None:
    rng = random.Random("stream")
    async with fuzzed() as running:
        ask = running.channel.stream_stream(STREAM_PLACE.path, response_deserializer=PlaceResponse.FromString)
        for _ in range(max(1, PER_CALL // 20)):
            questions = [random_bytes(rng, STREAM_PLACE.request) for _ in range(20)]
            answers = [answer async for answer in ask(iter(questions))]
            assert len(answers) == len(questions)
            for answer, raw in zip(answers, questions, strict=True):
                assert answer.error.code in {code.value[0] for code in CALLERS_FAULTS}, f"{answer} for {raw!r}"
                assert_no_leak(answer.error.message, raw)


class fuzzed:  # noqa: N801 - reads as a context manager
    """Faces around the real engine, with the cluster that most random questions are about."""

    async def __aenter__(self) -> Faces:
        self._engine = running_engine(nodes=0)
        engine = await self._engine.__aenter__()
        await engine.report_nodes("prod", [make_node(f"n{i}") for i in range(4)], full=True)
        self._faces = faces(engine)  # type: ignore[arg-type]
        return await self._faces.__aenter__()

    async def __aexit__(self, *error: object) -> None:
        await self._faces.__aexit__(None, None, None)
        await self._engine.__aexit__(None, None, None)


def random_bytes(rng: random.Random, kind: type[Any]) -> bytes:
    """A random message of a kind: half of them sensible throughout, some with a few bytes changed."""
    maker = Maker(rng, oddness=rng.choice([0.0, 0.0, 0.0, 0.02, 0.02, 0.2]))
    raw = bytearray(maker.message(kind.DESCRIPTOR, kind(), 0).SerializeToString())
    if raw and rng.random() < 0.1:
        for _ in range(rng.randint(1, 4)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
    return bytes(raw)


NEEDED = {
    *("id", "cluster", "jobs", "groups", "count", "kind", "job_id", "node", "node_id", "decision_id", "task"),
    *("min_gpus", "max_gpus", "nodes", "gpus_per_node", "parallel_scale", "share", "subtasks"),
}


class Maker:
    """Fills messages with values that the rules allow, except for a share of `oddness`."""

    def __init__(self, rng: random.Random, oddness: float) -> None:
        self._rng = rng
        self._oddness = oddness

    def message(self, descriptor: Any, message: Any, depth: int) -> Any:
        rng = self._rng
        for field in descriptor.fields:
            if (field.name not in NEEDED and rng.random() < 0.4) or (field.name == "after" and not self._is_odd()):
                continue
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                value = field.message_type.fields_by_name["value"]
                for _ in range(rng.choice([0, 0, 1, 2])):
                    getattr(message, field.name)[self._text("key")] = self._value(value)
            elif field.is_repeated:
                self._repeated(field, getattr(message, field.name), depth)
            elif field.message_type is not None:
                part = getattr(message, field.name)
                part.SetInParent()
                self.message(field.message_type, part, depth + 1)
            else:
                setattr(message, field.name, self._value(field))
        self._reconcile(message)
        return message

    def _reconcile(self, message: Any) -> None:
        """Fields that must agree with one another mostly do."""
        if self._is_odd():
            return
        if message.DESCRIPTOR.name == "ElasticRange":
            message.min_gpus = 1
        if message.DESCRIPTOR.name == "Node" and message.gpus:
            for i, gpu in enumerate(message.gpus):
                gpu.index = i
            message.capacity.gpus = len(message.gpus)
        if message.DESCRIPTOR.name == "JobEvent" and message.HasField("job"):
            message.job.id = message.job_id
        if message.DESCRIPTOR.name == "ClusterSettings":
            message.exploration_rate = 0.5

    def _repeated(self, field: Any, target: Any, depth: int) -> None:
        for _ in range(self._rng.choice([1, 1, 1, 2, 3]) if depth < 4 else 0):
            if field.message_type is not None:
                self.message(field.message_type, target.add(), depth + 1)
            else:
                target.append(self._value(field))

    def _is_odd(self) -> bool:
        return self._rng.random() < self._oddness

    def _value(self, field: Any) -> Any:
        rng, is_odd = self._rng, self._is_odd()
        if field.enum_type is not None:
            return rng.choice([99, -1, 0]) if is_odd else rng.choice(list(field.enum_type.values_by_number)[1:])
        if field.cpp_type == field.CPPTYPE_STRING:
            return self._odd_text() if is_odd else self._text(field.name)
        if field.cpp_type == field.CPPTYPE_BOOL:
            return rng.random() < 0.3
        if field.cpp_type == field.CPPTYPE_DOUBLE:
            odd = [-1.0, 1e-300, 1e18, 1e308, float("inf"), float("-inf"), float("nan"), 3.7]
            return rng.choice(odd if is_odd else [0.0, 0.5, 1.0, 1.0] if "util" in field.name else [1.0, 1.0, 2.0, 4.0])
        low, high = {
            field.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
            field.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
            field.CPPTYPE_UINT64: (0, 2**64 - 1),
        }[field.cpp_type]
        return rng.choice([0, low, high, rng.randint(low, high)]) if is_odd else rng.randint(1, 4)

    def _text(self, name: str) -> str:
        if name == "cluster":
            return "prod"
        if name == "policy":
            return self._rng.choice(["", "", "consolidate", "tetris", "tiresias", "proteus", "qos", "fifo", "capacity"])
        if name in ("node", "node_id"):
            return self._rng.choice(["n0", "n1", "n2", "n3"])
        if name in ("after", "gpu_model", "key", "request_id", "name"):
            return self._rng.choice(["a", "b", "c"])
        return f"{self._rng.choice('abc')}{self._rng.randrange(50)}"

    def _odd_text(self) -> str:
        letters = string.printable + "é≤𝄞\u202e"
        length = self._rng.choice([0, 1, 5, 254, 600])
        return "".join(self._rng.choice(letters) for _ in range(length))


def assert_no_leak(text: str, question: bytes) -> None:
    for leak in LEAKS:
        assert leak not in text or leak.encode() in question, text


# -- REST ---------------------------------------------------------------------------------------------------------

schema = schemathesis.openapi.from_dict(document())


@pytest.fixture(scope="module")
def rest() -> Iterator[str]:
    with threaded_faces() as ports:
        yield f"http://127.0.0.1:{ports.rest}"


@schema.include(path_regex="^/v1/").parametrize()
@settings(
    max_examples=PER_ROUTE,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def test_random_requests(case: Any, rest: str) -> None:
    if case.operation.method != "delete" and case.path_parameters and "cluster" in case.path_parameters:
        case.path_parameters["cluster"] = "prod"
    response = case.call(base_url=rest)
    assert response.status_code < 500 or response.status_code == 504, response.text  # 504: its own timeout header
    assert_no_leak(response.text, f"{case.body!r}{case.query!r}{case.path_parameters!r}".encode())
    checks = [CHECKS.get_one("response_schema_conformance"), CHECKS.get_one("content_type_conformance")]
    if response.status_code != 415:
        case.validate_response(response, checks=checks)
