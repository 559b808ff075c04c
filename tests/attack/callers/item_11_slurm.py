"""The Slurm bridge: where its token goes, and what forged datagrams can make it report."""

import asyncio
import contextlib
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
from tests.attack.attack import Attack, Figures
from tests.attack.enclave import FOREIGN, FOREIGN_PORT
from tests.attack.enclosed import enclosed
from tests.attack.source import Process, Source
from tests.fakes.schedulers.slurmrestd import FakeJob, FakeSlurm

from placewise_service.bench.processes import free_port

TITLE = "Slurm"
_LOOK_UPS_S = 20.0  # the bridge asks accounting five times in 16 s
_TOKEN = "eyJhbGciOiJIUzI1NiJ9.attack"


def _token_in_clear(source: Source) -> Figures:
    """`check`, then `run`, of a bridge whose slurmrestd is on another machine, without TLS."""
    heard = refused = 0
    with tempfile.TemporaryDirectory(prefix="placewise-attack-") as name:
        folder = Path(name)
        token, config = folder / "slurm.jwt", folder / "slurm.toml"
        token.write_text(f"SLURM_JWT={_TOKEN}\n")
        config.write_text(
            '[adapter]\ncluster = "c"\n[service]\naddress = "http://127.0.0.1:9"\n'
            f'[slurm]\nrest = "{FOREIGN}:{FOREIGN_PORT}"\nuser = "slurm"\ntoken_file = "{token}"\n'
            '[hooks]\nshares_dir = ""\nlisten_port = 0\n[metrics]\nport = 0\n'
        )
        for command in ("check", "run"):
            words = ["-m", "placewise_slurm.main", "--config", str(config), command]
            found = enclosed(source, {"bridge": (words, "bridging")}, watch_s=2.0)  # `check` ends by itself
            heard += sum(_TOKEN in each for each in found["heard"])
            refused += "plain text" in found["programs"]["bridge"]["text"]
    return {"tokens_heard": heard, "commands_that_refuse": refused}


# -- forged times of shares ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Site:
    """A service, a bridge and slurmrestd; one node. Jobs are edited in place, from the attack's thread."""

    slurm: FakeSlurm
    bridge: Process
    folder: Path
    port: int
    log: Callable[[], Path]
    """Exports the service's decision log."""

    def send(self, text: str) -> None:
        """A datagram as the hooks send them, and as anybody can."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            out.sendto(text.encode(), ("127.0.0.1", self.port))

    def submit(self) -> FakeJob:
        """A divisible job of one GPU that the bridge has released to the node of its decision."""
        job = FakeJob(1, 1, 1, gres="gres:gpu:1", comment="divisible=1")
        self.slurm.jobs[job.id] = job
        self.send("submit")
        _until(lambda: not job.is_held)
        return job

    def start(self, job: FakeJob) -> None:
        job.start_time_s = int(time.time())
        job.state, job.nodes, job.reason = "RUNNING", ["n1"], "None"
        self.send(f"start {job.id}")
        time.sleep(0.5)

    def finish(self, job: FakeJob) -> float:
        """Ends the job. Returns the seconds of its shares that the service's log has after all look-ups, or at once if
        there are any."""
        job.end_time_s = int(time.time())
        job.state = "COMPLETED"
        self.send(f"end {job.id} COMPLETED - 0 0 0:0")
        seconds, until_s = 0.0, time.monotonic() + _LOOK_UPS_S
        while not seconds and time.monotonic() < until_s:
            time.sleep(2.0)
            seconds = _seconds_of_shares(self.log())
        return round(seconds, 2)


@contextlib.contextmanager
def _site(source: Source) -> Iterator[_Site]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="placewise-attack-")))
        (folder / "shares").mkdir()
        slurm = stack.enter_context(_served(FakeSlurm(folder / "slurmrestd.sock", nodes={"n1": "idle"})))
        service, port, config = stack.enter_context(source.service()), free_port(), folder / "slurm.toml"
        config.write_text(
            f'[adapter]\ncluster = "c"\n[service]\naddress = "{service.target}"\n'
            f'[slurm]\nrest = "unix:{slurm.socket}"\n[hooks]\nshares_dir = "{folder}/shares"\nlisten_port = {port}\n'
            "[metrics]\nport = 0\n"
        )

        def export() -> Path:
            settings = {"PLACEWISE_STATE_DIR": str(service.directory / "state")}
            done = source.run(["-m", "placewise_service.cli", "log", "export", str(folder / "log")], settings)
            assert done.returncode == 0, done.stderr
            return folder / "log"

        words = ["-m", "placewise_slurm.main", "--config", str(config), "run"]
        bridge = stack.enter_context(source.process(words, folder))
        _until(lambda: "bridging" in bridge.text())
        yield _Site(slurm, bridge, folder, port, export)


@contextlib.contextmanager
def _served(slurm: FakeSlurm) -> Iterator[FakeSlurm]:
    """slurmrestd in a thread with a loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(slurm.start(), loop).result(10.0)
    finally:
        asyncio.run_coroutine_threadsafe(slurm.stop(), loop).result(10.0)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10.0)
        loop.close()


