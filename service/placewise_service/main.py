"""Starts the service: settings → store → engine → faces, in one process or in several that share the ports.

Ready means: the state is read, the calls are rehearsed, and every configured part runs.
`serve` blocks until SIGTERM or SIGINT. Stopping is orderly: health says NOT_SERVING, calls in flight are finished
within the drain time, the decision log is written out, and the embedded Redis, if there is one, goes last.
"""

import asyncio
import contextlib
import gc
import math
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection

import structlog
import uvloop

from placewise_core.basics.clock import Clock, SystemClock
from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import QueueSettings
from placewise_core.domain.errors import PlacewiseError, StateUnavailableError
from placewise_log.audit import AuditError
from placewise_models.public_key import PublicKey
from placewise_service.api.calls.call_audit import CallAudit
from placewise_service.api.calls.gateway import Gateway
from placewise_service.api.calls.rpcs import RPCS
from placewise_service.api.faces.grpc_server import GrpcFace
from placewise_service.api.faces.health import HealthFace
from placewise_service.api.faces.rest_server import RestFace
from placewise_service.api.faces.tls import Certificates, grpc_credentials
from placewise_service.api.identity.auth import NOBODY
from placewise_service.api.identity.identity import authenticator
from placewise_service.api.rehearsal import MutedTelemetry, rehearse
from placewise_service.audit import AuditLog, AuditSink
from placewise_service.backoff import doubling_s
from placewise_service.engine import Engine, EngineOptions
from placewise_service.engine.build import PACKAGED_BUNDLES, build_engine
from placewise_service.settings import Settings
from placewise_service.state.clock import StoreClock
from placewise_service.state.options import StoreOptions
from placewise_service.state.redis.connection import RedisOptions
from placewise_service.state.redis.disk import DiskWatch
from placewise_service.state.redis.embedded import EmbeddedRedis, EmbeddedRedisError
from placewise_service.state.redis.redis_store import RedisStore
from placewise_service.state.reference.memory import MemoryStore
from placewise_service.state.store import StateStore
from placewise_service.supervisor import Supervisor
from placewise_service.telemetry import Telemetry, configure_logging
from placewise_service.turns import take_short_turns

log = structlog.get_logger(__name__)

FAILED = 1
_FIRST_PAUSE_S = 0.05  # before a store that does not answer at start is asked again; doubles
_LONGEST_PAUSE_S = 1.0
# The loop takes Python back from a thread that computes several times a round: at the usual 5 ms each, that adds up.
_SWITCH_S = 0.0005
# ValueError: of credentials, certificates and bundles, too
_REFUSALS = (OSError, EmbeddedRedisError, PlacewiseError, ValueError, AuditError)


@frozen
class Preparation:
    """A call, by its name and its message's bytes, that the service makes to itself before it is ready."""

    rpc: str
    request: bytes


def serve(settings: Settings, preparations: Sequence[Preparation] = ()) -> int:
    """Serves until asked to stop; the exit code: 0 after an orderly stop, 1 if the service could not start."""
    configure_logging(settings.log)
    if settings.server.short_turns:
        take_short_turns()
    log.info("starting", settings=settings.effective())
    if settings.server.insecure and not settings.auth.is_on:
        log.warning("insecure: everybody who reaches the ports has all permissions", hosts=_hosts(settings))
    for number in (signal.SIGTERM, signal.SIGINT):  # until the event loop has its own handlers
        signal.signal(number, _leave)
    try:
        with _redis_url(settings) as redis_url:
            if settings.server.workers == 1:
                run(settings, redis_url, preparations)
                return 0
            return Supervisor(settings, redis_url, partial(work, preparations=preparations)).run()
    except _REFUSALS as error:
        log.error("cannot start", reason=str(error))
        return FAILED


def _hosts(settings: Settings) -> list[str]:
    return sorted({settings.server.grpc_host, settings.server.rest_host})


def _leave(number: int, frame: object) -> None:
    raise SystemExit(0)


def work(settings: Settings, redis_url: str, parent: Connection, preparations: Sequence[Preparation] = ()) -> None:
    """Body of one of several processes: serves until asked to stop or until the parent is gone."""
    configure_logging(settings.log)
    try:
        run(settings, redis_url, preparations, parent)
    except _REFUSALS as error:
        log.error("cannot start", reason=str(error))
        sys.exit(FAILED)


