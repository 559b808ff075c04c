"""README's calls, pasted into a running service, give README's answers."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from placewise_service.bench.processes import free_port

ROOT = Path(__file__).parents[2]
CALLS = re.findall(r"```sh\n(curl .*?)```\n```json\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
# What differs from run to run, and nothing else.
VARYING = {
    "decisionId",
    "reservationId",
    "reservationExpireTime",
    "expectedFinishTime",
    "slackSeconds",
    "decideMs",
    "snapshotVersion",
}

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def rest_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The service as `make run` starts it, on free ports."""
    port = free_port()
    command = [sys.executable, "-m", "placewise_service.cli", "serve", "--demo"]
    command += ["--grpc-port", str(free_port()), "--rest-port", str(port)]
    environment = {**os.environ, "PLACEWISE_STATE_DIR": str(tmp_path_factory.mktemp("state"))}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await_ready(port)
        yield port
    finally:
        process.terminate()
        process.wait(30)


def _await_ready(port: int) -> None:
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
                return
        except OSError:
            time.sleep(0.05)
    pytest.fail("not ready within 30 s")


def _fixed(answer: Any) -> Any:
    """The answer without what varies; numbers rounded as a reader would compare them."""
    if isinstance(answer, dict):
        return {name: _fixed(value) for name, value in answer.items() if name not in VARYING}
    if isinstance(answer, list):
        return [_fixed(value) for value in answer]
    return round(answer, 6) if isinstance(answer, float) else answer


@pytest.mark.skipif(shutil.which("curl") is None, reason="README's calls use curl, which is not installed")
def test_readme_tells_the_truth(rest_port: int) -> None:
    assert len(CALLS) == 4
    for call, promised in CALLS:
        command = call.replace("localhost:8080", f"127.0.0.1:{rest_port}")
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=30, check=True)
        assert _fixed(json.loads(done.stdout)) == _fixed(json.loads(promised)), call
