"""Identity: certificates of the authority that nobody knows, tokens in clear, JSON Web Tokens, files that are lost."""

import contextlib
import http.client
import os
import ssl
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import jwt
import yaml
from tests.attack.attack import Attack, Figures
from tests.attack.source import Service, Source
from tests.fakes.callers.identity import AUDIENCE, ISSUER, SigningKey, signing_key, web_token, write_keys
from tests.fakes.callers.tls import Authority

from placewise.v1.cluster_pb2 import DeleteClusterRequest
from placewise.v1.cluster_pb2_grpc import ClusterServiceStub

TITLE = "Identity"

_READY_S = 60.0
_KEEP_S = 4.0  # that a lost file's content stays in force
_SEEN_S = 2.0  # within which a change of credentials holds
_REFUSED = ("UNAUTHENTICATED", "PERMISSION_DENIED")
_DELETE = "/placewise.v1.ClusterService/DeleteCluster"
_READER = {"scopes": ["read"]}


# -- certificates -------------------------------------------------------------------------------------------------


def _certificates(source: Source) -> Figures:
    """A certificate that no file names, and one that may only read, delete a cluster over each face."""
    with tempfile.TemporaryDirectory(prefix="placewise-attack-") as folder:
        path = Path(folder)
        authority, settings = _authority(path)
        (path / "certificates.yaml").write_text(
            yaml.safe_dump({"certificates": [{"name": "reader", "subject": "cn:reader", "scopes": ["read"]}]})
        )
        known = {"PLACEWISE_AUTH__CERTIFICATES_FILE": str(path / "certificates.yaml")}
        with source.service(settings, if_known=known, is_awaited=False) as service:
            reader = _context(path, authority, authority.issue("reader"))
            _until_answered(service, reader)
            stranger = authority.issue("readonly-intern")
            return {
                "reader_reads": _status(service, reader, "GET", "/v1/clusters"),
                **{f"reader_{k}": v for k, v in _deletes(service, path, authority, authority.issue("reader")).items()},
                **{f"stranger_{k}": v for k, v in _deletes(service, path, authority, stranger).items()},
            }


def _authority(path: Path) -> tuple[Authority, dict[str, str]]:
    authority = Authority("everybody's")
    cert, key = authority.write(path, "server")
    (path / "ca.pem").write_bytes(authority.pem)
    return authority, {
        "PLACEWISE_TLS__CERT_FILE": str(cert),
        "PLACEWISE_TLS__KEY_FILE": str(key),
        "PLACEWISE_TLS__CLIENT_CA_FILE": str(path / "ca.pem"),
    }


def _context(path: Path, authority: Authority, client: tuple[bytes, bytes]) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority.pem.decode())
    (path / "client.pem").write_bytes(client[0] + client[1])
    context.load_cert_chain(path / "client.pem")
    return context


def _until_answered(service: Service, context: ssl.SSLContext) -> None:
    until_s = time.monotonic() + _READY_S
    while time.monotonic() < until_s and service.is_running:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if _status(service, context, "GET", "/readyz") == 200:
                return
        time.sleep(0.05)
    raise RuntimeError(f"the service did not become ready:\n{service.text()[-2000:]}")


def _status(service: Service, context: ssl.SSLContext, method: str, path: str, body: bytes = b"") -> int:
    connection = http.client.HTTPSConnection("localhost", service.rest_port, context=context, timeout=10.0)
    try:
        connection.request(method, path, body or None, {"Content-Type": "application/json"} if body else {})
        return connection.getresponse().status
    finally:
        connection.close()


def _deletes(service: Service, path: Path, authority: Authority, client: tuple[bytes, bytes]) -> dict[str, Any]:
    """What DeleteCluster is answered with: 404 and NOT_FOUND are what somebody gets who may delete."""
    context = _context(path, authority, client)
    credentials = grpc.ssl_channel_credentials(authority.pem, client[1], client[0])
    with grpc.secure_channel(f"localhost:{service.grpc_port}", credentials) as channel:
        call = ClusterServiceStub(channel).DeleteCluster.future(DeleteClusterRequest(cluster="prod"), timeout=10.0)
        by_grpc = call.code().name
    return {
        "deletes_by_rest": _status(service, context, "DELETE", "/v1/clusters/prod"),
        "deletes_by_connect": _status(service, context, "POST", _DELETE, b'{"cluster":"prod"}'),
        "deletes_by_grpc": by_grpc,
    }


def _are_mapped(figures: Figures) -> bool:
    return figures["reader_reads"] == 200 and all(
        figures[f"{who}_deletes_by_{face}"] in (401, 403, *_REFUSED)
        for who in ("reader", "stranger")
        for face in ("rest", "connect", "grpc")
    )


def _unmapped(source: Source) -> Figures:
    """A client CA and nothing that says what its certificates may do."""
    with tempfile.TemporaryDirectory(prefix="placewise-attack-") as folder:
        _, settings = _authority(Path(folder))
        with source.service(settings, is_awaited=False) as service:
            return {"starts": _starts(service)}