def run(
    settings: Settings, redis_url: str, preparations: Sequence[Preparation] = (), parent: Connection | None = None
) -> None:
    """Serves in this process. `parent`: a pipe that closes with the supervisor, whose ports are shared."""
    sys.setswitchinterval(_SWITCH_S)
    uvloop.run(_run(settings, redis_url, preparations, parent))


@contextlib.contextmanager
def _redis_url(settings: Settings) -> Iterator[str]:
    """The Redis to use: the one configured, or a private one that lives as long as the service."""
    if settings.redis_url is not None:
        yield settings.redis_url.get_secret_value()
        return
    with EmbeddedRedis(settings.state_dir, settings.redis.command) as redis:
        log.info("embedded redis", pid=redis.pid, state_dir=str(settings.state_dir))
        yield redis.url


async def _run(
    settings: Settings, redis_url: str, preparations: Sequence[Preparation], parent: Connection | None
) -> None:
    stop = _stop_signals(parent)
    telemetry = Telemetry(settings.otel)
    store = _store(settings, redis_url)
    clock = StoreClock(store, SystemClock())
    audit = AuditLog(settings.audit_target, telemetry, time.monotonic) if settings.audit_target else None
    engine = make_engine(settings, store, clock, telemetry, audit)
    telemetry.start_at_zero(RPCS, engine.place_policies)
    callers = authenticator(settings.auth, SystemClock(), telemetry.credentials_stale)
    calls = CallAudit(audit.add, time.time) if audit is not None else None
    gateway = Gateway(engine, clock, settings.limits, callers, telemetry, settings.place.max_reserve_ttl_s, calls)
    if audit is not None:
        gateway.checks.append(audit.problem)
    disk = DiskWatch(store, telemetry.state_unwritable)
    gateway.checks.append(disk.problem)
    gateway.is_preparing = True
    shares_ports = parent is not None
    certificates = Certificates(settings.tls) if settings.tls.is_on else None
    credentials = grpc_credentials(certificates, settings.tls.client_ca_file is not None) if certificates else None
    grpc_face = GrpcFace(gateway, settings.server, credentials, shares_ports)
    rest_face = RestFace(gateway, settings.server, certificates, shares_ports)
    health_face = (
        HealthFace(gateway, settings.server, shares_ports) if settings.server.health_port is not None else None
    )
    await grpc_face.start()
    await rest_face.start()
    if health_face is not None:
        await health_face.start()
    health_port = health_face.port if health_face is not None else None
    log.info("listening", grpc_port=grpc_face.port, rest_port=rest_face.port, health_port=health_port, pid=os.getpid())
    disk.start()
    if await _prepared(clock, engine, gateway, preparations, stop):
        gateway.is_preparing = False
        _settle_garbage_collector()
        await grpc_face.show_readiness(stop)
    await clock.close()
    await disk.close()
    await _drain(settings, gateway, grpc_face, rest_face, engine)
    if health_face is not None:
        await health_face.stop()
    telemetry.close()
    if audit is not None:
        audit.close()


def _stop_signals(parent: Connection | None) -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if parent is not None:
        loop.add_reader(parent.fileno(), _on_parent_gone, loop, parent, stop)
    return stop


def _on_parent_gone(loop: asyncio.AbstractEventLoop, parent: Connection, stop: asyncio.Event) -> None:
    loop.remove_reader(parent.fileno())
    stop.set()


def _store(settings: Settings, redis_url: str) -> RedisStore:
    redis = settings.redis
    return RedisStore(
        RedisOptions(
            url=redis_url,
            timeout_s=redis.timeout_ms / 1000.0,
            connections=redis.connections,
            ca_file=redis.ca_file,
            cert_file=redis.cert_file,
            key_file=redis.key_file,
            sentinel_service=redis.sentinel_service,
            is_cluster=redis.is_cluster,
        ),
        StoreOptions(
            ring_records=settings.declog.ring_records,
            ring_bytes=settings.declog.ring_bytes,
            views_bytes=settings.declog.views_bytes,
            lapsed_ttl_s=settings.limits.late_start_s,
            lapsed_bytes=settings.limits.late_start_bytes,
        ),
    )


