"""Installs the distribution's packages that a test of a real scheduler needs, if it can; otherwise prints the reason.

    python -m tests.e2e.packages NAME,NAME… PACKAGE…

Nothing is installed where every NAME (a program, or a file by its full path) is there already. It ends with 0 in any
case: a test whose programs are missing is skipped by itself, with the missing programs as the reason.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TIMEOUT_S = 300


def missing(names: Sequence[str]) -> list[str]:
    """Those of `names` that are not there."""
    return [name for name in names if shutil.which(name) is None and not Path(name).is_file()]


def install(packages: Sequence[str]) -> str:
    """Installs packages by apt-get. Returns the reason of a failure, or ""."""
    if shutil.which("apt-get") is None:
        return "there is no apt-get"
    if os.geteuid() != 0:
        return f"only root can: apt-get install {' '.join(packages)}"
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
        try:
            done = subprocess.run(
                ["apt-get", "--quiet", *command],
                env=environ,
                capture_output=True,
                text=True,
                check=False,
                timeout=TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            return f"apt-get {command[0]} took longer than {TIMEOUT_S} s"
        if done.returncode != 0:
            return f"apt-get {command[0]} failed: {done.stderr.strip()[-500:]}"
    return ""


def main(names: str, *packages: str) -> None:
    """Installs missing packages, and prints the result."""
    lacking = missing(names.split(","))
    if lacking:
        problem = install(packages)
        print(f"{', '.join(lacking)}: {f'not installed, {problem}' if problem else 'installed'}")


if __name__ == "__main__":
    main(*sys.argv[1:])
