"""A real Slurm, the real service and the real bridge, each a process of its own.

What happened is read from Slurm's own log and records.

The bridge runs with `placewise_slurm.main`, the service with `placewise serve` on its embedded Redis.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.e2e.hosts.decision_log import PLACEWISE, DecisionLog, export, read_log, rows
from tests.e2e.hosts.faulty_way import FaultyWay
from tests.e2e.slurm.slurm_accounting import Accounting
from tests.e2e.slurm.slurm_cluster import SlurmCluster, free_ports

from placewise.v1.bundle_pb2 import GetDecisionRequest
from placewise.v1.cluster_pb2 import Assignment, Cluster, GetClusterRequest, Node
from placewise_client import Client, NotFoundError, PlacewiseError
from placewise_slurm import config
from placewise_slurm.hooks import write_hooks

ROOT = Path(__file__).parents[3]
CLUSTER = "slurm-e2e"

_OF_A_FAILURE = ("JobState", "Reason", "ExitCode", "NodeList", "BatchHost", "SubmitTime", "StartTime", "Restarts")
_LINE = re.compile(r"^\[(?P<time>[^]]+)\] (?P<text>.*)")
_EVENTS = (
    ("submit", re.compile(r"_slurm_rpc_submit_batch_job: JobId=(\d+)")),
    ("update", re.compile(r"_slurm_rpc_update_job: complete JobId=(\d+)")),
    # 26.05 names some jobs only where PrologSlurmctld has ended.
    ("start", re.compile(r"(?:Allocate|Started|Configuration for) JobId=(\d+)")),
)
_PLACED = re.compile(r"job (\d+(?:\.r\d+)?) placed on \(([^)]*)\) \(decision ([^)]+)\)")
_LEFT = re.compile(r"job (\d+(?:\.r\d+)?) left to the host's own scheduling: (\w+)")


@dataclass
class SlurmWorld:
    """Everything of one test run under one folder."""

    slurm: SlurmCluster
    config: config.BridgeConfig
    grpc_port: int
    rest_port: int
    service: Mapping[str, str]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        return self.slurm.root

    # --- processes ----------------------------------------------------------------------------------------------------

    def _spawn(self, name: str, command: Sequence[str], **environment: str) -> None:
        paths = [str(ROOT / folder) for folder in ("service", "clients/python", "clients/slurm")]
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment}
        with (self.root / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, env=variables, cwd=self.root, start_new_session=True
            )

    @property
    def service_environment(self) -> dict[str, str]:
        return {
            "PLACEWISE_STATE_DIR": str(self.root / "service-state"),
            "PLACEWISE_SERVER__GRPC_PORT": str(self.grpc_port),
            "PLACEWISE_SERVER__REST_PORT": str(self.rest_port),
            **self.service,
        }

    def start_service(self) -> None:
        self._spawn("service", [PLACEWISE, "serve"], **self.service_environment)
        SlurmCluster.wait_for(self.is_service_up, "the service", 60)

    def known_nodes(self) -> int:
        """Nodes the service knows of; -1 while it does not answer."""
        with Client(f"127.0.0.1:{self.grpc_port}") as client:
            try:
                request = GetClusterRequest(cluster=CLUSTER)
                return client.get_cluster(request, timeout_s=1.0, retry=None).node_count
            except NotFoundError:
                return 0
            except PlacewiseError:
                return -1

    def ready_nodes(self, client: Client) -> int:
        """Nodes that the service may use."""
        return sum(node.state == Node.READY for node in self.cluster(client).nodes)

    def is_service_up(self) -> bool:
        return self.known_nodes() >= 0

    def start_bridge(self) -> None:
        path = self.root / "bridge.toml"
        self._spawn("bridge", [sys.executable, "-m", "placewise_slurm.main", "--config", str(path), "run"])

    def signal(self, name: str, number: int) -> None:
        """To a process and those that it has started (the embedded Redis)."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.processes[name].pid, number)

    def kill(self, name: str) -> None:
        """SIGKILL, also to the processes it has started (the embedded Redis)."""
        process = self.processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait(timeout=30)
        self.slurm.stop()

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def wait_until_done(self, job_ids: Sequence[int], timeout_s: float) -> dict[int, dict[str, str]]:
        """Every job with its last record, once all have ended."""
        ended = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL")
        deadline = time.monotonic() + timeout_s
        while True:
            jobs = self.slurm.jobs()
            waiting = [i for i in job_ids if i not in jobs or jobs[i]["JobState"] not in ended]
            if not waiting:
                return {i: jobs[i] for i in job_ids}
            if time.monotonic() > deadline:
                states = [(i, jobs.get(i, {}).get("JobState"), jobs.get(i, {}).get("Reason")) for i in waiting[:20]]
                raise TimeoutError(f"{len(waiting)} jobs have not ended: {states}")
            time.sleep(0.25)

    def bridge_log(self) -> str:
        return (self.root / "bridge.log").read_text()

    def decisions(self) -> dict[str, list[str]]:
        """Decision ids by job key, in order, as the bridge applied them; none of a job that it left to Slurm later."""
        found: dict[str, list[str]] = {}
        for line in self.bridge_log().splitlines():
            if placed := _PLACED.search(line):
                found.setdefault(placed[1], []).append(placed[3])
            elif left := _LEFT.search(line):
                found.pop(left[1], None)
        return found

    def left_to_slurm(self) -> dict[int, str]:
        """Jobs that were released without a placement, and why."""
        return {int(key.partition(".")[0]): reason for key, reason in _LEFT.findall(self.bridge_log())}

    def decided(self, client: Client, decision_id: str, key: str) -> list[Assignment]:
        """The service's present record of the decision for this job."""
        answer = client.get_decision(GetDecisionRequest(cluster=CLUSTER, decision_id=decision_id))
        (decision,) = [d for d in answer.place.decisions if d.job_id == key]
        return list(decision.assignments)

    def log(self) -> DecisionLog:
        """The decision log as it is now."""
        environment = {**os.environ, **self.service_environment}
        return read_log(self.root / f"export-{time.monotonic_ns()}", CLUSTER, environment)

    def exported_outcomes(self) -> set[tuple[str, str, str]]:
        """(job key, kind, decision id) of every outcome in the decision log, as `placewise log export` writes it."""
        rows = self._exported("outcomes", "job_id", "kind", "decision_id")
        return {(row["job_id"], row["kind"].upper(), row["decision_id"]) for row in rows}

    def exported_shares(self, job_id: int) -> dict[str, tuple[str, float]]:
        """(status, seconds) of each unit that a job's Partition decision gave a share, joined with its outcome."""
        rows = self._exported("joined", "job_id", "rpc", "unit", "status", "actual_s")
        of_job = [row for row in rows if (row["job_id"], row["rpc"]) == (str(job_id), "Partition")]
        return {row["unit"]: (row["status"], row["actual_s"]) for row in of_job}

    def _exported(self, table: str, *columns: str) -> list[dict[str, Any]]:
        folder = self.root / "export"
        export(folder, CLUSTER, {**os.environ, **self.service_environment})
        return list(rows(folder, table, *columns))

    def timeline(self) -> dict[int, dict[str, float]]:
        """Seconds since the epoch of each job's submission, last update and (last) start, from slurmctld's log."""
        times: dict[int, dict[str, float]] = {}
        for line in (self.root / "log" / "slurmctld.log").read_text().splitlines():
            match = _LINE.match(line)
            if match is None:
                continue
            for name, pattern in _EVENTS:
                found = pattern.search(match["text"])
                if found:
                    at = datetime.datetime.fromisoformat(match["time"]).timestamp()
                    times.setdefault(int(found[1]), {})[name] = at
        return times

    def told_of(self, job_ids: Iterable[int]) -> str:
        """Each job's last record, and every line of the daemons' and the bridge's logs that names it: errors first, as
        whoever reports a failure often keeps its beginning alone."""
        jobs, reported = self.slurm.jobs(), []
        for job_id in job_ids:
            record, lines = jobs.get(job_id, {}), []
            named = re.compile(rf"\b(?:JobId=|job |StepId=|jobid ){job_id}\b|\[{job_id}\.")
            for path in sorted([*(self.root / "log").glob("*.log"), self.root / "bridge.log"]):
                written = path.read_text(errors="replace").splitlines()
                lines += [f"  {path.stem}: {line}" for line in written if named.search(line)]
            lines.sort(key=lambda line: "error" not in line)
            reported += [f"job {job_id}: {[record.get(name) for name in _OF_A_FAILURE]}", *lines, f"  {record}"]
        return "\n".join(reported)

    def cluster(self, client: Client) -> Cluster:
        return client.get_cluster(GetClusterRequest(cluster=CLUSTER, full=True))


