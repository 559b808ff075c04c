"""Faults of the service, the bridge, Slurm's daemons, its nodes and its jobs on a real Slurm, each hit three times.

After each the service holds the GPUs, cores and memory that Slurm has allocated, node by node. `make e2e-slurm SLURM=…`
runs this.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from tests.e2e.hosts.faulty_way import SPOILS, FaultyWay
from tests.e2e.slurm.slurm_cluster import SlurmCluster, free_ports
from tests.e2e.slurm.slurm_gangs import check_books, ran, wait_until_quiet
from tests.e2e.slurm.slurm_release import Release
from tests.e2e.slurm.slurm_world import SlurmWorld, slurm_world

from placewise_client import Client

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.e2e_heavy,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        bool(Release.chosen().missing()) and "PLACEWISE_TEST_REQUIRE_SCHEDULERS" not in os.environ,
        reason=f"Slurm is not installed: {Release.chosen().missing()}",
    ),
]
_TIMES = 3
_NODES = 4
# Memory is allocated, too, and a node is lost ten seconds after its daemon.
_KEYS = {"SelectTypeParameters": "CR_Core_Memory", "SlurmdTimeout": "10"}
# Longer than an answer takes on a busy machine, and shorter than a slow one.
_SETTINGS = "decide_budget_s = 1.0"
Note = Callable[[str, object], None]


@contextlib.contextmanager
def faulty_world() -> Iterator[tuple[SlurmWorld, Client, FaultyWay]]:
    (port,) = free_ports(1)
    with (
        contextlib.closing(FaultyWay(port)) as way,
        slurm_world(nodes=_NODES, settings=_SETTINGS, keys=_KEYS, way=way) as world,
        Client(f"127.0.0.1:{world.grpc_port}") as client,
    ):
        yield world, client, way


class Faults:
    """A world with a gang that runs through all faults, and every job that was submitted to it."""

    def __init__(
        self, world: SlurmWorld, client: Client, way: FaultyWay, note: Note, long: tuple[int, int] = (_NODES, 100)
    ) -> None:
        self.world, self.client, self.way, self.note = world, client, way, note
        self.cancelled: list[int] = []
        self.jobs: list[int] = []
        nodes, seconds = long
        self.long = self.submit(nodes, 4, seconds)
        self.until_running(self.long)

    def submit(self, nodes: int = 1, gpus: int = 1, seconds: float = 1.0) -> int:
        job_id = self.world.slurm.submit(f"sleep {seconds}", f"-N{nodes}", f"--gres=gpu:{gpus}", "--mem=32", "-c2")
        self.jobs.append(job_id)
        return job_id

    def until(self, is_true: Callable[[], bool], what: str, timeout_s: float = 40) -> None:
        SlurmCluster.wait_for(is_true, what, timeout_s)

    def until_running(self, job_id: int) -> None:
        self.until(lambda: self.state(job_id) == "RUNNING", f"job {job_id} to run")

    def state(self, job_id: int) -> str:
        return self.world.slurm.jobs()[job_id]["JobState"]

    def unanswered(self) -> int:
        """How often Slurm has not answered the bridge."""
        return self.world.bridge_log().count("the host scheduler does not answer")

    def check(self) -> None:
        """The books agree, on the long gang at least."""
        check_books(self.world, self.client, least_gpus=4 * _NODES)

    def close(self, name: str) -> None:
        """Every job ends; the account of all is taken."""
        self.world.slurm.run("scancel", str(self.long))
        self.jobs.remove(self.long)
        records = self.world.wait_until_done([*self.jobs, self.long], 240)
        wait_until_quiet(self.world, self.client)
        kept = {job_id: records[job_id] for job_id in self.jobs if job_id not in self.cancelled}
        lost = {job_id: record for job_id, record in kept.items() if record["JobState"] != "COMPLETED"}
        assert not lost, self.world.told_of(lost)
        log = self.world.log()
        found, doubled = log.account(ran(self.world, kept)), log.doubled()
        self.note("fault", f"{name}, {_TIMES} times each: {len(lost)} lost, {len(doubled)} doubled; {found}")
        print(f"\n{name}: {found}, {len(doubled)} doubled of {len(log.runs)} runs")
        assert (found.elsewhere, doubled) == ([], [])


@pytest.fixture
def faults(record_property: Note) -> Iterator[Faults]:
    with faulty_world() as (world, client, way):
        yield Faults(world, client, way, record_property)


def test_wrong_and_slow_answers(faults: Faults) -> None:
    """A job that gets no usable answer waits for the next, or is left to Slurm; nothing is started by a wrong one."""
    for fault in SPOILS:
        faults.way.fault, before = fault, faults.way.hits[fault]
        for _ in range(_TIMES):
            faults.submit()
            time.sleep(0.5)
        faults.until(lambda wanted=before + _TIMES: faults.way.hits[faults.way.fault] >= wanted, f"{fault} to be hit")
        faults.way.fault = ""
        faults.check()
    print(f"answers by fault: {dict(faults.way.hits)}")
    faults.close(f"answers: {', '.join(SPOILS)}")


@pytest.mark.parametrize("name", ["killed", "hung"])
def test_the_service(name: str, faults: Faults) -> None:
    for _ in range(_TIMES):
        if name == "killed":
            faults.world.kill("service")
        else:
            faults.world.signal("service", signal.SIGSTOP)
        job_id = faults.submit()
        faults.until(lambda job_id=job_id: job_id in faults.world.left_to_slurm(), f"job {job_id} to be left to Slurm")
        if name == "killed":
            faults.world.start_service()
        else:
            faults.world.signal("service", signal.SIGCONT)
        faults.until(lambda: faults.world.known_nodes() == _NODES, "the service to know the nodes")
        faults.check()
        faults.submit(2, 2)
        faults.check()
    faults.close(f"service {name}")


def test_the_bridge_killed_between_decision_and_update(faults: Faults) -> None:
    for number in range(_TIMES):
        killed: list[int] = []

        def kill(killed: list[int] = killed) -> None:
            if not killed:
                killed.append(1)
                faults.world.kill("bridge")

        faults.way.placed = kill
        job_id = faults.submit(2, 2, 4.0)
        faults.until(lambda killed=killed: bool(killed), "a decision to arrive and the kill")  # type: ignore[misc]
        faults.way.placed = None
        assert faults.state(job_id) == "PENDING"
        faults.world.start_bridge()
        faults.until_running(job_id)
        faults.check()
        assert faults.world.bridge_log().count("bridging") == number + 2
    faults.close("bridge killed between decision and update")


@pytest.mark.parametrize("daemon", ["slurmctld", "slurmrestd"])
@pytest.mark.parametrize("name", ["killed", "hung"])
def test_a_daemon_of_slurms(name: str, daemon: str, faults: Faults) -> None:
    """Gangs wait meanwhile. Those that slurmctld is just starting are Slurm's own risk: none is."""
    slurm = faults.world.slurm
    held = [faults.submit(_NODES, 8) for _ in range(2)]
    for _ in range(_TIMES):
        time.sleep(6)  # slurmctld writes its state five seconds after a change at the latest
        before = faults.unanswered()
        if name == "killed":
            slurm.kill(daemon)
        else:
            slurm.signal(daemon, signal.SIGSTOP)
        if daemon == "slurmrestd":
            faults.submit(1, 2)
        faults.until(lambda before=before: faults.unanswered() > before, f"the bridge to meet {daemon} {name}")  # type: ignore[misc]
        if name == "hung":
            slurm.signal(daemon, signal.SIGCONT)
        else:
            (slurm.start_controller if daemon == "slurmctld" else slurm.start_rest)()
        faults.check()
        faults.submit(1, 2)
        faults.check()
    assert [faults.state(job_id) for job_id in held] == ["PENDING"] * 2
    faults.close(f"{daemon} {name}")


