"""Client certificates on real sockets: the permissions of their names, over gRPC, REST and Connect alike."""

import asyncio
import ipaddress
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import yaml
from cryptography import x509
from tests.fakes.callers.identity import KEEP_S, by_certificates
from tests.fakes.callers.tls import Authority
from tests.fakes.cluster import make_node
from tests.fakes.servers.faces import FakeEngine

from placewise.v1.cluster_pb2 import GetClusterRequest
from placewise.v1.cluster_pb2_grpc import ClusterServiceStub
from placewise_core.basics.clock import ManualClock, SystemClock
from placewise_core.domain.errors import UnauthenticatedError
from placewise_service.api.calls.gateway import Gateway
from placewise_service.api.faces.grpc_server import GrpcFace
from placewise_service.api.faces.rest_server import RestFace
from placewise_service.api.faces.tls import Certificates, grpc_credentials
from placewise_service.api.identity.auth import AccessScope, Authenticator, Credentials
from placewise_service.api.identity.certificates import CertificateFile, subjects_of_der, subjects_of_pem
from placewise_service.api.identity.identity import Identity
from placewise_service.api.identity.token_changes import create_token
from placewise_service.api.identity.tokens import TokenFile
from placewise_service.api.identity.watched import CredentialsFileError
from placewise_service.settings import LimitSettings, ServerSettings, TlsSettings
from placewise_service.telemetry import Telemetry

CONNECT = "/placewise.v1.ClusterService/GetCluster"
READER = {"name": "reader", "subject": "cn:reader", "scopes": ["read"], "clusters": ["prod"]}
WRITER = {"name": "writer", "subject": "uri:spiffe://site/writer", "scopes": ["admin"]}
ELSEWHERE = {"name": "elsewhere", "subject": "dns:elsewhere.example", "scopes": ["read"], "clusters": ["other"]}


@dataclass
class Secured:
    """Both faces with TLS and client certificates, and how to ask them."""

    authority: Authority
    folder: Path
    grpc_port: int = 0
    rest_port: int = 0

    async def codes(
        self, client: tuple[bytes, bytes], token: str | None = None, cluster: str = "prod", host: str = "localhost"
    ) -> tuple[int, int, str]:
        """What GetCluster is answered with by REST, Connect and gRPC. `host`: the header of the first two."""
        by_rest = await self._http(client, token, f"GET /v1/clusters/{cluster} HTTP/1.1", b"", host)
        body = b'{"cluster":"%s"}' % cluster.encode()
        by_connect = await self._http(client, token, f"POST {CONNECT} HTTP/1.1", body, host)
        return by_rest, by_connect, await self._grpc(client, token, cluster)

    async def page(self, client: tuple[bytes, bytes], path: str, host: str) -> int:
        return await self._http(client, None, f"GET {path} HTTP/1.1", b"", host)

    async def _http(self, client: tuple[bytes, bytes], token: str | None, line: str, body: bytes, host: str) -> int:
        context = ssl.create_default_context(cadata=self.authority.pem.decode())
        (self.folder / "client.pem").write_bytes(client[0] + client[1])
        context.load_cert_chain(self.folder / "client.pem")
        reader, writer = await asyncio.open_connection("localhost", self.rest_port, ssl=context)
        headers = [line, f"Host: {host}", "Connection: close"]
        if body:
            headers += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        if token is not None:
            headers.append(f"Authorization: Bearer {token}")
        writer.write("\r\n".join([*headers, "", ""]).encode() + body)
        status = await reader.readline()
        writer.close()
        return int(status.split()[1])

    async def _grpc(self, client: tuple[bytes, bytes], token: str | None, cluster: str) -> str:
        credentials = grpc.ssl_channel_credentials(self.authority.pem, client[1], client[0])
        metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        async with grpc.aio.secure_channel(f"localhost:{self.grpc_port}", credentials) as channel:
            call = ClusterServiceStub(channel).GetCluster(GetClusterRequest(cluster=cluster), metadata=metadata)
            return (await call.code()).name