@contextlib.contextmanager
def slurm_world(
    *,
    is_typed: bool = False,
    is_dry_run: bool = False,
    has_accounting: bool = False,
    nodes: int = 16,
    shards: int = 0,
    settings: str = "",
    hooks: str = "",
    keys: Mapping[str, str] = MappingProxyType({}),
    service: Mapping[str, str] = MappingProxyType({}),
    way: FaultyWay | None = None,
) -> Iterator[SlurmWorld]:
    """`settings` and `hooks` are further lines of the bridge's sections, `keys` of slurm.conf, `service` of the
    service's environment. The bridge asks by `way`. Raises NoAccountingError if that is asked for and does not
    start."""
    # Not under pytest's folder: that is closed to the user the daemons run as.
    root = Path(tempfile.mkdtemp(prefix="placewise-slurm-"))
    root.chmod(0o755)
    grpc_port, rest_port = free_ports(2)
    poke_port = free_ports(1, socket.SOCK_DGRAM)[0]
    accounting = Accounting(root) if has_accounting else None
    slurm = SlurmCluster(
        root,
        nodes=nodes,
        is_typed=is_typed,
        shards=shards,
        hooks={
            "JobSubmitPlugins": "lua",
            "PrologSlurmctld": f"{root}/prolog_slurmctld.sh",
            "JobCompType": "jobcomp/script",
            "JobCompLoc": f"{root}/jobcomp.sh",
            "TaskProlog": f"{root}/task_prolog.sh",
            "TaskEpilog": f"{root}/task_epilog.sh",
            **keys,
            **(accounting.keys if accounting else {}),
        },
        partitions=(
            "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO",
            "PartitionName=plain Nodes=ALL MaxTime=INFINITE State=UP OverSubscribe=NO",
            f"PartitionName=last Nodes=n{nodes} MaxTime=INFINITE State=UP OverSubscribe=NO",
        ),
    )
    if accounting is not None:
        slurm.before = accounting.start
    if way is not None:
        way.lead_to(rest_port)
    asked_port = rest_port if way is None else way.port
    text = _bridge_toml(slurm, asked_port, poke_port, settings, is_typed=is_typed, is_dry_run=is_dry_run)
    text = text.replace("[hooks]\n", f"[hooks]\n{hooks}\n")
    (root / "bridge.toml").write_text(text)
    (root / "shares").mkdir()
    loaded = config.load(root / "bridge.toml")
    write_hooks(loaded, root)
    world = SlurmWorld(slurm, loaded, grpc_port, rest_port, service)
    slurm.write()
    try:
        slurm.start()
        world.start_service()
        world.start_bridge()
        SlurmCluster.wait_for(lambda: world.known_nodes() == nodes, "the bridge to report the nodes", 60)
        yield world
    finally:
        world.stop()
        if "PLACEWISE_TEST_KEEP" not in os.environ:
            shutil.rmtree(root, ignore_errors=True)


def _bridge_toml(
    slurm: SlurmCluster, rest_port: int, poke_port: int, settings: str, *, is_typed: bool, is_dry_run: bool
) -> str:
    token = f'user = "{slurm.user}"\ntoken_file = "{slurm.token_file}"' if slurm.token_file else ""
    return f"""
[adapter]
cluster = "{CLUSTER}"
resync_s = 5.0
start_timeout_s = 8.0
release_after_s = 3.0
is_dry_run = {str(is_dry_run).lower()}
{settings}

[service]
address = "http://127.0.0.1:{rest_port}"

[slurm]
rest = "unix:{slurm.rest_socket}"
version = "{slurm.release.rest}"
{token}

[hooks]
listen_port = {poke_port}
partitions = ["main", "last"]
has_gpu_types = {str(is_typed).lower()}
shares_dir = "{slurm.root}/shares"

[metrics]
port = 0
"""
