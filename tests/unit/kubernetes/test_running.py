"""Running jobs as the service shows them."""

from __future__ import annotations

import pytest
from tests.fakes.servers.oracle import Held, OracleServer, SmallService

from placewise.v1.cluster_pb2 import Assignment
from placewise_client import AsyncClient
from placewise_client.adapter.native import AdapterSettings
from placewise_client.errors import NotFoundError, PlacewiseError, StateUnavailableError
from placewise_kubernetes.running import RunningAsker


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (None, {"runs": {"n1": {0, 1}, "n2": {2}}}),
        (NotFoundError("no such cluster"), {}),
        (StateUnavailableError("away"), None),
    ],
)
async def test_jobs_that_run_are_shown_with_their_gpus(error: PlacewiseError | None, found: object) -> None:
    tasks = [Assignment(node=node, gpu_indices=indices) for node, indices in (("n1", [0]), ("n1", [1]), ("n2", [2]))]
    held = {name: Held(tasks, "", "", 2e9, is_running=name == "runs") for name in ("runs", "reserved")}
    server = await OracleServer(SmallService(held=held, fail_always=error, now=lambda: 1e9)).start()
    async with AsyncClient(server.target) as client:
        assert await RunningAsker(client, AdapterSettings(cluster="c"))(4) == found
    await server.stop()
