"""Spans of calls, sent to an OpenTelemetry collector. Imports OpenTelemetry only if an endpoint is configured."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from placewise_service.settings import OtelSettings


class Tracing:
    """OpenTelemetry, set up for one endpoint. The exporter sends in the background and drops when it cannot."""

    def __init__(self, settings: OtelSettings) -> None:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio  # noqa: PLC0415
        from opentelemetry.trace import SpanKind  # noqa: PLC0415
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        self._provider = TracerProvider(
            resource=Resource.create({"service.name": "placewise"}),
            sampler=ParentBasedTraceIdRatio(settings.sample_rate),
        )
        is_insecure = not settings.endpoint.startswith("https://")
        self._provider.add_span_processor(
            BatchSpanProcessor(OTLPSpanExporter(endpoint=settings.endpoint, insecure=is_insecure))
        )
        self._tracer = self._provider.get_tracer("placewise")
        self._propagator = TraceContextTextMapPropagator()
        self._kind = SpanKind.SERVER

    @contextlib.contextmanager
    def span(self, name: str, trace: Mapping[str, str] | None, attributes: dict[str, Any]) -> Iterator[None]:
        context = self._propagator.extract(trace) if trace else None  # a malformed header begins a trace of its own
        with self._tracer.start_as_current_span(name, context, self._kind, attributes):
            yield

    def close(self) -> None:
        self._provider.shutdown()
