"""Volcano's programs and definitions, which whoever runs the suite brings: the repository holds and builds neither.

`VOLCANO_ASSETS` names a folder with the programs `vc-scheduler` and `vc-controller-manager`, and with the release's
definitions of its objects as YAML files in `crds`. `python -m tests.e2e.volcano.volcano_assets` prints the folder, or
ends with 75 and the reason on standard error.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.e2e.kubernetes.kubernetes_binaries import UNAVAILABLE

SCHEDULER, CONTROLLERS, DEFINITIONS = "vc-scheduler", "vc-controller-manager", "crds"


class AssetsUnavailableError(Exception):
    """No Volcano was given; the message names the missing part."""


def find(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of the release.

    Raises:
        AssetsUnavailableError: it is not given, or lacks a part.
    """
    given = environ.get("VOLCANO_ASSETS", "")
    if not given:
        raise AssetsUnavailableError("VOLCANO_ASSETS is not set (vc-scheduler, vc-controller-manager, crds/)")
    folder = Path(given).absolute()
    missing = [name for name in (SCHEDULER, CONTROLLERS) if not os.access(folder / name, os.X_OK)]
    missing += [] if list((folder / DEFINITIONS).glob("*.yaml")) else [f"{DEFINITIONS}/*.yaml"]
    if missing:
        raise AssetsUnavailableError(f"{folder} lacks {', '.join(missing)}")
    return folder


def version(folder: Path) -> str:
    """The release, by the scheduler's own word."""
    printed = subprocess.run([folder / SCHEDULER, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"^Version:\s*(\S+)", printed, re.MULTILINE)
    return found[1] if found else "unknown"


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{find()}\n")
    except AssetsUnavailableError as unavailable:
        sys.stderr.write(f"no Volcano: {unavailable}\n")
        sys.exit(UNAVAILABLE)
