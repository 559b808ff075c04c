"""The gRPC face on a socket: metadata, connections, handshakes and messages that never come are bounded."""

import asyncio
import contextlib
import gc
import socket
import ssl
import threading
import time
from ipaddress import IPv6Address
from pathlib import Path

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from tests.attack.flood import attack, grpc_call
from tests.fakes.callers.tls import Authority
from tests.fakes.servers.listening import Listening, listening

from placewise.v1.cluster_pb2 import ListClustersRequest
from placewise.v1.cluster_pb2_grpc import ClusterServiceStub
from placewise_log.audit import AuditRecord
from placewise_service.api.calls.call_audit import CallAudit
from placewise_service.api.calls.rpcs import RPCS
from placewise_service.api.faces.grpc_server import _Methods
from placewise_service.api.faces.tls import Certificates
from placewise_service.settings import LimitSettings, TlsSettings

NOW_S = 1_800_000_000.0
PLACE = "/placewise.v1.DecisionService/Place"


class Records(list[AuditRecord]):
    """The audit records so far."""

    def audit(self) -> CallAudit:
        return CallAudit(self.append, lambda: NOW_S)

    def at_the_door(self) -> list[str]:
        """Which limits turned somebody away on this port; each record tells from where."""
        assert all(each == AuditRecord(NOW_S, "grpc", each.result, peer=each.peer) for each in self)
        assert all(each.peer.startswith("127.0.0.1:") for each in self)
        return [each.result for each in self]


@pytest.fixture
def records() -> Records:
    return Records()


async def list_clusters(port: int, *metadata: tuple[str, str], host: str = "127.0.0.1") -> grpc.StatusCode:
    async with grpc.aio.insecure_channel(f"{host}:{port}") as channel:
        call = ClusterServiceStub(channel).ListClusters(ListClustersRequest(), metadata=metadata, timeout=10)
        return await call.code()


async def test_metadata_is_bounded(records: Records) -> None:
    async with listening(limits=LimitSettings(metadata_bytes=4096), audit=records.audit()) as at:
        assert await list_clusters(at.grpc_port, ("x-a", "a" * 3000)) is grpc.StatusCode.OK
        assert await list_clusters(at.grpc_port, ("x-a", "a" * 5000)) is grpc.StatusCode.INVALID_ARGUMENT
        assert 'placewise_refused_total{face="grpc",limit="header_bytes"} 1.0' in at.metrics()
        assert records.at_the_door() == ["header_bytes"]


async def all_it_answers(port: int, *parts: bytes, host: str = "127.0.0.1") -> bytes:
    """All that a client hears that sends the parts and acknowledges no settings, until it is cut off."""
    reader, writer = await asyncio.open_connection(host, port)
    answer = b""
    async with asyncio.timeout(20):
        with contextlib.suppress(ConnectionError):
            for part in parts:
                writer.write(part)
                await writer.drain()
            while data := await reader.read(1 << 16):
                answer += data
    writer.close()
    return answer


async def test_a_client_that_does_not_heed_the_limit_is_answered_and_cut_off(records: Records) -> None:
    async with listening(audit=records.audit()) as at:
        answer = await all_it_answers(at.grpc_port, grpc_call(fields=200))
        assert b"the metadata has more than 16384 bytes" in answer
        assert 'placewise_refused_total{face="grpc",limit="header_bytes"} 1.0' in at.metrics()
        assert 'limit="settings_time"' not in at.metrics(), "we cut it off, long before gRPC does"
        assert records.at_the_door() == ["header_bytes"]


async def test_a_stranger_whose_headers_do_not_end_is_cut_off(records: Records) -> None:
    async with listening(audit=records.audit()) as at:
        endless = attack("grpc", "headers")[: 1 << 19]
        await all_it_answers(at.grpc_port, endless)
        assert 'placewise_refused_total{face="grpc",limit="header_bytes"} 1.0' in at.metrics()
        assert records.at_the_door() == ["header_bytes"]


