"""Redis URLs: each form, and the errors of others. Nothing is connected."""

from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis, RedisCluster, SSLConnection
from redis.asyncio.sentinel import SentinelConnectionPool

from placewise_service.state.redis.connection import RedisOptions, bounded_client


def client(url: str, **more: Any) -> Redis | RedisCluster:
    return bounded_client(RedisOptions(url, **more)).unbounded


def kwargs(url: str, **more: Any) -> dict[str, Any]:
    made = client(url, **more)
    assert isinstance(made, Redis)
    return dict(made.connection_pool.connection_kwargs)


def test_one_server() -> None:
    found = kwargs("redis://user:p%40ss@example.org:7000/3")
    assert (found["host"], found["port"], found["db"]) == ("example.org", 7000, 3)
    assert (found["username"], found["password"]) == ("user", "p@ss")


def test_defaults_of_one_server() -> None:
    found = kwargs("redis://example.org", timeout_s=0.25)
    assert (found["host"], found["port"]) == ("example.org", 6379)
    assert (found["socket_timeout"], found["socket_connect_timeout"]) == (0.25, 0.25)


def test_an_ipv6_address() -> None:
    assert (kwargs("redis://[::1]:7000")["host"], kwargs("redis://[::1]")["port"]) == ("::1", 6379)


def test_a_unix_socket() -> None:
    assert kwargs("unix:///run/my%20redis.sock")["path"] == "/run/my redis.sock"


def test_tls_with_files() -> None:
    made = client("rediss://example.org", ca_file=Path("ca.pem"), cert_file=Path("c.pem"), key_file=Path("k.pem"))
    assert isinstance(made, Redis)
    assert issubclass(made.connection_pool.connection_class, SSLConnection)
    found = made.connection_pool.connection_kwargs
    assert (found["ssl_ca_certs"], found["ssl_certfile"], found["ssl_keyfile"]) == ("ca.pem", "c.pem", "k.pem")


@pytest.mark.parametrize(
    ("url", "more"),
    [
        ("redis+sentinel://user:pw@a:1,b/main", {}),
        ("redis://user:pw@a:1,b", {"sentinel_service": "main"}),
    ],
)
def test_sentinel(url: str, more: dict[str, Any]) -> None:
    made = client(url, **more)
    assert isinstance(made, Redis)
    pool = made.connection_pool
    assert isinstance(pool, SentinelConnectionPool)
    assert pool.service_name == "main"
    assert (pool.connection_kwargs["username"], pool.connection_kwargs["password"]) == ("user", "pw")
    ports = [sentinel.connection_pool.connection_kwargs["port"] for sentinel in pool.sentinel_manager.sentinels]
    assert ports[0] == 1
    assert len(ports) == 2


@pytest.mark.parametrize(("url", "more"), [("redis+cluster://a:1,b", {}), ("redis://a:1,b", {"is_cluster": True})])
def test_cluster(url: str, more: dict[str, Any]) -> None:
    made = client(url, **more)
    assert isinstance(made, RedisCluster)
    assert sorted(made.nodes_manager.startup_nodes) == ["a:1", "b:6379"]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://secret@example.org", "unknown scheme"),
        ("redis+magic://secret@example.org", "unknown scheme"),
        ("redis://secret@example.org:port", "must be a number"),
        ("redis://secret@", "needs a host"),
        ("redis+sentinel://secret@example.org", "needs a service"),
    ],
)
def test_what_is_wrong_is_said_without_quoting_the_url(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        client(url)
    assert "secret" not in str(caught.value)
    assert "example.org" not in str(caught.value)


def test_options_do_not_show_their_url() -> None:
    assert "secret" not in repr(RedisOptions("redis://:secret@example.org"))
