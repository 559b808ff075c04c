"""The state store on Redis: every mutation is one script, one round trip. Holds no state of a cluster itself.

The scripts (lua/*.lua) decide; this module packs their arguments and unpacks their replies. Every exception below it
leaves as StateUnavailableError with words of our own (errors.py).
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from redis.asyncio import Redis, RedisCluster
from redis.exceptions import NoScriptError

from placewise_core.domain.asked import AskedJob, JobLinks
from placewise_core.domain.cluster import ClusterSettings, Node, QueueState, RunningJob
from placewise_core.domain.events import (
    ClusterRecords,
    Event,
    JobsChanged,
    NodesReported,
    QueueAdvanced,
    SettingsChanged,
    SubtaskProfiled,
)
from placewise_core.domain.job import JobId, NodeId
from placewise_core.speed.learned.sums import Addition
from placewise_log.changes import change_of
from placewise_log.logs import Log, LogState
from placewise_log.sums import check_record
from placewise_service.aside import aside
from placewise_service.state import codec
from placewise_service.state.errors import no_such_cluster, translate_redis_errors
from placewise_service.state.holdings import NETWORK, capacity_of, check_reservable, holds_of
from placewise_service.state.keys import REGISTRY, ClusterKeys, keys_of
from placewise_service.state.lifecycle import reserved
from placewise_service.state.options import StoreOptions
from placewise_service.state.redis.bundle_choices import RedisBundles
from placewise_service.state.redis.connection import BoundedClient, RedisOptions, bounded_client
from placewise_service.state.redis.pipelined import PipelinedConnection
from placewise_service.state.redis.records import records_from, search_bounds
from placewise_service.state.redis.scripts import Argument, Executor, script
from placewise_service.state.redis.shared_tail import SharedTail
from placewise_service.state.redis.tailing import tail_alone, tail_shared
from placewise_service.state.store import (
    MOST_FORGOTTEN,
    MOST_LINKED,
    Batch,
    Conflict,
    JobReport,
    Overcommit,
    Repeated,
    ReportResult,
    Reserved,
    ReserveRequest,
    ReserveResult,
    Reused,
)

_EXPIRE_AT_ONCE = 1000
_MOST_TASKS = 500  # of a reservation that is packed on the loop, in some milliseconds
_FIND_PAGE = 256
_KEPT_KEYS = 1024  # clusters
_NO_TENANTS = codec.encode({})
_COPIED_EVENTS, _COPIED_BYTES = 64, 1 << 18  # in one entry of the log of views
_OPS = {"STARTED": "start", "PROGRESS": "progress"}  # report_jobs.lua ignores any other


class RedisStore(RedisBundles):
    """StateStore on standalone Redis, Sentinel or Redis Cluster (≥ 6.2)."""

    def __init__(self, redis: RedisOptions, options: StoreOptions | None = None) -> None:
        self._client = bounded_client(redis)
        self._pipelined = _pipelined_connection(self._client, redis)
        self._scripts: Executor = self._pipelined or self._client
        super().__init__(self._client, self._scripts)
        self._options = options or StoreOptions()
        self._block_ms = int(redis.timeout_s * 300)  # well under the read timeout: idle is not dead
        client = self._client.unbounded
        self._streams = SharedTail(client, self._block_ms) if isinstance(client, Redis) else client
        self._registered: set[str] = set()

    async def ping(self) -> float:
        with translate_redis_errors():
            seconds, microseconds = await self._client.execute_command("TIME")
        return float(seconds) + float(microseconds) / 1e6

    async def check_writable(self) -> None:
        with translate_redis_errors():  # a command that may write is refused even if it would change nothing
            await self._client.execute_command("SREM", REGISTRY, "")

    async def clusters(self) -> Sequence[str]:
        with translate_redis_errors():
            names = sorted(name.decode() for name in await self._client.execute_command("SMEMBERS", REGISTRY))
            if isinstance(self._streams, RedisCluster):
                return [name for name in names if await self._client.execute_command("EXISTS", keys_of(name).meta)]
            asked = self._client.unbounded.pipeline(transaction=False)
            for name in names:
                asked.exists(keys_of(name).meta)
            return [name for name, is_there in zip(names, await asked.execute(), strict=True) if is_there]

    async def load(self, cluster: str) -> tuple[ClusterRecords, str] | None:
        k = keys_of(cluster)
        keys = (k.meta, k.nodes, k.jobs, k.expiring, k.progress, k.queues, k.overheads, k.profiles, k.row_sums)
        with translate_redis_errors(cluster):
            reply = await script("load").run(self._scripts, keys, [])
            if reply is None:
                return None
            is_large = len(reply[4]) + len(reply[5]) + len(reply[10]) > 2 * codec.NODES_PER_CHUNK
            return await aside(records_from, cluster, reply) if is_large else records_from(cluster, reply)

    def tail(self, cluster: str, position: str) -> AsyncIterator[tuple[str, Batch]]:
        if isinstance(self._streams, RedisCluster):
            return tail_alone(self._streams, cluster, position, self._block_ms)
        return tail_shared(self._streams, self._client, cluster, position)

    # -- nodes --------------------------------------------------------------------------------------------------

    async def report_nodes(self, cluster: str, nodes: Sequence[Node], full: bool) -> ReportResult:
        k = keys_of(cluster)
        is_large = len(nodes) > codec.NODES_PER_CHUNK
        body, rows = await aside(_packed_nodes, nodes) if is_large else _packed_nodes(nodes)
        keys = (k.meta, k.events, k.nodes, k.capacities, k.used, k.jobs, k.holds)
        epoch, version, removed, was_created = await self._run(
            "report_nodes", cluster, keys, [secrets.token_hex(6), int(full), body, *rows]
        )
        await self._register(cluster, bool(was_created))
        change = NodesReported(tuple(nodes), tuple(NodeId(name.decode()) for name in removed))
        event = Event(int(version), epoch.decode(), change)
        return ReportResult((event,), event.version, len(nodes) + len(change.removed), 0)

    async def _register(self, cluster: str, was_created: bool) -> None:
        """Lists the cluster. After its creation, not with it: another slot may hold the registry (see keys.py)."""
        if was_created or cluster not in self._registered:
            with translate_redis_errors(cluster):
                await self._client.execute_command("SADD", REGISTRY, cluster)
            self._registered.add(cluster)

    # -- jobs ---------------------------------------------------------------------------------------------------

    def reserve(self, cluster: str, request: ReserveRequest) -> Awaitable[ReserveResult]:
        check_reservable(request.jobs)
        if sum([len(job.assignments) for job in request.jobs]) > _MOST_TASKS:
            return asyncio.create_task(self._reserve_large(cluster, request))
        return self._reserved(request, self._begin("reserve", cluster, *self._reservation(cluster, request)))

    async def _reserve_large(self, cluster: str, request: ReserveRequest) -> ReserveResult:
        keys, args = await aside(self._reservation, cluster, request)
        return await self._reserved(request, self._run("reserve", cluster, keys, args))

    def _reservation(self, cluster: str, request: ReserveRequest) -> tuple[tuple[str, ...], list[Argument]]:
        """Keys and arguments of the script."""
        expected: dict[str, object] = {**request.expected_tenants}
        if request.expected_nodes:
            expected[NETWORK] = request.expected_nodes
        args: list[Argument] = [
            request.ttl_s,
            request.request_id,
            request.answer,
            self._options.answer_ttl_s,
            codec.encode(expected) if expected else _NO_TENANTS,
            request.fingerprint,
            request.over,
        ]
        for job in request.jobs:
            args += (job.id, job.reservation_id, codec.encode_record(job), codec.encode(holds_of(job)))
        return _reserve_keys(cluster), args

    async def _reserved(self, request: ReserveRequest, answer: Awaitable[Any]) -> ReserveResult:
        reply = await answer
        if reply[0] == b"conflict":
            found = reply[3] if len(reply) > 3 else ()
            pairs = zip(found[::2], found[1::2], strict=True)
            running = tuple(codec.decode_job(record, 0.0, progress) for record, progress in pairs)
            return Conflict(reply[1].decode(), reply[2].decode(), running)
        if reply[0] != b"held":
            return _standing(reply)
        expire_s = float(reply[3])
        held = tuple(reserved(job, expire_s) for job in request.jobs)
        return Reserved(Event(int(reply[2]), reply[1].decode(), JobsChanged(held)), expire_s)

    async def look_up(self, cluster: str, job_ids: Sequence[JobId]) -> Mapping[JobId, RunningJob | None]:
        k = keys_of(cluster)
        found: dict[JobId, RunningJob | None] = {}
        with translate_redis_errors(cluster):
            keys = (k.jobs, k.expiring, k.progress, k.ended, k.meta)
            for job_id, *held in await script("look_up").run(self._scripts, keys, [*job_ids]):
                if held:
                    check_record(held[0], "jobs", job_id)
                job = codec.decode_job(held[0], float(held[1]), held[2] or None) if held else None
                found[JobId(job_id.decode())] = job
        return found

    async def release(self, cluster: str, reservation_ids: Sequence[str]) -> ReportResult:
        return _result(await self._run("release", cluster, _giving_keys(keys_of(cluster)), [*reservation_ids]))

    async def expire(self, cluster: str, host_time_s: float | None = None) -> ReportResult:
        moved = ("", b"") if host_time_s is None else (repr(host_time_s), codec.encode(host_time_s))
        args: list[Argument] = [_EXPIRE_AT_ONCE, self._options.lapsed_ttl_s, self._options.lapsed_bytes, *moved]
        return _result(await self._run("expire", cluster, _giving_keys(keys_of(cluster)), args))

    async def report_jobs(self, cluster: str, reports: Sequence[JobReport]) -> ReportResult:
        k = keys_of(cluster)
        args: list[Argument] = [self._options.ended_ttl_s]
        for report in reports:
            args += _report_args(report)
        keys = (*_giving_keys(k), k.progress, k.ended, k.capacities, k.row_sums)
        reply = await self._run("report_jobs", cluster, keys, args)
        if reply is None:
            raise no_such_cluster(cluster)
        with translate_redis_errors(cluster):
            return _result(reply)

    async def recall(self, cluster: str, request_id: str, fingerprint: bytes = b"") -> Repeated | Reused | None:
        k = keys_of(cluster)
        with translate_redis_errors(cluster):
            reply = await script("recall").run(self._scripts, (k.answers, k.answer_times), [request_id, fingerprint])
        return _standing(reply) if reply else None

    async def remember(
        self, cluster: str, request_id: str, answer: bytes, fingerprint: bytes = b"", over: bytes = b""
    ) -> Repeated | Reused:
        k = keys_of(cluster)
        args: list[Argument] = [request_id, answer, self._options.answer_ttl_s, fingerprint, over]
        with translate_redis_errors(cluster):
            return _standing(await script("remember").run(self._scripts, (k.answers, k.answer_times), args))

    # -- queues, settings, learned values -----------------------------------------------------------------------

    def commit_queue(self, cluster: str, queue: QueueState, expected_seq: int) -> Awaitable[Event | None]:
        k = keys_of(cluster)
        stored = queue if queue.seq == expected_seq + 1 else replace(queue, seq=expected_seq + 1)
        args: list[Argument] = [queue.queue, expected_seq, stored.seq, codec.encode_record(stored)]
        answer = self._begin("commit_queue", cluster, (k.meta, k.events, k.queues, k.queue_seqs), args)
        return self._committed(cluster, stored, answer)

    async def _committed(self, cluster: str, stored: QueueState, answer: Awaitable[Any]) -> Event | None:
        reply = await answer
        if reply is None:
            raise no_such_cluster(cluster)
        return Event(int(reply[1]), reply[0].decode(), QueueAdvanced(stored)) if reply else None

    async def forget_queue(self, cluster: str, queue: str, expected_seq: int) -> Event | None:
        k, empty = keys_of(cluster), QueueState(queue)
        args: list[Argument] = [queue, expected_seq, codec.encode_record(empty)]
        reply = await self._run("forget_queue", cluster, (k.meta, k.events, k.queues, k.queue_seqs), args)
        if reply is None:
            raise no_such_cluster(cluster)
        return Event(int(reply[1]), reply[0].decode(), QueueAdvanced(empty)) if reply else None

    async def update_settings(self, cluster: str, settings: ClusterSettings) -> Event:
        k = keys_of(cluster)
        keys = (k.meta, k.events, k.nodes, k.jobs, k.holds)
        args: list[Argument] = [secrets.token_hex(6), codec.encode_record(settings), int(settings.host_clock)]
        epoch, version, was_created = await self._run("update_settings", cluster, keys, args)
        await self._register(cluster, bool(was_created))
        return Event(int(version), epoch.decode(), SettingsChanged(settings))

    async def learn_overhead(self, cluster: str, outcome_id: str, task_kind: str, overhead_s: float) -> Event | None:
        k = keys_of(cluster)
        args: list[Argument] = [outcome_id, task_kind, overhead_s, self._options.outcome_ttl_s]
        keys = (k.meta, k.events, k.overheads, k.outcomes, k.row_sums, k.overhead_times)
        reply = await self._run("learn_overhead", cluster, keys, args)
        if reply is None:
            raise no_such_cluster(cluster)
        return _event(reply[0], reply[1]) if reply else None

    async def profile_subtask(self, cluster: str, kind: str, metrics: Mapping[str, float]) -> Event:
        k = keys_of(cluster)
        keys = (k.meta, k.events, k.profiles, k.profile_times, k.row_sums)
        reply = await self._run("profile_subtask", cluster, keys, [kind, codec.encode(metrics)])
        if reply is None:
            raise no_such_cluster(cluster)
        return Event(int(reply[1]), reply[0].decode(), SubtaskProfiled(kind, dict(metrics)))

    async def add_sums(self, cluster: str, additions: Sequence[Addition], halving_s: float) -> Sequence[Event]:
        k = keys_of(cluster)
        args: list[Argument] = [
            halving_s,
            self._options.outcome_ttl_s,
            *[part for each in additions for part in (each.kind, each.value, each.weight, each.once)],
        ]
        keys = (k.meta, k.events, k.profiles, k.profile_times, k.row_sums, k.outcomes)
        reply = await self._run("add_sums", cluster, keys, args)
        if reply is None:
            raise no_such_cluster(cluster)
        return [_event(reply[0], fields) for fields in reply[1]]

    async def forget_profiles(self, cluster: str, used: Collection[str], idle_s: float) -> Sequence[Event]:
        k = keys_of(cluster)
        profiles, overheads = (k.profiles, k.profile_times), (k.overheads, k.overhead_times)
        keys = (k.meta, k.events, *profiles, k.row_sums, k.progress, *overheads)
        reply = await self._run("forget_profiles", cluster, keys, [idle_s, MOST_FORGOTTEN, *used])
        if reply is None:
            raise no_such_cluster(cluster)
        return [_event(reply[0], fields) for fields in reply[1]]

    async def delete_cluster(self, cluster: str) -> bool:
        was_there = bool(await self._run("delete_cluster", cluster, keys_of(cluster).all, []))
        self._registered.discard(cluster)
        with translate_redis_errors(cluster):
            await self._client.execute_command("SREM", REGISTRY, cluster)
        return was_there

    # -- decision log -------------------------------------------------------------------------------------------

    async def append_decisions(
        self, cluster: str, records: Sequence[bytes], log: Log = Log.DECISIONS, lost: int = 0
    ) -> int:
        with translate_redis_errors(cluster):
            args: list[Argument] = [*self._bounds(log), lost, *records]
            keys = (keys_of(cluster).meta, *_log_keys(cluster, log))
            return int(await script("append_decisions").run(self._scripts, keys, args))

    async def link_jobs(self, cluster: str, questions: Sequence[AskedJob]) -> Sequence[JobLinks]:
        k = keys_of(cluster)
        with translate_redis_errors(cluster):
            parts = [
                part for asked in questions for part in (asked.kind.value, asked.job, asked.decision, asked.refusal)
            ]
            args: list[Argument] = [MOST_LINKED, self._options.links_ttl_s, *parts]
            found = await script("link_jobs").run(self._scripts, (k.meta, k.links, k.older_links), args)
        ids = [each.decode() for each in found]
        return [JobLinks(*ids[i : i + 4]) for i in range(0, len(ids), 4)]

    async def copy_events(self, cluster: str) -> tuple[bool, int]:
        k = keys_of(cluster)
        with translate_redis_errors(cluster):
            args: list[Argument] = [*self._bounds(Log.VIEWS), _COPIED_EVENTS, _COPIED_BYTES]
            keys = (k.meta, k.events, *_log_keys(cluster, Log.VIEWS), k.views_copied)
            more, lost = await script("copy_events").run(self._scripts, keys, args)
            return bool(more), int(lost)

    def _bounds(self, log: Log) -> tuple[int, int]:
        options = self._options
        return options.ring_records, options.views_bytes if log is Log.VIEWS else options.ring_bytes

    async def read_decisions(
        self, cluster: str, after: str, count: int, log: Log = Log.DECISIONS
    ) -> Sequence[tuple[str, bytes]]:
        with translate_redis_errors(cluster):
            return await self._entries(_log_keys(cluster, log)[0], f"({after}", "+", count)

    async def _entries(self, key: str, first: str, last: str, count: int) -> list[tuple[str, bytes]]:
        entries = await self._client.execute_command("XRANGE", key, first, last, "COUNT", count)
        return [(entry_id.decode(), fields[b"r"]) for entry_id, fields in entries]

    async def find_decision(self, cluster: str, decision_id: str) -> bytes | None:
        with translate_redis_errors(cluster):
            for first, last in search_bounds(decision_id):
                start = first
                while page := await self._entries(keys_of(cluster).decisions, start, last, _FIND_PAGE):
                    for _, record in page:
                        if codec.is_decision(record, decision_id):
                            return record
                    start = f"({page[-1][0]}"
        return None

    async def mark_exported(self, cluster: str, position: str, log: Log = Log.DECISIONS) -> None:
        keys = (keys_of(cluster).meta, _log_keys(cluster, log)[1])
        with translate_redis_errors(cluster):
            await script("mark_exported").run(self._scripts, keys, [position])

    async def log_state(self, cluster: str, log: Log = Log.DECISIONS) -> LogState:
        _, exported, _, drops = _log_keys(cluster, log)
        with translate_redis_errors(cluster):
            position, dropped = await self._client.execute_command("MGET", exported, drops)
            host_s = await self._client.execute_command("HGET", keys_of(cluster).meta, "host_s")
        return LogState((position or b"0").decode(), int(dropped or 0), float(host_s) if host_s else None)

    async def close(self) -> None:
        with translate_redis_errors():
            if isinstance(self._streams, SharedTail):
                await self._streams.close()
            if self._pipelined is not None:
                await self._pipelined.close()
            await self._client.close()

    def _begin(self, name: str, cluster: str, keys: tuple[str, ...], args: list[Argument]) -> Awaitable[Any]:
        """As _run, but the script is on its way: sent, or in a task if the connection cannot take it now."""
        if self._pipelined is not None:
            sent = self._pipelined.send(*script(name).call(keys, [self._options.retain_events_s, *args]))
            if sent is not None:
                return self._answered(sent, name, cluster, keys, args)
        return asyncio.create_task(self._run(name, cluster, keys, args))

    async def _answered(
        self, sent: asyncio.Future[Any], name: str, cluster: str, keys: tuple[str, ...], args: list[Argument]
    ) -> Any:
        """The reply to a script that was sent; a server that does not know it gets its text."""
        with translate_redis_errors(cluster):
            try:
                return await sent
            except NoScriptError:
                return await self._run(name, cluster, keys, args)

    async def _run(self, name: str, cluster: str, keys: tuple[str, ...], args: list[Argument]) -> Any:
        """Runs a script that may append an event."""
        with translate_redis_errors(cluster):
            return await script(name).run(self._scripts, keys, [self._options.retain_events_s, *args])


def _log_keys(cluster: str, log: Log) -> tuple[str, str, str, str]:
    """The log, its position exported, its bytes and its drops."""
    k = keys_of(cluster)
    if log is Log.VIEWS:
        return k.views, k.views_exported, k.views_bytes, k.views_drops
    return k.decisions, k.exported, k.decision_bytes, k.decision_drops


def _pipelined_connection(bounded: BoundedClient, options: RedisOptions) -> PipelinedConnection | None:
    """A connection for the scripts; None on Redis Cluster, where each command finds its server."""
    if isinstance(bounded.unbounded, RedisCluster):
        return None
    return PipelinedConnection(bounded.unbounded.connection_pool, options.timeout_s, options.connections)


def _packed_nodes(nodes: Sequence[Node]) -> tuple[bytes, list[Argument]]:
    """The body of the event, and the script's three arguments per node."""
    records: list[bytes] = []
    rows: list[Argument] = []
    for node in nodes:
        record = codec.encode_record(node)
        records.append(record)
        rows += (node.id, record, codec.encode(capacity_of(node)))
    return codec.pack_nodes(records), rows


