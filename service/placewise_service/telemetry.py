"""Observability: Prometheus metrics, structured logs, and traces if an endpoint is configured.

Nothing here may fail or slow a decision: it is counted after the answer, metric children are looked up once and kept,
and without an endpoint a span is a shared object that does nothing. OpenTelemetry is imported only when it is used.
"""

import contextlib
import logging
import math
import os
import sys
from collections import Counter as Counts
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import structlog
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
    multiprocess,
)
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from placewise_core.domain.cluster import QueueState
from placewise_service.afterwards import Afterwards
from placewise_service.settings import LogSettings, OtelSettings

# 50 µs … 5 s: a heuristic decision takes tens of microseconds, a deadline is at most seconds.
SECONDS_BUCKETS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)

# Of reported over predicted speed: the factors on both sides of 1 are alike.
RATIO_BUCKETS = (0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.11, 1.25, 1.5, 2.0, 4.0)

METRICS_CONTENT_TYPE = CONTENT_TYPE_LATEST
TRACE_HEADERS = ("traceparent", "tracestate")  # W3C Trace Context, level 1
# Files that workers share cannot delete a gauge. This value stands in for it under "livemax": less than the value of
# any other worker for a cluster of that name.
_ALL_CLUSTERS = ""  # label of a canary that answers for all without one of their own
_GONE = -math.inf
_MOST_IN_FILES = 1000  # clusters by name in a worker's files, which keep a series for ever
QueueSource = Callable[[], Iterable[tuple[str, QueueState]]]
"""(cluster, queue) of every queue."""
_OTHERS = "(others)"  # no queue or cluster is called so by accident; one that is adds to them
_NO_SPAN: AbstractContextManager[None] = contextlib.nullcontext()


