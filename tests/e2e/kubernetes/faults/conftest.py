"""A control plane whose adapter, service, scheduler, nodes and jobs are hit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, suppress

import pytest
from tests.e2e.hosts.faulty_way import FaultyWay
from tests.e2e.kubernetes.faults.kubernetes_api_way import ApiWay
from tests.e2e.kubernetes.faults.kubernetes_fault_world import NODES, SCHEDULERS, World, fill
from tests.e2e.kubernetes.kubernetes_cluster import ControlPlane, free_port
from tests.e2e.kubernetes.kubernetes_fixtures import cluster, control_plane, placewise
from tests.e2e.kubernetes.kubernetes_scenario import JOBS, AdapterProcess, watching
from tests.e2e.kubernetes.kubernetes_service import PlacewiseServer

__all__ = ["cluster", "placewise"]


@pytest.fixture(scope="module")
def small_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Eight nodes."""
    with control_plane(tmp_path_factory, NODES) as control:
        yield control


@pytest.fixture
async def world(mode: str, small_plane: ControlPlane, placewise: PlacewiseServer, cluster: str) -> AsyncIterator[World]:
    """The parts of one way at work, on nodes that are partly full."""
    port = int(placewise.http_target.rsplit(":", 1)[1])
    with closing(FaultyWay(free_port())) as way:
        way.lead_to(port)
        async with ApiWay(small_plane) as api, watching(small_plane) as watched:
            adapter = AdapterProcess(small_plane, free_port(), api_url=api.url)
            made = World(mode, small_plane, placewise, way, api, watched, adapter, cluster)
            await asyncio.to_thread(fill, small_plane)
            made.start_scheduler()
            try:
                await made.start_adapter()
                yield made
            finally:
                await asyncio.to_thread(small_plane.request, "DELETE", JOBS, {"propagationPolicy": "Background"})
                for name in (adapter.name, SCHEDULERS.get(mode, "")):
                    with suppress(KeyError):  # it was killed
                        await asyncio.to_thread(small_plane.kill_process, name)
