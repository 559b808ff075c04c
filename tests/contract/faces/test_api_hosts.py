"""By which names an open service may be asked: on sockets, with the addresses and names that callers really use."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import yaml
from tests.fakes.callers.identity import by_tokens
from tests.fakes.callers.tls import Authority
from tests.fakes.cluster import make_node
from tests.fakes.servers.faces import FakeEngine

from placewise.v1.cluster_pb2 import GetClusterRequest
from placewise_client.aio import AsyncClient
from placewise_client.errors import PermissionDeniedError
from placewise_client.http1 import HttpPool
from placewise_core.basics.clock import SystemClock
from placewise_service.api.calls.gateway import Gateway
from placewise_service.api.faces.grpc_server import GrpcFace
from placewise_service.api.faces.pages import allowed_hosts
from placewise_service.api.faces.rest_server import RestFace
from placewise_service.api.faces.tls import Certificates
from placewise_service.api.identity.auth import AccessScope, Authenticator, Open
from placewise_service.api.identity.token_changes import create_token
from placewise_service.settings import LimitSettings, ServerSettings, TlsSettings
from placewise_service.telemetry import Telemetry

COMPOSE = Path(__file__).parent.parent.parent.parent / "docker-compose.yml"
CLUSTER = "/v1/clusters/prod"
CONNECT = "/placewise.v1.ClusterService/DeleteCluster"


@asynccontextmanager
async def compose(
    authenticator: Authenticator | None = None, names: str = "", certificates: Certificates | None = None
) -> AsyncIterator[tuple[int, int, FakeEngine]]:
    """Both faces as compose has them, on every address of the machine: ports of gRPC and REST."""
    engine = FakeEngine()
    await engine.report_nodes("prod", [make_node("n0")], full=True)
    gateway = Gateway(engine, SystemClock(), LimitSettings(), authenticator or Open(), Telemetry())
    settings = ServerSettings(
        grpc_host="0.0.0.0", rest_host="0.0.0.0", grpc_port=0, rest_port=0, allowed_hosts=names, insecure=True
    )  # fmt: skip
    grpc_face, rest_face = GrpcFace(gateway, settings), RestFace(gateway, settings, certificates)
    await grpc_face.start()
    await rest_face.start()
    try:
        yield grpc_face.port, rest_face.port, engine
    finally:
        await grpc_face.stop(0)
        await rest_face.stop()


async def statuses(port: int, host: str) -> dict[str, int]:
    """The answer of each kind of path to a request by `host`."""
    found = {}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers={"host": host}) as http:
        for path in (CLUSTER, "/", "/page/page.js", "/openapi.json", "/metrics", "/healthz", "/readyz"):
            found[path] = (await http.get(path)).status_code
        json = {"content-type": "application/json"}
        found[CONNECT] = (await http.post(CONNECT, content=b'{"cluster":"none"}', headers=json)).status_code
    return found


OPEN_TO_PROBES = {"/metrics": 200, "/healthz": 200, "/readyz": 200}
REFUSED = {CLUSTER: 403, "/": 403, "/page/page.js": 403, "/openapi.json": 403, CONNECT: 403, **OPEN_TO_PROBES}
ANSWERED = {CLUSTER: 200, "/": 200, "/page/page.js": 200, "/openapi.json": 200, CONNECT: 404, **OPEN_TO_PROBES}


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1:8080", ANSWERED),
        ("localhost", ANSWERED),
        ("LOCALHOST.:8080", ANSWERED),
        ("[::1]:8080", ANSWERED),
        ("placewise-1:8080", ANSWERED),
        ("a.placewise.example", ANSWERED),
        ("evil.example:8080", REFUSED),
        ("localhost.evil.example", REFUSED),
        ("evil.example@localhost", REFUSED),
        ("10.0.0.7:8080", REFUSED),  # a probe and a scraper ask by address, a caller by name
        ("b.a.placewise.example", REFUSED),
        ("", REFUSED),
    ],
)
async def test_an_open_service_answers_the_names_it_knows_and_probes_by_any(
    host: str, expected: dict[str, int]
) -> None:
    async with compose(names="placewise-1, Placewise-2,*.placewise.example") as (_, port, _engine):
        assert await statuses(port, host) == expected


async def test_a_page_whose_name_was_pointed_here_deletes_nothing() -> None:
    async with compose() as (_, port, engine), httpx.AsyncClient() as http:
        headers = {"host": f"evil.example:{port}", "origin": f"http://evil.example:{port}"}
        answer = await http.delete(f"http://127.0.0.1:{port}{CLUSTER}", headers=headers)
    assert (answer.status_code, list(engine.views)) == (403, ["prod"])
    assert "PLACEWISE_SERVER__ALLOWED_HOSTS" in answer.json()["detail"]


async def test_where_a_token_is_demanded_any_name_will_do(tmp_path: Path) -> None:
    """No page has the token."""
    token = create_token(tmp_path / "t", "reader", [AccessScope.READ])
    async with compose(by_tokens(tmp_path / "t")) as (_, port, _engine), httpx.AsyncClient() as http:
        headers = {"host": "placewise.example", "authorization": f"Bearer {token}"}
        assert (await http.get(f"http://127.0.0.1:{port}{CLUSTER}", headers=headers)).status_code == 200


async def test_names_of_the_servers_certificate_are_its_own(tmp_path: Path) -> None:
    cert, key = Authority("test").write(tmp_path, "server")
    names = Certificates(TlsSettings(cert_file=cert, key_file=key)).names()
    assert "localhost" in names
    assert names <= allowed_hosts("0.0.0.0", frozenset(), names)


def test_the_address_that_it_is_bound_to_is_its_own() -> None:
    assert "10.0.0.7" in allowed_hosts("10.0.0.7", frozenset(), frozenset())
    assert allowed_hosts("0.0.0.0", frozenset(), frozenset()) == {"localhost", "127.0.0.1", "::1"}


def test_compose_allows_the_names_of_all_its_replicas() -> None:
    document = yaml.safe_load(COMPOSE.read_text())
    template = document["x-replica"]
    replicas = {name for name, service in document["services"].items() if template.items() <= service.items()}
    allowed = re.fullmatch(r"\$\{ALLOWED_HOSTS:-(.*)\}", template["environment"]["PLACEWISE_SERVER__ALLOWED_HOSTS"])
    assert allowed is not None
    assert len(replicas) > 1
    assert set(allowed[1].split(",")) == replicas


# -- The SDK, as adapters use it ---------------------------------------------------------------------------------------


@asynccontextmanager
async def by_socket(path: Path, port: int) -> AsyncIterator[None]:
    """A proxy from a unix socket to a port of this machine, as sidecars have one."""

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
        writer.close()

    async def on_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(forward(reader, there_writer), forward(there_reader, writer))

    server = await asyncio.start_unix_server(on_client, path)
    try:
        yield
    finally:
        server.close()


async def test_a_call_through_a_unix_socket_is_by_a_name_of_this_machine(tmp_path: Path) -> None:
    """With the SDK's HTTP, which names no host then. Its `Target` takes a unix socket for gRPC alone."""
    path, json = tmp_path / "s", {"Content-Type": "application/json"}
    asked = ("POST", "/placewise.v1.ClusterService/GetCluster", json, b'{"cluster":"prod"}')
    async with compose() as (_, rest_port, _engine), by_socket(path, rest_port):
        pool = HttpPool(f"unix:{path}")
        assert [(await pool.request(*each)).status for each in (asked, ("GET", CLUSTER, {}, None))] == [200, 200]
        await pool.close()
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path))) as http:
            assert (await http.get(f"http://localhost{CLUSTER}")).status_code == 200
            assert (await http.get(f"http://evil.example{CLUSTER}")).status_code == 403


