"""An export through the API holds a page at a time, in the service and in the client, however long the log is."""

import tracemalloc
from pathlib import Path

import pyarrow as pa
from tests.fakes.servers.listening import listening

from placewise.v1.bundle_pb2 import ReadLogRequest
from placewise_client.aio import AsyncClient
from placewise_client.target import Target
from placewise_service.commands.remote.log_ring import ApiRing
from placewise_service.declog.export import export

ENTRY_BYTES = 65_536
PAGES_MIB = 3.0  # one page may be on its way while another is written


async def peak_mib(directory: Path, entries: int) -> float:
    """Largest memory that Python and Arrow held in both processes' parts, which this test has in one."""
    record = bytes(ENTRY_BYTES)
    parent = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(parent)
    pa.set_memory_pool(pool)
    try:
        async with listening() as at, AsyncClient(Target((f"127.0.0.1:{at.grpc_port}",))) as client:
            at.engine.log = [(f"{n}-0", record) for n in range(10_000, 10_000 + entries)]
            await client.read_log(ReadLogRequest(cluster="prod"))
            tracemalloc.start()
            report = await export(ApiRing(client, ("prod",)), directory, clusters=("prod",))
            _, python = tracemalloc.get_traced_memory()
        assert report.written["unreadable"] == entries
        return (python + pool.max_memory()) / 2**20
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(parent)


async def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    short, long = [await peak_mib(tmp_path / str(entries), entries) for entries in (100, 1600)]
    assert long - short < PAGES_MIB, f"{ENTRY_BYTES * 1600 / 2**20:.0f} MiB of entries"
    assert long < 10.0
