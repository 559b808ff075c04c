"""The real decision service as a process, for the end-to-end tests. Its state dies with the test directory."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Protocol

from tests.e2e.kubernetes import cpu_requests
from tests.e2e.kubernetes.kubernetes_cluster import environment, free_port

from placewise.v1.cluster_pb2 import GetClusterRequest, RunningJob
from placewise_client import AsyncClient

START_LIMIT_S = 30.0
# The settings that the adapter's README gives the service beside the control plane.
MILLI_CPU = 500


class Service(Protocol):
    """A decision service that can be stopped and started again on its port."""

    @property
    def target(self) -> str: ...
    @property
    def http_target(self) -> str: ...
    async def start(self) -> object: ...
    async def stop(self) -> None: ...


class PlacewiseServer:
    """`placewise serve` on its embedded Redis, with a state directory of its own."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._port = free_port()
        self._rest_port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def state_dir(self) -> Path:
        return self._root / "state"

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def http_target(self) -> str:
        """The same over HTTP/1.1."""
        return f"http://127.0.0.1:{self._rest_port}"

    async def start(self) -> PlacewiseServer:
        self.launch()
        return self

    def launch(self) -> None:
        """Starts it and waits for its own word that it is ready."""
        command = [str(Path(sys.executable).with_name("placewise")), "serve", "--grpc-port", str(self._port)]
        command += [
            "--rest-port",
            str(self._rest_port),
            "--state-dir",
            str(self.state_dir),
            "--log-format",
            "json",
        ]
        log = self._root / "placewise.log"
        offset = log.stat().st_size if log.exists() else 0
        with log.open("ab") as sink:
            weighed = cpu_requests.requesting("placewise", MILLI_CPU, command)
            self._process = subprocess.Popen(weighed, stdout=sink, stderr=sink, cwd=self._root, env=environment())
        limit_s = time.monotonic() + START_LIMIT_S
        while time.monotonic() < limit_s and self._process.poll() is None:
            if any(_is_ready(line) for line in log.read_bytes()[offset:].splitlines()):
                return
            time.sleep(0.05)
        raise TimeoutError(log.read_text()[-3000:])

    async def stop(self) -> None:
        self.end()

    def end(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
            self._process = None

    def kill(self) -> None:
        """Ends it by SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def send(self, number: signal.Signals) -> None:
        """Sends it a signal: SIGSTOP makes it hang."""
        if self._process is not None:
            self._process.send_signal(number)


def _is_ready(line: bytes) -> bool:
    try:
        return bool(json.loads(line).get("event") == "ready")
    except ValueError:
        return False


async def running_jobs(service: Service, cluster: str) -> dict[str, Counter[str]]:
    """The service's record of running jobs: tasks by node, by job id."""
    async with AsyncClient(service.target) as client:
        answer = await client.get_cluster(GetClusterRequest(cluster=cluster, full=True))
    return {
        job.job_id: Counter(task.node for task in job.assignments)
        for job in answer.jobs
        if job.state == RunningJob.RUNNING
    }
