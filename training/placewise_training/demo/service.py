"""A service of the demonstration's own, and the commands of its users, each shown once the service is ready."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

_COMMAND: Final = Path(sys.executable).with_name("placewise")
_REFUSED: Final = 5
_READY_S: Final = 60.0
_STOP_S: Final = 30.0
# A replay as fast as the service answers leaves no time for the log's alternatives unless all of it is theirs.
_LOGGED: Final = {
    "PLACEWISE_DECLOG__ALTERNATIVES_SHARE": "1",
    "PLACEWISE_DECLOG__STUDY_TIME_SHARE": "1",
    "PLACEWISE_DECLOG__OBSERVE_SHARE": "1",
    "PLACEWISE_DECLOG__RING_BYTES": str(1 << 30),
    "PLACEWISE_DECLOG__VIEWS_BYTES": str(1 << 30),
}


class DemoError(Exception):
    """A command of the demonstration failed; the message has its last words."""

    exit_code = 6


class DemoService:
    """A running service: the address of its gRPC face, the folder of its bundles, the environment of its commands."""

    def __init__(self, target: str, bundles: Path, environment: Mapping[str, str]) -> None:
        self.target, self.bundles, self.is_shown = target, bundles, False
        self._environment = environment

    def ask(self, *words: object) -> Any:
        """The JSON object that a command on this service prints. Raises DemoError."""
        return self.run(*words, "--target", self.target)

    def run(self, *words: object) -> Any:
        """The JSON object that a command prints, also if it refuses a candidate. Raises DemoError."""
        return self._run([*map(str, words), "--json"])

    def do(self, *words: object) -> None:
        """A command on this service that prints nothing to read. Raises DemoError."""
        self._run([*map(str, words), "--target", self.target])

    def _run(self, given: Sequence[str]) -> Any:
        if self.is_shown:
            print("$ placewise", *given, file=sys.stderr, flush=True)
        done = subprocess.run(  # noqa: S603 - our own words
            [str(_COMMAND), *given], env=self._environment, capture_output=True, text=True, check=False
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith(("{", "["))]
        if done.returncode not in (0, _REFUSED) or (done.returncode == _REFUSED and not lines):
            raise DemoError(f"placewise {' '.join(given)}: {_last_line(done.stderr or done.stdout)}")
        return json.loads(lines[-1]) if lines else {}


@contextmanager
def demo_service(folder: Path) -> Iterator[DemoService]:
    """A service on free loopback ports and an embedded Redis, ready. Raises DemoError."""
    port, bundles = _free_port(), folder / "bundles"
    bundles.mkdir(parents=True, exist_ok=True)
    own = {name: value for name, value in os.environ.items() if not name.startswith("PLACEWISE_")}
    environment = (
        own
        | _LOGGED
        | {
            "PLACEWISE_SERVER__GRPC_PORT": str(port),
            "PLACEWISE_SERVER__REST_PORT": str(_free_port()),
            "PLACEWISE_STATE_DIR": str(folder / "state"),
            "PLACEWISE_BUNDLE_DIR": str(bundles),
            "PLACEWISE_LOG__LEVEL": "warning",
            "OMP_NUM_THREADS": "1",
        }
    )
    with (folder / "service.log").open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - our own words
            [str(_COMMAND), "serve"], env=environment, stdout=output, stderr=output
        )
        service = DemoService(f"127.0.0.1:{port}", bundles, environment)
        try:
            _wait_until_ready(service, process, folder / "service.log")
            yield service
        finally:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_until_ready(service: DemoService, process: "subprocess.Popen[bytes]", log: Path) -> None:
    until_s = time.monotonic() + _READY_S
    while time.monotonic() < until_s and process.poll() is None:
        try:
            service.ask("bundle", "list")
            service.is_shown = True
            return
        except DemoError:
            time.sleep(0.5)
    raise DemoError(f"the service did not start: {_last_line(log.read_text('utf-8', 'replace'))}")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no output"])[-1]


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port
