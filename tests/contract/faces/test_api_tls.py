"""TLS of both faces on real sockets: handshakes, client certificates, and certificates that change under way."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from tests.fakes.callers.tls import EXPIRED, Authority
from tests.fakes.servers.faces import FakeEngine

from placewise.v1.cluster_pb2 import ListClustersRequest
from placewise.v1.cluster_pb2_grpc import ClusterServiceStub
from placewise_core.basics.clock import SystemClock
from placewise_service.api.calls.gateway import Gateway
from placewise_service.api.faces.grpc_server import GrpcFace
from placewise_service.api.faces.rest_server import RestFace
from placewise_service.api.faces.tls import CertificateError, Certificates, grpc_credentials
from placewise_service.api.identity.auth import Open
from placewise_service.settings import LimitSettings, ServerSettings, TlsSettings
from placewise_service.telemetry import Telemetry


@asynccontextmanager
async def secured(settings: TlsSettings) -> AsyncIterator[tuple[int, int]]:
    """Both faces with these certificates: the ports of gRPC and REST."""
    gateway = Gateway(FakeEngine(), SystemClock(), LimitSettings(), Open(), Telemetry())
    server = ServerSettings(grpc_port=0, rest_port=0)
    certificates = Certificates(settings)
    grpc_face = GrpcFace(gateway, server, grpc_credentials(certificates, settings.client_ca_file is not None))
    rest_face = RestFace(gateway, server, certificates)
    await grpc_face.start()
    await rest_face.start()
    try:
        yield grpc_face.port, rest_face.port
    finally:
        await grpc_face.stop(0)
        await rest_face.stop()


def tls_settings(folder: Path, authority: Authority, name: str = "first", has_clients: bool = False) -> TlsSettings:
    cert, key = authority.write(folder, name)
    ca = folder / "clients.pem"
    ca.write_bytes(authority.pem)
    return TlsSettings(cert_file=cert, key_file=key, client_ca_file=ca if has_clients else None)


def peer_name(port: int, authority: Authority) -> str:
    """Common name of the certificate that a port shows. Blocking."""
    context = ssl.create_default_context(cadata=authority.pem.decode())
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as bare,
        context.wrap_socket(bare, server_hostname="localhost") as secure,
    ):
        der = secure.getpeercert(binary_form=True)
    assert der is not None
    return str(x509.load_der_x509_certificate(der).subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


async def list_clusters(
    port: int, authority: Authority, client: tuple[bytes, bytes] | None = None, host: str = "localhost"
) -> None:
    cert, key = client or (None, None)
    credentials = grpc.ssl_channel_credentials(authority.pem, key, cert)
    async with grpc.aio.secure_channel(f"{host}:{port}", credentials) as channel:
        await ClusterServiceStub(channel).ListClusters(ListClustersRequest(), timeout=10)


async def test_both_faces_follow_the_certificate_files(tmp_path: Path) -> None:
    authority = Authority("test")
    async with secured(tls_settings(tmp_path, authority)) as (grpc_port, rest_port):
        await list_clusters(grpc_port, authority)
        for port in (grpc_port, rest_port):
            assert await asyncio.to_thread(peer_name, port, authority) == "first"
        authority.write(tmp_path, "second")
        for port in (grpc_port, rest_port):
            assert await asyncio.to_thread(peer_name, port, authority) == "second"
        (tmp_path / "server.pem").write_bytes(b"half-written")
        for port in (grpc_port, rest_port):
            assert await asyncio.to_thread(peer_name, port, authority) == "second"


async def test_client_certificates_are_demanded_by_both_faces(tmp_path: Path) -> None:
    authority, stranger = Authority("test"), Authority("stranger")
    async with secured(tls_settings(tmp_path, authority, has_clients=True)) as (grpc_port, rest_port):
        await list_clusters(grpc_port, authority, authority.issue("client"))
        refused = (None, stranger.issue("client"), authority.issue("client", end=EXPIRED))
        for client in refused:
            with pytest.raises(grpc.aio.AioRpcError):
                await list_clusters(grpc_port, authority, client)
        assert await get_healthz(rest_port, authority, tmp_path, authority.issue("client")) == b"HTTP/1.1 200 OK"
        for client in refused:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await get_healthz(rest_port, authority, tmp_path, client)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])  # an address sends no server name to switch by
async def test_both_faces_follow_the_authority_of_clients(tmp_path: Path, host: str) -> None:
    servers, before, after = Authority("servers"), Authority("before"), Authority("after")
    settings = tls_settings(tmp_path, servers, has_clients=True)
    assert settings.client_ca_file is not None
    settings.client_ca_file.write_bytes(before.pem)
    async with secured(settings) as (grpc_port, rest_port):
        for accepted, refused in ((before, after), (after, before)):
            settings.client_ca_file.write_bytes(accepted.pem)
            await list_clusters(grpc_port, servers, accepted.issue("client"), host)
            assert await get_healthz(rest_port, servers, tmp_path, accepted.issue("client"), host)
            with pytest.raises(grpc.aio.AioRpcError):
                await list_clusters(grpc_port, servers, refused.issue("client"), host)
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await get_healthz(rest_port, servers, tmp_path, refused.issue("client"), host)


async def get_healthz(
    port: int, authority: Authority, folder: Path, client: tuple[bytes, bytes] | None, host: str = "localhost"
) -> bytes:
    context = ssl.create_default_context(cadata=authority.pem.decode())
    if client is not None:
        (folder / "client.pem").write_bytes(client[0] + client[1])
        context.load_cert_chain(folder / "client.pem")
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    line = await reader.readline()
    writer.close()
    if not line:
        raise ConnectionError("closed by the server")
    return line.strip()


def test_a_key_of_another_certificate_is_refused_at_start(tmp_path: Path) -> None:
    authority = Authority("test")
    settings = tls_settings(tmp_path, authority)
    (tmp_path / "server.key").write_bytes(authority.issue("other")[1])
    with pytest.raises(CertificateError):
        Certificates(settings)
