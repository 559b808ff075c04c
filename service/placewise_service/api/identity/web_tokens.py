"""JSON Web Tokens of an identity provider (OIDC): checked against the keys of a JWKS file. Never fetches anything.

A token must name the issuer and the audience, end (`exp`), and be signed by a key of the file (`kid`) with the one
algorithm of that key: RS256, ES256 or EdDSA. The algorithm in the token itself selects nothing.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import jwt
import structlog
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from placewise_core.basics.bounded import Bounded
from placewise_core.basics.clock import Clock
from placewise_core.basics.frozen import frozen
from placewise_core.domain.errors import UnauthenticatedError
from placewise_service.api.identity.auth import AccessScope, Method, Principal
from placewise_service.api.identity.watched import CredentialsFileError, WatchedFile

log = structlog.get_logger(__name__)

EVERY_CLUSTER: Final = "*"
_LEEWAY_S = 10.0  # clocks of provider and service differ
_LEAST_RSA_BITS = 2048
_KEPT = 1024  # tokens that need not be verified again: a caller shows its token with each call
_LONGEST_NAME = 253
_SCOPES = frozenset(scope.value for scope in AccessScope)
_REFUSED: Final = "the bearer token is not valid"


@frozen
class WebTokenRules:
    """Required claims of a token, and the claims that name its holder, scopes and clusters."""

    issuer: str
    audience: str
    name_claim: str = "sub"
    scopes_claim: str = "placewise_scopes"
    clusters_claim: str = "placewise_clusters"


@frozen
class Key:
    """A public key and the one algorithm it is used with."""

    algorithm: str
    public: Any


@frozen
class _VerifiedToken:
    """A token that was verified."""

    principal: Principal
    start_s: float
    end_s: float


Keys = Mapping[str, Key]


class WebTokens:
    """Recognises tokens of one issuer. Raises CredentialsFileError at construction."""

    def __init__(
        self,
        path: Path,
        rules: WebTokenRules,
        clock: Clock,
        keep_s: float,
        on_stale: Callable[[str, float], None] = lambda name, seconds: None,
    ) -> None:
        self._rules = rules
        self._clock = clock
        self._known: Bounded[bytes, _VerifiedToken] = Bounded(_KEPT)
        self.file = WatchedFile("JWKS file", path, parse_keys, clock, keep_s, self._on_change, on_stale)

    def find(self, token: str) -> Principal:
        """Whose token this is. Raises UnauthenticatedError, which says no more than that, and StateUnavailableError."""
        keys = self.file.value()
        now_s = self._clock.now_s()
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        known = self._known.get(digest)
        if known is not None and known.start_s <= now_s < known.end_s:
            return known.principal
        claims = self._verified(token, keys, now_s)
        principal = self._principal(claims)
        self._known[digest] = _VerifiedToken(principal, _time_s(claims.get("nbf", 0)), _time_s(claims["exp"]))
        return principal

    def _verified(self, token: str, keys: Keys, now_s: float) -> dict[str, Any]:
        """The claims of a token that is signed, addressed to us and in force. Raises UnauthenticatedError."""
        try:
            key = keys.get(str(jwt.get_unverified_header(token).get("kid")))
            if key is None:
                raise UnauthenticatedError(_REFUSED)
            claims: dict[str, Any] = jwt.decode(
                token,
                key.public,
                algorithms=[key.algorithm],
                audience=self._rules.audience,
                issuer=self._rules.issuer,
                options={
                    "require": ["exp", "iss", "aud", self._rules.name_claim],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
            is_in_force = _time_s(claims.get("nbf", 0)) - _LEEWAY_S <= now_s < _time_s(claims["exp"]) + _LEEWAY_S
        except (jwt.PyJWTError, ValueError, TypeError):  # the library's words may hold the token
            raise UnauthenticatedError(_REFUSED) from None
        if not is_in_force:
            raise UnauthenticatedError(_REFUSED)
        return claims

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        name = claims[self._rules.name_claim]
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
            raise UnauthenticatedError(_REFUSED)
        scopes = frozenset(
            AccessScope(word) for word in _words(claims.get(self._rules.scopes_claim)) if word in _SCOPES
        )
        clusters = _words(claims.get(self._rules.clusters_claim))
        # Prefixed: a provider that lets people choose their names must not let them choose that of a token of ours.
        return Principal(f"jwt:{name}", scopes, None if EVERY_CLUSTER in clusters else clusters, Method.JWT)

    def _on_change(self, old: Keys, new: Keys) -> None:
        self._known.clear()
        log.info("JWKS reloaded", added=sorted(new.keys() - old.keys()), removed=sorted(old.keys() - new.keys()))


def parse_keys(content: bytes) -> Keys:
    """The keys of a JWKS by their id; those for encryption, and of other kinds than ours, are left out.

    Raises CredentialsFileError, also if none is left.
    """
    try:
        rows = json.loads(content)["keys"]
        keys = {row["kid"]: _key(row) for row in rows if _is_ours(row)}
    except CredentialsFileError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, jwt.PyJWTError):
        raise CredentialsFileError("not a JSON Web Key Set") from None
    if not keys:
        raise CredentialsFileError("holds no RSA, P-256 or Ed25519 key with a `kid` to verify signatures with")
    return keys


def _is_ours(row: Mapping[str, Any]) -> bool:
    kind = (row["kty"], row.get("crv"))
    is_known = kind in (("RSA", None), ("EC", "P-256"), ("OKP", "Ed25519"))
    return is_known and bool(row.get("kid")) and row.get("use", "sig") == "sig"


def _key(row: Mapping[str, Any]) -> Key:
    """Raises CredentialsFileError if a key is private or weak; for a malformed key, the library's error."""
    if "d" in row:
        raise CredentialsFileError(f"key {row['kid']!r} is private: store only its public part")
    kind: Any = {"RSA": RSAAlgorithm, "EC": ECAlgorithm, "OKP": OKPAlgorithm}[row["kty"]]
    public = kind.from_jwk(dict(row))
    if isinstance(public, rsa.RSAPublicKey):
        if public.key_size < _LEAST_RSA_BITS:
            raise CredentialsFileError(f"key {row['kid']!r} has less than {_LEAST_RSA_BITS} bits")
        return Key("RS256", public)
    if isinstance(public, ec.EllipticCurvePublicKey):
        return Key("ES256", public)
    assert isinstance(public, ed25519.Ed25519PublicKey)
    return Key("EdDSA", public)


def _time_s(claim: object) -> float:
    """Raises TypeError unless the claim is a finite number of seconds: no token lasts for ever."""
    if isinstance(claim, bool) or not isinstance(claim, int | float) or not math.isfinite(claim):
        raise TypeError("not a time")
    return float(claim)


def _words(claim: object) -> frozenset[str]:
    """A claim that is a list of words, or one text of them."""
    if isinstance(claim, str):
        return frozenset(claim.split())
    return frozenset(word for word in claim if isinstance(word, str)) if isinstance(claim, list) else frozenset()
