"""Fixtures that the end-to-end modules share; each imports the ones it uses."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import yaml
from tests.e2e.kubernetes.kubernetes_binaries import BinariesUnavailableError, find
from tests.e2e.kubernetes.kubernetes_cluster import ControlPlane
from tests.e2e.kubernetes.kubernetes_scenario import REPOSITORY, Watched, make_nodes, watching
from tests.e2e.kubernetes.kubernetes_service import PlacewiseServer

MANIFESTS = REPOSITORY / "deploy" / "kubernetes" / "placewise-kubernetes.yaml"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with fake nodes, and the adapter with the rights of the shipped manifests."""
    try:
        binaries = find()
    except BinariesUnavailableError as error:
        pytest.skip(f"no Kubernetes binaries: {error}")
    control = ControlPlane(binaries, tmp_path_factory.mktemp("kubernetes"))
    try:
        control.start()
        control.request("POST", "/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": "placewise"}})
        grant(control, MANIFESTS)
        make_nodes(control)
        yield control
    finally:
        control.stop()


def grant(control: ControlPlane, manifests: Path) -> None:
    """The adapter runs with the role of the shipped manifests: what that lacks, it lacks here."""
    paths = {
        "ClusterRole": "clusterroles",
        "ClusterRoleBinding": "clusterrolebindings",
        "Role": "namespaces/placewise/roles",
        "RoleBinding": "namespaces/placewise/rolebindings",
    }
    for document in yaml.safe_load_all(manifests.read_text()):
        if document["kind"] in paths:
            control.request("POST", f"/apis/rbac.authorization.k8s.io/v1/{paths[document['kind']]}", document)


@pytest.fixture(scope="module")
def placewise(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlacewiseServer]:
    """The real decision service."""
    server = PlacewiseServer(tmp_path_factory.mktemp("placewise"))
    server.launch()
    yield server
    server.end()


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> str:
    """Every test is a cluster of its own to the service."""
    return re.sub("[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[-60:].strip("-")


@pytest.fixture
async def watched(plane: ControlPlane) -> AsyncIterator[Watched]:
    """An observer of the API."""
    async with watching(plane) as observer:
        yield observer
