"""What store tests share: small nodes and jobs, and the three stores behind one harness."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import redis

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import Assignment, Gpu, Node, NodeState, RunningJob, RunState
from placewise_core.domain.events import ClusterRecords, Event
from placewise_core.domain.job import GpuSharing, Job, JobId, NodeId, Resources, Role
from placewise_service.state.codec import encode
from placewise_service.state.keys import keys_of
from placewise_service.state.options import StoreOptions
from placewise_service.state.redis.connection import RedisOptions
from placewise_service.state.redis.redis_store import RedisStore
from placewise_service.state.reference.memory import MemoryStore
from placewise_service.state.store import JobReport, ReserveRequest, StateStore

CLUSTER = "north"


def node(name: str = "n0", gpus: int = 4, state: NodeState = NodeState.READY, max_jobs_per_gpu: int = 1) -> Node:
    """16 cores, 64 GiB, `gpus` × 16 GiB, 10 Gbit/s, 4 licences."""
    return Node(
        NodeId(name),
        Resources(16.0, float(gpus), 64.0, 16.0 * gpus, 10.0, {"licence": 4.0}),
        tuple(Gpu(g, "V100", 16.0) for g in range(gpus)),
        max_jobs_per_gpu=max_jobs_per_gpu,
        state=state,
    )


def demand(cpu: float = 1.0, gpus: float = 1.0, memory: float = 1.0, **more: Any) -> Resources:
    return Resources(cpu_cores=cpu, gpus=gpus, memory_gib=memory, **more)


def task(name: str = "n0", gpus: tuple[int, ...] = (0,), ask: Resources | None = None, id_: str = "w0") -> Assignment:
    asked = ask if ask is not None else demand(gpus=float(len(gpus)))
    return Assignment(id_, Role.WORKER, NodeId(name), gpus, asked)


def job(name: str, *tasks: Assignment, sharing: bool = False, reservation: str | None = None) -> RunningJob:
    return RunningJob(
        Job(JobId(name), model="resnet50", gpu_sharing=GpuSharing(sharing)),
        tasks or (task(),),
        RunState.RESERVED,
        reservation_id=f"r-{name}" if reservation is None else reservation,
        decision_id=f"d-{name}",
    )


def started(running: RunningJob, at_s: float = 100.0) -> JobReport:
    from dataclasses import replace

    reported = replace(running, state=RunState.RUNNING, start_time_s=at_s)
    return JobReport(running.id, "STARTED", at_s, running=reported, reservation_id=running.reservation_id)


def progress(name: str, speed: float, epochs: float) -> JobReport:
    return JobReport(JobId(name), "PROGRESS", 110.0, speed=speed, epochs_done=epochs)


def ended(name: str, kind: str = "FINISHED", reservation: str = "") -> JobReport:
    return JobReport(JobId(name), kind, 120.0, is_end=True, reservation_id=reservation)


def same(one: object, other: object) -> bool:
    """Equality in which NaN equals NaN."""
    return encode(one) == encode(other)


async def records(store: StateStore, cluster: str = CLUSTER) -> ClusterRecords:
    loaded = await store.load(cluster)
    assert loaded is not None
    return loaded[0]


async def position(store: StateStore, cluster: str = CLUSTER) -> str:
    loaded = await store.load(cluster)
    assert loaded is not None
    return loaded[1]


def third(name: str, gpu: int = 0) -> RunningJob:
    """A job of a third of one GPU of s0."""
    return job(name, task("s0", (gpu,), demand(gpus=1 / 3)))


async def hold(store: StateStore, *jobs: object, ttl_s: float = 60.0, **more: object) -> object:
    """Reserves the jobs."""
    return await store.reserve(CLUSTER, ReserveRequest(jobs, ttl_s, **more))  # type: ignore[arg-type]


async def tailed(store: StateStore, cluster: str, start: str) -> AsyncIterator[tuple[str, Sequence[Event]]]:
    """As tail, with all events decoded."""
    async for place, batch in store.tail(cluster, start):
        yield place, await batch.after(0)


async def collect(store: StateStore, start: str, count: int) -> list[Event]:
    """The next `count` events."""
    found: list[Event] = []
    async with asyncio.timeout(10):
        async for _, events in tailed(store, CLUSTER, start):
            found += events
            if len(found) >= count:
                break
    return found


@dataclass
class Harness:
    """A store, a way to let its clock advance, and a second client of the same state."""

    kind: str
    store: StateStore
    another: Callable[[], StateStore]
    clock: ManualClock | None = None
    raw: Any = None
    opened: list[StateStore] = field(default_factory=list)

    async def advance(self, seconds: float) -> None:
        if self.clock is not None:
            self.clock.advance(seconds)
        else:
            await asyncio.sleep(seconds)

    def other(self) -> StateStore:
        self.opened.append(self.another())
        return self.opened[-1]

    async def trim(self) -> None:
        """Forgets all events but the last."""
        if isinstance(self.store, MemoryStore):
            self.store.trim(CLUSTER)
        else:
            self.raw.xtrim(keys_of(CLUSTER).events, maxlen=1, approximate=False)

    def leftover_keys(self) -> set[str]:
        """Keys of the cluster that would stay for ever."""
        if self.raw is None:
            return set()
        names = [name.decode() for name in self.raw.scan_iter("pw:*")]
        return {name for name in names if self.raw.ttl(name) < 0}

    async def close(self) -> None:
        for store in (self.store, *self.opened):
            await store.close()
        if self.raw is not None:
            with contextlib.suppress(redis.RedisError):
                self.raw.close()


def memory_harness(options: StoreOptions) -> Harness:
    clock = ManualClock(1_000_000.0)
    store = MemoryStore(clock, options)
    return Harness("memory", store, lambda: store, clock)


def redis_harness(kind: str, url: str, raw: Any, options: StoreOptions) -> Harness:
    return Harness(
        kind,
        RedisStore(RedisOptions(url), options),
        lambda: RedisStore(RedisOptions(url), options),
        raw=raw,
    )