class Telemetry:
    """The metrics of one process. With PROMETHEUS_MULTIPROC_DIR set (several workers), `render` sums over all."""

    def __init__(self, otel: OtelSettings | None = None) -> None:
        self.registry = CollectorRegistry()
        self._is_shared = "PROMETHEUS_MULTIPROC_DIR" in os.environ
        if not self._is_shared:
            ProcessCollector(registry=self.registry)
        self._rpc_seconds = self._histogram("placewise_rpc_seconds", "Time in the service per request.", "rpc", "code")
        self._decision_seconds = self._histogram(
            "placewise_decision_seconds", "Time in the engine per decision.", "rpc", "policy"
        )
        self._outcomes = self._counter("placewise_decisions_total", "Answers by outcome.", "rpc", "policy", "outcome")
        self._fallbacks = self._counter(
            "placewise_fallbacks_total", "Answers a heuristic gave in place of the policy.", "rpc", "policy"
        )
        self._conflicts = self._counter("placewise_conflicts_total", "Reservations refused by the store.", "cluster")
        self._overcommits = self._counter(
            "placewise_overcommits_total", "Jobs that a host started on a node that had too little left.", "cluster"
        )
        self._unknown_starts = self._counter(
            "placewise_unknown_starts_total", "Jobs that started by a decision that is not known.", "cluster"
        )
        self._profiles_refused = self._counter(
            "placewise_profiles_refused_total", "Rows of profiles not learned: the cluster has its most.", "cluster"
        )
        self._log_drops = self._counter("placewise_decision_log_dropped_total", "Decision records lost.")
        self._view_log_drops = self._counter("placewise_view_log_dropped_total", "Entries of the log of views lost.")
        self._alternatives_shed = self._counter(
            "placewise_alternatives_shed_total", "Decisions logged without their alternatives, as there was no time."
        )
        self._shed = self._counter("placewise_shed_total", "Requests refused because too many were in flight.", "rpc")
        self._refused = self._counter(
            "placewise_refused_total", "Requests and connections refused for a limit.", "face", "limit"
        )
        self._in_flight = self._gauge("placewise_in_flight_requests", "Requests being worked on.", mode="livesum")
        self._queues = _Queues()
        self.registry.register(self._queues)
        self._view_lag = self._gauge(
            "placewise_view_lag_seconds", "Age of the newest event a view has not seen.", "cluster", mode="livemax"
        )
        self._add_trials()
        self._add_drift()
        self._add_health()
        self._children: dict[tuple[str, ...], Any] = {}
        self._in_files = {_ALL_CLUSTERS}  # of several workers
        # By cluster: series to be removed with it, of any kind of metric, by metric and labels.
        self._of_clusters: dict[str, dict[tuple[Any, tuple[str, ...]], Any]] = {}
        self.afterwards = Afterwards()
        self._tracing = _Tracing(otel) if otel and otel.endpoint else None

    def _add_trials(self) -> None:
        """Shadows and canaries."""
        self._shadow_decisions = self._counter(
            "placewise_shadow_decisions_total", "Jobs that a shadow decided about.", "bundle", "policy", "agreement"
        )
        self._shadow_seconds = self._histogram(
            "placewise_shadow_seconds", "Time a shadow worked on the placement of a job.", "bundle", "policy"
        )
        self._shadow_left_out = self._counter(
            "placewise_shadow_left_out_total", "Answered jobs that the cluster's shadow did not decide about.", "reason"
        )
        self._canary_decisions = self._counter(
            "placewise_canary_decisions_total",
            "Jobs decided while a canary ran, and whether their propensity over both arms is known.",
            "bundle",
            "arm",
            "mixture",
        )
        self._canary_rollbacks = self._counter(
            "placewise_canary_rollbacks_total", "Canaries that a guard of this replica ended.", "bundle"
        )
        self._canary_evidence = self._gauge(
            "placewise_canary_evidence",
            "ln of the e-value that the canary does worse, by guard; it is rolled back at ln 80.",
            "bundle",
            "cluster",
            "guard",
            mode="livemax",
        )

    def _add_drift(self) -> None:
        self._forecast_ratio = self._histogram(
            "placewise_forecast_ratio",
            "Speed of a job's first report of progress over the speed that its placement was to have.",
            "cluster",
            "bundle",
            buckets=RATIO_BUCKETS,
        )
        self._input_psi = self._gauge(
            "placewise_input_psi",
            "Population stability index of an input column: the latest jobs beside the first.",
            "cluster",
            "column",
            mode="livemax",
        )
        self._unseen_jobs = self._counter(
            "placewise_unseen_jobs_total",
            "Jobs placed whose model, or whose nodes' GPU type, the bundle in force has no profile of.",
            "cluster",
            "kind",
            "name",
        )

    def _add_health(self) -> None:
        """Credentials, the store's disk, audit."""
        self._credentials_stale = self._gauge(
            "placewise_credentials_stale_seconds",
            "How long a file of credentials could not be used; 0 while it can.",
            "file",
            mode="livemax",
        )
        self._state_unwritable = self._gauge(
            "placewise_state_unwritable", "1 while the state store cannot write to its disk, else 0.", mode="livemax"
        )
        unwritten = "Audit records that could not be written when they were due."
        self._audit_unwritten = self._counter("placewise_audit_unwritten_total", unwritten)
        self._audit_lost = self._counter("placewise_audit_lost_total", "Audit records lost.")

    def decision(self, rpc: str, policy: str, outcome: str, is_fallback: bool, seconds: float) -> None:
        """One decision: its latency, outcome, and whether a heuristic stood in."""
        self._child("decision", self._decision_seconds, rpc, policy).observe(seconds)
        self._child("outcome", self._outcomes, rpc, policy, outcome).inc()
        if is_fallback:
            self._child("fallback", self._fallbacks, rpc, policy).inc()

    def conflict(self, cluster: str) -> None:
        """The store refused a reservation: the view was behind."""
        self._of_cluster(cluster, self._conflicts, cluster).inc()

    def show_queues(self, source: QueueSource, most: int) -> None:
        """`source` is asked at each scrape. It gives the queues of the shared state: every replica shows the same.
        `most` of a cluster are shown by name, the others as one series."""
        self._queues.source, self._queues.most = source, most

    def profiles_refused(self, cluster: str, count: int) -> None:
        """Rows of subtask kinds or co-runs that were not learned, as the cluster has as many as it may."""
        if count:
            self._of_cluster(cluster, self._profiles_refused, cluster).inc(count)

    def overcommits(self, cluster: str, count: int) -> None:
        """Counts jobs that a host started on a node that had too little left."""
        if count:
            self._of_cluster(cluster, self._overcommits, cluster).inc(count)

    def unknown_starts(self, cluster: str, count: int) -> None:
        """Counts jobs that started without a placement and whose decision is not known."""
        if count:
            self._of_cluster(cluster, self._unknown_starts, cluster).inc(count)

    def view_lag(self, cluster: str, seconds: float) -> None:
        """How far this process's view is behind the store."""
        self._of_cluster(cluster, self._view_lag, cluster).set(seconds)
        self._of_cluster(cluster, self._conflicts, cluster)

    def start_at_zero(self, rpcs: Iterable[str], policies: Iterable[str]) -> None:
        """Shows 0 for counters that nothing has moved yet, so that the first increase is seen as one."""
        for rpc in rpcs:
            self._child("shed", self._shed, rpc)
        for policy in policies:
            self._child("fallback", self._fallbacks, "Place", policy)

    def forget_all_but(self, clusters: Collection[str]) -> None:
        """Removes the series of deleted clusters. A cluster of such a name later starts again at 0."""
        for cluster in self._of_clusters.keys() - {_ALL_CLUSTERS, _OTHERS, *clusters}:
            for (metric, labels), child in self._of_clusters.pop(cluster).items():
                if not self._is_shared:
                    metric.remove(*labels)
                elif isinstance(metric, Gauge):
                    child.set(_GONE)

    def log_drops(self, count: int) -> None:
        """Decision records that were lost."""
        self._log_drops.inc(count)

    def view_log_drops(self, count: int) -> None:
        """Entries of the log of views that were never exported."""
        self._view_log_drops.inc(count)

    def alternatives_shed(self) -> None:
        """A decision was drawn to be logged with its alternatives, and there was no time to work them out."""
        self._alternatives_shed.inc()

    def shadow_decision(self, bundle: str, policy: str, agreement: str, seconds: float) -> None:
        """A shadow decided about one job."""
        self._child("shadow", self._shadow_decisions, bundle, policy, agreement).inc()
        self._child("shadow seconds", self._shadow_seconds, bundle, policy).observe(seconds)

    def shadow_left_out(self, reason: str, jobs: int) -> None:
        """Jobs of a cluster with a shadow were answered, and the shadow does not decide about them."""
        if jobs > 0:
            self._child("left out", self._shadow_left_out, reason).inc(jobs)

    def canary_decision(self, bundle: str, arm: str, mixture: str) -> None:
        """One arm decided a job while the bundle was the canary. `mixture`: known or unknown."""
        self._child("canary", self._canary_decisions, bundle, arm, mixture).inc()

    def canary_rolled_back(self, bundle: str) -> None:
        """A guard of this replica ended a canary."""
        self._child("canary rollback", self._canary_rollbacks, bundle).inc()

    def canary_evidence(self, bundle: str, cluster: str, guard: str, log_e: float) -> None:
        """ln of a guard's e-value, at the last look."""
        self._of_cluster(cluster, self._canary_evidence, bundle, cluster, guard).set(log_e)

    def forecast_ratio(self, cluster: str, bundle: str, ratio: float) -> None:
        """Reported over predicted speed of one job."""
        self._of_cluster(cluster, self._forecast_ratio, cluster, bundle).observe(ratio)

    def input_psi(self, cluster: str, column: str, psi: float) -> None:
        """How far one input column of the cluster's latest jobs has moved."""
        self._of_cluster(cluster, self._input_psi, cluster, column).set(psi)

    def unseen_job(self, cluster: str, kind: str, name: str) -> None:
        """A job was placed that the bundle has no profile for. `kind`: model or gpu_type."""
        self._of_cluster(cluster, self._unseen_jobs, cluster, kind, name).inc()

    @property
    def is_tracing(self) -> bool:
        """True if an endpoint is configured: only then is a caller's trace read."""
        return self._tracing is not None

    def span(
        self, name: str, trace: Mapping[str, str] | None = None, **attributes: str | int | float | bool
    ) -> AbstractContextManager[None]:
        """A trace span around a `with` block; nothing without an endpoint. `trace` holds the caller's TRACE_HEADERS:
        then the span belongs to that trace, and is recorded if the caller records it."""
        return self._tracing.span(name, trace, attributes) if self._tracing else _NO_SPAN

    def rpc(self, name: str, code: str, seconds: float) -> None:
        """One request was answered, with this reason ("OK" or an error's)."""
        self._child("rpc", self._rpc_seconds, name, code).observe(seconds)

    def shed(self, name: str) -> None:
        """One request was refused because too many were in flight."""
        self._child("shed", self._shed, name).inc()

    def credentials_stale(self, file: str, seconds: float) -> None:
        """How long this file of credentials could not be used."""
        self._child("credentials", self._credentials_stale, file).set(seconds)

    def state_unwritable(self, is_unwritable: bool) -> None:
        """Whether the state store cannot write to its disk."""
        self._state_unwritable.set(is_unwritable)

    def audit_unwritten(self, count: int) -> None:
        """Audit records that could not be written when they were due; they are kept and tried again."""
        self._audit_unwritten.inc(count)

    def audit_lost(self, count: int) -> None:
        """Audit records that were lost."""
        self._audit_lost.inc(count)

    def count_refused(self, face: str, limit: str) -> None:
        """A request or a connection went over a limit and was refused or closed."""
        self._child("refused", self._refused, face, limit).inc()

    def in_flight(self, count: int) -> None:
        """Requests being worked on."""
        self._in_flight.set(count)

    def render(self) -> bytes:
        """The metrics in Prometheus' text format, over all worker processes."""
        self.afterwards.run()
        if not self._is_shared:
            return generate_latest(self.registry)
        registry = CollectorRegistry()
        registry.register(_Shared(self._of_clusters))
        registry.register(self._queues)
        return generate_latest(registry)

    def render_credentials(self) -> bytes:
        """As `render`, but the age of this process's files of credentials alone."""
        return generate_latest(self.registry.restricted_registry(["placewise_credentials_stale_seconds"]))

    def close(self) -> None:
        """Runs the remaining work and sends the remaining traces."""
        self.afterwards.run()
        if self._tracing:
            self._tracing.close()

    def _child(self, kind: str, metric: Any, *labels: str) -> Any:
        key = (kind, *labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = metric.labels(*labels)
        return child

    def _of_cluster(self, cluster: str, metric: Any, *labels: str) -> Any:
        """The labelled series of a cluster, removed with it. Beyond _MOST_IN_FILES clusters a worker counts the rest as
        _OTHERS."""
        if self._is_shared and cluster not in self._in_files:
            if len(self._in_files) <= _MOST_IN_FILES:
                self._in_files.add(cluster)
            else:
                labels = tuple(_OTHERS if label == cluster else label for label in labels)
                cluster = _OTHERS
        children = self._of_clusters.setdefault(cluster, {})
        child = children.get((metric, labels))
        if child is None:
            child = children[metric, labels] = metric.labels(*labels)
        return child

    def _histogram(self, name: str, text: str, *labels: str, buckets: Sequence[float] = SECONDS_BUCKETS) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str, mode: Any = "livemostrecent") -> Gauge:
        return Gauge(name, text, labels, registry=self.registry, multiprocess_mode=mode)


