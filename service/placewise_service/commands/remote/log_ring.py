"""The logs of a running service, page by page, as the export reads a ring."""

from collections.abc import Mapping, Sequence
from typing import Final

from placewise.v1.bundle_pb2 import ReadLogRequest, ReadLogResponse
from placewise_client.aio import AsyncClient
from placewise_log.logs import Log, LogState

_MOST: Final = 1000
_LOGS: Final[Mapping[Log, ReadLogRequest.Log]] = {
    Log.DECISIONS: ReadLogRequest.DECISIONS,
    Log.VIEWS: ReadLogRequest.VIEWS,
}


class ApiRing:
    """An ExportRing over the API. The caller's token needs the scope `log` on the clusters."""

    def __init__(self, client: AsyncClient, clusters: Sequence[str]) -> None:
        self._client = client
        self._clusters = clusters

    async def ping(self) -> float:
        """The service's clock, seconds since the epoch."""
        return (await self._read(self._clusters[0], Log.DECISIONS, "", 1)).read_time.ToNanoseconds() / 1e9

    async def clusters(self) -> Sequence[str]:
        return self._clusters

    async def read_decisions(
        self, cluster: str, after: str, count: int, log: Log = Log.DECISIONS
    ) -> Sequence[tuple[str, bytes]]:
        """(position, entry) pairs after a position: a page of the service, which may be shorter than asked for."""
        page = await self._read(cluster, log, after, min(count, _MOST))
        return [(entry.position, entry.record) for entry in page.entries]

    async def mark_exported(self, cluster: str, position: str, log: Log = Log.DECISIONS) -> None:
        await self._read(cluster, log, position, 1, exported=position)

    async def log_state(self, cluster: str, log: Log = Log.DECISIONS) -> LogState:
        found = await self._read(cluster, log, "", 1)
        host_time_s = found.host_time.ToNanoseconds() / 1e9 if found.HasField("host_time") else None
        return LogState(found.exported or "0", found.dropped, host_time_s)

    async def _read(self, cluster: str, log: Log, after: str, count: int, *, exported: str = "") -> ReadLogResponse:
        request = ReadLogRequest(cluster=cluster, after=after, page_size=count, exported=exported, log=_LOGS[log])
        return await self._client.read_log(request)