@lru_cache(_KEPT_KEYS)
def _reserve_keys(cluster: str) -> tuple[str, ...]:
    k = keys_of(cluster)
    return (
        k.meta,
        k.events,
        k.capacities,
        k.used,
        k.jobs,
        k.holds,
        k.expiring,
        k.reservations,
        k.progress,
        k.ended,
        k.answers,
        k.answer_times,
    )


def _giving_keys(k: ClusterKeys) -> tuple[str, ...]:
    return (k.meta, k.events, k.used, k.jobs, k.holds, k.expiring, k.reservations, k.lapsed, k.lapsed_times)


def _report_args(report: JobReport) -> tuple[Argument, ...]:
    op = "end" if report.is_end else _OPS.get(report.kind, "none")
    running = report.running if op == "start" else None
    record = codec.encode_record(running) if running is not None else b""
    holds = codec.encode(holds_of(running)) if running is not None else b""
    start_s = running.start_time_s if running is not None else report.event_time_s
    reservation_id = running.reservation_id if running is not None else report.reservation_id
    return (op, report.job_id, reservation_id, record, holds, start_s, report.speed, report.epochs_done)


def _event(epoch: bytes, fields: Sequence[bytes]) -> Event:
    version, kind, body, args = fields
    return Event(int(version), epoch.decode(), change_of(kind, body, args))


def _standing(reply: Sequence[bytes]) -> Repeated | Reused:
    return Repeated(reply[1], float(reply[2])) if reply[0] == b"repeated" else Reused()


def _result(reply: Sequence[Any]) -> ReportResult:
    epoch, version, applied, ignored, events, *of_jobs = reply
    problems, unknown = of_jobs or ((), ())
    return ReportResult(
        tuple(_event(epoch, event) for event in events),
        int(version),
        applied,
        ignored,
        tuple(_overcommit(*problem) for problem in problems),
        tuple(JobId(job.decode()) for job in unknown),
    )


def _overcommit(job: bytes, node: bytes, reason: bytes, gpus: Sequence[int], others: Sequence[bytes]) -> Overcommit:
    names = tuple(JobId(other.decode()) for other in others)
    return Overcommit(JobId(job.decode()), NodeId(node.decode()), reason.decode(), tuple(gpus), names)
