"""Several worker processes on the same ports: starts them, starts again those that die, and stops them in order.

The kernel spreads connections over the workers (SO_REUSEPORT). The parent serves nothing itself; it holds the ports, so
that nobody else takes them between two workers, and a pipe: when it closes, the workers know that the parent is gone.
"""

import contextlib
import multiprocessing
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

import structlog
from prometheus_client.multiprocess import mark_process_dead

from placewise_service.settings import Settings

log = structlog.get_logger(__name__)

_STABLE_AFTER_S = 5.0  # a worker that lived this long did start
_MOST_FAILED_STARTS = 3
_PAUSE_S = 0.2  # before a worker that died is started again
_KILL_AFTER_S = 10.0  # beyond the drain time

Work = Callable[[Settings, str, Connection], None]


@dataclass(slots=True)
class _Worker:
    process: SpawnProcess
    pipe: Connection
    start_s: float


class Supervisor:
    """Runs `settings.server.workers` processes of `work` until SIGTERM or SIGINT."""

    def __init__(self, settings: Settings, redis_url: str, work: Work) -> None:
        self._settings = settings
        self._redis_url = redis_url
        self._work = work
        self._workers: list[_Worker] = []
        self._failed_starts = 0
        self._is_stopping = False

    def run(self) -> int:
        """Blocks; 0 after an orderly stop, 1 if workers kept failing. Raises OSError if a port is taken."""
        with _held_ports(self._settings) as settings, _shared_metrics(), _woken_by_signals(self._stop) as wake:
            for _ in range(settings.server.workers):
                self._start(settings)
            while self._workers:
                wait([wake, *(worker.process.sentinel for worker in self._workers)], timeout=1.0)
                self._replace_dead(settings)
                if self._is_stopping:
                    self._stop_all(settings)
        return 1 if self._failed_starts >= _MOST_FAILED_STARTS else 0

    def _start(self, settings: Settings) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)[::-1]
        process = context.Process(target=self._work, args=(settings, self._redis_url, theirs), name="placewise worker")
        process.start()
        theirs.close()
        self._workers.append(_Worker(process, ours, time.monotonic()))

    def _replace_dead(self, settings: Settings) -> None:
        for worker in [worker for worker in self._workers if not worker.process.is_alive()]:
            self._bury(worker)
            if self._is_stopping:
                continue
            is_failed_start = time.monotonic() - worker.start_s < _STABLE_AFTER_S
            self._failed_starts = self._failed_starts + 1 if is_failed_start else 0
            log.error("a worker died", pid=worker.process.pid, exit_code=worker.process.exitcode)
            if self._failed_starts >= _MOST_FAILED_STARTS:
                log.error("workers keep dying at start; giving up")
                self._is_stopping = True
                return
            time.sleep(_PAUSE_S)
            self._start(settings)

    def _bury(self, worker: _Worker) -> None:
        worker.process.join()
        worker.pipe.close()
        self._workers.remove(worker)
        assert worker.process.pid is not None
        mark_process_dead(worker.process.pid)  # type: ignore[no-untyped-call]

    def _stop(self) -> None:
        self._is_stopping = True

    def _stop_all(self, settings: Settings) -> None:
        for worker in self._workers:
            worker.process.terminate()
        end_s = time.monotonic() + settings.server.drain_timeout_s + _KILL_AFTER_S
        for worker in list(self._workers):
            worker.process.join(max(0.0, end_s - time.monotonic()))
            if worker.process.is_alive():
                log.warning("a worker did not stop in time and is killed", pid=worker.process.pid)
                worker.process.kill()
            self._bury(worker)


@contextlib.contextmanager
def _held_ports(settings: Settings) -> Iterator[Settings]:
    """Settings with the ports that are really used, bound here without listening for as long as the block runs."""
    server = settings.server
    with contextlib.ExitStack() as stack:
        ports = {
            "grpc_port": stack.enter_context(_held(server.grpc_host, server.grpc_port)),
            "rest_port": stack.enter_context(_held(server.rest_host, server.rest_port)),
        }
        if server.health_port is not None:
            ports["health_port"] = stack.enter_context(_held(server.health_host, server.health_port))
        server = server.model_copy(update=ports)
        yield settings.model_copy(update={"server": server})


@contextlib.contextmanager
def _held(host: str, port: int) -> Iterator[int]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe, socket.socket(family) as held:
        # Alone first: with SO_REUSEPORT another service's port would be shared without a word.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _bind(probe, host, port)
        port = probe.getsockname()[1]
        probe.close()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        _bind(held, host, port)
        yield port


def _bind(bare: socket.socket, host: str, port: int) -> None:
    try:
        bare.bind((host, port))
    except OSError as error:
        raise OSError(error.errno, f"cannot bind {host}:{port}: {error.strerror}") from None


@contextlib.contextmanager
def _shared_metrics() -> Iterator[None]:
    """A directory in which the workers keep their metrics, so that any of them can show the sum."""
    with tempfile.TemporaryDirectory(prefix="placewise-metrics-") as directory:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = directory
        try:
            yield
        finally:
            del os.environ["PROMETHEUS_MULTIPROC_DIR"]


@contextlib.contextmanager
def _woken_by_signals(on_stop: Callable[[], None]) -> Iterator[socket.socket]:
    """A socket that becomes readable when a signal arrives; SIGTERM and SIGINT also call `on_stop`."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    previous_fd = signal.set_wakeup_fd(theirs.fileno())
    numbers = (signal.SIGTERM, signal.SIGINT)
    previous = [signal.signal(number, lambda *_: on_stop()) for number in numbers]
    try:
        yield ours
    finally:
        signal.set_wakeup_fd(previous_fd)
        for number, handler in zip(numbers, previous, strict=True):
            signal.signal(number, handler)
        ours.close()
        theirs.close()
