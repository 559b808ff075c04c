"""Authenticates callers by the configured means: bearer tokens of a file, JSON Web Tokens, client certificates.

A token decides alone: if it is refused, a certificate beside it does not help.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from placewise_core.basics.clock import Clock
from placewise_core.domain.errors import UnauthenticatedError
from placewise_service.api.identity.auth import Authenticator, Credentials, Open, Principal
from placewise_service.api.identity.certificates import CertificateFile
from placewise_service.api.identity.tokens import TokenFile
from placewise_service.settings import AuthSettings

if TYPE_CHECKING:
    from placewise_service.api.identity.web_tokens import WebTokens

log = structlog.get_logger(__name__)

_LOG_PERIOD_S = 10.0


class Identity:
    """Every source of callers that is configured; at least one."""

    def __init__(
        self,
        clock: Clock,
        tokens: TokenFile | None = None,
        web_tokens: "WebTokens | None" = None,
        certificates: CertificateFile | None = None,
    ) -> None:
        self._tokens, self._web_tokens, self._certificates = tokens, web_tokens, certificates
        self._files = tuple(source.file for source in (tokens, web_tokens, certificates) if source is not None)
        self.reads_certificates = certificates is not None
        self.asks_tokens = tokens is not None or web_tokens is not None
        self._refusals = _Refusals(clock)

    def authenticate(self, credentials: Credentials) -> Principal:
        try:
            found = self._recognised(credentials)
        except UnauthenticatedError as error:
            self._refusals.add(credentials, error.message)
            raise
        for file in self._files:
            file.value()  # one that is lost for too long ends every call, those of callers whom another file lists too
        return found

    def problem(self) -> str:
        problems = [file.problem() for file in self._files]  # all of them: each looks at its file
        return next(filter(None, problems), "")

    def _recognised(self, credentials: Credentials) -> Principal:
        if self.asks_tokens and credentials.token is not None:
            return self._holder(credentials.token)
        if self._certificates is None:
            raise UnauthenticatedError("a bearer token is required (header authorization)")
        found = self._certificates.find(credentials.subjects)
        if found is None:
            shown = ", ".join(credentials.subjects) or "none"
            raise UnauthenticatedError(f"unknown client certificate; its names: {shown}")
        return found

    def _holder(self, token: str) -> Principal:
        found = self._tokens.find(token) if self._tokens is not None else None
        if found is not None:
            return found
        if self._web_tokens is None:
            raise UnauthenticatedError("the bearer token is not valid")
        return self._web_tokens.find(token)


class _Refusals:
    """Tells the log of refused credentials: of the first at once, then every ten seconds how many more there were."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logged_s = float("-inf")
        self._unlogged = 0

    def add(self, credentials: Credentials, reason: str) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._logged_s < _LOG_PERIOD_S:
            self._unlogged += 1
            return
        log.warning("credentials refused", peer=credentials.peer, reason=reason, others_before=self._unlogged)
        self._logged_s, self._unlogged = now_s, 0


def authenticator(
    settings: AuthSettings, clock: Clock, on_stale: Callable[[str, float], None] = lambda name, seconds: None
) -> Authenticator:
    """The authenticator of the settings; Open if they configure none. Raises CredentialsFileError."""
    if not settings.is_on:
        return Open()
    keep_s = settings.keep_last_good_s
    tokens = web_tokens = certificates = None
    if settings.tokens_file is not None:
        tokens = TokenFile(settings.tokens_file, clock, keep_s, on_stale)
    if settings.jwks_file is not None:
        from placewise_service.api.identity.web_tokens import WebTokenRules, WebTokens  # noqa: PLC0415 - cryptography

        rules = WebTokenRules(
            settings.jwt_issuer,
            settings.jwt_audience,
            settings.jwt_name_claim,
            settings.jwt_scopes_claim,
            settings.jwt_clusters_claim,
        )
        web_tokens = WebTokens(settings.jwks_file, rules, clock, keep_s, on_stale)
    if settings.certificates_file is not None:
        certificates = CertificateFile(settings.certificates_file, clock, keep_s, on_stale)
    return Identity(clock, tokens, web_tokens, certificates)
