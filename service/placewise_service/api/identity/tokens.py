"""Bearer tokens of a file, which keeps SHA-256 of 256 random bits: no slower hash would make those harder to guess.

    tokens:
      - name: slurm
        sha256: 9f86d0…
        scopes: [decide, report]
        clusters: [prod]            # absent: every cluster
        expire_time: 2027-01-01T00:00:00Z

A token has exactly the scopes listed; `tokens: []` revokes all.
"""

import hashlib
import hmac
from pathlib import Path

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from placewise_core.basics.clock import Clock
from placewise_service.api.identity.auth import Method, Principal
from placewise_service.api.identity.caller_files import CallerEntry, watched_entries
from placewise_service.api.identity.watched import OnStale, document_of, ignore_stale


class TokenEntry(CallerEntry):
    """One line of the tokens file."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    expire_time: AwareDatetime | None = None

    def is_expired(self, now_s: float) -> bool:
        """At this time, in seconds since the epoch."""
        return self.expire_time is not None and self.expire_time.timestamp() <= now_s


class _TokenDocument(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: tuple[TokenEntry, ...]


def parse_tokens(content: bytes) -> tuple[TokenEntry, ...]:
    """The entries. Raises CredentialsFileError, also for a file that says nothing at all."""
    return document_of(content, _TokenDocument, "tokens: []").tokens


class TokenFile:
    """Recognises the tokens of a file. Raises CredentialsFileError at construction."""

    def __init__(self, path: Path, clock: Clock, keep_s: float, on_stale: OnStale = ignore_stale) -> None:
        self._clock = clock
        self.file = watched_entries("tokens file", path, parse_tokens, clock, keep_s, on_stale)

    def find(self, token: str) -> Principal | None:
        """Who has this token; None for one that is unknown or expired. Raises StateUnavailableError."""
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
        found: TokenEntry | None = None
        for entry in self.file.value():  # all of them, each in constant time
            if hmac.compare_digest(entry.sha256, digest):
                found = entry
        if found is None or found.is_expired(self._clock.now_s()):
            return None
        return found.principal(Method.TOKEN)
