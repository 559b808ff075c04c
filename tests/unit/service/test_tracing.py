"""Traces: with an endpoint configured, spans arrive at a collector, in the trace of the caller."""

from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Queue
from typing import Any

import grpc
import pytest
from tests.fakes.servers.faces import Faces, faces

from placewise.v1.cluster_pb2 import ListClustersRequest
from placewise.v1.cluster_pb2_grpc import ClusterServiceStub
from placewise.v1.decision_pb2 import PlaceRequest
from placewise.v1.decision_pb2_grpc import DecisionServiceStub
from placewise_service.settings import OtelSettings
from placewise_service.telemetry import Telemetry

service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
service_grpc = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc")

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
RECORDED, NOT_RECORDED = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00"


class Collector(service_grpc.TraceServiceServicer):  # type: ignore[misc]
    """Keeps the spans it is sent."""

    def __init__(self) -> None:
        self.spans: Queue[Any] = Queue()

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the contract's name
        for spans in request.resource_spans:
            for scope in spans.scope_spans:
                for span in scope.spans:
                    self.spans.put(span)
        return service.ExportTraceServiceResponse()


@dataclass
class Traced:
    """A telemetry whose spans are collected."""

    endpoint: str
    collector: Collector

    def telemetry(self, sample_rate: float) -> Telemetry:
        return Telemetry(OtelSettings(endpoint=self.endpoint, sample_rate=sample_rate))


@pytest.fixture
def traced() -> Iterator[Traced]:
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(1))
    service_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield Traced(f"http://127.0.0.1:{port}", collector)
    server.stop(0).wait()


async def asked(traced: Traced, sample_rate: float, headers: dict[str, str]) -> list[Any]:
    """The spans of one question by each face and by a stream, sent with these headers."""
    telemetry = traced.telemetry(sample_rate)
    async with faces(telemetry=telemetry) as running:
        await ask_both(running, headers)
    telemetry.close()
    return [traced.collector.spans.get_nowait() for _ in range(traced.collector.spans.qsize())]


async def ask_both(running: Faces, headers: dict[str, str]) -> None:
    metadata = tuple(headers.items())
    await ClusterServiceStub(running.channel).ListClusters(ListClustersRequest(), metadata=metadata)
    (await running.http.get("/v1/clusters", headers=headers)).raise_for_status()

    async def questions() -> AsyncIterator[PlaceRequest]:
        yield PlaceRequest(cluster="c")

    async for _ in DecisionServiceStub(running.channel).StreamPlace(questions(), metadata=metadata):
        pass


def test_spans_arrive_at_the_endpoint(traced: Traced) -> None:
    telemetry = traced.telemetry(1.0)
    with telemetry.span("Place", jobs=1):
        pass
    telemetry.close()
    assert traced.collector.spans.get(timeout=10).name == "Place"


async def test_both_faces_take_over_the_trace_of_who_asks(traced: Traced) -> None:
    spans = await asked(traced, 0.0, {"traceparent": RECORDED, "tracestate": "vendor=1"})
    assert sorted(span.name for span in spans) == ["ListClusters", "ListClusters", "StreamPlace"]
    assert {(span.trace_id.hex(), span.parent_span_id.hex()) for span in spans} == {(TRACE, PARENT)}
    assert {span.trace_state for span in spans} == {"vendor=1"}
    assert {span.kind for span in spans} == {2}, "SPAN_KIND_SERVER"
    assert len({span.span_id for span in spans}) == 3


async def test_what_the_caller_does_not_record_is_not_recorded(traced: Traced) -> None:
    assert await asked(traced, 1.0, {"traceparent": NOT_RECORDED}) == []


@pytest.mark.parametrize("headers", [{}, {"traceparent": "nonsense"}, {"traceparent": f"00-{'0' * 32}-{PARENT}-01"}])
async def test_without_a_trace_that_can_be_read_each_call_begins_one(traced: Traced, headers: dict[str, str]) -> None:
    spans = await asked(traced, 1.0, headers)
    assert len({span.trace_id for span in spans}) == 3
    assert {span.parent_span_id for span in spans} == {b""}
    assert await asked(traced, 0.0, headers) == []
