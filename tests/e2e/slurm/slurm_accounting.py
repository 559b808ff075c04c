"""slurmdbd, and the MariaDB behind it on this machine, for a `SlurmCluster`, under its folder. For tests only."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.slurm.slurm_cluster import SlurmCluster, free_ports
from tests.e2e.slurm.slurm_release import PATH, Release

DATABASE = ("mariadbd", "mariadb-install-db")
_HERE = Release()  # the tree that Slurm is taken from
_PASSWORD = "of-a-test"


class NoAccountingError(Exception):
    """MariaDB or slurmdbd does not start here; the message says why."""


def missing() -> str:
    """The reason why accounting cannot run here, or ""."""
    tree = Release.chosen().root or Path("/")
    lacking = [name for name in DATABASE if shutil.which(name, path=PATH) is None]
    lacking += [] if (tree / "usr/sbin/slurmdbd").is_file() else ["slurmdbd"]
    return f"not installed: {', '.join(lacking)}" if lacking else ""


@dataclass
class Accounting:
    """`keys` go into the cluster's slurm.conf; `start` comes before slurmctld, which registers there."""

    root: Path
    ports: list[int] = field(default_factory=lambda: free_ports(2))

    @property
    def keys(self) -> Mapping[str, str]:
        return {
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStorageHost": "127.0.0.1",
            "AccountingStoragePort": str(self.ports[0]),
        }

    def start(self, slurm: SlurmCluster) -> None:
        """Raises NoAccountingError if one of them does not start."""
        try:
            self._start(slurm)
        except (OSError, RuntimeError, TimeoutError, subprocess.TimeoutExpired) as error:
            raise NoAccountingError(str(error)) from error

    def _start(self, slurm: SlurmCluster) -> None:
        data = self.root / "mariadb"
        data.mkdir()
        (self.root / "init.sql").write_text(
            f"CREATE USER slurm@'127.0.0.1' IDENTIFIED BY '{_PASSWORD}';\n"
            "GRANT ALL ON slurm_acct_db.* TO slurm@'127.0.0.1';\n"
        )
        conf = self.root / "slurmdbd.conf"
        conf.write_text(self._conf(slurm.user, slurm.auth))
        slurm.own()
        conf.chmod(0o600)
        _run(
            slurm,
            "mariadb-install-db",
            "--no-defaults",
            f"--datadir={data}",
            "--auth-root-authentication-method=normal",
        )
        server = ["mariadbd", "--no-defaults", f"--datadir={data}", f"--socket={self.root}/mariadb.sock"]
        server += [f"--port={self.ports[1]}", "--bind-address=127.0.0.1", f"--init-file={self.root}/init.sql"]
        # A test's data need not survive a power cut.
        server += [f"--pid-file={self.root}/mariadb.pid", "--skip-name-resolve", "--innodb-flush-log-at-trx-commit=0"]
        slurm.spawn("mariadbd", server, _HERE)
        slurm.wait_for(lambda: _is_open(self.ports[1]), "MariaDB", 30)
        slurm.spawn("slurmdbd", ["slurmdbd", "-D"])
        slurm.wait_for(lambda: _is_open(self.ports[0]), "slurmdbd", 30)
        slurm.run("sacctmgr", "-i", "add", "cluster", "pw")

    def _conf(self, user: str, auth: Mapping[str, str]) -> str:
        settings = {
            **auth,
            "DbdHost": "localhost",
            "DbdAddr": "127.0.0.1",
            "DbdPort": str(self.ports[0]),
            "SlurmUser": user,
            "LogFile": f"{self.root}/log/slurmdbd.log",
            "PidFile": f"{self.root}/slurmdbd.pid",
            "StorageType": "accounting_storage/mysql",
            "StorageHost": "127.0.0.1",
            "StoragePort": str(self.ports[1]),
            "StorageUser": "slurm",
            "StoragePass": _PASSWORD,
            "StorageLoc": "slurm_acct_db",
        }
        return "".join(f"{key}={value}\n" for key, value in settings.items())


def _run(slurm: SlurmCluster, *command: str) -> None:
    done = subprocess.run(
        _HERE.command(slurm.user, slurm.root, slurm.conf, command),
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]}: {done.stderr}{done.stdout}")


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