def _starts(service: Service) -> int:
    """1 for a service that listens, 0 for one that ends instead."""
    until_s = time.monotonic() + _READY_S
    while time.monotonic() < until_s:
        if not service.is_running:
            return 0
        with contextlib.suppress(OSError):
            http.client.HTTPConnection("127.0.0.1", service.rest_port, timeout=2.0).connect()
            return 1
        time.sleep(0.05)
    raise RuntimeError("the service neither listens nor ends")


def _in_clear(source: Source) -> Figures:
    """Tokens without TLS on an address that settings take for a public one."""
    with source.service(
        {"PLACEWISE_SERVER__GRPC_HOST": "127.0.0.2"}, tokens={"reader": _READER}, is_awaited=False
    ) as at:
        return {"starts": _starts(at)}


def _starts_not(figures: Figures) -> bool:
    return figures["starts"] == 0


# -- files of tokens ----------------------------------------------------------------------------------------------


def _ask(service: Service, token: str, path: str = "/v1/clusters") -> int:
    request = urllib.request.Request(f"{service.url}{path}", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=10.0) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def _stale_s(service: Service, token: str) -> float:
    """How long the tokens file could not be used, as /metrics has it; -1 where that does not say."""
    request = urllib.request.Request(f"{service.url}/metrics", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=10.0) as answer:
            lines = answer.read().decode().splitlines()
    except urllib.error.HTTPError:
        return -1.0
    name = 'placewise_credentials_stale_seconds{file="tokens file"}'
    return next((float(line.split()[-1]) for line in lines if line.startswith(name)), -1.0)


def _lost(source: Source) -> Figures:
    """An emptied file, a deleted one, and one that revokes all."""
    keeps = {"PLACEWISE_AUTH__KEEP_LAST_GOOD_S": f"{_KEEP_S:g}"}
    with source.service(tokens={"reader": _READER}, if_known=keeps) as service:
        file, token = service.directory / "tokens.yaml", service.tokens["reader"]
        good = file.read_bytes()
        before_s = _stale_s(service, token)
        file.write_bytes(b"")
        time.sleep(_SEEN_S)
        emptied, stale_s = _ask(service, token), _stale_s(service, token)
        file.write_bytes(good)
        time.sleep(_SEEN_S)
        _ask(service, token)
        after_s = _stale_s(service, token)
        file.unlink()
        time.sleep(_SEEN_S)
        _ask(service, token)
        time.sleep(_KEEP_S + _SEEN_S)
        deleted, ready = _ask(service, token), _ask(service, token, "/readyz")
        stale_then_s = _stale_s(service, token)
        file.write_bytes(b"tokens: []\n")
        time.sleep(_SEEN_S)
        return {
            "stale_before_s": before_s,
            "emptied": emptied,
            "stale_while_emptied_s": stale_s,
            "stale_after_s": after_s,
            "deleted_6_s_ago": deleted,
            "readyz_then": ready,
            "stale_then_s": stale_then_s,
            "revoked_all": _ask(service, token),
        }


def _are_kept(figures: Figures) -> bool:
    statuses = tuple(figures[name] for name in ("emptied", "deleted_6_s_ago", "readyz_then", "revoked_all"))
    is_shown = figures["stale_before_s"] == figures["stale_after_s"] == 0 < float(figures["stale_while_emptied_s"])
    is_shown_then = float(figures["stale_then_s"]) >= _KEEP_S
    return statuses == (200, 503, 503, 401) and is_shown and is_shown_then


def _mounted(source: Source) -> Figures:
    """The service sees one file, as a container that has it mounted alone; the command changes the file outside."""
    with tempfile.TemporaryDirectory(prefix="placewise-attack-") as folder:
        outside, inside = Path(folder) / "outside.yaml", Path(folder) / "inside.yaml"
        first = _create(source, outside, "first")
        outside.chmod(0o640)
        os.link(outside, inside)
        with source.service({"PLACEWISE_AUTH__TOKENS_FILE": str(inside)}) as service:
            before = _ask(service, first)
            second = _create(source, outside, "second")
            time.sleep(_SEEN_S)
            return {
                "first": before,
                "created_2_s_ago": _ask(service, second),
                "mode_kept": int(outside.stat().st_mode & 0o777 == 0o640),
            }


def _create(source: Source, file: Path, name: str) -> str:
    words = ["token", "create", name, "--file", str(file), "--scope", "read"]
    done = source.run(["-m", "placewise_service.cli", *words])
    return done.stdout.strip()


def _is_seen(figures: Figures) -> bool:
    return tuple(figures.values()) == (200, 200, 1)


