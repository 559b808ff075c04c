"""Small parts of the adapter skeleton: breaker, metrics, book, comparison of placements."""

from __future__ import annotations

import asyncio
import contextlib
from typing import cast

import pytest

from placewise.v1.cluster_pb2 import Assignment
from placewise.v1.job_pb2 import Job, Resources, Shape
from placewise_client.adapter.book import Book
from placewise_client.adapter.bounded import Bounded
from placewise_client.adapter.breaker import Breaker
from placewise_client.adapter.decider import _in_range
from placewise_client.adapter.loop import AdapterLoop
from placewise_client.adapter.metrics import AdapterMetrics, serve_metrics
from placewise_client.adapter.native import (
    AdapterSettings,
    End,
    HostState,
    HostUnreachableError,
    NativeJob,
    NativeScheduler,
    Placement,
    Stage,
)
from placewise_client.adapter.reporter import is_as_decided
from placewise_client.aio import AsyncClient
from placewise_client.backoff import Backoff


def test_the_breaker_opens_longer_and_never_long() -> None:
    now_s = 0.0
    breaker = Breaker(clock=lambda: now_s)
    pauses = []
    for _ in range(8):
        breaker.fail("AWAY")
        assert breaker.is_open()
        pauses.append(breaker.open_until_s - now_s)
        now_s = breaker.open_until_s
        assert not breaker.is_open()
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8] + [1.0] * 4)
    assert breaker.outages == 1
    breaker.succeed()
    breaker.fail("AWAY")
    assert (breaker.open_until_s - now_s, breaker.outages) == (pytest.approx(0.1), 2)


def test_a_backoff_doubles_up_to_its_longest_pause() -> None:
    backoff = Backoff(0.1, 5.0)
    assert [backoff.pause_s(failed) for failed in (1, 2, 3, 6, 7, 10_000)] == pytest.approx([0.1, 0.2, 0.4, 3.2, 5, 5])


def test_a_bounded_memory_forgets_the_oldest_by_weight() -> None:
    memory: Bounded[str, int] = Bounded(10)
    memory.put("a", 1, 4)
    memory.put("b", 2, 4)
    memory.put("a", 3, 5)  # counts as new
    assert (memory.get("a"), memory.get("b")) == (3, 2)
    memory.put("c", 4, 2)
    assert list(memory.keys()) == ["a", "c"]
    memory.forget("a")
    memory.put("d", 5, 8)
    assert ("c" in memory, "d" in memory) == (True, True)
    memory.put("e", 6, 11)  # more than there is room for
    assert list(memory.keys()) == []


