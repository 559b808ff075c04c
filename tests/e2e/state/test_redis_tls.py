"""TLS and an ACL user. The shipped redis-server is built without TLS, so a terminator stands in front of a real one,
as stunnel or a sidecar does in deployments; the handshake, the checks and the login are the store's own."""

import asyncio
import contextlib
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.fakes.servers.redis_server import RedisServer
from tests.fakes.state import CLUSTER, job, node, position, records, tailed

from placewise_core.domain.errors import StateUnavailableError
from placewise_service.state.redis.connection import RedisOptions
from placewise_service.state.redis.redis_store import RedisStore
from placewise_service.state.store import Repeated, Reserved, ReserveRequest

pytestmark = pytest.mark.e2e

USER, PASSWORD = "placewise", "s3cret/with?odd#signs"
QUOTED = "s3cret%2Fwith%3Fodd%23signs"
# What docs/state.md tells operators to grant, and nothing else.
GRANTS = ["~pw:*", "+@read", "+@write", "+@scripting", "+@connection", "+time", "-@dangerous"]


class Authority:
    """A certificate authority that lives for one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        self.file = folder / "ca.pem"
        self.file.write_bytes(self._sign(self.name, self.key, is_authority=True))

    def _sign(self, name: x509.Name, key: ec.EllipticCurvePrivateKey, is_authority: bool = False) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        )
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str) -> tuple[Path, Path]:
        """Certificate and key files."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate, secret = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        certificate.write_bytes(self._sign(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key))
        secret.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return certificate, secret


@contextlib.asynccontextmanager
async def terminator(authority: Authority, target_port: int) -> AsyncIterator[int]:
    """Ends TLS, asks for a client certificate, and passes the rest on. Gives its port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.file)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(*authority.issue("server"))

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", target_port)
        await asyncio.gather(copy(reader, back), copy(there, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()


@pytest.fixture
def server() -> Iterator[RedisServer]:
    made = RedisServer().start()
    with contextlib.closing(made.client()) as raw:
        raw.execute_command("ACL", "SETUSER", USER, "on", f">{PASSWORD}", "resetkeys", *GRANTS)
        raw.execute_command("ACL", "SETUSER", "reader", "on", f">{PASSWORD}", "~pw:*", "+@read", "+@connection")
        raw.execute_command("ACL", "SETUSER", "default", "off")
    yield made
    made.stop()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def use(options: RedisOptions) -> None:
    """Everything the service does, once."""
    store = RedisStore(options)
    try:
        await store.report_nodes(CLUSTER, [node()], full=True)
        place = await position(store)
        assert isinstance(await store.reserve(CLUSTER, ReserveRequest((job("a"),), 60.0)), Reserved)
        _, events = await anext(tailed(store, CLUSTER, place))
        assert [event.version for event in events] == [2]
        assert [held.id for held in (await records(store)).jobs] == ["a"]
        await store.append_decisions(CLUSTER, [b"r"])
        assert [record for _, record in await store.read_decisions(CLUSTER, "0", 9)] == [b"r"]
        assert await store.remember(CLUSTER, "q", b"a") == Repeated(b"a")
        assert list(await store.clusters()) == [CLUSTER]
        assert await store.delete_cluster(CLUSTER)
    finally:
        await store.close()


async def failure(options: RedisOptions) -> StateUnavailableError:
    store = RedisStore(options)
    try:
        with pytest.raises(StateUnavailableError) as caught:
            await store.report_nodes(CLUSTER, [node()], full=True)
        return caught.value
    finally:
        await store.close()


async def test_mutual_tls_with_an_acl_user(server: RedisServer, authority: Authority) -> None:
    certificate, key = authority.issue("client")
    async with terminator(authority, server.port) as port:
        url = f"rediss://{USER}:{QUOTED}@127.0.0.1:{port}/0"
        options = RedisOptions(url, ca_file=authority.file, cert_file=certificate, key_file=key)
        await use(options)
        no_certificate = await failure(replace(options, cert_file=None, key_file=None))
        strangers = await failure(replace(options, ca_file=None))
    for error in (no_certificate, strangers):
        assert "127.0.0.1" not in str(error)


async def test_an_acl_user_without_tls(server: RedisServer) -> None:
    await use(RedisOptions(f"redis://{USER}:{QUOTED}@127.0.0.1:{server.port}/0"))


@pytest.mark.parametrize(
    ("credentials", "words"),
    [
        (f"{USER}:wrong-{QUOTED}@", "refused the credentials"),
        ("", "refused"),
        (f"reader:{QUOTED}@", "may not do this"),
    ],
)
async def test_refusals_name_the_cause_and_no_secret(server: RedisServer, credentials: str, words: str) -> None:
    error = await failure(RedisOptions(f"redis://{credentials}127.0.0.1:{server.port}/0"))
    assert words in error.message
    shown = f"{error!r} {error.message} {error.metadata} {error.__cause__!r}"
    for secret in (PASSWORD, QUOTED, str(server.port), "wrong"):
        assert secret not in shown