class _Queues(Collector):
    """Q, Z and the number of waiting jobs of each queue, as `source` has them at the scrape.

    Workers share no file of these: each has the whole state, and the one that is asked shows it.
    """

    def __init__(self) -> None:
        self.source: QueueSource = tuple
        self.most = 1000  # of a cluster shown by name

    def collect(self) -> Iterator[Metric]:
        labels = ("cluster", "queue")
        backlog = GaugeMetricFamily("placewise_queue_backlog_seconds", "Backlog Q of a queue.", labels=labels)
        delay = GaugeMetricFamily("placewise_queue_delay_seconds", "Delay queue Z of a queue.", labels=labels)
        waiting = GaugeMetricFamily("placewise_queue_waiting_jobs", "Jobs waiting in a queue.", labels=labels)
        for names, *values in self._rows():
            for family, value in zip((backlog, delay, waiting), values, strict=True):
                family.add_metric(names, value)
        yield from (backlog, delay, waiting)

    def _rows(self) -> Iterator[tuple[tuple[str, str], float, float, float]]:
        """Q, Z and waiting jobs by (cluster, queue); of the queues beyond the most of a cluster, the sums."""
        shown: Counts[str] = Counts()
        others: dict[str, list[float]] = {}
        for cluster, state in sorted(self.source(), key=lambda of: (of[0], of[1].queue)):
            values = (state.backlog_s, state.delay_s, float(len(state.waiting)))
            shown[cluster] += 1
            if shown[cluster] <= self.most:
                yield (cluster, state.queue), *values
            else:
                sums = others.setdefault(cluster, [0.0, 0.0, 0.0])
                sums[:] = [total + value for total, value in zip(sums, values, strict=True)]
        for cluster, (backlog_s, delay_s, waiting) in others.items():
            yield (cluster, _OTHERS), backlog_s, delay_s, waiting


class _Shared(Collector):
    """The metrics of all workers, of `clusters` alone: their files keep those of deleted ones."""

    def __init__(self, clusters: Collection[str]) -> None:
        self._clusters = clusters

    def collect(self) -> Iterator[Metric]:
        for metric in multiprocess.MultiProcessCollector(None).collect():  # type: ignore[no-untyped-call]
            metric.samples = [sample for sample in metric.samples if sample.value != _GONE and self._is_there(sample)]
            yield metric

    def _is_there(self, sample: Sample) -> bool:
        cluster = sample.labels.get("cluster", _ALL_CLUSTERS)
        return cluster == _ALL_CLUSTERS or cluster in self._clusters


class _Tracing:
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


def configure_logging(settings: LogSettings) -> None:
    """Sends structlog and the standard library's loggers, one line per event, to standard error."""
    level = getattr(logging, settings.level.upper())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    is_json = settings.format == "json"
    # A plain traceback: the decorated one prints local variables, which may hold secrets.
    text = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    renderer: Any = structlog.processors.JSONRenderer() if is_json else text
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # A line and its end in one write: workers share standard error.
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)