@asynccontextmanager
async def secured(authenticator: Authenticator, folder: Path) -> AsyncIterator[Secured]:
    authority = Authority("clients and server")
    cert, key = authority.write(folder, "server")
    (folder / "ca.pem").write_bytes(authority.pem)
    settings = TlsSettings(cert_file=cert, key_file=key, client_ca_file=folder / "ca.pem")
    engine = FakeEngine()
    for cluster in ("prod", "other"):
        await engine.report_nodes(cluster, [make_node("n0")], full=True)
    gateway = Gateway(engine, SystemClock(), LimitSettings(), authenticator, Telemetry())
    server, certificates = ServerSettings(grpc_port=0, rest_port=0), Certificates(settings)
    grpc_face, rest_face = (
        GrpcFace(gateway, server, grpc_credentials(certificates, True)),
        RestFace(gateway, server, certificates),
    )
    await grpc_face.start()
    await rest_face.start()
    try:
        yield Secured(authority, folder, grpc_face.port, rest_face.port)
    finally:
        await grpc_face.stop(0)
        await rest_face.stop()


def names(*texts: str) -> Sequence[x509.GeneralName]:
    kinds = {"dns": x509.DNSName, "uri": x509.UniformResourceIdentifier, "email": x509.RFC822Name}
    return [kinds[text.partition(":")[0]](text.partition(":")[2]) for text in texts]


OK, DENIED, UNKNOWN = (200, 200, "OK"), (403, 403, "PERMISSION_DENIED"), (401, 401, "UNAUTHENTICATED")


async def test_the_names_in_a_certificate_say_what_it_may_do(tmp_path: Path) -> None:
    identity = by_certificates(tmp_path / "certificates.yaml", READER, WRITER, ELSEWHERE)
    async with secured(identity, tmp_path) as at:
        issue = at.authority.issue
        assert await at.codes(issue("reader")) == OK
        assert await at.codes(issue("reader"), cluster="other") == DENIED
        assert await at.codes(issue("anything", names=names("uri:spiffe://site/writer"))) == DENIED  # not `read`
        assert await at.codes(issue("x", names=names("dns:elsewhere.example"))) == DENIED
        assert await at.codes(issue("x", names=names("dns:elsewhere.example")), cluster="other") == OK
        assert await at.codes(issue("x", names=names("uri:dns:elsewhere.example")), cluster="other") == UNKNOWN
        assert await at.codes(issue("readonly-intern")) == UNKNOWN
        assert await at.codes(issue("Reader")) == UNKNOWN
        assert await at.codes(issue("elsewhere.example"), cluster="other") == UNKNOWN  # a CN is no DNS name
        assert await at.codes(issue("server")) == UNKNOWN  # the server's own name opens nothing


async def test_a_certificate_alone_opens_nothing_to_a_page_of_another_name(tmp_path: Path) -> None:
    """A browser shows its certificate for every page, unlike a token."""
    async with secured(by_certificates(tmp_path / "certificates.yaml", READER), tmp_path) as at:
        reader = at.authority.issue("reader")
        assert await at.codes(reader, host="evil.example") == (403, 403, "OK")
        assert await at.codes(reader, host="127.0.0.1:8080") == OK


def certificates_and_tokens(folder: Path, clock: ManualClock | None = None) -> Identity:
    """READER, and a token of the cluster "other", which is at "token"."""
    path, clock = folder / "tokens.yaml", clock or ManualClock()
    (folder / "token").write_text(create_token(path, "elsewhere", [AccessScope.READ], ["other"]))
    (folder / "certificates.yaml").write_text(yaml.safe_dump({"certificates": [READER]}))
    certificates = CertificateFile(folder / "certificates.yaml", clock, KEEP_S)
    return Identity(clock, TokenFile(path, clock, KEEP_S), certificates=certificates)


async def test_a_token_beside_it_decides(tmp_path: Path) -> None:
    async with secured(certificates_and_tokens(tmp_path), tmp_path) as at:
        reader, token = at.authority.issue("reader"), (tmp_path / "token").read_text()
        assert await at.codes(reader) == OK
        assert await at.codes(reader, token) == DENIED
        assert await at.codes(at.authority.issue("unknown"), token, "other") == OK
        assert await at.codes(reader, "pw_wrong") == UNKNOWN


