"""Changes of a tokens file by `placewise token`. Never shows a token again: the file has only hashes.

The file is changed in its place: it keeps its owner and mode, and a container that has this one file mounted sees the
change. A lock keeps readers and other changes out meanwhile.
"""

import fcntl
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import yaml

from placewise_core.basics.frozen import frozen
from placewise_service.api.identity.auth import AccessScope
from placewise_service.api.identity.tokens import TokenEntry, parse_tokens
from placewise_service.api.identity.watched import CredentialsFileError, read

_TOKEN_BYTES = 32
_NEW_MODE = 0o600


@frozen
class Access:
    """Who may read the file. None: as it is; a new file is its owner's alone."""

    mode: int | None = None
    group_id: int | None = None


_AS_IT_IS = Access()


def create_token(
    path: Path,
    name: str,
    scopes: Sequence[AccessScope],
    clusters: Sequence[str] = (),
    expire_time: datetime | None = None,
    entropy: Callable[[int], str] = secrets.token_urlsafe,
    access: Access = _AS_IT_IS,
) -> str:
    """Makes a token, adds its hash to the file, and returns the token: this once.

    Raises CredentialsFileError for a file that is broken or cannot be written, or a name that is taken.
    """
    token = f"pw_{entropy(_TOKEN_BYTES)}"
    entry = TokenEntry(
        name=name,
        sha256=hashlib.sha256(token.encode()).hexdigest(),
        scopes=frozenset(scopes),
        clusters=frozenset(clusters) or None,
        expire_time=expire_time,
    )
    with _changing(path, access) as entries:
        if any(other.name == name for other in entries):
            raise CredentialsFileError(f"{path}: there is a token named {name!r}")
        entries.append(entry)
    return token


def revoke_token(path: Path, name: str) -> int:
    """Deletes every entry of that name and returns their number. Raises CredentialsFileError, also if there is none."""
    if not path.exists():
        raise CredentialsFileError(f"{path}: there is no such file")
    with _changing(path, _AS_IT_IS) as entries:
        left = [entry for entry in entries if entry.name != name]
        revoked = len(entries) - len(left)
        if not revoked:
            raise CredentialsFileError(f"{path}: there is no token named {name!r}")
        entries[:] = left
    return revoked


def list_tokens(path: Path) -> tuple[TokenEntry, ...]:
    """The entries as they stand. Raises CredentialsFileError."""
    try:
        return parse_tokens(read(path)[0])
    except CredentialsFileError as error:
        raise _named(path, error) from None


@contextmanager
def _changing(path: Path, access: Access) -> Iterator[list[TokenEntry]]:
    """The entries, to be changed under a lock; the changed entries are written unless the block raises."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _NEW_MODE)
    except OSError as error:
        raise CredentialsFileError(f"{path}: {error.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        old = os.pread(file, os.fstat(file).st_size, 0)
        entries = list(parse_tokens(old)) if old.strip() else []
        yield entries
        _allow(file, access)
        _overwrite(file, _rendered(entries))
    except OSError as error:
        raise CredentialsFileError(f"{path}: {error.strerror}") from None
    except CredentialsFileError as error:
        raise _named(path, error) from None
    finally:
        os.close(file)


def _named(path: Path, error: CredentialsFileError) -> CredentialsFileError:
    text = str(error)
    return error if text.startswith(f"{path}: ") else CredentialsFileError(f"{path}: {text}")


def _allow(file: int, access: Access) -> None:
    if access.group_id is not None:
        os.fchown(file, -1, access.group_id)
    if access.mode is not None:
        os.fchmod(file, access.mode)


def _overwrite(file: int, content: bytes) -> None:
    """Makes room first: a full disk leaves the old content, and readers without a lock see nothing half."""
    if len(content) > os.fstat(file).st_size:
        os.posix_fallocate(file, 0, len(content))
    written = 0
    while written < len(content):
        written += os.pwrite(file, content[written:], written)
    os.ftruncate(file, len(content))
    os.fsync(file)


def _rendered(entries: Sequence[TokenEntry]) -> bytes:
    rows = []
    for entry in entries:
        row = entry.model_dump(mode="json", exclude_none=True)
        row["scopes"] = sorted(row["scopes"])
        if "clusters" in row:
            row["clusters"] = sorted(row["clusters"])
        rows.append(row)
    return yaml.safe_dump({"tokens": rows}, sort_keys=False).encode()
