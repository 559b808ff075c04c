"""The asyncio client over HTTP: every call, several replicas, and answers that are not the service's."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from tests.contract.sdk.test_sdk_clients import NODES, question
from tests.fakes.callers.tls import EXPIRED, Authority
from tests.fakes.cluster import make_node
from tests.fakes.servers.faces import DECISION_ID, FakeEngine
from tests.fakes.servers.oracle import SmallService
from tests.fakes.servers.oracle_http import OracleHttpServer

from placewise.v1 import cluster_pb2
from placewise_client import AsyncClient, Client, Target, TargetError, Tls
from placewise_client.connect import ConnectTransport
from placewise_client.errors import (
    DeadlineExceededError,
    InternalError,
    OverloadedError,
    PermissionDeniedError,
    PlacewiseError,
    StateUnavailableError,
    UnauthenticatedError,
)
from placewise_client.rpcs import Rpc, Rpcs
from placewise_core.basics.clock import Clock, ManualClock, SystemClock
from placewise_service.api.calls.gateway import Gateway
from placewise_service.api.docs.routes import ROUTES
from placewise_service.api.faces.grpc_server import GrpcFace
from placewise_service.api.faces.rest_server import RestFace
from placewise_service.api.faces.tls import Certificates
from placewise_service.api.identity.auth import Open
from placewise_service.settings import LimitSettings, ServerSettings, TlsSettings
from placewise_service.telemetry import Telemetry

LIST = cluster_pb2.ListClustersRequest()


async def fake_gateway(clock: Clock | None = None) -> Gateway:
    engine = FakeEngine()
    await engine.report_nodes("prod", [make_node("n0")], full=True)
    return Gateway(engine, clock or SystemClock(), LimitSettings(), Open(), Telemetry())


# -- Every call --------------------------------------------------------------------------------------------------------


def requests() -> dict[str, Any]:
    """One sensible question for each call of `Rpcs`."""
    examples = {route.rpc.name: (route, dict(route.example)) for route in ROUTES}
    found = {}
    for name, rpc in vars(Rpcs).items():
        if not isinstance(rpc, Rpc):
            continue
        route, example = examples[rpc.path.rpartition("/")[2]]
        document = {route.body: example} if route.body not in ("", "*") else example
        found[name] = json_format.ParseDict(document, rpc.request())
        for field, value in (("cluster", "prod"), ("name", "other"), ("decision_id", DECISION_ID)):
            if field in rpc.request.DESCRIPTOR.fields_by_name:
                setattr(found[name], field, value)
    return found


async def asked(call: Callable[[str, Any], Any]) -> dict[str, Any]:
    """The answer to each, or the error; forgetting the cluster comes last."""
    answers = {}
    for name, request in sorted(requests().items(), key=lambda item: item[0] == "delete_cluster"):
        try:
            answers[name] = await call(name, request)
        except PlacewiseError as error:
            answers[name] = (type(error), error.reason, error.message, error.metadata)
    return answers


@asynccontextmanager
async def both_faces() -> AsyncIterator[tuple[str, str]]:
    """The addresses of gRPC and REST around one engine."""
    gateway, settings = await fake_gateway(ManualClock(1e6)), ServerSettings(grpc_port=0, rest_port=0)
    grpc_face, rest_face = GrpcFace(gateway, settings), RestFace(gateway, settings)
    await grpc_face.start()
    await rest_face.start()
    yield f"127.0.0.1:{grpc_face.port}", f"http://127.0.0.1:{rest_face.port}"
    await grpc_face.stop(0)
    await rest_face.stop()


async def test_every_call_has_one_answer_whatever_carries_it() -> None:
    async with both_faces() as (by_grpc, _):
        with Client(by_grpc) as blocking:
            wanted = await asked(lambda name, request: asyncio.to_thread(getattr(blocking, name), request))
    assert len(wanted) == len(ROUTES)
    assert wanted["place"].decisions[0].job_id == "job-1"
    assert [name for name, answer in wanted.items() if isinstance(answer, tuple)] == []
    for position in (0, 1):
        async with both_faces() as addresses, AsyncClient(addresses[position]) as client:
            assert await asked(lambda name, request: getattr(client, name)(request)) == wanted


async def test_an_answer_of_many_reads_comes_whole() -> None:
    gateway = await fake_gateway()
    face = RestFace(gateway, ServerSettings(rest_port=0))
    await face.start()
    nodes = [make_node(f"node-{i:05}") for i in range(5000)]
    await gateway.engine.report_nodes("prod", nodes, full=True)
    async with AsyncClient(f"http://127.0.0.1:{face.port}") as client:
        whole = await client.get_cluster(cluster_pb2.GetClusterRequest(cluster="prod", full=True))
        again = await client.report_nodes(
            cluster_pb2.ReportNodesRequest(cluster="prod", nodes=whole.nodes, full=True), timeout_s=30.0
        )
    await face.stop()
    assert whole.ByteSize() > 1 << 17
    assert len(whole.nodes) == again.nodes == 5000


# -- Replicas ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def oracles(count: int) -> AsyncIterator[list[OracleHttpServer]]:
    servers = [await OracleHttpServer(SmallService()).start() for _ in range(count)]
    for server in servers:
        server.oracle.report_nodes(NODES)
    yield servers
    for server in servers:
        await server.stop()


def counts(servers: list[OracleHttpServer]) -> list[int]:
    found = [len(server.oracle.calls) for server in servers]
    for server in servers:
        server.oracle.calls.clear()
    return found


async def test_calls_go_round_past_those_that_are_down_and_to_them_again_when_they_are_back() -> None:
    async with oracles(3) as servers:
        now_s = 0.0
        target = Target.of([server.target for server in servers])
        transport = ConnectTransport(target, clock=lambda: now_s)
        place = transport.unary(Rpcs.place)

        async def ask(times: int) -> None:
            for _ in range(times):
                await place(question(), 10.0)

        await ask(9)
        assert counts(servers) == [3, 3, 3]
        await servers[1].stop()
        await ask(9)
        assert counts(servers)[1] == 0
        await servers[1].start()
        await ask(9)
        assert counts(servers)[1] == 0, "it is left out for a moment"
        now_s = 1.5
        await ask(9)
        assert counts(servers) == [3, 3, 3]
        for server in servers:
            await server.stop()
        with pytest.raises(StateUnavailableError, match=r"127\.0\.0\.1:"):
            await ask(1)
        for server in servers:
            await server.start()
        await ask(1)
        assert sum(counts(servers)) == 1, "all of them away is no reason not to try"
        await transport.close()


async def test_a_replica_that_says_nothing_costs_one_call() -> None:
    """As a machine that is off: neither an answer nor a refusal."""
    stuck: list[asyncio.StreamWriter] = []
    async with (
        await asyncio.start_server(lambda _, writer: stuck.append(writer), "127.0.0.1", 0) as silent,
        oracles(1) as servers,
    ):
        address = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        async with AsyncClient([servers[0].target, address]) as client:
            late = 0
            for _ in range(6):
                try:
                    await client.place(question(), timeout_s=0.2, retry=None)
                except DeadlineExceededError:
                    late += 1
        assert (late, len(servers[0].oracle.calls)) == (1, 5)
        for writer in stuck:
            writer.close()


async def test_one_that_goes_on_saying_nothing_is_asked_ever_more_rarely() -> None:
    stuck: list[asyncio.StreamWriter] = []
    now_s = 0.0
    async with (
        await asyncio.start_server(lambda _, writer: stuck.append(writer), "127.0.0.1", 0) as silent,
        oracles(1) as servers,
    ):
        addresses = (servers[0].target, f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}")
        transport = ConnectTransport(Target(addresses), clock=lambda: now_s)
        place = transport.unary(Rpcs.place)
        late_at_s = []
        for now_s in (float(second) for second in range(60)):
            for _ in addresses:  # each in its turn
                try:
                    await place(question(), 0.5)
                except DeadlineExceededError:
                    late_at_s.append(now_s)
        assert late_at_s == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 47.0]
        await transport.close()
        for writer in stuck:
            writer.close()


async def test_one_that_is_shutting_down_is_left_out() -> None:
    async with oracles(2) as servers:
        servers[1].oracle.fail_always = StateUnavailableError("shutting down")
        transport = ConnectTransport(Target([server.target for server in servers]), clock=lambda: 0.0)
        place = transport.unary(Rpcs.place)
        refused = 0
        for _ in range(6):
            try:
                await place(question(), 10.0)
            except StateUnavailableError:
                refused += 1
        assert (refused, counts(servers)) == (1, [5, 1])
        await transport.close()


async def test_a_connection_that_breaks_is_tried_again_by_the_retry_alone() -> None:
    """A request that was sent may have been carried out: without a retry the caller gets an error."""

    async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    async with await asyncio.start_server(drop, "127.0.0.1", 0) as dropping, oracles(1) as servers:
        address = f"http://127.0.0.1:{dropping.sockets[0].getsockname()[1]}"
        async with AsyncClient([servers[0].target, address]) as client:
            with pytest.raises(StateUnavailableError, match="/placewise"):
                await client.place(question(), retry=None)
            assert servers[0].oracle.calls == []
            await client.place(question(), retry=None)
            await client.place(question())
        assert len(servers[0].oracle.calls) == 2


async def test_a_client_that_goes_leaves_a_call_to_its_own() -> None:
    async with oracles(1) as [server]:
        server.oracle.blocked = asyncio.Event()
        async with AsyncClient(server.target) as client:
            calls = [asyncio.create_task(client.place(question())) for _ in range(3)]
            while len(server.oracle.calls) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            calls[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await calls[0]
            server.oracle.blocked.set()
            await asyncio.gather(*calls[1:])


@pytest.mark.parametrize("timeout_s", [math.inf, 1e9])
async def test_a_call_may_have_all_the_time_there_is(timeout_s: float) -> None:
    async with oracles(1) as [server], AsyncClient(server.target) as client:
        assert (await client.place(question(), timeout_s=timeout_s)).decisions


async def test_no_time_at_all_is_a_deadline_passed() -> None:
    async with oracles(1) as [server], AsyncClient(server.target) as client:
        with pytest.raises(DeadlineExceededError):
            await client.place(question(), timeout_s=0.0)


# -- Not the service ---------------------------------------------------------------------------------------------------

HTML = "<html><body>502 Bad Gateway</body></html>"


@asynccontextmanager
async def proxy(status: int, body: bytes, headers: str = "") -> AsyncIterator[str]:
    """The address of a server that gives this answer to every request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lengths = [int(line[16:]) for line in head.split("\r\n") if line.startswith("Content-Length: ")]
                await reader.readexactly(sum(lengths))
                lines = f"HTTP/1.1 {status} Whatever\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
                writer.write(lines.encode() + body)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (301, InternalError),
        (400, InternalError),
        (401, UnauthenticatedError),
        (403, PermissionDeniedError),
        (404, InternalError),
        (405, InternalError),
        (413, InternalError),
        (429, StateUnavailableError),
        (500, InternalError),
        (502, StateUnavailableError),
        (503, StateUnavailableError),
        (504, StateUnavailableError),
    ],
)
@pytest.mark.parametrize("body", ["", HTML, '{"title": "Not found", "status": 404}'])
async def test_what_a_proxy_says_goes_by_its_status(status: int, kind: type[PlacewiseError], body: str) -> None:
    async with proxy(status, body.encode()) as address, AsyncClient(address) as client:
        with pytest.raises(PlacewiseError, match=f"HTTP status {status} without an error of the service") as caught:
            await client.list_clusters(LIST, retry=None)
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        ('{"code": "resource_exhausted"}', OverloadedError, "RESOURCE_EXHAUSTED"),
        ('{"code": "unavailable", "message": "later"}', StateUnavailableError, "later"),
        ('{"code": "canceled", "message": "m"}', InternalError, "m"),
        ('{"code": "unavailable", "message": 7}', StateUnavailableError, "7"),
        ('{"code": "unavailable", "message": "m", "details": []}', StateUnavailableError, "m"),
        (
            '{"code": "unavailable", "message": "m", "details": [{"type": "google.rpc.ErrorInfo", "value": "!"}]}',
            StateUnavailableError,
            "m",
        ),
        (
            '{"code": "unavailable", "message": "m", "details": [{"type": "google.rpc.ErrorInfo", "value": "é"}]}',
            StateUnavailableError,
            "m",
        ),
        (
            '{"code": "unavailable", "message": "m", "details": [{"type": "of.another", "value": "AAAA"}]}',
            StateUnavailableError,
            "m",
        ),
    ],
)
async def test_an_error_is_read_as_far_as_it_can_be(body: str, kind: type[PlacewiseError], message: str) -> None:
    async with proxy(500, body.encode()) as address, AsyncClient(address) as client:
        with pytest.raises(kind) as caught:
            await client.list_clusters(LIST, retry=None)
    assert caught.value.message == message


