"""System trees of Debian's packages, one for each Slurm release that the tests run (root only).

python -m tests.e2e.slurm.slurm_tree run 24.11 COMMAND…    # makes the tree if need be, and runs COMMAND with it
python -m tests.e2e.slurm.slurm_tree unmount 24.11         # undoes mounts that are left in it
python -m tests.e2e.slurm.slurm_tree remove 24.11          # refuses while something is mounted in it

Trees are kept in ~/.cache/placewise/slurm (300 MB each, some minutes). `run` mounts /dev, /proc, /sys and /tmp of the
machine in the tree, within a mount namespace of its own: the mounts end with the command, and nobody else sees them. It
ends with 75 and the reason if no tree can be had.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

SUITES = {"22.05": "bookworm", "24.11": "trixie", "26.05": "forky"}
PACKAGES = (
    "slurmctld",
    "slurmd",
    "slurmrestd",
    "slurmdbd",
    "slurm-client",
    "slurm-wlm-basic-plugins",
    "slurm-wlm-jwt-plugin",
    "slurm-wlm-mysql-plugin",
    "lua-socket",
    "procps",
)
UNAVAILABLE = 75
SCRIPTS = Path("/usr/share/debootstrap/scripts")
# Shared between the tree and the machine: devices, processes, cgroups, and the folder that the tests write below.
_SHARED = ("dev", "proc", "sys", "tmp")
# Folders of the daemons' sockets.
RUN = ("run/slurm", "run/slurmctld", "run/slurmdbd")


class NoTreeError(Exception):
    """No tree can be made here; the message says why."""


class MovedOnError(Exception):
    """Debian's suite has another release of Slurm by now."""


def folder(release: str, environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of a release's tree."""
    base = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "placewise" / "slurm" / release


def mounted(root: Path, table: str) -> list[Path]:
    """Mount points in a tree, the deepest first, by the text of /proc/self/mountinfo."""
    points = (Path(line.split()[4].encode().decode("unicode_escape")) for line in table.splitlines())
    return sorted((point for point in points if point == root or root in point.parents), reverse=True)


def unmount(root: Path) -> None:
    """Undoes every mount in the tree. Deletes nothing."""
    for point in mounted(root, _table()):
        subprocess.run(["umount", str(point)], check=True)


def remove(root: Path) -> None:
    """Deletes the tree. Raises NoTreeError while something is mounted in it, which would be deleted as well."""
    points = mounted(root, _table())
    if points:
        raise NoTreeError(f"{points[0]} is mounted: unmount it first")
    shutil.rmtree(root, ignore_errors=True)


def make(release: str) -> Path:
    """The tree of a release, made if it is not there. Raises NoTreeError, MovedOnError."""
    root = folder(release)
    root.parent.mkdir(parents=True, exist_ok=True)
    with (root.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            partial = root.with_name(f"{release}.partial")
            remove(partial)
            _fill(partial, SUITES[release])
            check_release(release, _installed(partial))
            partial.rename(root)
    return root


def check_release(wanted: str, installed: str) -> None:
    """Raises MovedOnError if the suite's Slurm ("26.05.5") is not of the wanted release."""
    if not f"{installed}.".startswith(f"{wanted}."):
        raise MovedOnError(f"Debian's {SUITES[wanted]} has Slurm {installed} by now, and not {wanted}")


def _fill(root: Path, suite: str) -> None:
    if os.geteuid() != 0:
        raise NoTreeError("only root can make a system tree")
    if shutil.which("debootstrap") is None:
        raise NoTreeError("debootstrap is not installed")
    # A suite that debootstrap is too old to know is made as the one that they all come from.
    script = suite if (SCRIPTS / suite).exists() else "sid"
    command = [
        "debootstrap",
        "--variant=minbase",
        f"--include={','.join(PACKAGES)}",
        suite,
        str(root),
        _mirror(),
        script,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoTreeError(f"debootstrap {suite}: {(done.stdout + done.stderr).strip()[-500:]}")
    # Without a hosts file slurmctld asks the name server who each caller is, and waits for the answer.
    (root / "etc" / "hosts").write_text("127.0.0.1 localhost\n")
    services = root / "etc" / "nsswitch.conf"
    services.write_text(re.sub(r"(?m)^hosts:.*", "hosts: files", services.read_text()))


def _mirror() -> str:
    """The archive that this machine's own packages come from."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = [line for line in done.stdout.split() if "security" not in line]
    if not found:
        raise NoTreeError("apt-get knows no archive of Debian")
    return found[0]


def _installed(root: Path) -> str:
    done = subprocess.run(["chroot", str(root), "slurmctld", "-V"], capture_output=True, text=True, check=True)
    return done.stdout.split()[-1]


def _table() -> str:
    return Path("/proc/self/mountinfo").read_text()


def _run_inside(release: str, command: Sequence[str]) -> None:
    """In the mount namespace: mounts, and becomes the command. Does not return."""
    root = folder(release)
    for name in _SHARED:
        kind = ["-t", "proc", "proc"] if name == "proc" else ["--rbind", f"/{name}"]
        subprocess.run(["mount", *kind, str(root / name)], check=True)
    for name in RUN:
        (root / name).mkdir(exist_ok=True)
    os.environ["PLACEWISE_TEST_SLURM_ROOT"] = str(root)
    os.execvp(command[0], list(command))


def main(verb: str, release: str, *command: str) -> int:
    """Ends with the command's exit code; 75: no tree can be had here; 1: Debian has moved on."""
    if release not in SUITES:
        print(f"no release {release}: give one of {', '.join(SUITES)}", file=sys.stderr)
        return 2
    own = [sys.executable, "-m", "tests.e2e.slurm.slurm_tree"]
    try:
        if verb == "run":
            # debootstrap mounts as well: none of it is left if it is interrupted.
            enclosed = ["unshare", "--mount", "--propagation", "private", *own]
            code = subprocess.run([*enclosed, "make", release], check=False).returncode
            return code or subprocess.run([*enclosed, "inside", release, *command], check=False).returncode
        match verb:
            case "make":
                make(release)
            case "inside":
                _run_inside(release, command)
            case "unmount":
                unmount(folder(release))
            case "remove":
                remove(folder(release))
    except NoTreeError as error:
        print(f"SKIPPED: Slurm {release}: {error}")
        return UNAVAILABLE
    except MovedOnError as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
