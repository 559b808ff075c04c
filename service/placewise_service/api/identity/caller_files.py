"""Files that list callers: an entry gives a caller scopes and clusters; a change of the file is logged by name."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog
from pydantic import BaseModel, ConfigDict, Field

from placewise_core.basics.clock import Clock
from placewise_service.api.identity.auth import AccessScope, Method, Principal
from placewise_service.api.identity.watched import OnStale, WatchedFile

log = structlog.get_logger(__name__)


class CallerEntry(BaseModel):
    """Permissions of one caller in such a file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, max_length=253)
    scopes: frozenset[AccessScope] = Field(min_length=1)
    clusters: frozenset[str] | None = None

    def principal(self, method: Method) -> Principal:
        """The caller, recognised by this line."""
        return Principal(self.name, self.scopes, self.clusters, method)


E = TypeVar("E", bound=CallerEntry)


def watched_entries(
    name: str, path: Path, parse: Callable[[bytes], tuple[E, ...]], clock: Clock, keep_s: float, on_stale: OnStale
) -> WatchedFile[tuple[E, ...]]:
    """The file's entries, read again when it changes. Raises CredentialsFileError."""

    def log_change(old: tuple[E, ...], new: tuple[E, ...]) -> None:
        before, after = set(old), set(new)
        log.info(
            f"{name} reloaded",
            entries=len(new),
            added=sorted(entry.name for entry in after - before),
            removed=sorted(entry.name for entry in before - after),
        )

    return WatchedFile(name, path, parse, clock, keep_s, log_change, on_stale)