@pytest.mark.parametrize(
    "body",
    ["[]", "7", "null", '{"code": 5}', '{"code": []}', '{"code": "nonsense"}', "[" * 100_000, "\x00", '{"code": "ok"']
    + [f'{{"code": "unavailable", "details": {details}}}' for details in ("null", "5", "[5]", "[{}]")],
)
async def test_an_error_that_cannot_be_read_goes_by_its_status(body: str) -> None:
    async with proxy(503, body.encode()) as address, AsyncClient(address) as client:
        with pytest.raises(StateUnavailableError, match="HTTP status 503"):
            await client.list_clusters(LIST, retry=None)


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (HTML.encode(), "Content-Type: text/html\r\n"),
        (b"", ""),
        (b"{}", "Content-Type: application/json\r\n"),
        (b"\xff\xff\xff", "Content-Type: application/proto\r\n"),
    ],
)
async def test_what_is_no_answer_is_an_internal_error(body: bytes, headers: str) -> None:
    async with proxy(200, body, headers) as address, AsyncClient(address) as client:
        with pytest.raises(InternalError, match="/ListClusters: the answer"):
            await client.list_clusters(LIST, retry=None)


async def test_no_http_at_all_is_unavailable() -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        address = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        async with AsyncClient(address) as client:
            with pytest.raises(StateUnavailableError):
                await client.list_clusters(LIST, retry=None)


