"""The commit and the command that made a result, so that anybody can make it again."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from placewise_training.lab.work.asked import without_address

Origin = Mapping[str, str]
UNKNOWN = "unknown"
_CODE = ("service", "training")  # of the repository: changes elsewhere change no result


def origin() -> Origin:
    """`commit`: the hash, with "+" if code was changed since, or "unknown" outside a checkout. `command`: as typed,
    but for `--ray`."""
    return {
        "commit": _commit(Path(__file__).parents[3]),
        "command": " ".join(["placewise", *without_address(sys.argv[1:])]),
    }


def _commit(root: Path) -> str:
    try:
        commit = _git(root, "rev-parse", "--short=12", "HEAD")
        changes = _git(root, "status", "--porcelain", "--untracked-files=no", "--", *_CODE)
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN
    return f"{commit}+" if changes else commit


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout.strip()  # noqa: S603 (git, on our own paths)