def make_engine(
    settings: Settings, store: StateStore, clock: Clock, telemetry: Telemetry, audit: AuditSink | None = None
) -> Engine:
    """The engine of these settings, not started. Raises BundleError, InvalidRequestError for an unknown policy."""
    admit = settings.admit
    options = EngineOptions(
        place_policy=settings.place.policy,
        pipeline_policy=settings.place.pipeline_policy,
        admit_policy=admit.policy,
        fallback_policy=settings.place.fallback_policy,
        reserve_ttl_s=settings.place.reserve_ttl_s,
        stale_telemetry_after_s=settings.stale_telemetry_after_s,
        log_buffer_records=settings.declog.buffer_records,
        observe_share=settings.declog.observe_share,
        alternatives_share=settings.declog.alternatives_share,
        study_time_share=settings.declog.study_time_share,
        logs_views=settings.declog.views,
        most_clusters=settings.limits.clusters,
        most_queues=settings.limits.queues_per_cluster,
        most_profiles=settings.limits.profiles_per_cluster,
        queue_idle_s=settings.limits.queue_idle_s,
        profile_idle_s=settings.limits.profile_idle_s,
        queue_series=settings.limits.queue_series,
        queue=QueueSettings(admit.v, admit.epsilon_s, admit.tau_s, admit.slot_s, admit.wait_bound_s),
    )
    root = settings.bundle_dir or PACKAGED_BUNDLES
    further = PACKAGED_BUNDLES if settings.bundle_dir else None
    return build_engine(
        store, clock, telemetry, options, root, keys=_bundle_keys(settings), audit=audit, further_bundles=further
    )


def _bundle_keys(settings: Settings) -> Sequence[PublicKey]:
    """Raises BundleKeyError."""
    if not settings.bundles.public_keys:
        return ()
    from placewise_models.signing import read_public  # noqa: PLC0415 - cryptography, for services with keys alone

    return [read_public(path) for path in settings.bundles.public_keys]


async def _prepared(
    clock: StoreClock, engine: Engine, gateway: Gateway, preparations: Sequence[Preparation], stop: asyncio.Event
) -> bool:
    """Everything that comes before the first caller; False if asked to stop meanwhile."""
    twin = engine.twin(MemoryStore(gateway.clock), MutedTelemetry())
    await rehearse(twin, gateway.clock)
    await twin.close()
    asked = (partial(_prepare, gateway, preparation) for preparation in preparations)
    steps: tuple[Callable[[], Awaitable[None]], ...] = (clock.start, engine.start, *asked)
    for step in steps:
        if not await _answered(step, stop):
            return False
    return True


async def _prepare(gateway: Gateway, preparation: Preparation) -> None:
    rpc = RPCS[preparation.rpc]
    await gateway.call(rpc, await gateway.parsed(rpc, preparation.request), NOBODY, math.inf)
    log.info("prepared", rpc=preparation.rpc)


async def _answered(ask: Callable[[], Awaitable[None]], stop: asyncio.Event) -> bool:
    """Asks until the store answers, as it may start beside us; False if asked to stop meanwhile."""
    for pause_s in doubling_s(_FIRST_PAUSE_S, _LONGEST_PAUSE_S):
        if stop.is_set():
            break
        try:
            await ask()
        except StateUnavailableError as error:
            log.warning("the state store does not answer yet", reason=error.message)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), pause_s)
        else:
            return True
    return False


def _settle_garbage_collector() -> None:
    """Freezes the objects loaded so far: otherwise a full collection would walk them, in the middle of a decision."""
    gc.collect()
    gc.freeze()
    # One of the second kind walks 9,000 objects at most, some 3 ms; of the third kind there are few.
    gc.set_threshold(3_000, 1, 6_000)


async def _drain(
    settings: Settings, gateway: Gateway, grpc_face: GrpcFace, rest_face: RestFace, engine: Engine
) -> None:
    log.info("draining", in_flight=gateway.in_flight, pid=os.getpid())
    timeout_s = settings.server.drain_timeout_s
    await grpc_face.drain()
    if not await gateway.drain(timeout_s):
        log.warning("calls cut off", in_flight=gateway.in_flight)
    await grpc_face.stop(0.5)
    await rest_face.stop()
    await engine.drain(timeout_s)
    await engine.close()
    log.info("stopped", pid=os.getpid())
