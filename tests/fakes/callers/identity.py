"""Callers for tests: a tokens file as the service reads it, keys, and JSON Web Tokens signed with them."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jwt
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from placewise_core.basics.clock import Clock, ManualClock
from placewise_service.api.identity.certificates import CertificateFile
from placewise_service.api.identity.identity import Identity
from placewise_service.api.identity.tokens import TokenFile
from placewise_service.api.identity.web_tokens import WebTokenRules, WebTokens

KEEP_S = 600.0
ISSUER, AUDIENCE = "https://id.example.org", "placewise"
NOW_S = 1_800_000_000.0


def by_tokens(path: Path, clock: Clock | None = None, keep_s: float = KEEP_S) -> Identity:
    """Recognises the tokens of a file and nothing else."""
    clock = clock or ManualClock()
    return Identity(clock, tokens=TokenFile(path, clock, keep_s))


@dataclass(frozen=True)
class SigningKey:
    """A private key, and the row of a JWKS that shows the public one."""

    kid: str
    algorithm: str
    private: Any

    @property
    def row(self) -> dict[str, Any]:
        kind: Any = {"RS256": RSAAlgorithm, "ES256": ECAlgorithm, "EdDSA": OKPAlgorithm}[self.algorithm]
        return {**kind.to_jwk(self.private.public_key(), as_dict=True), "kid": self.kid, "use": "sig"}

    @property
    def public_pem(self) -> bytes:
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        pem: bytes = self.private.public_key().public_bytes(serialization.Encoding.PEM, form)
        return pem


@cache
def signing_key(algorithm: str, kid: str = "") -> SigningKey:
    """The key of that id; one is made at its first use."""
    private: Any = {
        "RS256": lambda: rsa.generate_private_key(65537, 2048),
        "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
        "EdDSA": ed25519.Ed25519PrivateKey.generate,
    }[algorithm]()
    return SigningKey(kid or algorithm.lower(), algorithm, private)


def web_token(key: SigningKey, headers: dict[str, Any] | None = None, **claims: Any) -> str:
    """A token of ours, with these claims instead of (None: without) the usual ones."""
    usual = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "alice",
        "exp": NOW_S + 3600,
        "placewise_scopes": "openid read decide",
        "placewise_clusters": ["prod"],
    }
    reported = {name: value for name, value in {**usual, **claims}.items() if value is not None}
    return jwt.encode(reported, key.private, key.algorithm, headers={"kid": key.kid, **(headers or {})})


def write_keys(path: Path, *keys: SigningKey) -> None:
    """A JWKS file."""
    path.write_text(json.dumps({"keys": [key.row for key in keys]}))


def by_web_tokens(path: Path, clock: Clock | None = None, **rules: str) -> Identity:
    """Recognises JSON Web Tokens and nothing else; the clock stands at NOW_S."""
    clock = clock or ManualClock(NOW_S)
    return Identity(clock, web_tokens=WebTokens(path, WebTokenRules(ISSUER, AUDIENCE, **rules), clock, KEEP_S))


def by_certificates(path: Path, *entries: dict[str, Any], clock: Clock | None = None) -> Identity:
    """Recognises certificates and nothing else: of a file that is written with these entries."""
    path.write_text(yaml.safe_dump({"certificates": list(entries)}))
    clock = clock or ManualClock()
    return Identity(clock, certificates=CertificateFile(path, clock, KEEP_S))
