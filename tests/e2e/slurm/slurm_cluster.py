"""A real Slurm cluster on one machine, as an ordinary user: controller, node daemons, REST daemon. For tests only.

Nodes are daemons that share the machine, GPUs are device files that stand for GPUs; everything else is Slurm itself.
The configuration needs no munge, no cgroups and no root.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.slurm.slurm_release import Release
from tests.e2e.slurm.slurm_tree import RUN

from placewise_slurm.config import SlurmConfig

USER = "placewise-e2e"
REST_USER = "placewise-e2e-rest"
_next_port = 21000 + os.getpid() % 500 * 20


def free_ports(count: int, kind: socket.SocketKind = socket.SOCK_STREAM) -> list[int]:
    """`count` consecutive free loopback ports, never the same ones twice in a process."""
    global _next_port  # noqa: PLW0603 - a port handed out is not in use yet, so the system cannot tell
    for first in range(_next_port, 60000, 37):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    probe = stack.enter_context(socket.socket(socket.AF_INET, kind))
                    probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            _next_port = first + count
            return list(range(first, first + count))
    raise RuntimeError("no free ports")


def system_user(name: str = USER) -> str:
    """A user that daemons run as: ourselves, or a system user of our own where we are root."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid()).pw_name
    with contextlib.suppress(KeyError):
        return pwd.getpwnam(name).pw_name
    subprocess.run(["useradd", "--system", "--no-create-home", "--shell", "/bin/bash", name], check=True)
    return name


