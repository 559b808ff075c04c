"""Clients for every kind of Redis, from one URL. Sends nothing by itself.

    redis://[user:password@]host[:port][/db]           one server           rediss:// with TLS
    unix:///path/to.sock[?db=0]                        one server on this machine
    redis+sentinel://[…@]host[:port][,host…]/service   the master of a service, by its Sentinels (rediss+sentinel://)
    redis+cluster://[…@]host[:port][,host…]            Redis Cluster, any of its nodes (rediss+cluster://)

Clients never retry or back off by themselves: a caller that gets StateUnavailableError within a second decides better.
RESP2 and RESP3 are equally fast here; RESP2 has one form of reply for every server version.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import hiredis
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import AbstractConnection, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from placewise_core.basics.frozen import frozen

Client = Redis | RedisCluster

# Longest time of a whole command, in time limits of one step: connecting and answering may each take one.
WHOLE = 1.25
_REDIS_PORT = 6379
_SENTINEL_PORT = 26379
_UNBOUNDED = 2**16  # BoundedClient bounds them: it waits where redis-py would raise


@frozen
class RedisOptions:
    """Where Redis is and how long to wait for it. `url` may hold a password and is never shown."""

    url: str = field(repr=False)
    timeout_s: float = 1.0
    connections: int = 64
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    sentinel_service: str = ""  # as redis+sentinel://…/service
    is_cluster: bool = False  # as redis+cluster://


class BoundedClient:
    """A client that lets at most so many commands run at once: the others wait their turn. `unbounded` waits for
    nobody: a tail keeps a connection for as long as it lives. No command takes longer than WHOLE time limits, with all
    its waits: for its turn, addresses, Sentinels, the nodes of a cluster."""

    def __init__(self, client: Client, width: int, timeout_s: float, sentinels: Sequence[Redis] = ()) -> None:
        if isinstance(client, Redis):
            pool = client.connection_pool
            pool.connection_class = _packing_in_c(pool.connection_class)
        self.unbounded = client
        self._execute = client.execute_command
        self._slots = asyncio.Semaphore(width)
        self._sentinels = sentinels
        self._limit_s = WHOLE * timeout_s

    async def execute_command(self, *args: Any) -> Any:
        """As PipelinedConnection's."""
        async with asyncio.timeout(self._limit_s), self._slots:
            return await self._execute(*args)

    async def close(self) -> None:
        """Ends every connection. Idempotent."""
        for client in (self.unbounded, *self._sentinels):
            await client.aclose()


def _packing_in_c(connection: type[AbstractConnection]) -> type[AbstractConnection]:
    """The same kind of connection, with commands put together by hiredis: redis-py's asyncio connections do it in
    Python, which takes 45 µs for a reservation's thirty arguments where hiredis takes 12."""

    class Packing(connection):  # type: ignore[misc, valid-type]
        def pack_command(self, *args: Any) -> list[bytes]:
            return [hiredis.pack_command((*args[0].split(), *args[1:]))]  # a command of two words is two arguments

    return Packing


def bounded_client(options: RedisOptions) -> BoundedClient:
    """A client that connects at its first command. Raises ValueError for a URL of no known form (it is not quoted)."""
    parts = urlsplit(options.url)
    base, _, kind = parts.scheme.partition("+")
    if base not in ("redis", "rediss", "unix") or kind not in ("", "sentinel", "cluster"):
        raise ValueError(
            "the Redis URL has an unknown scheme; there are redis://, rediss:// (TLS), unix://, redis+sentinel:// and "
            "redis+cluster:// (with TLS rediss+sentinel://, rediss+cluster://)"
        )
    hosts = _hosts(parts, _SENTINEL_PORT if kind == "sentinel" else _REDIS_PORT) if base != "unix" else []
    kwargs = _connection_kwargs(parts, base, options)
    if kind == "sentinel" or options.sentinel_service:
        service = options.sentinel_service or parts.path.strip("/")
        return _sentinel_client(hosts, service, kwargs, options)
    if kind == "cluster" or options.is_cluster:
        return BoundedClient(_cluster_client(hosts, kwargs), options.connections, options.timeout_s)
    return BoundedClient(Redis(**_addressed(kwargs, hosts)), options.connections, options.timeout_s)


def _hosts(parts: SplitResult, default_port: int) -> list[tuple[str, int]]:
    hosts = []
    for text in parts.netloc.rpartition("@")[2].split(","):
        name, colon, port = text.rpartition(":")
        is_split = bool(colon) and not text.endswith("]")
        try:
            hosts.append(((name if is_split else text).strip("[]"), int(port) if is_split else default_port))
        except ValueError:
            raise ValueError("the port in the Redis URL must be a number") from None
    if not all(name for name, _ in hosts):
        raise ValueError("the Redis URL needs a host: redis://host:port")
    return hosts


def _connection_kwargs(parts: SplitResult, base: str, options: RedisOptions) -> dict[str, Any]:
    """Keyword arguments of redis.asyncio.Redis: credentials, database, TLS, timeouts."""
    netloc = parts.netloc.rpartition("@")[0] + "@localhost" if base != "unix" else parts.netloc
    path = "" if "+sentinel" in parts.scheme else parts.path
    kwargs: dict[str, Any] = dict(parse_url(parts._replace(scheme=base, netloc=netloc, path=path).geturl()))
    kwargs.pop("connection_class", None)
    kwargs.pop("host", None)
    if base == "unix":
        kwargs["unix_socket_path"] = unquote(kwargs.pop("path"))
    if base == "rediss":
        kwargs |= _tls_kwargs(options)
    return kwargs | {
        "socket_timeout": options.timeout_s,
        "socket_connect_timeout": options.timeout_s,
        "max_connections": _UNBOUNDED,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }


def _tls_kwargs(options: RedisOptions) -> dict[str, Any]:
    files = {"ssl_ca_certs": options.ca_file, "ssl_certfile": options.cert_file, "ssl_keyfile": options.key_file}
    return {"ssl": True, **{name: str(path) for name, path in files.items() if path is not None}}


def _addressed(kwargs: dict[str, Any], hosts: list[tuple[str, int]]) -> dict[str, Any]:
    if not hosts:
        return kwargs
    return kwargs | {"host": hosts[0][0], "port": hosts[0][1]}


def _sentinel_client(
    hosts: list[tuple[str, int]], service: str, kwargs: dict[str, Any], options: RedisOptions
) -> BoundedClient:
    if not service:
        raise ValueError("the Redis URL of a Sentinel needs a service: redis+sentinel://host/service")
    to_sentinel = {name: kwargs[name] for name in kwargs if name.startswith("ssl")}
    to_sentinel |= {"socket_timeout": options.timeout_s, "socket_connect_timeout": options.timeout_s, "protocol": 2}
    to_sentinel["retry"] = Retry(NoBackoff(), 0)
    sentinel = Sentinel(hosts, sentinel_kwargs=to_sentinel, **kwargs)  # type: ignore[no-untyped-call]
    master: Redis = sentinel.master_for(service)
    return BoundedClient(master, options.connections, options.timeout_s, sentinel.sentinels)


def _cluster_client(hosts: list[tuple[str, int]], kwargs: dict[str, Any]) -> RedisCluster:
    kwargs.pop("db", None)
    # One repeat, after the client has asked again which node has the slot.
    kwargs["retry"] = Retry(NoBackoff(), 1)
    nodes = [ClusterNode(name, port, **_node_kwargs(kwargs)) for name, port in hosts]
    return RedisCluster(startup_nodes=nodes, **kwargs)


def _node_kwargs(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: kwargs[name] for name in ("username", "password") if name in kwargs}
