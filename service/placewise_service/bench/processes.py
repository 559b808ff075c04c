"""The processes of a benchmark: services, Redis, echo. Each runs apart from the client and is ended by its own id."""

import asyncio
import contextlib
import itertools
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from placewise_service.commands.exits import CommandError, Exit
from placewise_service.state.redis.embedded import EmbeddedRedis

_READY_TIMEOUT_S = 30.0
_POLL_S = 0.02
_STOP_TIMEOUT_S = 25.0
_PORTS = range(15_000, 32_000)
_SHARES = 64
# A channel that was refused would wait a second before it tries again, and that would count as the service's.
_AT_ONCE = [(f"grpc.{which}_reconnect_backoff_ms", 20) for which in ("initial", "min", "max")]
_own_ports = itertools.cycle(_PORTS[os.getpid() % _SHARES :: _SHARES])


@dataclass(slots=True)
class Service:
    """A running service process; `ready_s` from its start until it says that it is ready."""

    process: subprocess.Popen[bytes]
    target: str
    log: Path
    ready_s: float = 0.0

    def memory_mib(self) -> float:
        """Resident memory of the service process itself."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024.0

    def tail_of_log(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-5:])


@contextmanager
def redis_process() -> Iterator[EmbeddedRedis]:
    """A private Redis in a directory of its own, just as a service would run it."""
    with tempfile.TemporaryDirectory(prefix="placewise-bench-") as directory, EmbeddedRedis(Path(directory)) as redis:
        yield redis


@asynccontextmanager
async def service_process(
    environment: Mapping[str, str] | None = None, module: str = "placewise_service.cli"
) -> AsyncIterator[Service]:
    """A service on free loopback ports, ready; by default on its embedded Redis in a directory of its own. `module` has
    the command `serve`."""
    with tempfile.TemporaryDirectory(prefix="placewise-bench-") as directory:
        port = free_port()
        settings = {
            "PLACEWISE_SERVER__GRPC_PORT": str(port),
            "PLACEWISE_SERVER__REST_PORT": str(free_port()),
            "PLACEWISE_STATE_DIR": str(Path(directory) / "state"),
            "PLACEWISE_LOG__LEVEL": "warning",
            **(environment or {}),
        }
        log = Path(directory) / "service.log"
        began_s = time.perf_counter()
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: ASYNC220, S603 - our own words; starting takes a millisecond
                [sys.executable, "-m", module, "serve"],
                env={**_without_settings(os.environ), **settings},
                stdout=output,
                stderr=output,
            )
        service = Service(process, f"127.0.0.1:{port}", log)
        try:
            await _wait_until_ready(service)
            service.ready_s = time.perf_counter() - began_s
            yield service
        finally:
            stop(process)


@contextmanager
def echo_process(method: str, response: bytes) -> Iterator[str]:
    """The echo server; gives its target."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(response)
        file.flush()
        command = [sys.executable, "-m", "placewise_service.bench.echo", method, file.name]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: S603 - our own words
        try:
            assert process.stdout is not None
            yield f"127.0.0.1:{int(process.stdout.readline())}"
        finally:
            stop(process)


def stop(process: "subprocess.Popen[bytes]") -> None:
    """SIGTERM, and SIGKILL for one that does not go."""
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def free_port() -> int:
    """A loopback port that nobody has now. It is below those that the system gives to clients, as one of them
    might get it before the service does; for the same reason processes beside this one look elsewhere."""
    for port in _own_ports:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("the ports go round")


async def _wait_until_ready(service: Service) -> None:
    """Returns once the service's own health check succeeds."""
    deadline_s = time.monotonic() + _READY_TIMEOUT_S
    async with grpc.aio.insecure_channel(service.target, _AT_ONCE) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        while time.monotonic() < deadline_s and service.process.poll() is None:
            with contextlib.suppress(grpc.aio.AioRpcError):
                answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=1.0)
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return
            await asyncio.sleep(_POLL_S)
    raise CommandError(f"the service did not become ready:\n{service.tail_of_log()}", Exit.UNREACHABLE)


def _without_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the caller's own service settings: a benchmark measures the defaults."""
    return {name: value for name, value in environ.items() if not name.startswith("PLACEWISE_")}
