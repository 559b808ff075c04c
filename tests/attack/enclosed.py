"""Programs of a source tree in a network namespace of their own (enclave.py)."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.attack.attack import CannotRunError
from tests.attack.source import Source


def enclosed(
    source: Source,
    programs: Mapping[str, tuple[Sequence[str], str]],
    settings: Mapping[str, str] | None = None,
    watch_s: float = 0.0,
) -> Any:
    """What enclave.py prints. `programs`: name → (`python` ARGUMENTS, words in its output that say that it runs)."""
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("ip") is None:
        raise CannotRunError("needs root, unshare and ip, for a network namespace")
    enclave = [sys.executable, str(Path(__file__).with_name("enclave.py"))]
    if subprocess.run(["unshare", "--net", "--mount", "true"], check=False).returncode:
        raise CannotRunError("this machine lets nobody make a network namespace")
    plan = {
        "watch_s": watch_s,
        "programs": {
            name: {"argv": [sys.executable, *arguments], "marker": marker}
            for name, (arguments, marker) in programs.items()
        },
    }
    environment = source.environment(settings)
    environment.pop("ORT_DISABLE_TELEMETRY", None)  # which this process has set for itself
    done = subprocess.run(
        ["unshare", "--net", "--mount", *enclave, json.dumps(plan)],
        env=environment,
        cwd=source.root,
        capture_output=True,
        text=True,
        timeout=300.0,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the enclave failed: {done.stderr[-1500:]}")
    return json.loads(done.stdout)
