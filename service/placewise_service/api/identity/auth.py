"""Who calls, and what that allows. Where callers are kept is elsewhere: tokens, web_tokens, certificates, identity."""

import enum
from typing import Protocol

from placewise_core.basics.frozen import frozen
from placewise_core.domain.errors import PermissionDeniedError


class AccessScope(enum.StrEnum):
    """Permission of a token; none includes another."""

    READ = "read"
    DECIDE = "decide"
    REPORT = "report"
    ADMIN = "admin"
    LOG = "log"


class Method(enum.StrEnum):
    """How a caller was recognised."""

    TOKEN = "token"  # noqa: S105 - a word
    JWT = "jwt"
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
    scopes: frozenset[AccessScope]
    clusters: frozenset[str] | None = None
    method: Method = Method.TOKEN

    def require(self, scope: AccessScope, cluster: str | None) -> None:
        """Raises PermissionDeniedError. `cluster` None asks for a right that no single cluster gives."""
        if scope not in self.scopes:
            raise _lacks(scope)
        if self.clusters is not None and cluster not in self.clusters:
            where = f"on cluster {cluster!r}" if cluster is not None else "on every cluster"
            raise PermissionDeniedError(f"not allowed {where}", {"scope": str(scope)})

    def require_scope(self, scope: AccessScope) -> None:
        """Raises PermissionDeniedError unless the caller has the scope on some cluster."""
        if scope not in self.scopes:
            raise _lacks(scope)

    def may_see(self, cluster: str | None) -> bool:
        return self.clusters is None or cluster in self.clusters


def _lacks(scope: AccessScope) -> PermissionDeniedError:
    return PermissionDeniedError(f"needs the scope {scope!s}", {"scope": str(scope)})


ANYONE = Principal("anyone", frozenset(AccessScope), method=Method.OPEN)


class Authenticator(Protocol):
    """Turns credentials into a principal. `reads_certificates`: the subjects of the caller's certificate matter.
    `asks_tokens`: a bearer token does."""

    reads_certificates: bool
    asks_tokens: bool

    def authenticate(self, credentials: Credentials) -> Principal:
        """Raises UnauthenticatedError; StateUnavailableError while nobody can be recognised."""
        ...

    def problem(self) -> str:
        """Why nobody is let in; "" while callers can be recognised."""
        ...


def bearer_token(header: str) -> str:
    """The token of an Authorization header; "" for any other scheme."""
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


class Open:
    """Accepts everybody: on loopback, or by explicit choice."""

    reads_certificates = False
    asks_tokens = False

    def authenticate(self, credentials: Credentials) -> Principal:
        return ANYONE

    def problem(self) -> str:
        return ""
