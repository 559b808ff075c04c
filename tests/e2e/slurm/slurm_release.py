"""Which Slurm the tests run: the one that is installed, or another release in a system tree of its own (slurm_tree.py).

PLACEWISE_TEST_SLURM_ROOT names the tree, PLACEWISE_TEST_SLURM_REST the only REST version that slurmrestd serves and the
bridge speaks; without it slurmrestd serves all that it has, and the bridge chooses.
"""

from __future__ import annotations

import functools
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

BINARIES = ("slurmctld", "slurmd", "slurmrestd", "sbatch", "scontrol", "squeue")
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
OLD_REST = "v0.0.38"
_VERSION = re.compile(r"\d\d\.\d\d(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Release:
    """`root` is the system tree that Slurm is taken from; None for the machine's own. `rest`: its only REST version."""

    root: Path | None = None
    rest: str = ""

    @staticmethod
    def chosen(environ: Mapping[str, str] = os.environ) -> Release:
        root = environ.get("PLACEWISE_TEST_SLURM_ROOT", "")
        return Release(Path(root) if root else None, environ.get("PLACEWISE_TEST_SLURM_REST", ""))

    @property
    def version(self) -> str:
        """ "24.11.5"; "" if Slurm is not installed."""
        return _version(self.root)

    @property
    def series(self) -> str:
        """ "24.11"; "" if Slurm is not installed."""
        return self.version[:5]

    @property
    def is_old(self) -> bool:
        """Before 23.11, whose REST versions are another family, each a plugin of its own."""
        return self.series < "23.11"

    @property
    def has_rest_user(self) -> bool:
        """From 23.11 slurmrestd is not to run as SlurmUser, and 26.05 refuses to: callers bring a token."""
        return not self.is_old and os.geteuid() == 0

    @property
    def has_own_auth(self) -> bool:
        """auth/slurm instead of auth/none: in one lane, as no older release of the three has it without munge."""
        return self.series >= "26.05"

    def missing(self) -> list[str]:
        """Programs that are not there."""
        return [name for name in BINARIES if shutil.which(name, path=_path(self.root)) is None]

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

    def rest_command(self, conf: Path, address: str, *, is_by_token: bool, has_accounting: bool) -> list[str]:
        """slurmrestd with the version that is wanted, or all. An old one needs slurmdbd for its plugin."""
        version = self.rest or OLD_REST
        plugins = f"openapi/{version}" if self.is_old else "slurmctld"
        if has_accounting:
            plugins += f",openapi/db{version}" if self.is_old else ",slurmdbd"
        parser = ["-d", self.rest] if self.rest and not self.is_old else []
        auth = "rest_auth/jwt" if is_by_token else "rest_auth/local"
        # With tokens it starts only with some token in its environment; requests bring their own.
        environment = ["env", "SLURM_JWT=daemon"] if is_by_token else []
        return [*environment, "slurmrestd", "-f", str(conf), "-s", plugins, *parser, "-a", auth, address]


def _path(root: Path | None) -> str:
    return PATH if root is None else ":".join(f"{root}{folder}" for folder in PATH.split(":"))


@functools.cache
def _version(root: Path | None) -> str:
    if shutil.which("slurmctld", path=_path(root)) is None:
        return ""
    enter = [] if root is None else ["chroot", str(root)]
    done = subprocess.run([*enter, "slurmctld", "-V"], capture_output=True, text=True, check=True, env={"PATH": PATH})
    found = _VERSION.search(done.stdout)
    return found[0] if found else ""