@pytest.mark.parametrize("carrier", ["http://", ""])
async def test_a_token_that_cannot_be_read_just_now_is_an_error_of_the_call(carrier: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    async with AsyncClient(Target((f"{carrier}127.0.0.1:1",), token=token.read_text)) as client:
        with pytest.raises(StateUnavailableError, match="No such file"):
            await client.place(question(), retry=None)


async def test_streams_are_for_grpc() -> None:
    async with AsyncClient("http://127.0.0.1:1") as client:
        with pytest.raises(TargetError, match="host:port instead of http://host:port"):
            await anext(client.stream_place([question()]))


# -- TLS ---------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def secured(folder: Path, authority: Authority, clients: Authority | None = None) -> AsyncIterator[str]:
    cert, key = authority.write(folder, "server")
    ca = folder / "clients.pem"
    if clients is not None:
        ca.write_bytes(clients.pem)
    settings = TlsSettings(cert_file=cert, key_file=key, client_ca_file=ca if clients else None)
    face = RestFace(await fake_gateway(), ServerSettings(rest_port=0), Certificates(settings))
    await face.start()
    try:
        yield f"https://localhost:{face.port}"
    finally:
        await face.stop()


def root(folder: Path, authority: Authority) -> Path:
    path = folder / f"{authority.name}.pem"
    path.write_bytes(authority.pem)
    return path


async def test_https_asks_only_whom_it_trusts(tmp_path: Path) -> None:
    authority, stranger = Authority("known"), Authority("stranger")
    async with secured(tmp_path, authority) as address:
        async with AsyncClient(Target((address,), Tls(root(tmp_path, authority)), token="secret")) as client:
            for _ in range(2):
                assert list((await client.list_clusters(LIST)).clusters) == ["prod"]
        named = Tls(root(tmp_path, authority), server_name="elsewhere")
        for tls in (Tls(root(tmp_path, stranger)), None, named):
            async with AsyncClient(Target((address,), tls)) as client:
                with pytest.raises(StateUnavailableError, match="certificate verify failed"):
                    await client.list_clusters(LIST, retry=None)


async def test_client_certificates_over_https(tmp_path: Path) -> None:
    authority, clients = Authority("servers"), Authority("clients")
    async with secured(tmp_path, authority, clients) as address:
        numbers = itertools.count()

        def tls(pair: tuple[bytes, bytes] | None) -> Tls:
            if pair is None:
                return Tls(root(tmp_path, authority))
            chain, key = (tmp_path / f"{next(numbers)}" for _ in range(2))
            chain.write_bytes(pair[0])
            key.write_bytes(pair[1])
            return Tls(root(tmp_path, authority), chain, key)

        async with AsyncClient(Target((address,), tls(clients.issue("client")))) as client:
            assert (await client.list_clusters(LIST)).clusters
        for pair in (None, clients.issue("client", end=EXPIRED), authority.issue("client")):
            async with AsyncClient(Target((address,), tls(pair))) as client:
                with pytest.raises(StateUnavailableError):
                    await client.list_clusters(LIST, retry=None)


async def test_plain_text_to_a_port_that_wants_tls_is_unavailable(tmp_path: Path) -> None:
    async with secured(tmp_path, Authority("known")) as address, AsyncClient(address.replace("s:", ":")) as client:
        with pytest.raises(StateUnavailableError):
            await client.list_clusters(LIST, retry=None)
