"""Fixtures that the end-to-end modules share; each imports the ones it uses."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from tests.e2e.kubernetes.kubernetes_binaries import BinariesUnavailableError, find
from tests.e2e.kubernetes.kubernetes_cluster import ControlPlane
from tests.e2e.kubernetes.kubernetes_scenario import NODES, REPOSITORY, Watched, make_nodes, watching
from tests.e2e.kubernetes.kubernetes_service import PlacewiseServer

MANIFESTS = REPOSITORY / "deploy" / "kubernetes" / "placewise-kubernetes.yaml"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with fake nodes, and the adapter with the rights of the shipped manifests."""
    with control_plane(tmp_path_factory) as control:
        yield control


@contextmanager
def control_plane(folders: pytest.TempPathFactory, nodes: int = NODES) -> Iterator[ControlPlane]:
    """The same with so many nodes."""
    try:
        binaries = find()
    except BinariesUnavailableError as error:
        pytest.skip(f"no Kubernetes binaries: {error}")
    control = ControlPlane(binaries, folders.mktemp("kubernetes"))
    try:
        control.start()
        control.request("POST", "/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": "placewise"}})
        grant(control, MANIFESTS)
        make_nodes(control, nodes)
        yield control
    finally:
        control.stop()


def grant(control: ControlPlane, manifests: Path) -> None:
    """The adapter runs with the role of the shipped manifests, and under their guard: what these lack, it lacks here.

    Pods get no gate: these clusters start them in other ways.
    """
    rights, admission = "/apis/rbac.authorization.k8s.io/v1", "/apis/admissionregistration.k8s.io/v1"
    paths = {
        "ClusterRole": f"{rights}/clusterroles",
        "ClusterRoleBinding": f"{rights}/clusterrolebindings",
        "Role": f"{rights}/namespaces/placewise/roles",
        "RoleBinding": f"{rights}/namespaces/placewise/rolebindings",
        "ValidatingAdmissionPolicy": f"{admission}/validatingadmissionpolicies",
        "ValidatingAdmissionPolicyBinding": f"{admission}/validatingadmissionpolicybindings",
    }
    for document in yaml.safe_load_all(manifests.read_text()):
        if document["kind"] in paths:
            control.request("POST", paths[document["kind"]], document)


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
