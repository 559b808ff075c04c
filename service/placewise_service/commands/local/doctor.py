"""`placewise doctor`: would the service start here, and would it work? Changes nothing (it probes the state dir)."""

import asyncio
import contextlib
import enum
import os
import socket
import ssl
import stat
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer
from redis.exceptions import NoPermissionError, ResponseError

from placewise.v1.cluster_pb2 import ListClustersRequest
from placewise_client.errors import PlacewiseError
from placewise_core.basics.clock import SystemClock
from placewise_core.basics.frozen import frozen
from placewise_models.bundle import load
from placewise_models.folder import DEFAULT_BUNDLE, bundle_folder, root_of
from placewise_models.signing import read_public
from placewise_service.api.identity.identity import authenticator
from placewise_service.api.identity.watched import CredentialsFileError
from placewise_service.commands.connection import CaOption, JsonOption, TokenOption, connect
from placewise_service.commands.console import print_json, print_table
from placewise_service.commands.exits import CommandError, Exit
from placewise_service.commands.local.doctor_checks import (
    ConcernError,
    check_disk,
    check_policies,
    check_tls,
    check_traces,
)
from placewise_service.commands.store import redis_options
from placewise_service.engine.build import PACKAGED_BUNDLES
from placewise_service.settings import Settings, SettingsError, load_settings
from placewise_service.state.redis.connection import Client, bounded_client
from placewise_service.state.redis.embedded import embedded_url, server_binary

app = typer.Typer(help="Check configuration and reachability.")

OLDEST_REDIS = (6, 2)


class CheckVerdict(enum.StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@frozen
class Finding:
    """The result of one check, with the remedy if it failed."""

    check: str
    verdict: CheckVerdict
    detail: str


@app.command()
def doctor(
    target: Annotated[str, typer.Option(help="Check this running service, too.")] = "",
    token: TokenOption = "",
    tls_ca: CaOption = None,
    is_json: JsonOption = False,
) -> None:
    """Check settings, Redis, ports, bundle and credentials. Exit code 5 if the service could not work."""
    findings = list(examine())
    if target:
        findings.append(_running_service(target, token, tls_ca))
    is_well = all(finding.verdict is not CheckVerdict.FAILED for finding in findings)
    if is_json:
        rows = [{"check": f.check, "verdict": f.verdict.value, "detail": f.detail} for f in findings]
        print_json({"ok": is_well, "findings": rows})
    else:
        print_table("doctor", ("check", "verdict", "detail"), [(f.check, f.verdict.value, f.detail) for f in findings])
    if not is_well:
        raise typer.Exit(Exit.NEGATIVE)


def examine() -> Iterator[Finding]:
    """Every check that needs no running service. Without readable settings nothing else makes sense."""
    try:
        settings = load_settings()
    except SettingsError as error:
        yield Finding("settings", CheckVerdict.FAILED, str(error))
        return
    yield Finding("settings", CheckVerdict.OK, "read")
    checks: list[tuple[str, Callable[[Settings], str]]] = [
        ("state directory", _state_directory),
        ("Redis", _redis),
        ("gRPC port", lambda s: _port(s.server.grpc_host, s.server.grpc_port, s)),
        ("REST port", lambda s: _port(s.server.rest_host, s.server.rest_port, s)),
        ("bundle", _bundle),
        ("tokens", _tokens),
        ("policies", check_policies),
        ("TLS", check_tls),
        ("traces", check_traces),
    ]
    for name, check in checks:
        yield _finding(name, check, settings)


def _finding(name: str, check: Callable[[Settings], str], settings: Settings) -> Finding:
    try:
        return Finding(name, CheckVerdict.OK, check(settings))
    except ConcernError as concern:
        return Finding(name, CheckVerdict.WARNING, str(concern))
    except Exception as error:  # the other checks still run
        return Finding(name, CheckVerdict.FAILED, str(error) or type(error).__name__)


def _state_directory(settings: Settings) -> str:
    if settings.redis_url is not None:
        return "not used: a Redis URL is set"
    path = settings.state_dir.absolute()
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.NamedTemporaryFile(dir=path):
        pass
    if path.stat().st_mode & stat.S_IWOTH:
        raise ConcernError(f"everybody can write {path}: run chmod 700 {path}")
    return f"{path} can be written; {check_disk(path)}"


def _redis(settings: Settings) -> str:
    if settings.redis_url is None:
        url = embedded_url(settings.state_dir)
        if not Path(url.removeprefix("unix://")).exists():
            return _embedded_binary(settings)
    return asyncio.run(_reached_redis(settings))


def _embedded_binary(settings: Settings) -> str:
    binary = server_binary(settings.redis.command)
    done = subprocess.run([str(binary), "--version"], capture_output=True, text=True, check=True, timeout=10)  # noqa: S603
    words = dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)
    _check_version(words.get("v", ""))
    return f"embedded, {words.get('v')} ({binary})"


async def _reached_redis(settings: Settings) -> str:
    bounded = bounded_client(redis_options(settings))
    client = bounded.unbounded
    try:
        await client.execute_command("TIME")
        version = await _version(client)
        policy: dict[str | None, str | None] = {}
        with contextlib.suppress(ResponseError):  # hosted Redis, and an ACL user, may not be shown its configuration
            for name in ("maxmemory", "maxmemory-policy", "appendonly", "appendfsync", "min-replicas-to-write"):
                policy |= await client.config_get(name)
            policy["replicas"] = await _replicas(client)
    finally:
        with contextlib.suppress(Exception):
            await bounded.close()
    concerns = _redis_concerns(policy, is_embedded=settings.redis_url is None)
    if concerns:
        raise ConcernError(f"reached, {version}; {'; '.join(concerns)}")
    return f"reached, {version}"