@dataclass
class SlurmCluster:
    """`nodes` nodes of `gpus` GPUs. `hooks` maps slurm.conf keys to values (PrologSlurmctld, JobSubmitPlugins, …)."""

    root: Path
    nodes: int = 16
    gpus: int = 8
    cores: int = 16
    is_typed: bool = False
    hooks: Mapping[str, str] = field(default_factory=dict)
    partitions: Sequence[str] = ("PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO",)
    has_tokens: bool = False
    """slurmrestd may ask for tokens (JWT) where it would not have to."""
    shards: int = 0
    """Shares of its GPUs that each node offers beside them (gres/shard)."""
    user: str = field(default_factory=system_user)
    release: Release = field(default_factory=Release.chosen)
    before: Callable[[SlurmCluster], None] = lambda _: None
    """Daemons that run before slurmctld."""
    _daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def conf(self) -> Path:
        return self.root / "slurm.conf"

    @property
    def rest_socket(self) -> Path:
        return self.root / "rest" / "rest.sock"

    @property
    def rest_user(self) -> str:
        return system_user(REST_USER) if self.release.has_rest_user else self.user

    @property
    def token_file(self) -> Path | None:
        """The token that slurmrestd wants on its socket, once it runs."""
        return self.root / "token" if self.release.has_rest_user else None

    @property
    def rest(self) -> SlurmConfig:
        """Where slurmrestd is, and how it is asked."""
        token = {"user": self.user, "token_file": str(self.token_file)} if self.token_file else {}
        return SlurmConfig(rest=f"unix:{self.rest_socket}", version=self.release.rest, **token)

    @property
    def auth(self) -> Mapping[str, str]:
        """How the daemons know each other: settings of slurm.conf, and of slurmdbd.conf without the last."""
        has_tokens = self.release.has_rest_user or self.has_tokens
        tokens = {"AuthAltTypes": "auth/jwt", "AuthAltParameters": f"jwt_key={self.root}/jwt.key"} if has_tokens else {}
        return {"AuthType": "auth/slurm" if self.release.has_own_auth else "auth/none", **tokens}

    @property
    def names(self) -> list[str]:
        return [f"n{i}" for i in range(1, self.nodes + 1)]

    def write(self) -> None:
        for folder in ("state", "log", "jobs", "rest", *(f"spool.{name}" for name in self.names)):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        ports = free_ports(self.nodes + 1)
        self.conf.write_text(self._slurm_conf(ports))
        (self.root / "gres.conf").write_text(self._gres_conf())
        if not self.release.is_old:
            (self.root / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
        for name in ("jwt.key", "slurm.key"):
            (self.root / name).write_bytes(os.urandom(1024))
            (self.root / name).chmod(0o600)
        for user in {self.user, self.rest_user}:
            self.release.know(user)
        self.own()

    def own(self) -> None:
        """Everything under the root belongs to the cluster's user."""
        if os.geteuid() == 0:
            subprocess.run(["chown", "-R", self.user, str(self.root)], check=True)
            self.root.chmod(0o755)
            subprocess.run(["chown", self.rest_user, str(self.rest_socket.parent)], check=True)
        if self.release.root is not None:
            sockets = [str(self.release.root / name) for name in RUN]
            subprocess.run(["chown", self.user, *sockets], check=True)

    def _gres_conf(self) -> str:
        names = f"n[1-{self.nodes}]"
        shards = f"NodeName={names} Name=shard Count={self.shards}\n" if self.shards else ""
        if not self.is_typed:
            return f"NodeName={names} Name=gpu File=/dev/tty[0-{self.gpus - 1}]\n{shards}"
        return "".join(f"NodeName={names} Name=gpu Type=g{i} File=/dev/tty{i}\n" for i in range(self.gpus))

    def _slurm_conf(self, ports: Sequence[int]) -> str:
        gres = ",".join(f"gpu:g{i}:1" for i in range(self.gpus)) if self.is_typed else f"gpu:{self.gpus}"
        gres += f",shard:{self.shards}" if self.shards else ""
        settings = {
            "ClusterName": "pw",
            "SlurmctldHost": "localhost(127.0.0.1)",
            "SlurmUser": self.user,
            "SlurmdUser": self.user,
            "SlurmctldPort": str(ports[0]),
            **self.auth,
            "CredType": "cred/slurm" if self.release.has_own_auth else "cred/none",
            "StateSaveLocation": f"{self.root}/state",
            "SlurmctldPidFile": f"{self.root}/slurmctld.pid",
            "SlurmctldLogFile": f"{self.root}/log/slurmctld.log",
            "SlurmdSpoolDir": f"{self.root}/spool.%n",
            "SlurmdPidFile": f"{self.root}/slurmd.%n.pid",
            "SlurmdLogFile": f"{self.root}/log/slurmd.%n.log",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "JobAcctGatherType": "jobacct_gather/none",
            **({"SwitchType": "switch/none"} if self.release.is_old else {}),  # newer ones have no word for it
            "MpiDefault": "none",
            "MailProg": "/bin/true",
            "ReturnToService": "2",
            "SchedulerType": "sched/backfill",
            "SchedulerParameters": "batch_sched_delay=0,sched_min_interval=0,sched_interval=2,bf_interval=2,"
            "default_queue_depth=1000",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core",
            "PriorityType": "priority/basic",
            "AccountingStorageType": "accounting_storage/none",
            "GresTypes": "gpu,shard" if self.shards else "gpu",
            "SlurmdParameters": "config_overrides",
            "SlurmctldParameters": "idle_on_node_suspend",
            "SlurmctldTimeout": "60",
            "SlurmdTimeout": "60",
            "MinJobAge": "300",
            "MaxJobCount": "20000",
            **self.hooks,
        }
        lines = [f"{key}={value}" for key, value in settings.items()]
        lines.append(
            f"NodeName=n[1-{self.nodes}] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{ports[1]}-{ports[-1]}] "
            f"Sockets=1 CoresPerSocket={self.cores} ThreadsPerCore=1 RealMemory=1024 Gres={gres} State=UNKNOWN"
        )
        return "\n".join([*lines, *self.partitions]) + "\n"

    # --- daemons ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.before(self)
        self.start_controller(clean=True)
        for name in self.names:
            self.start_node(name)
            if self.release.has_own_auth:
                # Each binds the machine's one socket of auth/slurm: of two that do so at once, one ends.
                self.wait_for((self.root / "log" / f"slurmd-{name}.out").read_bytes, "a node to start", 20)
        self.start_rest()
        self.wait_for(lambda: self.idle_nodes() == self.nodes, "nodes to become idle", 180)

    def start_node(self, name: str) -> None:
        self.spawn(f"slurmd-{name}", ["slurmd", "-D", "-f", str(self.conf), "-N", name])

    def start_controller(self, clean: bool = False) -> None:
        self.spawn("slurmctld", ["slurmctld", "-D", *(["-c"] if clean else []), "-f", str(self.conf)])
        self.wait_for(lambda: self.run("scontrol", "ping", check=False).find("is UP") >= 0, "slurmctld", 30)

    def start_rest(self) -> None:
        self.rest_socket.unlink(missing_ok=True)
        command = self._rest_command(f"unix:{self.rest_socket}", is_by_token=self.release.has_rest_user)
        self.spawn("slurmrestd", command, user=self.rest_user)
        self.wait_for(self.rest_socket.exists, "slurmrestd", 20)
        if self.token_file is not None:
            self.token_file.write_text(self.token())

    def _rest_command(self, address: str, *, is_by_token: bool) -> list[str]:
        has_accounting = "AccountingStorageHost" in self.hooks
        return self.release.rest_command(self.conf, address, is_by_token=is_by_token, has_accounting=has_accounting)

    def token(self) -> str:
        """A token of SlurmUser's. Needs tokens."""
        return self.run("scontrol", "token", "lifespan=3600").strip()

    def start_rest_with_tokens(self, port: int) -> str:
        """A second slurmrestd, on TCP, that wants a JWT; returns a token. Needs tokens."""
        command = self._rest_command(f"127.0.0.1:{port}", is_by_token=True)
        self.spawn("slurmrestd-jwt", command, user=self.rest_user)

        def is_open() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        self.wait_for(is_open, "slurmrestd on TCP", 20)
        return self.token()

    def spawn(self, name: str, command: Sequence[str], release: Release | None = None, user: str = "") -> None:
        """Starts a daemon as the cluster's user, or another; `release` for another system tree's."""
        with (self.root / "log" / f"{name}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                (release or self.release).command(user or self.user, self.root, self.conf, command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, name: str, sign: int = signal.SIGKILL) -> None:
        """Ends one daemon by name ("slurmctld", "slurmrestd", "slurmd-n3") and waits for it."""
        daemon = self._daemons.pop(name)
        daemon.send_signal(sign)
        daemon.wait(timeout=30)

    def signal(self, name: str, sign: int) -> None:
        """SIGSTOP or SIGCONT to one daemon by name."""
        self._daemons[name].send_signal(sign)

    def stop(self) -> None:
        with contextlib.suppress(subprocess.SubprocessError):
            self.run("scancel", "--user", self.user, check=False)
        last = ("slurmctld", "slurmdbd", "mariadbd")
        for name in [name for name in self._daemons if name not in last] + list(last):
            if name in self._daemons:
                self.kill(name)

    # --- commands -----------------------------------------------------------------------------------------------------

    def run(self, *command: str, check: bool = True, stdin: str | None = None) -> str:
        """A Slurm command as the cluster's user; returns its output."""
        done = subprocess.run(
            self.release.command(self.user, self.root / "jobs", self.conf, command),
            check=False,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
        )
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr}{done.stdout}")
        return done.stdout

    def submit(self, script: str, *options: str) -> int:
        """sbatch; returns the job id."""
        text = f"#!/bin/bash\n{script}\n"
        printed = self.run("sbatch", "--parsable", "-o", "/dev/null", *options, stdin=text)
        return int(printed.split(";")[0])

    def cancel(self, job_id: int) -> None:
        """Ends a job, and waits: its processes outlive a node's daemon that is killed."""
        self.run("scancel", str(job_id))
        self.wait_for(lambda: self.jobs()[job_id]["JobState"] == "CANCELLED", "a job to be cancelled", 30)

    def idle_nodes(self) -> int:
        return sum(int(n) for n in self.run("sinfo", "-h", "-t", "idle", "-o", "%D", check=False).split())

    def jobs(self) -> dict[int, dict[str, str]]:
        """Every job the controller knows, as scontrol prints it."""
        printed = self.run("scontrol", "-o", "-d", "show", "job", check=False)
        found = {}
        for line in printed.splitlines():
            fields = dict(part.split("=", 1) for part in line.split() if "=" in part)
            if "JobId" in fields:
                found[int(fields["JobId"])] = fields
        return found

    def expand(self, nodes: str) -> list[str]:
        return self.run("scontrol", "show", "hostnames", nodes).split() if nodes not in ("", "(null)") else []

    @staticmethod
    def wait_for(is_true: object, what: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not is_true():  # type: ignore[operator]
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {timeout_s} s for {what}")
            time.sleep(0.02)


@contextlib.contextmanager
def running(cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    cluster.write()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
