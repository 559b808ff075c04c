"""JSON Web Tokens: accepted ones, their permissions, and every reason for a refusal."""

import base64
import hmac
import json
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from tests.fakes.callers.identity import (
    AUDIENCE,
    ISSUER,
    KEEP_S,
    NOW_S,
    SigningKey,
    by_web_tokens,
    signing_key,
    web_token,
    write_keys,
)
from tests.fakes.cluster import make_node
from tests.fakes.servers.faces import FakeEngine, faces

from placewise.v1.cluster_pb2 import GetClusterRequest
from placewise.v1.cluster_pb2_grpc import ClusterServiceStub
from placewise_core.basics.clock import ManualClock
from placewise_core.domain.errors import StateUnavailableError, UnauthenticatedError
from placewise_service.api.identity.auth import AccessScope, Credentials, Method, Principal
from placewise_service.api.identity.identity import Identity
from placewise_service.api.identity.token_changes import create_token
from placewise_service.api.identity.tokens import TokenFile
from placewise_service.api.identity.watched import CredentialsFileError
from placewise_service.api.identity.web_tokens import WebTokenRules, WebTokens

ALGORITHMS = ("RS256", "ES256", "EdDSA")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    write_keys(path, *map(signing_key, ALGORITHMS))
    return path


def is_refused(identity: Identity, token: str) -> bool:
    try:
        identity.authenticate(Credentials(token))
    except UnauthenticatedError as error:
        return error.message == "the bearer token is not valid"  # no hint for those who try keys out
    return False


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_token_of_the_issuer_is_taken(keys: Path, algorithm: str) -> None:
    token = web_token(signing_key(algorithm))
    identity = by_web_tokens(keys)
    wanted = Principal("jwt:alice", frozenset({AccessScope.READ, AccessScope.DECIDE}), frozenset({"prod"}), Method.JWT)
    for _ in range(2):  # verified, and remembered
        assert identity.authenticate(Credentials(token)) == wanted


@pytest.mark.parametrize(
    ("claims", "scopes", "clusters"),
    [
        ({"placewise_scopes": ["admin", "offline_access"]}, {AccessScope.ADMIN}, {"prod"}),
        ({"placewise_scopes": None}, set(), {"prod"}),
        ({"placewise_scopes": 7}, set(), {"prod"}),
        ({"placewise_clusters": None}, {AccessScope.READ, AccessScope.DECIDE}, set()),
        ({"placewise_clusters": "prod test"}, {AccessScope.READ, AccessScope.DECIDE}, {"prod", "test"}),
        ({"placewise_clusters": ["*"]}, {AccessScope.READ, AccessScope.DECIDE}, None),
        ({"placewise_clusters": [1, "prod"]}, {AccessScope.READ, AccessScope.DECIDE}, {"prod"}),
    ],
)
def test_claims_say_what_it_allows_and_a_missing_one_nothing(
    keys: Path, claims: dict[str, Any], scopes: set[AccessScope], clusters: set[str] | None
) -> None:
    found = by_web_tokens(keys).authenticate(Credentials(web_token(signing_key("ES256"), **claims)))
    assert (found.scopes, found.clusters) == (scopes, clusters)


def test_claims_may_have_other_names(keys: Path) -> None:
    token = web_token(signing_key("ES256"), scp="read", where="*", preferred_username="bob")
    identity = by_web_tokens(keys, name_claim="preferred_username", scopes_claim="scp", clusters_claim="where")
    assert identity.authenticate(Credentials(token)) == Principal(
        "jwt:bob", frozenset({AccessScope.READ}), None, Method.JWT
    )


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": NOW_S - 60},
        {"exp": None},
        {"exp": "never"},
        {"exp": True},
        {"exp": float("inf")},
        {"exp": float("nan")},
        {"nbf": NOW_S + 60},
        {"aud": "another service"},
        {"aud": None},
        {"aud": ["other", "another"]},
        {"iss": "https://evil.example.org"},
        {"iss": ISSUER + "/"},
        {"iss": None},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
        {"sub": "x" * 254},
    ],
    ids=str,
)
def test_expired_wrongly_addressed_or_incomplete_is_refused(keys: Path, claims: dict[str, Any]) -> None:
    for algorithm in ALGORITHMS:
        assert is_refused(by_web_tokens(keys), web_token(signing_key(algorithm), **claims))


