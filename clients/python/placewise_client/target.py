"""The service's addresses, credentials and channel options. Opens nothing by itself."""

from __future__ import annotations

import ipaddress
import json
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

Token = str | Callable[[], str]


_HTTP, _HTTPS = "http://", "https://"

# The service cuts off clients that ping an idle connection more often than every 5 s.
MIN_KEEPALIVE_S = 10.0
_MOST_PORT = 65535


class TargetError(ValueError):
    """The address or its credentials make no sense; raised when the client is built, not when it calls."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificate files (PEM). `root` None trusts the system's; `chain` and `key` together make it mutual."""

    root: Path | None = None
    chain: Path | None = None
    key: Path | None = None
    server_name: str = ""
    """Name in the server's certificate, if it differs from the host of its address (over gRPC: of the first)."""

    def check(self) -> None:
        """Raises TargetError for half a certificate."""
        if (self.chain is None) != (self.key is None):
            raise TargetError("mutual TLS needs both a certificate chain and its key")

    def credentials(self) -> grpc.ChannelCredentials:
        """For gRPC. Raises TargetError."""
        self.check()
        try:
            root, key, chain = (path.read_bytes() if path else None for path in (self.root, self.key, self.chain))
        except OSError as error:
            raise TargetError(f"a certificate cannot be read: {error}") from error
        return grpc.ssl_channel_credentials(root, key, chain)

    def context(self) -> ssl.SSLContext:
        """For HTTP. Raises TargetError."""
        self.check()
        try:
            context = ssl.create_default_context(cafile=self.root)
            if self.chain is not None:
                context.load_cert_chain(self.chain, self.key)
        except OSError as error:  # what ssl raises is one, too, and names no file
            names = ", ".join(str(path) for path in (self.root, self.chain, self.key) if path)
            raise TargetError(f"a certificate cannot be read ({names}): {error}") from error
        return context


@dataclass(frozen=True, slots=True)
class Target:
    """One or several replicas of the service ("host:port", or "unix:/path"); calls go round among those that answer.

    "http://host:port" or "https://host:port", the service's REST port, carries the same calls over HTTP/1.1
    (`AsyncClient` only), which is less work for a caller on a busy machine.

    A token is a string or a function that gives it at each call (so that a rotated file is read again). It is not
    sent in plain text to another machine unless `allow_plaintext_token` is set.
    """

    addresses: Sequence[str]
    tls: Tls | None = None
    token: Token | None = None
    allow_plaintext_token: bool = False
    keepalive_s: float = 30.0
    max_message_bytes: int = 64 * 1024 * 1024

    @staticmethod
    def of(target: Target | str | Sequence[str]) -> Target:
        """Accepts "a:1,b:1" and ["a:1", "b:1"] as well."""
        if isinstance(target, Target):
            return target
        return Target(tuple(target.split(",")) if isinstance(target, str) else tuple(target))

    def check(self) -> None:
        """Raises TargetError for a target that can never work or must not be used."""
        if not self.addresses or not all(self.addresses):
            raise TargetError("no address: give host:port of the service")
        self._check_scheme()
        for address in self.hosts():
            if not address.startswith("unix:"):
                _split(address)
            elif self.is_http:
                raise TargetError(f"a unix socket needs gRPC: give {address} without http:// or https://")
        if self.keepalive_s < MIN_KEEPALIVE_S:
            raise TargetError(
                f"keepalive_s of {self.keepalive_s:g}: the service allows one ping in 5 s, use 10 or more"
            )
        if self.token is not None and not self._is_encrypted and not self.allow_plaintext_token:
            remote = [address for address in self.hosts() if not _is_local(address)]
            if remote:
                raise TargetError(f"a token would go to {remote[0]} in plain text: use TLS or allow_plaintext_token")

    def _check_scheme(self) -> None:
        schemes = {_scheme(address) for address in self.addresses}
        if len(schemes) > 1:
            raise TargetError("addresses of several kinds: give all as http://, all as https://, or all as host:port")
        if schemes == {_HTTP} and self.tls is not None:
            raise TargetError("TLS needs https:// instead of http://")

    @property
    def is_http(self) -> bool:
        """Whether calls go over HTTP/1.1 instead of gRPC."""
        return any(_scheme(address) for address in self.addresses)

    @property
    def _is_encrypted(self) -> bool:
        return self.tls is not None or any(_scheme(address) == _HTTPS for address in self.addresses)

    def hosts(self) -> Sequence[str]:
        """The addresses without their scheme."""
        return [address.removeprefix(_scheme(address)).rstrip("/") for address in self.addresses]

    def tls_context(self) -> ssl.SSLContext | None:
        """For HTTP; None for plain text. Raises TargetError."""
        return (self.tls or Tls()).context() if self._is_encrypted else None

    def uri(self) -> str:
        """What gRPC dials. Several addresses are resolved here, once; a single name again and again by gRPC."""
        if len(self.addresses) == 1:
            only = self.addresses[0]
            return only if only.startswith("unix:") else f"dns:///{only}"
        resolved = [_resolve(address) for address in self.addresses]
        families = {family for family, _ in resolved}
        if len(families) > 1:
            raise TargetError("addresses of both IP families: give all as IPv4 or all as IPv6")
        return f"{families.pop()}:{','.join(address for _, address in resolved)}"

    def options(self) -> list[tuple[str, str | int]]:
        """Channel options: round robin, keep-alive, quick reconnects."""
        keepalive_ms = int(self.keepalive_s * 1000)
        options: list[tuple[str, str | int]] = [
            ("grpc.service_config", json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})),
            ("grpc.keepalive_time_ms", keepalive_ms),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.keepalive_permit_without_calls", 1),
            # grpc waits up to two minutes between attempts by default: too long for a service that restarts in seconds.
            ("grpc.initial_reconnect_backoff_ms", 100),
            # This one is also the longest that one attempt may take, TLS and a busy machine included.
            ("grpc.min_reconnect_backoff_ms", 2000),
            ("grpc.max_reconnect_backoff_ms", 1000),
            # A new client tries at once: it does not inherit the wait of another one that has just failed.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", self.max_message_bytes),
            ("grpc.max_send_message_length", self.max_message_bytes),
        ]
        name = self.tls.server_name if self.tls else ""
        if self.tls and not name and len(self.addresses) > 1:
            name = _split(self.addresses[0])[0]
        if name:
            options += [("grpc.ssl_target_name_override", name), ("grpc.default_authority", name)]
        return options

    def metadata(self) -> tuple[tuple[str, str], ...]:
        if self.token is None:
            return ()
        token = self.token if isinstance(self.token, str) else self.token()
        return (("authorization", f"Bearer {token.strip()}"),)  # as read from a file, which ends with a line break


def _scheme(address: str) -> str:
    return next((scheme for scheme in (_HTTP, _HTTPS) if address.startswith(scheme)), "")


def _split(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not host or "/" in host or not port.isdecimal() or int(port) > _MOST_PORT:
        raise TargetError(f"{address!r} is not host:port")
    return host.strip("[]"), int(port)


def _is_local(address: str) -> bool:
    if address.startswith("unix:"):
        return True
    host, _ = _split(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _resolve(address: str) -> tuple[str, str]:
    host, port = _split(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise TargetError(f"{host} cannot be resolved: {error}") from error
    family, ip = found[0][0], found[0][4][0]
    return ("ipv6", f"[{ip}]:{port}") if family == socket.AF_INET6 else ("ipv4", f"{ip}:{port}")
