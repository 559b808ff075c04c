"""Two bridges of one cluster, as on the hosts of two controllers: one decides, the other follows it."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.fakes.schedulers.slurmrestd import FakeSlurm
from tests.fakes.servers.oracle import OracleServer

from placewise.v1.cluster_pb2 import JobEvent
from placewise_client.adapter import lease as timing
from placewise_client.adapter.native import Stage
from placewise_slurm.main import EXIT_LEASE_LOST

TIMEOUT_S = 20.0


class Bridge:
    """`placewise-slurm run` as a process of its own."""

    def __init__(self, root: Path, name: str, settings: str) -> None:
        self._config = root / f"{name}.toml"
        self._config.write_text(settings)
        self._log = root / f"{name}.log"
        self._process: asyncio.subprocess.Process | None = None

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None
        return self._process

    async def start(self) -> None:
        command = [sys.executable, "-m", "placewise_slurm.main", "--config", str(self._config), "run"]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with self._log.open("ab") as sink:
            self._process = await asyncio.create_subprocess_exec(*command, stdout=sink, stderr=sink, env=environ)

    @property
    def log(self) -> str:
        return self._log.read_text()

    async def stop(self) -> None:
        if self._process is None:
            return
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


@pytest.fixture
async def slurm(tmp_path: Path) -> AsyncIterator[FakeSlurm]:
    slurm = await FakeSlurm(tmp_path / "rest.sock").start()
    await slurm.add_nodes(4, 8)
    yield slurm
    await slurm.stop()


@pytest.fixture
async def service() -> AsyncIterator[OracleServer]:
    server = await OracleServer().start()
    yield server
    await server.stop()


@pytest.fixture
async def pair(tmp_path: Path, slurm: FakeSlurm, service: OracleServer) -> AsyncIterator[list[Bridge]]:
    (tmp_path / "lease").mkdir()
    bridges = [Bridge(tmp_path, name, settings(tmp_path, slurm, service)) for name in ("first", "second")]
    yield bridges
    for bridge in bridges:
        await bridge.stop()


def settings(root: Path, slurm: FakeSlurm, service: OracleServer) -> str:
    return f"""
[adapter]
cluster = "main"
decide_budget_s = 10.0
resync_s = 0.1
[service]
address = "{service.target}"
[slurm]
rest = "unix:{slurm.socket}"
[hooks]
listen_port = {free_port()}
shares_dir = ""
[metrics]
port = 0
[lease]
dir = "{root / "lease"}"
"""


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not is_true():  # noqa: ASYNC110 another process changes it
            await asyncio.sleep(0.02)


async def test_of_two_bridges_one_decides_and_the_other_takes_over(
    pair: list[Bridge], slurm: FakeSlurm, service: OracleServer
) -> None:
    first, second = pair
    await first.start()
    await until(lambda: "bridging" in first.log)
    await second.start()
    await until(lambda: "waiting" in second.log)
    keys = [await slurm.submit(1, 2) for _ in range(6)]
    await until(lambda: len(slurm.changes) == 6)
    assert "bridging" not in second.log

    first.process.kill()
    later = await slurm.submit(1, 2)
    await until(lambda: "bridging" in second.log)
    await until(lambda: ("apply", later) in slurm.changes)
    assert sorted(slurm.changes) == sorted(("apply", key) for key in [*keys, later])
    assert [len(service.oracle.decided[key]) for key in [*keys, later]] == [1] * 7
    await slurm.run_scheduler()
    await until(
        lambda: {event.job_id for event in service.oracle.events if event.kind == JobEvent.STARTED} == {*keys, later}
    )
    assert service.oracle.double_placements == []


async def test_a_bridge_that_was_stopped_hands_over_at_once(
    pair: list[Bridge], slurm: FakeSlurm, service: OracleServer
) -> None:
    first, second = pair
    await first.start()
    await until(lambda: "bridging" in first.log)
    await second.start()
    await until(lambda: "waiting" in second.log)
    first.process.terminate()
    assert await first.process.wait() == 0
    before_s = asyncio.get_running_loop().time()
    await until(lambda: "bridging" in second.log)
    assert asyncio.get_running_loop().time() - before_s < timing.DURATION_S / 2
    key = await slurm.submit(1, 2)
    await until(lambda: slurm.changes == [("apply", key)])


async def test_a_lost_lease_ends_the_bridge_with_one_line(
    pair: list[Bridge], tmp_path: Path, slurm: FakeSlurm, service: OracleServer
) -> None:
    first, _ = pair
    await first.start()
    await until(lambda: "bridging" in first.log)
    (newest,) = (tmp_path / "lease").glob("main.lease.*[0-9]")
    number = int(newest.suffix[1:])
    for ahead in range(1, 4):  # another is faster than each of its renewals
        (tmp_path / "lease" / f"main.lease.{number + ahead}").write_text("another:1")
    assert await asyncio.wait_for(first.process.wait(), TIMEOUT_S) == EXIT_LEASE_LOST
    assert first.log.splitlines()[-1] == "placewise-slurm: lease main.lease was taken by another:1"
    assert "Traceback" not in first.log
    key = await slurm.submit(1, 2)
    await asyncio.sleep(0.3)
    assert await slurm.stage(key) is Stage.WAITING