def test_one_of_several_audiences_is_enough(keys: Path) -> None:
    token = web_token(signing_key("ES256"), aud=["other", AUDIENCE])
    assert not is_refused(by_web_tokens(keys), token)


def part(data: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(data).encode()).rstrip(b"=").decode()


def forged(header: dict[str, Any], secret: bytes | None) -> str:
    """A token put together by hand, as libraries refuse to: without signature, or with an HMAC."""
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": NOW_S + 3600, "placewise_scopes": "admin"}
    signed = f"{part({'typ': 'JWT', **header})}.{part(claims)}"
    mark = b"" if secret is None else hmac.digest(secret, signed.encode(), "sha256")
    return f"{signed}.{base64.urlsafe_b64encode(mark).rstrip(b'=').decode()}"


@pytest.mark.parametrize("word", ["none", "None", "NONE", "nOnE", ""])
@pytest.mark.parametrize("kid", ["rs256", "es256", "eddsa"])
def test_a_token_without_signature_is_refused(keys: Path, kid: str, word: str) -> None:
    assert is_refused(by_web_tokens(keys), forged({"alg": word, "kid": kid}, None))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_hmac_with_the_public_key_is_refused(keys: Path, algorithm: str) -> None:
    key = signing_key(algorithm)
    for secret in (key.public_pem, key.public_pem.strip(), json.dumps(key.row).encode()):
        for word in ("HS256", algorithm):
            assert is_refused(by_web_tokens(keys), forged({"alg": word, "kid": key.kid}, secret))


def test_a_shared_secret_in_the_file_opens_nothing(tmp_path: Path) -> None:
    secret = b"0123456789abcdef0123456789abcdef"
    row = {"kty": "oct", "kid": "shared", "k": base64.urlsafe_b64encode(secret).decode(), "alg": "HS256"}
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [row, signing_key("ES256").row]}))
    assert is_refused(by_web_tokens(path), forged({"alg": "HS256", "kid": "shared"}, secret))


def test_an_unknown_key_or_another_ones_name_is_refused(keys: Path) -> None:
    stranger = SigningKey("es256", "ES256", ec.generate_private_key(ec.SECP256R1()))
    assert is_refused(by_web_tokens(keys), web_token(stranger))
    for kid in ("unknown", "rs256", "", None):
        assert is_refused(by_web_tokens(keys), web_token(signing_key("ES256"), {"kid": kid} if kid else {"kid": ""}))
    without = jwt.encode({"iss": ISSUER, "aud": AUDIENCE, "sub": "a", "exp": NOW_S + 60}, stranger.private, "ES256")
    assert is_refused(by_web_tokens(keys), without)


def test_a_key_that_the_token_brings_along_is_not_used(keys: Path) -> None:
    stranger = SigningKey("es256", "ES256", ec.generate_private_key(ec.SECP256R1()))
    headers = {"jwk": stranger.row, "jku": "http://127.0.0.1:1/keys", "x5u": "http://127.0.0.1:1/c"}
    assert is_refused(by_web_tokens(keys), web_token(stranger, headers))


def test_another_algorithm_of_the_same_key_is_refused(keys: Path) -> None:
    key = signing_key("RS256")
    for word in ("RS512", "PS256"):
        token = jwt.encode(
            {"iss": ISSUER, "aud": AUDIENCE, "sub": "a", "exp": NOW_S + 60}, key.private, word, {"kid": key.kid}
        )
        assert is_refused(by_web_tokens(keys), token)


def test_a_changed_token_is_refused(keys: Path) -> None:
    head, body, mark = web_token(signing_key("ES256")).split(".")
    more = part({"iss": ISSUER, "aud": AUDIENCE, "sub": "a", "exp": NOW_S + 60, "placewise_scopes": "admin"})
    for token in (
        f"{head}.{more}.{mark}",
        f"{head}.{body}.",
        f"{head}.{body}",
        f"{head}.{body}.{mark}.",
        "..",
        "a.b.c",
    ):
        assert is_refused(by_web_tokens(keys), token)


@pytest.mark.parametrize("token", ["", "é.é.é", "\udcff.a.b", "." * 5000, "e30.e30.e30", "bnVsbA.bnVsbA.bnVsbA"])
def test_what_is_no_token_is_refused(keys: Path, token: str) -> None:
    assert is_refused(by_web_tokens(keys), token)


