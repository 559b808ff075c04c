"""TLS and mutual TLS with certificates made for the test."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.fakes.servers.oracle import OracleServer, SmallService

from placewise.v1.cluster_pb2 import GetClusterRequest
from placewise_client import AsyncClient, StateUnavailableError, Target, Tls

REQUEST = GetClusterRequest(cluster="c")


@dataclass
class Authority:
    """Signs certificates and writes them as PEM files."""

    folder: Path

    def __post_init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        certificate = self._sign(self.name, self.key.public_key(), is_authority=True)
        self.root = self._write("ca.pem", certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str) -> tuple[Path, Path]:
        """(chain, key) for a host or client of this name."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._sign(subject, key.public_key(), is_authority=False)
        plain = serialization.NoEncryption()
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        chain = self._write(f"{name}.pem", certificate.public_bytes(serialization.Encoding.PEM))
        return chain, self._write(f"{name}.key", pem)

    def _sign(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, is_authority: bool) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if not is_authority:
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def _write(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(content)
        return path


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def server(authority: Authority) -> AsyncIterator[OracleServer]:
    """Wants a client certificate."""
    chain, key = authority.issue("server")
    credentials = grpc.ssl_server_credentials(
        [(key.read_bytes(), chain.read_bytes())], authority.root.read_bytes(), require_client_auth=True
    )
    server = await OracleServer(SmallService(), credentials).start()
    yield server
    await server.stop()


async def test_mutual_tls_with_a_token(server: OracleServer, authority: Authority) -> None:
    chain, key = authority.issue("client")
    target = Target((server.target,), tls=Tls(authority.root, chain, key), token="secret")
    async with AsyncClient(target) as client:
        assert (await client.get_cluster(REQUEST)).cluster == "c"
    assert server.oracle.metadata[-1]["authorization"] == "Bearer secret"


async def test_without_a_client_certificate_nobody_gets_in(server: OracleServer, authority: Authority) -> None:
    async with AsyncClient(Target((server.target,), tls=Tls(authority.root))) as client:
        with pytest.raises(StateUnavailableError):
            await client.get_cluster(REQUEST, retry=None)
    assert server.oracle.calls == []
