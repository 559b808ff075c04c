"""Fixtures that the modules on Volcano share; each imports the ones it uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.e2e.kubernetes.kubernetes_binaries import BinariesUnavailableError
from tests.e2e.kubernetes.kubernetes_binaries import find as find_binaries
from tests.e2e.kubernetes.kubernetes_cluster import ControlPlane
from tests.e2e.kubernetes.kubernetes_fixtures import MANIFESTS, grant
from tests.e2e.kubernetes.kubernetes_scenario import make_nodes
from tests.e2e.volcano.volcano_assets import AssetsUnavailableError
from tests.e2e.volcano.volcano_assets import find as find_assets
from tests.e2e.volcano.volcano_cluster import VolcanoCluster

NODES = 8


@pytest.fixture(scope="module")
def volcano(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VolcanoCluster]:
    """Volcano on eight fake nodes. No scheduler runs yet."""
    with volcano_on(tmp_path_factory.mktemp("volcano"), NODES) as cluster:
        yield cluster


@contextmanager
def volcano_on(root: Path, nodes: int) -> Iterator[VolcanoCluster]:
    """A control plane with so many fake nodes, and the adapter with the rights of the shipped manifests."""
    try:
        assets, binaries = find_assets(), find_binaries()
    except (AssetsUnavailableError, BinariesUnavailableError) as error:
        pytest.skip(str(error))
    plane = ControlPlane(binaries, root)
    try:
        plane.start()
        plane.request("POST", "/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": "placewise"}})
        grant(plane, MANIFESTS)
        make_nodes(plane, nodes)
        cluster = VolcanoCluster(plane, assets)
        cluster.start()
        yield cluster
    finally:
        plane.stop()
