"""Traces: with an endpoint configured, spans arrive at a collector."""

from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from typing import Any

import grpc
import pytest

from placewise_service.settings import OtelSettings
from placewise_service.telemetry import Telemetry

service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
service_grpc = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc")


class Collector(service_grpc.TraceServiceServicer):  # type: ignore[misc]
    """Keeps the names of the spans it is sent."""

    def __init__(self) -> None:
        self.names: Queue[str] = Queue()

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the contract's name
        for spans in request.resource_spans:
            for scope in spans.scope_spans:
                for span in scope.spans:
                    self.names.put(span.name)
        return service.ExportTraceServiceResponse()


def test_spans_arrive_at_the_endpoint() -> None:
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(1))
    service_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    telemetry = Telemetry(OtelSettings(endpoint=f"http://127.0.0.1:{port}", sample_rate=1.0))
    with telemetry.span("Place", jobs=1):
        pass
    telemetry.close()
    assert collector.names.get(timeout=10) == "Place"
    server.stop(0).wait()
