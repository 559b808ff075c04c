"""Which Slurm the tests run: the one that is installed, or another release in a system tree of its own (root only).

python -m tests.e2e.slurm.slurm_release trixie /opt/trixie       # makes such a tree with debootstrap: Slurm 24.11
PLACEWISE_TEST_SLURM_ROOT=/opt/trixie PLACEWISE_TEST_SLURM_REST=v0.0.42 make e2e-slurm
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

BINARIES = ("slurmctld", "slurmd", "slurmrestd", "sbatch", "scontrol", "squeue")
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
OLD_REST = "v0.0.38"
PACKAGES = (
    "slurmctld,slurmd,slurmrestd,slurmdbd,slurm-client,slurm-wlm-basic-plugins,slurm-wlm-jwt-plugin,"
    "slurm-wlm-mysql-plugin,lua-socket,lua5.4,procps"
)
# Shared between the tree and the machine: devices, processes, and the folder that the tests write below.
SHARED = ("dev", "proc", "tmp")


@dataclass(frozen=True, slots=True)
class Release:
    """`root` is the system tree that Slurm is taken from; None for the machine's own. `rest` is its REST version."""

    root: Path | None = None
    rest: str = OLD_REST

    @staticmethod
    def chosen(environ: Mapping[str, str] = os.environ) -> Release:
        root = environ.get("PLACEWISE_TEST_SLURM_ROOT", "")
        return Release(Path(root) if root else None, environ.get("PLACEWISE_TEST_SLURM_REST", OLD_REST))

    @property
    def is_old(self) -> bool:
        """Before 23.11, whose REST versions are another family."""
        return self.rest == OLD_REST

    def missing(self) -> list[str]:
        """Programs that are not there."""
        path = PATH if self.root is None else ":".join(f"{self.root}{folder}" for folder in PATH.split(":"))
        return [name for name in BINARIES if shutil.which(name, path=path) is None]

    def command(self, user: str, folder: Path, conf: Path, command: Sequence[str]) -> list[str]:
        """`command` as `user` in `folder`, with nothing of our environment: jobs inherit that of the daemons."""
        entry = pwd.getpwnam(user)
        inner = ["env", "-i", f"--chdir={folder}", f"PATH={PATH}", f"SLURM_CONF={conf}", *command]
        if self.root is not None:
            return ["chroot", f"--userspec={entry.pw_uid}:{entry.pw_gid}", "--groups=", str(self.root), *inner]
        if os.geteuid() == 0:
            return ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups", *inner]
        return inner

    def know(self, user: str) -> None:
        """Makes the user known in the tree as well."""
        if self.root is None:
            return
        entry = pwd.getpwnam(user)
        passwd = self.root / "etc" / "passwd"
        if f"{user}:" not in passwd.read_text():
            with passwd.open("a") as lines:
                lines.write(f"{user}:x:{entry.pw_uid}:{entry.pw_gid}::/:/bin/bash\n")
            with (self.root / "etc" / "group").open("a") as lines:
                lines.write(f"{user}:x:{entry.pw_gid}:\n")

    def rest_command(self, conf: Path, auth: str, address: str, *, has_accounting: bool) -> list[str]:
        """slurmrestd with only the version that is wanted. An old one needs slurmdbd for its plugin."""
        plugins = f"openapi/{self.rest}" if self.is_old else "slurmctld"
        if has_accounting:
            plugins += f",openapi/db{self.rest}" if self.is_old else ",slurmdbd"
        parser = ["-s", plugins] if self.is_old else ["-s", plugins, "-d", self.rest]
        # From 23.11 it refuses to run as SlurmUser, which these tests have no other user than.
        check = ["env", "SLURMRESTD_SECURITY=disable_user_check"]
        return [*check, "slurmrestd", "-f", str(conf), *parser, "-a", auth, address]


def main(suite: str, folder: str) -> None:
    """Makes the tree (some 400 MiB, some minutes), or only mounts the shared folders if it exists."""
    root = Path(folder)
    if not (root / "usr").exists():
        include = f"--include={PACKAGES}"
        subprocess.run(["debootstrap", "--variant=minbase", include, suite, folder], check=True)
        # Without it slurmctld asks the name server who each caller is, and waits for the answer.
        (root / "etc" / "hosts").write_text("127.0.0.1 localhost\n")
    for name in SHARED:
        if not os.path.ismount(root / name):
            kind = ["-t", "proc", "proc"] if name == "proc" else ["--bind", f"/{name}"]
            subprocess.run(["mount", *kind, str(root / name)], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