def _seconds_of_shares(log: Path) -> float:
    tables = [pq.read_table(path, columns=["actual_s"]) for path in log.rglob("joined/**/*.parquet")]
    return sum(seconds or 0.0 for table in tables for seconds in table["actual_s"].to_pylist())


def _until(is_so: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline_s:
            raise TimeoutError("the bridge did not get so far")
        time.sleep(0.05)


def _forged_shares(source: Source) -> Figures:
    """20,000 begins of invented steps, for a job that waits; the end of one, 6 s later; the job itself takes 1 s."""
    with _site(source) as site:
        job, before_mib = site.submit(), site.bridge.resident_mib()
        for step in range(20_000):
            site.send(f"share begin {job.id} {step} n1 0")
            if step % 100 == 0:
                time.sleep(0.005)  # else the socket's buffer overflows
        grown_mib = site.bridge.resident_mib() - before_mib
        time.sleep(6.0)
        site.send(f"share end {job.id} 3 n1 0")
        site.start(job)
        time.sleep(1.0)
        return {"grown_mib": round(grown_mib, 1), "forged_seconds_reported": site.finish(job)}


def _forged_step(source: Source) -> Figures:
    """One step of 2 s that there is; one of 6 s that there is not, reported while the job runs and before it ends."""
    with _site(source) as site:
        job = site.submit()
        job.steps = {"0": "RUNNING"}
        site.start(job)
        for step, seconds in ((0, 2.0), (5, 6.0)):
            site.send(f"share begin {job.id} {step} n1 0")
            time.sleep(seconds)
            site.send(f"share end {job.id} {step} n1 0")
            if step == 0:
                job.step_end_time_s, job.steps = int(time.time()), {"0": "COMPLETED"}
        return {"seconds_reported_of_2": site.finish(job)}


ATTACKS = (
    Attack(
        "slurmrestd on another machine",
        "The token of slurmrestd does not travel in clear off loopback, unless the configuration allows it.",
        "tests/unit/slurm/test_config.py::test_slurms_token_in_clear_is_refused_by_every_command",
        _token_in_clear,
        lambda figures: figures["tokens_heard"] == 0 and figures["commands_that_refuse"] == 2,
    ),
    Attack(
        "forged datagrams of tasks",
        "A share's time counts only where slurmrestd shows the job running, once, and within the job's own time.",
        "tests/unit/slurm/test_shares.py::test_a_time_counts_only_where_slurm_shows_the_job_running_on_the_node",
        _forged_shares,
        lambda figures: float(figures["grown_mib"]) <= 5.0 and figures["forged_seconds_reported"] == 0,
        is_quick=False,
    ),
    Attack(
        "a step that there is not",
        "A share's time counts only for a step that slurmrestd shows on its node, for one begin and one end of it.",
        "tests/unit/slurm/test_steps.py::test_what_accounting_does_not_bear_out_does_not_count",
        _forged_step,
        lambda figures: 1.9 <= float(figures["seconds_reported_of_2"]) <= 2.5,
        is_quick=False,
    ),
)