@pytest.mark.parametrize("state", ["down", "drain"])
def test_a_node(state: str, record_property: Note) -> None:
    """Gangs run on it and wait for it. Slurm queues those of a node that is lost again, two minutes later."""
    with faulty_world() as (world, client, way):
        take_nodes_away(state, Faults(world, client, way, record_property, long=(1, 300)))


def take_nodes_away(state: str, faults: Faults) -> None:
    slurm = faults.world.slurm
    kept = slurm.expand(slurm.jobs()[faults.long]["NodeList"])
    for node in [name for name in slurm.names if name not in kept]:
        for _ in range(2):
            faults.submit(2, 4, 6.0)
        if state == "down":
            slurm.kill(f"slurmd-{node}")
        else:
            slurm.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
        faults.until(lambda: faults.world.ready_nodes(faults.client) == _NODES - 1, f"the service to know of {node}")
        check_books(faults.world, faults.client, least_gpus=4)
        if state == "down":
            slurm.start_node(node)
        else:
            slurm.run("scontrol", "update", f"nodename={node}", "state=resume")
        faults.until(lambda: faults.world.ready_nodes(faults.client) == _NODES, f"{node} to return")
        check_books(faults.world, faults.client, least_gpus=4)
    assert faults.state(faults.long) == "RUNNING"
    faults.close("node lost" if state == "down" else "node drained")


def test_jobs_cancelled_shrunk_and_queued_again_while_gangs_wait(faults: Faults) -> None:
    """Where slurmrestd lists states, a held gang that was shrunk is read again before it is changed."""
    slurm = faults.world.slurm
    running = [faults.submit(1, 4, 20.0) for _ in range(_TIMES)]
    for job_id in running:
        faults.until_running(job_id)
    held = [(faults.submit(_NODES, 8), faults.submit(_NODES, 8)) for _ in range(_TIMES)]
    for requeued, (cancelled, shrunk) in zip(running, held, strict=True):
        faults.until(lambda shrunk=shrunk: f"job {shrunk}: " in faults.world.bridge_log(), "the gangs to wait")  # type: ignore[misc]
        slurm.run("scancel", str(cancelled))
        faults.cancelled.append(cancelled)
        gpus = "gres=gpu:2" if slurm.release.is_old else "trespernode=gres/gpu:2"
        slurm.run("scontrol", "update", f"jobid={shrunk}", "numnodes=1", gpus)
        slurm.run("scontrol", "requeue", str(requeued))
        faults.check()
        jobs = slurm.jobs()
        assert jobs[cancelled]["JobState"] == "CANCELLED"
        assert jobs[shrunk]["NumNodes"].partition("-")[0] == "1"  # of a job that waits it says "1-1"
        assert jobs[requeued]["Restarts"] == "1"
    faults.close("held jobs cancelled and shrunk, running ones queued again")
