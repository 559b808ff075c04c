"""Real redis-servers for tests: one, one with TLS in front and an ACL user, a Sentinel set, a cluster of three.

All listen on loopback ports picked by the system and live in a temporary directory. `stop` ends them by their ids.
"""

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from placewise_service.state.redis.embedded import server_binary

_START_TIMEOUT_S = 10.0
# As docs/deploy.md tells operators.
DURABLE = ("--appendonly", "yes", "--appendfsync", "always", "--maxmemory", "256mb")


def free_port(offset: int = 0) -> int:
    """A port that is free now; with `offset`, port + offset is free as well (a cluster's bus)."""
    while True:
        with socket.socket() as first:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            if port + offset > 65535:
                continue
            with socket.socket() as second, contextlib.suppress(OSError):
                if offset:
                    second.bind(("127.0.0.1", port + offset))
                return port


def wait_until(is_done: Callable[[], bool], timeout_s: float = _START_TIMEOUT_S) -> None:
    """Polls until `is_done()` is true. Raises TimeoutError."""
    end_s = time.monotonic() + timeout_s
    while not is_done():
        if time.monotonic() > end_s:
            raise TimeoutError("a Redis server did not get ready")
        time.sleep(0.01)


@dataclass
class RedisServer:
    """One redis-server process; `start` again after `kill` brings it back with its files."""

    args: Sequence[str] = ()
    port: int = field(default_factory=free_port)
    mode: str = ""
    directory: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="pw-redis-")))
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> "RedisServer":
        command = [str(server_binary())]
        if self.mode == "sentinel":
            command += [str(self.directory / "sentinel.conf"), "--sentinel"]
        else:
            command += ["--save", ""]
        command += ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory), *self.args]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until(self.is_ready)
        except BaseException:
            self.stop()
            raise
        return self

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, socket_timeout=2, retry=Retry(NoBackoff(), 0))

    def is_ready(self) -> bool:
        with contextlib.suppress(redis.RedisError), contextlib.closing(self.client()) as client:
            return bool(client.ping())
        return False

    def kill(self) -> None:
        """As a power failure of the process: nothing is flushed."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(how)
            self.process.wait(timeout=10)

    def pause(self) -> None:
        """The server stops answering and keeps its connections."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self._end(signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"


class RedisClusterServers:
    """Three masters, every slot assigned, no replicas."""

    def __init__(self) -> None:
        args = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000", *DURABLE]
        self.nodes = [RedisServer(args, port=free_port(10000)) for _ in range(3)]

    def start(self) -> "RedisClusterServers":
        for node in self.nodes:
            node.start()
        bounds = [0, 5461, 10923, 16384]
        first = self.nodes[0]
        for i, node in enumerate(self.nodes):
            with contextlib.closing(node.client()) as client:
                client.execute_command("CLUSTER ADDSLOTS", *range(bounds[i], bounds[i + 1]))
                client.execute_command("CLUSTER SET-CONFIG-EPOCH", i + 1)
                if node is not first:
                    client.execute_command("CLUSTER MEET", "127.0.0.1", first.port)
        wait_until(self.is_ready, 30.0)
        return self

    def is_ready(self) -> bool:
        return all(self._agrees(node) for node in self.nodes)

    @staticmethod
    def _agrees(node: RedisServer) -> bool:
        with contextlib.suppress(redis.RedisError), contextlib.closing(node.client()) as client:
            info = client.execute_command("CLUSTER INFO")
            return info["cluster_state"] == "ok" and info["cluster_known_nodes"] == "3"
        return False

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)


class SentinelServers:
    """A master, a replica, and three Sentinels that watch them as "placewise"."""

    service = "placewise"

    def __init__(self) -> None:
        self.master = RedisServer(DURABLE)
        self.replica = RedisServer([*DURABLE, "--replicaof", "127.0.0.1", str(self.master.port)])
        self.sentinels = [RedisServer(mode="sentinel") for _ in range(3)]

    def start(self) -> "SentinelServers":
        self.master.start()
        self.replica.start()
        wait_until(self._is_in_sync)
        for sentinel in self.sentinels:
            (sentinel.directory / "sentinel.conf").write_text(
                f"sentinel monitor {self.service} 127.0.0.1 {self.master.port} 2\n"
                f"sentinel down-after-milliseconds {self.service} 500\n"
                f"sentinel failover-timeout {self.service} 3000\n"
            )
            sentinel.start()
        wait_until(lambda: all(self._sees_all(sentinel) for sentinel in self.sentinels), 30.0)
        return self

    def _is_in_sync(self) -> bool:
        with contextlib.closing(self.replica.client()) as client:
            return str(client.info("replication").get("master_link_status")) == "up"

    def _sees_all(self, sentinel: RedisServer) -> bool:
        with contextlib.closing(sentinel.client()) as client:
            (state,) = client.sentinel_masters().values()
            return int(state["num-slaves"]) == 1 and int(state["num-other-sentinels"]) == 2

    def stop(self) -> None:
        for server in (*self.sentinels, self.replica, self.master):
            server.stop()

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{self.service}"