async def fetch(port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer.decode()


async def test_metrics_are_served_in_prometheus_text() -> None:
    metrics = AdapterMetrics()
    metrics.verdicts.labels("placed").inc()
    metrics.verdicts.labels("placed").inc()
    metrics.decide_s.observe(0.004)
    metrics.decide_s.observe(99.0)
    async with serve_metrics(metrics, "127.0.0.1", 0) as port:
        text = await fetch(port, "/metrics")
        assert (await fetch(port, "/healthz")).startswith("HTTP/1.1 200 ")
        assert (await fetch(port, "/")).startswith("HTTP/1.1 404 ")
    lines = text.splitlines()
    assert 'placewise_adapter_verdicts_total{verdict="placed"} 2.0' in lines
    assert "placewise_adapter_overrides_total 0.0" in lines
    assert 'placewise_adapter_decide_seconds_bucket{le="0.002"} 0.0' in lines
    assert 'placewise_adapter_decide_seconds_bucket{le="0.005"} 1.0' in lines
    assert 'placewise_adapter_decide_seconds_bucket{le="+Inf"} 2.0' in lines
    assert "placewise_adapter_decide_seconds_count 2.0" in lines


@pytest.mark.parametrize(("before", "end"), [(Stage.RUNNING, End.FINISHED), (Stage.WAITING, End.CANCELLED)])
def test_a_job_the_host_forgot_has_ended(before: Stage, end: End) -> None:
    book = Book()
    book.update(HostState([NativeJob("j", Job(id="j"), before)], is_complete=True), 0.0)
    assert book.update(HostState([]), 1.0) == []  # an incomplete look says nothing about jobs it does not show
    (news,) = book.update(HostState([], is_complete=True), 2.0)
    assert (news.record.stage, news.record.job.end) == (Stage.ENDED, end)
    assert book.records == {}


def test_an_ended_job_stays_ended() -> None:
    book = Book()
    ended = NativeJob("j", Job(id="j"), Stage.ENDED, end=End.FAILED)
    assert len(book.update(HostState([ended]), 0.0)) == 1
    assert book.update(HostState([NativeJob("j", Job(id="j"), Stage.RUNNING)]), 1.0) == []


def task(node: str, *indices: int, gpus: float = 0) -> Assignment:
    return Assignment(node=node, gpu_indices=indices, demand=Resources(gpus=gpus or len(indices)))


@pytest.mark.parametrize(
    ("really", "decided", "is_exact", "is_kept"),
    [
        ([task("n1", 0, 1)], [task("n1", 0, 1)], True, True),
        ([task("n1", 0, 1)], [task("n1", 2, 3)], True, False),
        ([task("n1", 0, 1)], [task("n1", 2, 3)], False, True),
        ([task("n1", 0, 1)], [task("n2", 0, 1)], False, False),
        ([task("n1", 0, 1)], [task("n1", 0), task("n1", 1)], True, True),
        ([task("n1", gpus=2)], [task("n1", 4, 5)], False, True),
        ([task("n1"), task("n1"), task("n2")], [task("n1"), task("n2"), task("n2")], False, False),
        ([], [task("n1", 0)], False, True),
    ],
)
def test_whether_the_host_did_as_decided(
    really: list[Assignment], decided: list[Assignment], is_exact: bool, is_kept: bool
) -> None:
    job = NativeJob("j", Job(id="j"), Stage.RUNNING, placement=tuple(really), are_gpus_exact=is_exact)
    assert is_as_decided(job, Placement(tuple(decided))) is is_kept


@pytest.mark.parametrize(
    ("shape", "fewest", "most", "wanted"),
    [
        ((1, 6), 2, 3, (2, 3)),
        ((1, 7), 2, 3, (2, 4)),
        ((8, 1), 1, 4, (4, 2)),
        ((2, 4), 1, 4, (2, 4)),
        ((9, 1), 1, 0, (9, 1)),
    ],
)
def test_shapes_are_brought_into_the_users_range(
    shape: tuple[int, int], fewest: int, most: int, wanted: tuple[int, int]
) -> None:
    brought = _in_range(Shape(nodes=shape[0], gpus_per_node=shape[1]), fewest, most)
    assert (brought.nodes, brought.gpus_per_node) == wanted


class AwayHost:
    """A host scheduler that does not answer, and counts how often it is asked; its waits may break off, too."""

    def __init__(self, *, is_wait_broken: bool) -> None:
        self.is_wait_broken = is_wait_broken
        self.looks_s: list[float] = []
        self.is_asked_thrice = asyncio.Event()

    async def observe(self, full: bool) -> HostState:
        self.looks_s.append(asyncio.get_running_loop().time())
        if len(self.looks_s) == 3:
            self.is_asked_thrice.set()
        raise HostUnreachableError("away")

    async def wait(self, timeout_s: float) -> bool:
        if self.is_wait_broken:
            raise HostUnreachableError("away")
        await asyncio.sleep(timeout_s)
        return False


@pytest.mark.parametrize("is_wait_broken", [False, True])
async def test_a_host_that_is_away_is_not_asked_all_the_time(is_wait_broken: bool) -> None:
    host = AwayHost(is_wait_broken=is_wait_broken)
    settings = AdapterSettings(cluster="c", retry_s=0.05)
    async with AsyncClient("127.0.0.1:1") as client:
        running = asyncio.ensure_future(AdapterLoop(cast(NativeScheduler, host), client, settings).run())
        await host.is_asked_thrice.wait()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    assert host.looks_s[2] - host.looks_s[0] >= 0.075