async def test_a_megabyte_of_metadata_of_a_stranger_is_never_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made into objects, it would hold the loop for 10 ms. Nobody waits for the answer of a call whose client left."""
    unpacked: list[int] = []
    find = _Methods.service

    def service(methods: _Methods, details: grpc.HandlerCallDetails) -> object:
        unpacked.append(len(details.invocation_metadata))
        return find(methods, details)

    monkeypatch.setattr(_Methods, "service", service)
    async with listening() as at:
        for waits in (False, True):
            await asyncio.gather(*(stranger(at.grpc_port, attack("grpc", "headers"), waits) for _ in range(8)))
        assert await list_clusters(at.grpc_port) is grpc.StatusCode.OK
    assert max(unpacked) < 100


async def stranger(port: int, content: bytes, waits: bool) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionError):
        writer.write(content)
        await writer.drain()
        await reader.read(-1 if waits else 1)
    writer.close()


@pytest.mark.parametrize("host", ["::", "0.0.0.0"])
async def test_a_first_call_is_known_by_any_address_of_its_client(host: str) -> None:
    async with listening(host=host) as at:
        hosts = ["127.0.0.1", "[::1]"] if host == "::" else ["127.0.0.1"]
        for each in hosts:
            assert await list_clusters(at.grpc_port, host=each) is grpc.StatusCode.OK


async def test_a_client_that_acknowledges_no_settings_is_counted(records: Records) -> None:
    async with listening(audit=records.audit()) as at:
        await all_it_answers(at.grpc_port, grpc_call(fields=0)[:33])
        await counted(at, "settings_time")
        assert records.at_the_door() == ["settings_time"]


async def counted(at: Listening, limit: str, times: int = 1) -> None:
    async with asyncio.timeout(10):
        while f'placewise_refused_total{{face="grpc",limit="{limit}"}} {times}.0' not in at.metrics():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_who_has_been_authorised_may_go_on() -> None:
    async with listening() as at, grpc.aio.insecure_channel(f"127.0.0.1:{at.grpc_port}") as channel:
        stub, metadata = ClusterServiceStub(channel), (("x-a", "a" * 8000),)
        for i in range(100):
            await stub.ListClusters(ListClustersRequest(), metadata=(("x-b", f"{i:04}" * 1000), *metadata), timeout=10)
        assert 'limit="header_bytes"' not in at.metrics()
        assert channel.get_state() is grpc.ChannelConnectivity.READY


def link_local() -> str:
    """An address of this machine that holds on one link alone, as fe80::1%eth0; "" for none."""
    table = Path("/proc/net/if_inet6")
    for line in table.read_text().splitlines() if table.exists() else ():
        digits, _, _, scope, _, name = line.split()
        if scope == "20":
            return f"{IPv6Address(bytes.fromhex(digits))}%{name}"
    return ""


@pytest.mark.skipif(not link_local(), reason="no interface has a link-local address")
async def test_a_caller_by_a_link_local_address_is_known_and_a_stranger_is_cut_off(records: Records) -> None:
    host, metadata = f"[{link_local()}]", (("x-a", "a" * 8000),)
    async with listening(audit=records.audit(), host="::") as at:
        async with grpc.aio.insecure_channel(f"{host}:{at.grpc_port}") as channel:
            stub = ClusterServiceStub(channel)
            for i in range(100):
                more = (("x-b", f"{i:04}" * 1000), *metadata)
                await stub.ListClusters(ListClustersRequest(), metadata=more, timeout=10)
        assert 'limit="header_bytes"' not in at.metrics()
        await all_it_answers(at.grpc_port, attack("grpc", "headers")[: 1 << 19], host=host.strip("[]"))
        assert 'placewise_refused_total{face="grpc",limit="header_bytes"} 1.0' in at.metrics()
        assert [each.result for each in records] == ["header_bytes"]
        assert records[0].peer.startswith("%5Bfe80:")


async def test_a_message_that_grpc_refuses_by_its_length_is_on_record_as_a_call_without_one(records: Records) -> None:
    """gRPC reads the length before the message, answers, and tells the service only that the call has ended."""
    async with listening(limits=LimitSettings(message_bytes=1024), audit=records.audit()) as at:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{at.grpc_port}") as channel:
            call = channel.unary_unary(PLACE)(bytes(4096), timeout=10)
            assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        async with asyncio.timeout(10):
            while at.gateway.in_flight:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        at.gateway.telemetry.afterwards.run()
        assert [(each.call, each.result) for each in records] == [("Place", "INVALID_REQUEST")]
        assert 'placewise_rpc_seconds_count{code="INVALID_REQUEST",rpc="Place"} 1.0' in at.metrics()
        assert 'limit="message_bytes"' not in at.metrics()


async def test_a_large_first_call_that_has_to_wait_for_a_busy_loop_is_answered() -> None:
    """A look comes due while the call does: the bytes sent meanwhile are no reason to cut it off."""

    def ask(port: int) -> grpc.StatusCode:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            answer: grpc.StatusCode = channel.unary_unary(PLACE).future(bytes(1 << 21), timeout=20).code()
            sent.set()
            return answer

    sent = threading.Event()
    async with listening() as at:
        asked = asyncio.create_task(asyncio.to_thread(ask, at.grpc_port))
        while not asked.done():
            await asyncio.sleep(0)
            sent.wait(0.05)  # holds the loop
        assert await asked is grpc.StatusCode.INVALID_ARGUMENT, "it is no message"
        assert 'limit="header_bytes"' not in at.metrics()


async def test_a_refused_call_leaves_no_cycle_behind() -> None:
    """One would keep all that the call has sent until the garbage collector comes by."""
    async with listening() as at:
        gc.collect()
        gc.disable()
        try:
            await asyncio.gather(*(all_it_answers(at.grpc_port, grpc_call(fields=200)) for _ in range(30)))
            assert calls_in_memory() < 15, "and some that wait for a caller"
        finally:
            gc.enable()


def calls_in_memory() -> int:
    return sum(type(each).__name__ == "RPCState" for each in gc.get_objects())


@pytest.mark.parametrize("name", ["Place", "GetCluster"])
async def test_a_message_that_never_comes_is_not_waited_for(name: str, records: Records) -> None:
    async with listening(limits=LimitSettings(body_s=0.1), audit=records.audit()) as at:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{at.grpc_port}") as channel:
            call = channel.stream_unary(RPCS[name].path)()
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert await call.details() == "the message took more than 0.1 s"
        assert at.gateway.in_flight == 0
        assert 'placewise_refused_total{face="grpc",limit="body_time"} 1.0' in at.metrics()
        at.gateway.telemetry.afterwards.run()
        [made] = records
        assert made == AuditRecord(NOW_S, name, "body_time", "anyone", "open", made.peer)


async def test_connections_are_bounded_and_those_that_say_nothing_end(records: Records) -> None:
    async with listening(limits=LimitSettings(connections=2, handshake_s=1.0), audit=records.audit()) as at:
        silent = [await asyncio.open_connection("127.0.0.1", at.grpc_port) for _ in range(2)]
        for reader, _ in silent:
            await reader.read(1)  # the server says something first
        await all_it_answers(at.grpc_port)
        await counted(at, "connections")
        async with asyncio.timeout(20):
            for reader, _ in silent:
                while await reader.read(100):
                    pass
        assert 'placewise_refused_total{face="grpc",limit="handshake"} 2.0' in at.metrics()
        assert records.at_the_door() == ["connections", "handshake", "handshake"]
        assert await list_clusters(at.grpc_port) is grpc.StatusCode.OK, "their places are free again"
        for _, writer in silent:
            writer.close()


def client_hello() -> bytes:
    """The first that a client of TLS sends."""
    sent = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost").do_handshake()
    return sent.read()


@pytest.mark.parametrize("sent", [b"", client_hello()[:40], client_hello()], ids=["nothing", "a part", "no more"])
async def test_a_handshake_of_tls_that_is_not_finished_ends(sent: bytes, records: Records, tmp_path: Path) -> None:
    authority = Authority("servers")
    cert, key = authority.write(tmp_path, "server")
    certificates = Certificates(TlsSettings(cert_file=cert, key_file=key))
    limits = LimitSettings(handshake_s=2.0 if len(sent) > 40 else 0.5)  # a busy server too says its part in time
    async with listening(limits=limits, audit=records.audit(), certificates=certificates) as at:
        answer = await all_it_answers(at.grpc_port, sent)
        assert bool(answer) == (len(sent) > 40), "the server answered, and waited for the client"
        await counted(at, "handshake")
        assert records.at_the_door() == ["handshake"]
        trusted = grpc.ssl_channel_credentials(authority.pem)
        async with grpc.aio.secure_channel(f"localhost:{at.grpc_port}", trusted) as channel:
            assert await ClusterServiceStub(channel).ListClusters(ListClustersRequest(), timeout=10) is not None


@pytest.mark.parametrize("busy_s", [(0.0, 0.4), (1.0, 2.4)], ids=["as it comes", "as it leaves"])
async def test_a_server_that_was_busy_counts_a_handshake_that_did_not_finish(
    busy_s: tuple[float, float], records: Records, tmp_path: Path
) -> None:
    cert, key = Authority("servers").write(tmp_path, "server")
    certificates = Certificates(TlsSettings(cert_file=cert, key_file=key))
    async with listening(limits=LimitSettings(handshake_s=0.5), audit=records.audit(), certificates=certificates) as at:
        with socket.create_connection(("127.0.0.1", at.grpc_port)) as client:
            client.send(client_hello()[:40])
            await asyncio.sleep(busy_s[0])
            time.sleep(busy_s[1] - busy_s[0])  # noqa: ASYNC251 - nothing else runs, as on a busy machine
            await counted(at, "handshake")
        assert records.at_the_door() == ["handshake"]


async def test_who_has_said_nothing_longest_makes_room_for_a_caller() -> None:
    async with listening(limits=LimitSettings(connections=2, handshake_s=60.0)) as at:
        silent = [await asyncio.open_connection("127.0.0.1", at.grpc_port) for _ in range(2)]
        for reader, _ in silent:
            await reader.read(1)  # the server says something first
        for _ in range(3):
            assert await list_clusters(at.grpc_port) is grpc.StatusCode.OK
        for _, writer in silent:
            writer.close()


async def open_headers(port: int, fields: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client that acknowledges the settings and begins a call whose headers do not end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    call = grpc_call(fields)
    begin = call.index(b"\x00\x07:method") - 9  # the frame of the headers
    writer.write(call[:begin] + ACKNOWLEDGEMENT + unended(call[begin:]))
    await writer.drain()
    return reader, writer


ACKNOWLEDGEMENT = bytes([0, 0, 0, 4, 1, 0, 0, 0, 0])
END_HEADERS = 4


def unended(frames: bytes) -> bytes:
    """The first of the frames, without the mark that the headers end with it."""
    end = 9 + int.from_bytes(frames[:3])
    return frames[:4] + bytes([frames[4] & ~END_HEADERS]) + frames[5:end]


async def test_headers_that_do_not_end_in_time_end_the_connection() -> None:
    async with listening(limits=LimitSettings(header_s=0.5)) as at:
        reader, writer = await open_headers(at.grpc_port, fields=8)
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionError):
                while await reader.read(100):
                    pass
        assert 'placewise_refused_total{face="grpc",limit="header_time"} 1.0' in at.metrics()
        writer.close()


async def test_who_begins_no_call_makes_room_for_a_caller() -> None:
    async with listening(limits=LimitSettings(connections=2, header_s=0.2)) as at:
        slow = [await open_headers(at.grpc_port, fields=0) for _ in range(2)]
        for reader, _ in slow:
            await reader.read(1)
        await asyncio.sleep(0.5)
        for _ in range(3):
            assert await list_clusters(at.grpc_port) is grpc.StatusCode.OK
        for _, writer in slow:
            writer.close()


async def test_a_client_that_waits_before_its_first_call_is_answered() -> None:
    async with (
        listening(limits=LimitSettings(header_s=0.2)) as at,
        grpc.aio.insecure_channel(f"127.0.0.1:{at.grpc_port}") as channel,
    ):
        await channel.channel_ready()
        await asyncio.sleep(0.6)
        connections = at.metrics()
        call = ClusterServiceStub(channel).ListClusters(
            ListClustersRequest(), metadata=(("x-a", "a" * 900),), timeout=10
        )
        assert await call.code() is grpc.StatusCode.OK
        assert 'limit="header_time"' not in connections + at.metrics()


async def test_a_connection_that_ends_for_idleness_is_counted() -> None:
    """The server tells idleness by the time of the end: a busy machine, which sees that late, needs a long time."""
    async with (
        listening(limits=LimitSettings(idle_s=1.0)) as at,
        grpc.aio.insecure_channel(f"127.0.0.1:{at.grpc_port}") as channel,
    ):
        await ClusterServiceStub(channel).ListClusters(ListClustersRequest(), timeout=10)
        await counted(at, "idle_time")


# -- Calls that need no credentials ------------------------------------------------------------------------------------

CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
REFLECT = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


async def serving_answer(channel: grpc.aio.Channel) -> bytes:
    answer: bytes = await channel.unary_unary(CHECK)(HealthCheckRequest().SerializeToString(), timeout=10)
    return answer


async def code_of(call: "grpc.aio.StreamStreamCall[bytes, bytes]") -> grpc.StatusCode:
    """Of a call that ends; its status comes after its messages."""
    async with asyncio.timeout(10):
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for _ in call:
                pass
        return await call.code()


@pytest.mark.parametrize("path", [CHECK, WATCH, REFLECT])
async def test_a_call_without_credentials_that_says_nothing_ends(path: str, records: Records) -> None:
    async with listening(limits=LimitSettings(body_s=0.1), audit=records.audit()) as at:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{at.grpc_port}") as channel:
            assert await code_of(channel.stream_stream(path)()) is grpc.StatusCode.INVALID_ARGUMENT
        assert 'placewise_refused_total{face="grpc",limit="body_time"} 1.0' in at.metrics()
        assert records.at_the_door() == ["body_time"]


@pytest.mark.parametrize("path", [WATCH, REFLECT])
async def test_a_connection_holds_few_calls_without_credentials(path: str, records: Records) -> None:
    async with (
        listening(audit=records.audit()) as at,
        grpc.aio.insecure_channel(f"127.0.0.1:{at.grpc_port}") as channel,
        grpc.aio.insecure_channel(f"127.0.0.1:{at.grpc_port}", [("grpc.use_local_subchannel_pool", 1)]) as other,
    ):
        calls = [channel.stream_stream(path)() for _ in range(20)]
        ended = [asyncio.create_task(call.code()) for call in calls]
        await counted(at, "open_calls", 12)
        assert records.at_the_door() == ["open_calls"] * 12
        assert {each.result() for each in ended if each.done()} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert await serving_answer(other), "others are answered"
        for call in calls:
            call.cancel()
        async with asyncio.timeout(10):
            while True:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await serving_answer(channel)
                    break


async def test_all_connections_together_hold_a_bounded_number_and_checks_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("placewise_service.api.faces.open_calls._MOST_LONG", 3)
    async with listening() as at, contextlib.AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(
                grpc.aio.insecure_channel(f"127.0.0.1:{at.grpc_port}", [("grpc.use_local_subchannel_pool", 1)])
            )
            for _ in range(4)
        ]
        for channel in channels[:3]:
            assert await channel.unary_stream(WATCH)(b"").read()
        assert await channels[3].unary_stream(WATCH)(b"").code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await counted(at, "open_calls")
        await asyncio.gather(*(serving_answer(channel) for channel in channels))


@pytest.mark.parametrize("path", [CHECK, WATCH, REFLECT])
@pytest.mark.parametrize(("raw", "limit"), [(bytes(5000), "message_bytes"), (b"\xff", "")])
async def test_a_message_without_credentials_is_small_and_a_message(path: str, raw: bytes, limit: str) -> None:
    async with (
        listening() as at,
        grpc.aio.insecure_channel(f"127.0.0.1:{at.grpc_port}") as channel,
    ):
        assert await code_of(channel.stream_stream(path)(iter([raw]))) is grpc.StatusCode.INVALID_ARGUMENT
        assert ('limit="message_bytes"' in at.metrics()) == bool(limit)


async def test_a_service_that_nobody_knows_has_no_health() -> None:
    async with (
        listening() as at,
        grpc.aio.insecure_channel(f"127.0.0.1:{at.grpc_port}") as channel,
    ):
        unknown = HealthCheckRequest(service="other")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await HealthStub(channel).Check(unknown)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        state = await HealthStub(channel).Watch(unknown).read()
        assert state.status == HealthCheckResponse.SERVICE_UNKNOWN