def _revoked(source: Source) -> Figures:
    with tempfile.TemporaryDirectory(prefix="placewise-attack-") as folder:
        outside, inside = Path(folder) / "outside.yaml", Path(folder) / "inside.yaml"
        first, second = _create(source, outside, "first"), _create(source, outside, "second")
        os.link(outside, inside)
        with source.service({"PLACEWISE_AUTH__TOKENS_FILE": str(inside)}) as service:
            before = _ask(service, first)
            source.run(["-m", "placewise_service.cli", "token", "revoke", "first", "--file", str(outside)])
            time.sleep(_SEEN_S)
            return {"before": before, "revoked_2_s_ago": _ask(service, first), "another": _ask(service, second)}


def _is_revoked(figures: Figures) -> bool:
    return tuple(figures.values()) == (200, 401, 200)


# -- JSON Web Tokens ----------------------------------------------------------------------------------------------


def _web_tokens(source: Source) -> Figures:
    good = signing_key("ES256")
    now_s = time.time()
    claims: dict[str, Any] = {"exp": now_s + 600, "placewise_clusters": "*"}
    forged = {
        "expired": web_token(good, **{**claims, "exp": now_s - 60}),
        "no_end": web_token(good, **{**claims, "exp": None}),
        "other_audience": web_token(good, **claims, aud="other"),
        "other_issuer": web_token(good, **claims, iss="https://evil.example.org"),
        "unknown_key": web_token(signing_key("ES256", "stranger"), **claims),
        "stolen_name": web_token(SigningKey(good.kid, "ES256", signing_key("ES256", "stranger").private), **claims),
        "none": _unsigned(good.kid, claims),
    }
    with _jwt_service(source, good) as service:
        return {"good": _ask(service, web_token(good, **claims)), **{n: _ask(service, t) for n, t in forged.items()}}


def _unsigned(kid: str, claims: Mapping[str, Any]) -> str:
    printed = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "placewise_scopes": "read", **claims}
    return jwt.encode(printed, None, "none", {"kid": kid})


@contextlib.contextmanager
def _jwt_service(source: Source, *keys: SigningKey) -> Iterator[Service]:
    with tempfile.TemporaryDirectory(prefix="placewise-attack-") as folder:
        path = Path(folder) / "jwks.json"
        write_keys(path, *keys)
        settings = {
            "PLACEWISE_AUTH__JWKS_FILE": str(path),
            "PLACEWISE_AUTH__JWT_ISSUER": ISSUER,
            "PLACEWISE_AUTH__JWT_AUDIENCE": AUDIENCE,
        }
        with source.service(settings) as service:
            yield service


def _are_refused(figures: Figures) -> bool:
    return figures["good"] == 200 and all(status == 401 for name, status in figures.items() if name != "good")


_CERTIFICATES = "tests/contract/faces/test_api_certificates.py"
_FILES = "tests/unit/api/identity/test_token_files.py"
_SETTINGS = "tests/unit/service/test_settings.py"

ATTACKS = (
    Attack(
        "certificates of the authority",
        "A certificate may do what a file says of its names, over gRPC, REST and Connect; one that no entry names, "
        "nothing.",
        f"{_CERTIFICATES}::test_the_names_in_a_certificate_say_what_it_may_do",
        _certificates,
        _are_mapped,
    ),
    Attack(
        "a client CA without names",
        "A service that would let every certificate do everything does not start.",
        f"{_SETTINGS}::test_certificates_open_nothing_until_a_file_says_what",
        _unmapped,
        _starts_not,
    ),
    Attack(
        "tokens in clear",
        "A service that would take tokens in clear off the loopback does not start.",
        f"{_SETTINGS}::test_tokens_in_clear_are_for_the_loopback",
        _in_clear,
        _starts_not,
    ),
    Attack(
        "a tokens file that is lost",
        "An emptied or deleted tokens file keeps the last tokens for a configured time and then refuses all, "
        "`tokens: []` revokes all; `/metrics` says how long the file could not be used, all the while.",
        f"{_FILES}::test_a_file_that_cannot_be_used_keeps_the_last_tokens_for_a_while_and_then_refuses_all",
        _lost,
        _are_kept,
    ),
    Attack(
        "a new token for a file that is mounted alone",
        "A token made outside is taken within two seconds by a container that has the one file mounted.",
        f"{_FILES}::test_changes_keep_the_file_its_mode_and_whatever_is_mounted_of_it",
        _mounted,
        _is_seen,
    ),
    Attack(
        "revoked for a file that is mounted alone",
        "A token revoked outside is refused within two seconds by a container that has the one file mounted.",
        f"{_FILES}::test_a_revoked_token_is_refused_by_who_has_the_one_file_mounted",
        _revoked,
        _is_revoked,
        needs="`token revoke`",
    ),
    Attack(
        "JSON Web Tokens",
        "Of JSON Web Tokens only those that a known key signed, for this service and not yet over, are taken.",
        "tests/unit/api/identity/test_web_tokens.py::test_expired_wrongly_addressed_or_incomplete_is_refused",
        _web_tokens,
        _are_refused,
        needs="JSON Web Tokens",
    ),
)
