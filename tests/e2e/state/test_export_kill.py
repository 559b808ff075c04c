"""`placewise log export` killed at any moment, on a real Redis: nothing acknowledged is lost, nothing is doubled."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from placewise_core.basics.clock import SystemClock
from placewise_core.domain.commands import JobEvent, JobEventKind, PlaceCommand
from placewise_core.domain.decision import DecisionMeta, JobDecision, Outcome, PlaceDecision
from placewise_core.domain.job import Job, JobId
from placewise_log.record import DecisionRecord, Entry, OutcomeRecord
from placewise_service.declog.sink import DecisionSink
from placewise_service.engine.ids import uuid7
from placewise_service.state.redis.connection import RedisOptions
from placewise_service.state.redis.embedded import EmbeddedRedis
from placewise_service.state.redis.redis_store import RedisStore

pytestmark = pytest.mark.e2e

DECISIONS = 4000
KILLS = 8


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(tmp_path / "state") as embedded:
        yield embedded


def pair(n: int, now_s: float) -> tuple[Entry, Entry]:
    """A decision and the start of its job."""
    job = JobId(f"j{n}")
    answer = PlaceDecision((JobDecision(job, Outcome.PLACED),), DecisionMeta(uuid7(), "tetris"))
    decision = DecisionRecord.of_place(PlaceCommand("c", (Job(job),)), answer, time_s=now_s, seed=n, latency_ms=0.1)
    event = JobEvent(job, JobEventKind.STARTED, event_time_s=now_s)
    return decision, OutcomeRecord("c", now_s, event, decision.decision_id)


async def fill(url: str) -> set[str]:
    """Decisions and outcomes through the real sink; the decision ids."""
    store = RedisStore(RedisOptions(url, timeout_s=30.0))
    await store.report_nodes("c", (), full=False)
    sink = DecisionSink(store, capacity=2 * DECISIONS)
    ids = set()
    for n in range(DECISIONS):
        decision, outcome = pair(n, SystemClock().now_s())
        ids.add(decision.decision_id)
        sink.offer(decision)
        sink.offer(outcome)
    await sink.close(timeout_s=60.0)
    await store.close()
    assert sink.dropped == 0
    return ids


async def acknowledged(url: str) -> set[str]:
    """Positions up to which the ring was marked as exported."""
    store = RedisStore(RedisOptions(url, timeout_s=30.0))
    last = (await store.log_state("c")).exported
    seen = {position for position, _ in await store.read_decisions("c", "0", 10 * DECISIONS)}
    await store.close()
    milliseconds = [tuple(map(int, position.split("-"))) for position in seen]
    limit = tuple(map(int, last.split("-"))) if "-" in last else (0, 0)
    return {f"{ms}-{n}" for ms, n in milliseconds if (ms, n) <= limit}


def positions(directory: Path) -> set[str]:
    found = (pq.read_table(path, columns=["position"]) for path in directory.glob("[do]*s/date=*/*.parquet"))
    return {position for table in found for position in table.column("position").to_pylist()}


def count_files(directory: Path) -> int:
    return sum(1 for _ in directory.glob("[do]*s/date=*/*.parquet"))


def start_export(directory: Path, state: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "placewise_service.cli", "log", "export", str(directory), "--batch", "20"]
    environment = {**os.environ, "PLACEWISE_STATE_DIR": str(state)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.slow
def test_killed_again_and_again_the_export_loses_nothing(tmp_path: Path, redis: EmbeddedRedis) -> None:
    ids = asyncio.run(fill(redis.url))
    rng = random.Random(1)
    directory = tmp_path / "log"
    interrupted = 0
    for _ in range(KILLS):
        process = start_export(directory, tmp_path / "state")
        before = count_files(directory)
        # Wait for the first file of this run, so that the kill falls into the work and not into the imports.
        while process.poll() is None and count_files(directory) <= before:
            time.sleep(0.005)
        time.sleep(rng.random() * 0.05)
        interrupted += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert asyncio.run(acknowledged(redis.url)) <= positions(directory)
    assert interrupted >= KILLS // 2, "the export was over before it could be killed"
    assert start_export(directory, tmp_path / "state").wait() == 0
    exported = [i for path in directory.glob("decisions/*/*.parquet") for i in pq.read_table(path)["id"].to_pylist()]
    assert len(exported) == len(set(exported))
    assert set(exported) == ids
    joined = [row for path in directory.glob("joined/*/*.parquet") for row in pq.read_table(path).to_pylist()]
    assert len(joined) == DECISIONS
    assert all(row["start_time_s"] > 0 for row in joined)
    assert not list(directory.glob("*/*/.*.tmp"))