async def test_beside_tokens_a_certificate_alone_is_answered_by_known_names_and_a_token_by_any(tmp_path: Path) -> None:
    async with secured(certificates_and_tokens(tmp_path), tmp_path) as at:
        reader = at.authority.issue("reader")
        assert await at.codes(reader, host="evil.example") == (403, 403, "OK")
        assert await at.codes(reader) == OK
        token = (tmp_path / "token").read_text()
        assert await at.codes(reader, token, "other", host="evil.example") == OK
        assert await at.codes(reader, "pw_wrong", host="evil.example") == UNKNOWN
        for path in ("/", "/openapi.json"):
            assert await at.page(reader, path, "evil.example") == 403
            assert await at.page(reader, path, "localhost") == 200
        assert await at.page(reader, "/healthz", "evil.example") == 200


async def test_a_lost_file_of_tokens_ends_the_calls_of_certificates_too(tmp_path: Path) -> None:
    """A replica that is not ready refuses every call: nobody has to know which file lets whom in."""
    clock = ManualClock()
    async with secured(certificates_and_tokens(tmp_path, clock), tmp_path) as at:
        reader = at.authority.issue("reader")
        (tmp_path / "tokens.yaml").unlink()
        clock.advance(2.0)
        assert await at.codes(reader) == OK
        clock.advance(KEEP_S)
        assert await at.codes(reader) == (503, 503, "UNAVAILABLE")


async def test_a_certificate_without_a_file_of_certificates_opens_nothing(tmp_path: Path) -> None:
    path, clock = tmp_path / "tokens.yaml", ManualClock()
    token = create_token(path, "reader", [AccessScope.READ])
    async with secured(Identity(clock, TokenFile(path, clock, KEEP_S)), tmp_path) as at:
        assert await at.codes(at.authority.issue("reader")) == UNKNOWN
        assert await at.codes(at.authority.issue("reader"), token) == OK


def test_an_entry_that_is_deleted_opens_nothing_any_more(tmp_path: Path) -> None:
    path, clock = tmp_path / "certificates.yaml", ManualClock()
    identity = by_certificates(path, READER, clock=clock)
    shown = Credentials(subjects=("cn:reader",))
    assert identity.authenticate(shown).clusters == frozenset({"prod"})
    path.write_text("certificates: []")
    clock.advance(2.0)
    with pytest.raises(UnauthenticatedError, match="cn:reader"):
        identity.authenticate(shown)


def test_the_first_entry_that_fits_counts(tmp_path: Path) -> None:
    identity = by_certificates(tmp_path / "c", WRITER, READER)
    both = Credentials(subjects=("cn:reader", "uri:spiffe://site/writer"))
    assert identity.authenticate(both).name == "writer"
    with pytest.raises(UnauthenticatedError, match="names: none"):
        identity.authenticate(Credentials())


@pytest.mark.parametrize(
    "entry",
    [
        {**READER, "subject": "reader"},
        {**READER, "subject": "cn:"},
        {**READER, "scopes": []},
        {**READER, "scope": "read"},
        {"name": "x", "subject": "cn:x"},
    ],
    ids=str,
)
def test_an_entry_that_makes_no_sense_is_a_reason_not_to_start(tmp_path: Path, entry: dict[str, object]) -> None:
    with pytest.raises(CredentialsFileError):
        by_certificates(tmp_path / "c", entry)


def test_every_kind_of_name_is_read_from_either_form() -> None:
    authority = Authority("a")
    alternatives = [*names("dns:h.example", "uri:spiffe://a/b", "email:a@b.example")]
    alternatives.append(x509.IPAddress(ipaddress.ip_address("10.0.0.1")))
    pem, _ = authority.issue("some one", names=alternatives)
    wanted = ("cn:some one", "dns:h.example", "uri:spiffe://a/b", "email:a@b.example", "ip:10.0.0.1")
    assert subjects_of_pem(pem) == wanted
    assert subjects_of_der(ssl.PEM_cert_to_DER_cert(pem.decode())) == wanted
    assert subjects_of_der(b"no certificate") == subjects_of_pem(b"no certificate") == ()
