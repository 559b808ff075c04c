"""Mixed gangs through gates on nodes that are partly full: each runs as the decision log says."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable

import pytest
from tests.e2e.kubernetes.gates.kubernetes_gates import plane
from tests.e2e.kubernetes.kubernetes_cluster import ControlPlane, free_port
from tests.e2e.kubernetes.kubernetes_fixtures import placewise, watched
from tests.e2e.kubernetes.kubernetes_scenario import AdapterProcess, Watched
from tests.e2e.kubernetes.kubernetes_service import PlacewiseServer
from tests.e2e.kubernetes.test_kubernetes_decided import mixed, run_as_decided

pytestmark = [pytest.mark.e2e, pytest.mark.e2e_heavy, pytest.mark.timeout(600)]

__all__ = ["placewise", "plane", "watched"]


@pytest.fixture
async def adapter(plane: ControlPlane) -> AsyncIterator[AdapterProcess]:
    process = AdapterProcess(plane, free_port())
    yield process
    process.stop()


@pytest.mark.parametrize("pin", ["soft", "hard"])
async def test_mixed_gangs_run_as_decided(
    pin: str,
    adapter: AdapterProcess,
    watched: Watched,
    placewise: PlacewiseServer,
    record_property: Callable[[str, object], None],
) -> None:
    cluster = f"gates-{pin}"
    adapter.start(placewise.http_target, cluster=cluster, gates={"is_enabled": True, "pin": pin})
    await adapter.ready()
    gangs = mixed("default-scheduler", random.Random(20))
    await run_as_decided(f"gates, {pin}", gangs, watched, placewise, cluster, record_property)
