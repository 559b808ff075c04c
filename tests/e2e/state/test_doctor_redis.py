"""`placewise doctor` reaches every kind of Redis that the service can use, with no more rights than the service has."""

import contextlib
import json
from pathlib import Path

import pytest
from tests.fakes.servers.redis_server import RedisClusterServers, RedisServer, SentinelServers

from placewise_service.cli import invoke

pytestmark = pytest.mark.e2e

# What docs/state.md tells operators to grant, and nothing else.
GRANTS = ["resetkeys", "~pw:*", "+@read", "+@write", "+@scripting", "+@connection", "+time", "-@dangerous"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACEWISE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PLACEWISE_SERVER__GRPC_PORT", "0")
    monkeypatch.setenv("PLACEWISE_SERVER__REST_PORT", "0")


def redis_finding(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, code: int = 0
) -> dict[str, str]:
    """What doctor says of the Redis at this URL."""
    monkeypatch.setenv("PLACEWISE_REDIS_URL", url)
    assert invoke(["doctor", "--json"]) == code
    (finding,) = (f for f in json.loads(capsys.readouterr().out)["findings"] if f["check"] == "Redis")
    return dict(finding)


def test_a_user_with_only_the_documented_grants(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = RedisServer().start()
    try:
        with contextlib.closing(server.client()) as raw:
            raw.execute_command("ACL", "SETUSER", "placewise", "on", ">secret", *GRANTS)
        url = f"redis://placewise:secret@127.0.0.1:{server.port}/0"
        finding = redis_finding(url, capsys, monkeypatch)
        assert (finding["verdict"], finding["detail"][:7]) == ("ok", "reached")
        wrong = redis_finding(url.replace("secret", "wrong"), capsys, monkeypatch, code=5)
        assert wrong["verdict"] == "failed"
    finally:
        server.stop()


def test_the_master_that_sentinels_name(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    servers = SentinelServers().start()
    try:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in servers.sentinels)
        url = f"redis+sentinel://{hosts}/{servers.service}"
        finding = redis_finding(url, capsys, monkeypatch)
        assert (finding["verdict"], "min-replicas-to-write is 0" in finding["detail"]) == ("warning", True)
        master = servers.master.client()
        master.config_set("min-replicas-to-write", 1)
        master.close()
        finding = redis_finding(url, capsys, monkeypatch)
        assert (finding["verdict"], finding["detail"][:10]) == ("ok", "reached, 6")
    finally:
        servers.stop()


def test_a_cluster(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    servers = RedisClusterServers().start()
    try:
        finding = redis_finding(servers.url, capsys, monkeypatch)
        assert (finding["verdict"], finding["detail"][:10]) == ("ok", "reached, 6")
    finally:
        servers.stop()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--maxmemory-policy", "allkeys-lru"), "allkeys-lru"),
        ((), "appendonly is off"),
        (("--appendonly", "yes", "--appendfsync", "everysec"), "appendfsync is everysec"),
        (("--appendonly", "yes", "--appendfsync", "always"), "maxmemory is not set"),
    ],
)
def test_a_redis_that_forgets_is_a_warning(
    args: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = RedisServer(args).start()
    try:
        finding = redis_finding(server.url, capsys, monkeypatch)
        assert (finding["verdict"], words in finding["detail"]) == ("warning", True)
    finally:
        server.stop()
