"""Who may call what. Tokens are kept as SHA-256 of 256 random bits: no slower hash would make those harder to guess.

The tokens file is YAML:

    tokens:
      - name: slurm
        sha256: 9f86d0…
        scopes: [decide, report]
        clusters: [prod]            # absent: every cluster
        expire_time: 2027-01-01T00:00:00Z

A token has exactly the scopes listed. The file is read again when it changes; one that cannot be read keeps the last
good tokens in force, and is logged.
"""

import enum
import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

import structlog
import yaml
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from placewise_core.clock import Clock
from placewise_core.errors import PermissionDeniedError, UnauthenticatedError
from placewise_core.frozen import frozen

log = structlog.get_logger(__name__)

_CHECK_PERIOD_S = 1.0  # how often the file's date is looked at
_TOKEN_BYTES = 32


class Scope(enum.StrEnum):
    """What a token allows; none includes another."""

    READ = "read"
    DECIDE = "decide"
    REPORT = "report"
    ADMIN = "admin"


class Method(enum.StrEnum):
    """How a caller was recognised."""

    TOKEN = "token"  # noqa: S105 - a word
    CERTIFICATE = "certificate"
    OPEN = "open"  # nobody was asked


@frozen
class Credentials:
    """All that a call shows of its caller, before a word of its message is read. `subjects` are the names in the
    certificate that the peer has proven to hold; `peer` is the peer's address as text."""

    token: str | None = None
    subjects: tuple[str, ...] = ()
    peer: str = ""


NOBODY = Credentials()


@frozen
class Principal:
    """Who calls. `clusters` None means every cluster."""

    name: str
    scopes: frozenset[Scope]
    clusters: frozenset[str] | None = None
    method: Method = Method.TOKEN

    def require(self, scope: Scope, cluster: str | None) -> None:
        """Raises PermissionDeniedError. `cluster` None asks for a right that no single cluster gives."""
        if scope not in self.scopes:
            raise _lacks(scope)
        if self.clusters is not None and cluster not in self.clusters:
            where = f"on cluster {cluster!r}" if cluster is not None else "on every cluster"
            raise PermissionDeniedError(f"not allowed {where}", {"scope": str(scope)})

    def require_scope(self, scope: Scope) -> None:
        """Raises PermissionDeniedError unless the caller has the scope on some cluster."""
        if scope not in self.scopes:
            raise _lacks(scope)

    def may_see(self, cluster: str | None) -> bool:
        return self.clusters is None or cluster in self.clusters


def _lacks(scope: Scope) -> PermissionDeniedError:
    return PermissionDeniedError(f"needs the scope {scope!s}", {"scope": str(scope)})


ANYONE = Principal("anyone", frozenset(Scope), method=Method.OPEN)


class Authenticator(Protocol):
    """Turns what a caller shows into a principal, or raises UnauthenticatedError."""

    def authenticate(self, credentials: Credentials) -> Principal: ...


def bearer_token(header: str) -> str:
    """The token of an Authorization header; "" for any other scheme."""
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


class Open:
    """No tokens: on loopback, behind client certificates, or by explicit choice everyone may do everything."""

    def authenticate(self, credentials: Credentials) -> Principal:
        return ANYONE


class TokenEntry(BaseModel):
    """One line of the tokens file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, max_length=253)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    scopes: frozenset[Scope] = Field(min_length=1)
    clusters: frozenset[str] | None = None
    expire_time: AwareDatetime | None = None


class _TokenDocument(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: tuple[TokenEntry, ...] = ()


class TokensFileError(ValueError):
    """The tokens file cannot be used; the text says why."""


class TokenFile:
    """Authenticates against a tokens file. Raises TokensFileError at construction; later reloads only log."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._stamp = _stamp(path)
        self._entries = _load(path)
        self._checked_s = clock.monotonic_s()

    def authenticate(self, credentials: Credentials) -> Principal:
        self._reload_if_changed()
        token = credentials.token
        if not token:
            raise UnauthenticatedError("a bearer token is needed")
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
        found: TokenEntry | None = None
        for entry in self._entries:  # all of them, each in constant time
            if hmac.compare_digest(entry.sha256, digest):
                found = entry
        if found is None or self._is_expired(found):
            raise UnauthenticatedError("the bearer token is not valid")
        return Principal(found.name, found.scopes, found.clusters)

    def _is_expired(self, entry: TokenEntry) -> bool:
        return entry.expire_time is not None and entry.expire_time.timestamp() <= self._clock.now_s()

    def _reload_if_changed(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._checked_s < _CHECK_PERIOD_S:
            return
        self._checked_s = now_s
        try:
            stamp = _stamp(self._path)
            if stamp == self._stamp:
                return
            self._stamp = stamp
            self._entries = _load(self._path)
        except TokensFileError as error:
            log.error("tokens file not usable; the last good tokens stay in force", reason=str(error))
            return
        log.info("tokens reloaded", tokens=len(self._entries))


def create_token(
    path: Path,
    name: str,
    scopes: Sequence[Scope],
    clusters: Sequence[str] = (),
    expire_time: datetime | None = None,
    entropy: Callable[[int], str] = secrets.token_urlsafe,
) -> str:
    """Makes a token, adds its hash to the file (created readable by its owner alone), and returns the token.

    It is shown this once: the file cannot give it back. Raises TokensFileError for a file that is there and broken,
    or a name that is taken.
    """
    entries = _load(path) if path.exists() else ()
    if any(entry.name == name for entry in entries):
        raise TokensFileError(f"{path}: there is a token named {name!r}")
    token = f"pw_{entropy(_TOKEN_BYTES)}"
    entry = TokenEntry(
        name=name,
        sha256=hashlib.sha256(token.encode()).hexdigest(),
        scopes=frozenset(scopes),
        clusters=frozenset(clusters) or None,
        expire_time=expire_time,
    )
    _store(path, (*entries, entry))
    return token


def _store(path: Path, entries: Sequence[TokenEntry]) -> None:
    """Replaces the file at once, so that a reader sees the old one or the new one."""
    rows = []
    for entry in entries:
        row = entry.model_dump(mode="json", exclude_none=True)
        row["scopes"] = sorted(row["scopes"])
        if "clusters" in row:
            row["clusters"] = sorted(row["clusters"])
        rows.append(row)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        yaml.safe_dump({"tokens": rows}, file, sort_keys=False)
    draft.replace(path)


def _load(path: Path) -> tuple[TokenEntry, ...]:
    try:
        document = yaml.safe_load(path.read_bytes())
        return _TokenDocument.model_validate({} if document is None else document).tokens
    except OSError as error:
        raise TokensFileError(f"{path}: {error.strerror}") from None
    except yaml.YAMLError:
        raise TokensFileError(f"{path}: not YAML") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise TokensFileError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise TokensFileError(f"{path}: {error.strerror}") from None
    return status.st_mtime_ns, status.st_size, status.st_ino
