"""Random questions to both faces: none may crash the service, be answered with a server error, or leak its insides.

PLACEWISE_TEST_FUZZ_CASES sets how many there are in all (`make fuzz`: 20 000); half of them go to each face, those to
gRPC to its HTTP/1.1 sibling as well.
"""

import os
import random
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import CHECKS
from tests.fakes.callers.odd_messages import random_bytes
from tests.fakes.cluster import make_node
from tests.fakes.engine import running_engine
from tests.fakes.servers.faces import Faces, faces
from tests.fakes.servers.threaded import threaded_faces

from placewise.v1.decision_pb2 import PlaceResponse
from placewise_service.api.calls.rpcs import RPCS, STREAM_PLACE
from placewise_service.api.docs.openapi import document
from placewise_service.api.docs.routes import ROUTES

CASES = int(os.environ.get("PLACEWISE_TEST_FUZZ_CASES", "640"))
PER_CALL = max(1, CASES // 2 // (len(RPCS) + 1))
PER_ROUTE = max(1, CASES // 2 // len(ROUTES))
# What our own code or its libraries would say of themselves.
LEAKS = ("Traceback", "/service/", "site-packages", "placewise_", "0x7f", "Exception", "redis")
CALLERS_FAULTS = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
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
