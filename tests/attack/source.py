"""A source tree under attack: starts its service, its adapters and any other module of it as processes.

The interpreter is the one that runs the suite; the tree's packages come first on its path. So an earlier commit runs
with today's libraries, and only the code differs.
"""

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from placewise_service.bench.processes import free_port, stop

_PACKAGES = ("service", "training", "clients/python", "clients/slurm", "clients/kubernetes", ".")
_READY_S = 60.0
_POLL_S = 0.02
_MIB = 1 << 20


@dataclass(slots=True)
class Process:
    """A running process of the tree; `log` has its output."""

    popen: "subprocess.Popen[bytes]"
    log: Path

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def is_running(self) -> bool:
        return self.popen.poll() is None

    def resident_mib(self) -> float:
        return self._status_kib("VmRSS") / 1024.0

    def peak_mib(self) -> float:
        """The largest resident size since the start, or since `forget_peak`."""
        return self._status_kib("VmHWM") / 1024.0

    def forget_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def processor_s(self) -> float:
        """Processor time of the process, user and system, in seconds."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def _status_kib(self, name: str) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name))


@dataclass(slots=True)
class Service(Process):
    """A service that answers. `tokens` has the bearer tokens by name."""

    grpc_port: int
    rest_port: int
    directory: Path
    tokens: Mapping[str, str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.rest_port}"

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"


@dataclass(frozen=True, slots=True)
class Source:
    """The tree at `root`; `name` as the report calls it."""

    root: Path
    name: str

    def knows_setting(self, name: str) -> bool:
        """True if the service of this tree has the setting (PLACEWISE_…)."""
        return f"`{name}`" in (self.root / "docs/settings.md").read_text()

    def environment(self, settings: Mapping[str, str] | None = None) -> dict[str, str]:
        """The caller's environment without settings of its own, and with the tree's packages first on the path."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PLACEWISE_")}
        path = os.pathsep.join(str(self.root / package) for package in _PACKAGES)
        return {**inherited, **(settings or {}), "PYTHONPATH": path}

    def run(
        self, arguments: Sequence[str], settings: Mapping[str, str] | None = None, timeout_s: float = 120.0
    ) -> "subprocess.CompletedProcess[str]":
        """Runs `python ARGUMENTS` of the tree to its end: ["-m", "placewise_service.cli", "doctor"]."""
        return subprocess.run(
            [sys.executable, *arguments],
            env=self.environment(settings),
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    @contextlib.contextmanager
    def process(
        self,
        arguments: Sequence[str],
        directory: Path,
        settings: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> Iterator[Process]:
        """Runs `python ARGUMENTS` beside the block and stops it. `prefix` is a command before it: prlimit, unshare."""
        log = directory / f"process-{time.monotonic_ns()}.log"
        with log.open("wb") as output:
            popen = subprocess.Popen(
                [*prefix, sys.executable, *arguments],
                env=self.environment(settings),
                cwd=self.root,
                stdout=output,
                stderr=output,
            )
        try:
            yield Process(popen, log)
        finally:
            if popen.poll() is None:
                popen.send_signal(signal.SIGCONT)
            stop(popen)

    @contextlib.contextmanager
    def service(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        if_known: Mapping[str, str] | None = None,
        tokens: Mapping[str, Mapping[str, object]] | None = None,
        prefix: Sequence[str] = (),
        is_awaited: bool = True,
    ) -> Iterator[Service]:
        """A service on free loopback ports and, unless `settings` name another, its embedded Redis; ready.

        `if_known` are settings that an earlier tree may lack. `tokens` makes a tokens file: name → scopes, clusters, as
        in docs/security.md; the token of NAME is in `Service.tokens[NAME]`. `is_awaited` False: a service that need
        not become ready, or answers by TLS alone.
        """
        with tempfile.TemporaryDirectory(prefix="placewise-attack-") as folder:
            directory = Path(folder)
            grpc_port, rest_port = free_port(), free_port()
            secrets = {name: f"{name}-{'x' * 40}" for name in tokens or {}}
            merged = {
                "PLACEWISE_SERVER__GRPC_PORT": str(grpc_port),
                "PLACEWISE_SERVER__REST_PORT": str(rest_port),
                "PLACEWISE_STATE_DIR": str(directory / "state"),
                "PLACEWISE_LOG__LEVEL": "warning",
                **({"PLACEWISE_AUTH__TOKENS_FILE": str(_tokens_file(directory, tokens, secrets))} if tokens else {}),
                **{name: value for name, value in (if_known or {}).items() if self.knows_setting(name)},
                **(settings or {}),
            }
            if self.knows_setting("PLACEWISE_SERVER__HEALTH_PORT"):
                merged.setdefault("PLACEWISE_SERVER__HEALTH_PORT", "0")
            with self.process(["-m", "placewise_service.cli", "serve"], directory, merged, prefix) as process:
                service = Service(process.popen, process.log, grpc_port, rest_port, directory, secrets)
                if is_awaited:
                    _wait_until_ready(service)
                yield service


def _tokens_file(directory: Path, tokens: Mapping[str, Mapping[str, object]], secrets: Mapping[str, str]) -> Path:
    entries = [
        {"name": name, "sha256": hashlib.sha256(secrets[name].encode()).hexdigest(), **entry}
        for name, entry in tokens.items()
    ]
    path = directory / "tokens.yaml"
    path.write_text(yaml.safe_dump({"tokens": entries}))
    path.chmod(0o600)
    return path


def _wait_until_ready(service: Service) -> None:
    deadline_s = time.monotonic() + _READY_S
    while time.monotonic() < deadline_s and service.is_running:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{service.url}/readyz", timeout=2.0) as answer:
            if answer.status == 200:
                return
        time.sleep(_POLL_S)
    raise RuntimeError(f"the service did not become ready:\n{service.text()[-2000:]}")