async def test_the_sdk_asks_by_grpc_through_a_unix_socket(tmp_path: Path) -> None:
    """gRPC is out of a page's reach and looks at no name."""
    async with (
        compose() as (grpc_port, _, _engine),
        by_socket(tmp_path / "s", grpc_port),
        AsyncClient(f"unix:{tmp_path / 's'}") as client,
    ):
        assert (await client.get_cluster(GetClusterRequest(cluster="prod"))).cluster == "prod"


async def test_an_adapter_asks_by_the_services_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a name that resolves to the service, as one of compose or of Kubernetes does."""
    loop = asyncio.get_running_loop()
    resolve = loop.getaddrinfo

    async def getaddrinfo(host: str, *args: object, **kwargs: object) -> object:
        return await resolve("127.0.0.1" if host in ("placewise-1", "stranger") else host, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    async with compose(names="placewise-1") as (_, port, _engine):
        async with AsyncClient(f"http://placewise-1:{port}") as client:
            assert (await client.get_cluster(GetClusterRequest(cluster="prod"))).cluster == "prod"
        async with AsyncClient(f"http://stranger:{port}") as client:
            with pytest.raises(PermissionDeniedError, match="PLACEWISE_SERVER__ALLOWED_HOSTS"):
                await client.get_cluster(GetClusterRequest(cluster="prod"))
