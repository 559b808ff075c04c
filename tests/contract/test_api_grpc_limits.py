"""The gRPC face on a socket: metadata, connections, handshakes and messages that never come are bounded."""

import asyncio
import contextlib

import grpc
from tests.attack.flood import attack
from tests.fakes.listening import listening

from placewise.v1.cluster_pb2 import ListClustersRequest
from placewise.v1.cluster_pb2_grpc import ClusterServiceStub
from placewise_service.settings import LimitSettings

PLACE = "/placewise.v1.DecisionService/Place"


async def list_clusters(port: int, *metadata: tuple[str, str]) -> grpc.StatusCode:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = ClusterServiceStub(channel).ListClusters(ListClustersRequest(), metadata=metadata, timeout=10)
        return await call.code()


async def test_metadata_is_bounded() -> None:
    async with listening(limits=LimitSettings(metadata_bytes=4096)) as at:
        assert await list_clusters(at.grpc_port, ("x-a", "a" * 3000)) is grpc.StatusCode.OK
        assert await list_clusters(at.grpc_port, ("x-a", "a" * 5000)) is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_metadata_of_a_client_that_does_not_heed_the_limit_is_bounded_too() -> None:
    async with listening() as at:
        reader, writer = await asyncio.open_connection("127.0.0.1", at.grpc_port)
        writer.write(attack("grpc", "headers"))  # a MiB, and never an acknowledgement of the settings
        answer = b""
        async with asyncio.timeout(20):
            while data := await reader.read(1 << 16):  # cut off in the end
                answer += data
        writer.close()
        assert b"the metadata has more than 16384 bytes" in answer
        assert 'placewise_refused_total{face="grpc",limit="header_bytes"} 1.0' in at.metrics()


async def test_a_message_that_never_comes_is_not_waited_for() -> None:
    async with listening(limits=LimitSettings(body_s=0.1)) as at:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{at.grpc_port}") as channel:
            call = channel.stream_unary(PLACE)()
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert await call.details() == "the message took more than 0.1 s"
        assert at.desk.in_flight == 0
        assert 'placewise_refused_total{face="grpc",limit="body_time"} 1.0' in at.metrics()


async def test_connections_are_bounded_and_those_that_say_nothing_end() -> None:
    async with listening(limits=LimitSettings(connections=2, handshake_s=1.0)) as at:
        silent = [await asyncio.open_connection("127.0.0.1", at.grpc_port) for _ in range(2)]
        async with asyncio.timeout(20):
            over, writer = await asyncio.open_connection("127.0.0.1", at.grpc_port)
            with contextlib.suppress(ConnectionError):
                assert await over.read(1) == b"", "a third is closed at once"
            for reader, _ in silent:
                while await reader.read(100):  # what the server says first
                    pass
        assert await list_clusters(at.grpc_port) is grpc.StatusCode.OK, "their places are free again"
        for _, each in (*silent, (over, writer)):
            each.close()