def test_a_remembered_token_ends_with_its_time_and_with_its_key(keys: Path) -> None:
    clock = ManualClock(NOW_S)
    identity = by_web_tokens(keys, clock)
    short, long = web_token(signing_key("ES256"), exp=NOW_S + 30), web_token(signing_key("ES256"))
    for token in (short, long):
        assert not is_refused(identity, token)
    clock.advance(60)
    assert is_refused(identity, short)
    assert not is_refused(identity, long)
    write_keys(keys, signing_key("RS256"))
    clock.advance(2)
    assert is_refused(identity, long)
    assert not is_refused(identity, web_token(signing_key("RS256")))


def test_a_renewed_key_is_taken_and_a_broken_file_keeps_the_last_for_a_while(keys: Path) -> None:
    clock = ManualClock(NOW_S)
    identity = by_web_tokens(keys, clock)
    token = web_token(signing_key("ES256", "next"))
    assert is_refused(identity, token)
    write_keys(keys, signing_key("ES256", "next"))
    clock.advance(2)
    assert not is_refused(identity, token)
    keys.write_text('{"keys": []}')
    clock.advance(2)
    assert not is_refused(identity, token)
    clock.advance(KEEP_S)
    with pytest.raises(StateUnavailableError):
        identity.authenticate(Credentials(token))
    assert "JWKS" in identity.problem()


WEAK = SigningKey("weak", "RS256", rsa.generate_private_key(65537, 1024))
PRIVATE = {**signing_key("ES256").row, "d": "AAAA"}


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("", "not a JSON Web Key Set"),
        ("[]", "not a JSON Web Key Set"),
        ('{"keys": 3}', "not a JSON Web Key Set"),
        ('{"keys": []}', "no RSA, P-256 or Ed25519 key"),
        ('{"keys": [{"kty": "RSA", "kid": "a", "n": "!", "e": "AQAB"}]}', "not a JSON Web Key Set"),
        (json.dumps({"keys": [{**signing_key("ES256").row, "kid": ""}]}), "no RSA, P-256 or Ed25519 key"),
        (json.dumps({"keys": [{**signing_key("ES256").row, "use": "enc"}]}), "no RSA, P-256 or Ed25519 key"),
        (json.dumps({"keys": [WEAK.row]}), "less than 2048 bits"),
        (json.dumps({"keys": [PRIVATE]}), "is private"),
    ],
)
def test_a_file_without_usable_keys_is_a_reason_not_to_start(tmp_path: Path, text: str, printed: str) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(text)
    with pytest.raises(CredentialsFileError, match=rf"jwks\.json: .*{printed}"):
        by_web_tokens(path)


def test_tokens_of_the_file_are_taken_beside(keys: Path, tmp_path: Path) -> None:
    own = create_token(tmp_path / "t", "slurm", [AccessScope.REPORT])
    clock = ManualClock(NOW_S)
    web = WebTokens(keys, WebTokenRules(ISSUER, AUDIENCE), clock, KEEP_S)
    identity = Identity(clock, TokenFile(tmp_path / "t", clock, KEEP_S), web)
    assert identity.authenticate(Credentials(own)).name == "slurm"
    assert identity.authenticate(Credentials(web_token(signing_key("EdDSA")))).name == "jwt:alice"
    assert is_refused(identity, "pw_wrong")


async def test_every_face_takes_the_same_ones(keys: Path) -> None:
    good, ended = web_token(signing_key("RS256")), web_token(signing_key("RS256"), exp=NOW_S - 60)
    elsewhere = web_token(signing_key("RS256"), placewise_clusters=["other"])
    engine = FakeEngine()
    await engine.report_nodes("prod", [make_node("n0")], full=True)
    path = "/placewise.v1.ClusterService/GetCluster"
    async with faces(engine, authenticator=by_web_tokens(keys)) as running:
        for token, status, code in (
            (good, 200, grpc.StatusCode.OK),
            (ended, 401, grpc.StatusCode.UNAUTHENTICATED),
            (elsewhere, 403, grpc.StatusCode.PERMISSION_DENIED),
        ):
            headers = {"authorization": f"Bearer {token}"}
            assert (await running.http.get("/v1/clusters/prod", headers=headers)).status_code == status
            assert (await running.http.post(path, json={"cluster": "prod"}, headers=headers)).status_code == status
            stub = ClusterServiceStub(running.channel)
            call = stub.GetCluster(GetClusterRequest(cluster="prod"), metadata=tuple(headers.items()))
            assert await call.code() is code