def _redis_concerns(policy: Mapping[str | None, str | None], is_embedded: bool) -> list[str]:
    """Settings of a Redis that may lose data; a setting that Redis does not show is no concern."""
    concerns = []
    if (eviction := policy.get("maxmemory-policy")) not in (None, "noeviction"):
        concerns.append(f"maxmemory-policy is {eviction}: it may forget state; set noeviction")
    if policy.get("appendonly") == "no":
        concerns.append("appendonly is off: a restart of Redis loses all changes since its last save; set it to yes")
    elif not is_embedded and (flush := policy.get("appendfsync")) not in (None, "always"):
        concerns.append(f"appendfsync is {flush}: killed while it flushes, it forgets answers")
    if int(policy.get("replicas") or 0) > 0 and policy.get("min-replicas-to-write") == "0":
        concerns.append(
            "it has replicas, and min-replicas-to-write is 0: a master without its replicas goes on accepting "
            "writes, and a failover loses them; set it to 1 or more"
        )
    if not is_embedded and policy.get("maxmemory") == "0":
        concerns.append(
            "maxmemory is not set: Redis grows until the system kills it; set it below the memory of its machine, and "
            "writes are refused with a clear error instead"
        )
    return concerns


async def _replicas(client: Client) -> str:
    """The number of replicas of the server; "0" if unknown."""
    info = await client.info("replication")
    return str(info.get("connected_slaves", 0)) if isinstance(info, dict) else "0"


async def _version(client: Client) -> str:
    """Raises CommandError for one that is too old. An ACL user with no more rights than it needs may not ask."""
    try:
        info = await client.info("server")
    except NoPermissionError:
        return "of unknown version: this user may not read it"
    version = str(info.get("redis_version", "")) if isinstance(info, dict) else ""
    _check_version(version)
    return version


def _check_version(text: str) -> None:
    parts = tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
    if parts < OLDEST_REDIS:
        raise CommandError(
            f"Redis {text or 'of an unknown version'}; needed: {'.'.join(map(str, OLDEST_REDIS))} or later"
        )


def _port(host: str, port: int, settings: Settings) -> str:
    if port == 0:
        return "any free one"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if _is_placewise(settings):
                raise ConcernError(f"a Placewise already runs on {host}:{port}") from None
            raise OSError(f"{host}:{port}: {os.strerror(error.errno or 0)}") from None
    return f"{host}:{port} is free"


def _is_placewise(settings: Settings) -> bool:
    scheme = "https" if settings.tls.is_on else "http"
    host = "127.0.0.1" if settings.server.rest_host in ("0.0.0.0", "::") else settings.server.rest_host  # noqa: S104
    url = f"{scheme}://{host}:{settings.server.rest_port}/healthz"
    context = ssl._create_unverified_context() if settings.tls.is_on else None  # noqa: S323 - only: does it answer?
    try:
        with urllib.request.urlopen(url, timeout=2, context=context) as answer:  # noqa: S310 - our own URL
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _bundle(settings: Settings) -> str:
    own = settings.bundle_dir or PACKAGED_BUNDLES
    if not own.is_dir():
        raise CommandError(f"PLACEWISE_BUNDLE_DIR: {own} is no folder")
    root = root_of((own, PACKAGED_BUNDLES), DEFAULT_BUNDLE)
    try:
        keys = [read_public(path) for path in settings.bundles.public_keys]
        bundle = load(bundle_folder(root, DEFAULT_BUNDLE), keys)
    except ValueError as error:
        raise CommandError(f"{root}: {error}") from None
    signed = f", signed by {bundle.signed_by}" if bundle.signed_by else ""
    return f"{bundle.name} in {root}, digest {bundle.digest[:12]}{signed}"


def _tokens(settings: Settings) -> str:
    if not settings.auth.is_on:
        return "none: every caller may do everything"
    try:
        authenticator(settings.auth, SystemClock())
    except CredentialsFileError as error:
        raise CommandError(str(error)) from None
    tokens, others = settings.auth.tokens_file, (settings.auth.certificates_file, settings.auth.jwks_file)
    for path in (tokens, *others):
        forbidden = stat.S_IWGRP | (stat.S_IRWXO if path is tokens else stat.S_IWOTH)  # the others hold no secrets
        if path is not None and path.stat().st_mode & forbidden:
            may = "read or change" if path is tokens else "change"
            raise ConcernError(f"other users can {may} {path}: run chmod {'600' if path is tokens else '644'} {path}")
    if tokens is None:
        return "none; certificates and keys of other credentials can be used"
    return f"{tokens} can be used"


def _running_service(target: str, token: str, tls_ca: Path | None) -> Finding:
    try:
        with connect(target, token, tls_ca, timeout_s=5.0) as client:
            names = client.list_clusters(ListClustersRequest()).clusters
    except (PlacewiseError, CommandError) as error:
        return Finding("service", CheckVerdict.FAILED, f"{target}: {error}")
    return Finding("service", CheckVerdict.OK, f"{target} answers; clusters: {', '.join(names) or 'none'}")
