"""A control plane with the chart's gates: policies, rights, and kube-scheduler as it comes, without an extender."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.e2e.kubernetes.kubernetes_binaries import BinariesUnavailableError, find
from tests.e2e.kubernetes.kubernetes_chart import RendererUnavailableError, documents, render
from tests.e2e.kubernetes.kubernetes_cluster import ADAPTER_TOKEN, ControlPlane
from tests.e2e.kubernetes.kubernetes_scenario import PODS, make_nodes, remove_pods

GATE = "placewise.dev/admit"
LABELLED = {"placewise.dev/job": "probe"}
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
PATHS = {
    "ClusterRole": f"{_RBAC}/clusterroles",
    "ClusterRoleBinding": f"{_RBAC}/clusterrolebindings",
    "Role": f"{_RBAC}/namespaces/placewise/roles",
    "RoleBinding": f"{_RBAC}/namespaces/placewise/rolebindings",
    "ValidatingAdmissionPolicy": f"{_ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{_ADMISSION}/validatingadmissionpolicybindings",
    "MutatingAdmissionPolicy": f"{_ADMISSION}/mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": f"{_ADMISSION}/mutatingadmissionpolicybindings",
}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """With fake nodes, the chart's policies, the adapter's rights by the chart, and kube-scheduler as it comes."""
    with guarded(tmp_path_factory) as control:
        control.start_scheduler("kube-scheduler", {})
        yield control


@contextmanager
def guarded(folders: pytest.TempPathFactory, **options: str) -> Iterator[ControlPlane]:
    """A control plane with these options, fake nodes, the chart's policies and rights, and no scheduler."""
    try:
        control = ControlPlane(find(), folders.mktemp("gates"), **options)
        made = documents(render({"gates": {"enabled": True}}, folders.mktemp("chart")))
    except (BinariesUnavailableError, RendererUnavailableError) as error:
        pytest.skip(str(error))
    try:
        control.start()
        control.request("POST", "/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": "placewise"}})
        for document in made:
            if document["kind"] in PATHS:
                control.request("POST", PATHS[document["kind"]], document)
        make_nodes(control)
        _wait_until(lambda: gates_of(control, "probe", LABELLED) == [GATE])
        _wait_until(lambda: _is_guarded(control))
        remove_pods(control)
        yield control
    finally:
        control.stop()


def gates_of(control: ControlPlane, name: str, labels: dict[str, str]) -> list[str]:
    """Gates that a pod with these labels gets from the API server."""
    container = {"name": "main", "image": "none"}
    pod = {"metadata": {"name": name, "labels": labels}, "spec": {"containers": [container]}}
    made = control.request("POST", f"{PODS}?dryRun=All", pod | {"apiVersion": "v1", "kind": "Pod"})
    return [gate["name"] for gate in made["spec"].get("schedulingGates", ())]


def _is_guarded(control: ControlPlane) -> bool:
    pod = {
        "metadata": {"name": "guarded", "labels": LABELLED},
        "spec": {"containers": [{"name": "m", "image": "none"}]},
    }
    try:
        control.request("POST", PODS, pod | {"apiVersion": "v1", "kind": "Pod"})
    except urllib.error.HTTPError as error:
        if error.code != 409:
            raise
    return patch_as_adapter(control, "guarded", {"metadata": {"labels": {"other": "x"}}}) != 200


def patch_as_adapter(control: ControlPlane, name: str, body: Any, part: str = "") -> int:
    """HTTP status of a patch with the adapter's own credentials."""
    return answer_to_adapter(control, name, body, part)[0]


def answer_to_adapter(control: ControlPlane, name: str, body: Any, part: str = "") -> tuple[int, str]:
    """HTTP status and message of a patch with the adapter's own credentials."""
    headers = {"Authorization": f"Bearer {ADAPTER_TOKEN}", "Content-Type": "application/strategic-merge-patch+json"}
    url = f"{control.url}{PODS}/{name}{part}"
    request = urllib.request.Request(url, data=json.dumps(body).encode(), method="PATCH", headers=headers)
    try:
        with urllib.request.urlopen(request, context=control.tls(), timeout=10) as response:
            return response.status, ""
    except urllib.error.HTTPError as error:
        message = json.loads(error.read())["message"]
        error.close()
        return error.code, message


def _wait_until(holds: Callable[[], bool], limit_s: float = 30.0) -> None:
    limit = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > limit:
            raise TimeoutError("the policies are not in force")
        time.sleep(0.2)
