"""Placewise on a real ResourceManager with 1,000 and 10,000 nodes and 500 and 5,000 waiting gangs.

    python -m pytest -s -m e2e_heavy tests/bench/test_yarn_scale.py

Nodes and applications are those of ScaleDriver: they speak YARN's protocols and run nothing. Two GPUs of eight are free
on each node, and every gang wants two containers of four. Times are processor time of threads, so that other load
counts little.

Three ResourceManagers take it: with the jar and PlacewiseOrderingPolicy; `stock`, which reserves nodes for the first
asks and then looks at few; and `walk`, stock with an allocator that accepts no node, so that the scheduler looks at
every ask as it does with the jar and another ordering policy.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.hosts.faulty_way import FaultyWay
from tests.e2e.slurm.slurm_cluster import free_ports
from tests.e2e.yarn.yarn_artefacts import DRIVER, HADOOP, JAR
from tests.e2e.yarn.yarn_cluster import RM, YarnCluster, wait_for
from tests.e2e.yarn.yarn_world import ALLOCATOR, MARKS, YarnWorld, with_jar

pytestmark = [pytest.mark.timeout(3600), *MARKS]
NODES, GANGS = (1_000, 10_000), (500, 5_000)
UPDATES = 200
WINDOW_S = 30.0
MOST_GROWTH = 1.3
_SCHEDULER = ("SchedulerEventD",)
_ORDERING = "yarn.scheduler.capacity.root.default.ordering-policy"
_LONG_MS = 3_600_000
_SETTINGS = {
    "yarn.scheduler.capacity.schedule-asynchronously.enable": "false",  # else a node update schedules nothing
    "yarn.resourcemanager.recovery.enabled": "false",
    "yarn.nm.liveness-monitor.expiry-interval-ms": _LONG_MS,
    "yarn.am.liveness-monitor.expiry-interval-ms": _LONG_MS,
    "yarn.resourcemanager.rm.container-allocation.expiry-interval-ms": _LONG_MS,
    "placewise.decide-budget-ms": 10_000,
    "placewise.release-after-ms": -1,
}
Note = Callable[[str, object], None]


class CountingWay(FaultyWay):
    """Counts calls to the service, and the bytes of questions and answers."""

    def __init__(self, port: int) -> None:
        self.calls = self.moved_bytes = 0
        super().__init__(port)

    def ask(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, Mapping[str, str], bytes]:
        answer = super().ask(method, path, body, headers)
        self.calls += 1
        self.moved_bytes += len(body) + len(answer[2])
        return answer


class LargeCluster(YarnCluster):
    """A ResourceManager without NodeManagers. Its JVM has a large heap and Java's best compiler."""

    def write(self) -> None:
        super().write()
        (self.configuration("rm") / "hadoop-metrics2.properties").write_text("*.period=1\n")

    def start_rm(self) -> None:
        java = self.java("rm", [JAR, DRIVER, f"{HADOOP}/*"], 4096)
        self._spawn("rm", [*java, "-XX:TieredStopAtLevel=4", RM])

    def metrics(self, name: str) -> dict[str, Any]:
        """One source of metrics2; up to a second old."""
        url = f"http://127.0.0.1:{self.ports[0]}/jmx?qry=Hadoop:service=ResourceManager,name={name}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            found = json.load(answer)["beans"]
        return dict(found[0]) if found else {}

    def thread_s(self, names: tuple[str, ...]) -> float:
        """Processor time of the threads whose names begin so."""
        spent_ns = 0
        for thread in Path(f"/proc/{self.processes['rm'].pid}/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended
                if (thread / "comm").read_text().startswith(names):
                    spent_ns += int((thread / "schedstat").read_text().split()[0])
        return spent_ns / 1e9

    def live_mb(self) -> float:
        """Heap that a collection leaves."""
        pid = str(self.processes["rm"].pid)
        subprocess.run(["jcmd", pid, "GC.run"], check=True, capture_output=True, timeout=120)
        url = f"http://127.0.0.1:{self.ports[0]}/jmx?qry=java.lang:type=Memory"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return float(json.load(answer)["beans"][0]["HeapMemoryUsage"]["used"]) / 1e6


@dataclass
class Cell:
    """Figures of one ResourceManager at one size; those of the adapter are per second of waiting."""

    update_s: float
    live_mb: float
    calls: float = 0
    moved_bytes: float = 0

    def __str__(self) -> str:
        words = f"{1e6 * self.update_s:.0f} µs of the scheduler for a node update, {self.live_mb:.0f} MB of live heap"
        if self.calls:
            words += f"; each second {self.calls:.1f} calls, {self.moved_bytes / 1e3:.0f} kB"
        return words


@dataclass
class Scale:
    """One ResourceManager, and the program that speaks for its nodes and applications."""

    world: YarnWorld
    yarn: LargeCluster
    driver: subprocess.Popen[str]
    way: CountingWay | None

    def tell(self, command: str) -> None:
        assert self.driver.stdin is not None
        assert self.driver.stdout is not None
        self.driver.stdin.write(command + "\n")
        self.driver.stdin.flush()
        assert self.driver.stdout.readline() == "done\n", f"{command}: see {self.world.root}"

    def updates(self) -> int:
        return int(self.yarn.metrics("CapacitySchedulerMetrics").get("NodeUpdateNumOps", 0))

    def update_s(self, count: int) -> float:
        """Processor time of the scheduler's thread for one node update."""
        before, before_s = self.settled(), self.yarn.thread_s(_SCHEDULER)
        self.tell(f"beat {count}")
        wait_for(lambda: self.updates() >= before + count, "the scheduler to look at all nodes", 600)
        return (self.yarn.thread_s(_SCHEDULER) - before_s) / (self.settled() - before)

    def settled(self) -> int:
        """The number of updates, once the scheduler is through with all."""
        known = -1
        while known != self.updates():
            known = self.updates()
            time.sleep(2.5)
        return known

    def measure(self, gangs: int) -> Cell:
        self.tell(f"asks {gangs}")
        if self.way is not None:
            wait_for(lambda: self.yarn.metrics("Placewise")["Waiting"] == gangs, "all gangs to wait", 600)
        self.update_s(UPDATES)  # warms the JVM up
        cell = Cell(self.update_s(UPDATES), self.yarn.live_mb())
        if self.way is not None:
            before = self.way.calls, self.way.moved_bytes
            time.sleep(WINDOW_S)
            after = self.way.calls, self.way.moved_bytes
            cell.calls, cell.moved_bytes = ((now - then) / WINDOW_S for now, then in zip(after, before, strict=True))
            assert self.yarn.metrics("Placewise")["Waiting"] == gangs
            assert self.world.released() == {}
        return cell


@contextlib.contextmanager
def driver(root: Path, yarn: LargeCluster) -> Iterator[subprocess.Popen[str]]:
    command = [*yarn.java("rm", [DRIVER, f"{HADOOP}/*"], 1024), "placewise.yarn.ScaleDriver"]
    pipe = subprocess.PIPE
    with (
        (root / "driver.log").open("wb") as log,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True, cwd=root) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def scale(arm: str, nodes: int) -> Iterator[Scale]:
    """So many nodes, each with two free GPUs; the service knows the GPUs in use."""
    root = Path(tempfile.mkdtemp(prefix="placewise-yarn-scale-"))
    ports = free_ports(3 + LargeCluster.PORTS)
    way = CountingWay(ports[2]) if arm == "jar" else None
    own: dict[str, dict[str, object]] = {
        "jar": with_jar(ports[2]),
        "walk": {ALLOCATOR: "placewise.yarn.NowhereAllocator"},
        "stock": {},
    }
    policy = "placewise.yarn.PlacewiseOrderingPolicy" if arm == "jar" else "fifo"
    settings = {**own[arm], **_SETTINGS}
    yarn = LargeCluster(root, [*ports[3:], 28141], settings, {_ORDERING: policy})
    world = YarnWorld(yarn, rest_port=ports[0], grpc_port=ports[1])
    try:
        if way is not None:
            world.start_service()
            way.lead_to(world.rest_port)
        (root / "home").mkdir()
        yarn.write()
        yarn.start_rm()
        wait_for(lambda: yarn.get("info") is not None, "the ResourceManager", 300)
        with driver(root, yarn) as process:
            found = Scale(world, yarn, process, way)
            found.tell(f"nodes {nodes}")
            found.tell("fill")
            if way is not None:
                wait_for(lambda: yarn.metrics("Placewise")["Events"] >= nodes, "the service to hear of containers", 600)
            yield found
    finally:
        world.stop()
        if way is not None:
            way.close()
        shutil.rmtree(root, ignore_errors=True)


def measured(arm: str, note: Callable[[str], None]) -> dict[tuple[int, int], Cell]:
    cells = {}
    for nodes in NODES:
        with scale(arm, nodes) as found:
            for gangs in GANGS:
                cell = cells[nodes, gangs] = found.measure(gangs)
                note(f"{arm}, {nodes:,} nodes, {gangs:,} gangs wait: {cell}")
    return cells


@pytest.mark.parametrize("arm", ["jar", "walk", "stock"])
def test_scale(arm: str, record_property: Note) -> None:
    def note(words: str) -> None:
        record_property("scale", words)
        print(words)

    cells = measured(arm, note)
    for name in [one.name for one in fields(Cell)] if arm == "jar" else ["update_s"]:
        cost = {size: getattr(cell, name) for size, cell in cells.items()}
        if name == "update_s":  # all nodes beat, so their number multiplies it
            cost = {size: size[0] * one_s for size, one_s in cost.items()}
        growths = [cost[NODES[1], gangs] / cost[NODES[0], gangs] / (NODES[1] / NODES[0]) for gangs in GANGS]
        growths += [cost[nodes, GANGS[1]] / cost[nodes, GANGS[0]] / (GANGS[1] / GANGS[0]) for nodes in NODES]
        note(f"{arm}, {name}: ten times the nodes or gangs cost at most {max(growths):.2f} times ten times as much")
        assert arm != "jar" or max(growths) <= MOST_GROWTH
