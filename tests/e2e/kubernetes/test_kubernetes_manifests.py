"""The shipped manifests and the chart against a real apiserver: accepted whole, no more rights than are used,
and the doctor's view of them."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.kubernetes.kubernetes_chart import RendererUnavailableError, documents, render
from tests.e2e.kubernetes.kubernetes_cluster import ADAPTER_TOKEN, ControlPlane, free_port, pod
from tests.e2e.kubernetes.kubernetes_fixtures import MANIFESTS, placewise, plane
from tests.e2e.kubernetes.kubernetes_scenario import PODS, REPOSITORY, AdapterProcess, remove_pods
from tests.e2e.kubernetes.kubernetes_service import PlacewiseServer

from placewise_kubernetes import cli
from placewise_kubernetes.app import service_target
from placewise_kubernetes.config import parse_config

pytestmark = [pytest.mark.e2e, pytest.mark.e2e_heavy, pytest.mark.timeout(300)]

__all__ = ["placewise", "plane"]

PATHS = {
    "ServiceAccount": "/api/v1/namespaces/placewise/serviceaccounts",
    "ConfigMap": "/api/v1/namespaces/placewise/configmaps",
    "Service": "/api/v1/namespaces/placewise/services",
    "Deployment": "/apis/apps/v1/namespaces/placewise/deployments",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/placewise/networkpolicies",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/placewise/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/placewise/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "MutatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings",
}
POLICY = {
    "enabled": True,
    "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "volcano-system"}}}],
}
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "mutual TLS everywhere": {
        "service": {
            "targets": ["https://placewise.placewise.svc:8080"],
            "tlsSecret": "service-tls",
            "mutualTls": True,
            "tokenSecret": "token",
        },
        "listen": {"clientCertificates": True, "clusterIP": "10.0.0.53"},
    },
    "values of a release before HTTP": {
        "service": {
            "targets": ["placewise.placewise.svc:50051"],
            "tlsSecret": "service-tls",
            "tokenSecret": "token",
            "allowPlaintextToken": None,
        },
    },
    "plain, behind a network policy": {
        "service": {"tokenSecret": "token", "allowPlaintextToken": True},
        "listen": {"tlsSecret": "", "insecure": True, "volcano": True},
        "networkPolicy": POLICY,
    },
    "a network policy alone": {"listen": {"clientCertificates": False, "bind": True}, "networkPolicy": POLICY},
    "values of a release before health had a port": {"listen": {"healthPort": None, "volcanoBodyBytes": None}},
    "extender only": {
        "gates": {"enabled": False},
        "ownScheduler": {"enabled": False},
        "podGroups": {"native": False, "schedulerPlugins": False, "volcano": False},
        "devices": {"enabled": False},
        "owners": {"jobSet": False, "kubeflow": False, "ray": False, "statefulSet": False},
    },
    "Volcano alone": {
        "gates": {"enabled": False},
        "ownScheduler": {"enabled": False},
        "podGroups": {"native": False, "schedulerPlugins": False, "volcano": False},
        "listen": {"volcano": True},
    },
    "gates, hard": {"gates": {"pin": "hard"}},
    "gates from pod templates": {"gates": {"policy": False}},
    "extender and own name": {"gates": {"enabled": False}},
    "extender that binds": {
        "gates": {"enabled": False},
        "ownScheduler": {"enabled": False},
        "listen": {"bind": True},
    },
    "more configuration": {
        "gates": {"enabled": False},
        "manage": "gpu",
        "extraRules": {"is_bound_early": False, "is_job_watched": False},
        "extraConfig": {"fail_open_s": 0.05, "adapter": {"admit_policy": "qos"}, "tolerated_taints": ["team"]},
        "nodeSelector": {"role": "control"},
    },
}


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chart")


def rendered(variant: str, scratch: Path) -> list[dict[str, Any]]:
    try:
        return documents(render(VARIANTS[variant], scratch))
    except RendererUnavailableError as error:
        pytest.skip(str(error))


def test_the_plain_manifests_are_the_chart_with_its_defaults(scratch: Path) -> None:
    """In any order: Helm has one of its own."""

    def sorted_by_name(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(found, key=lambda document: (document["kind"], document["metadata"]["name"]))

    assert sorted_by_name(rendered("default", scratch)) == sorted_by_name(documents(MANIFESTS.read_text()))


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_apiserver_takes_every_field(plane: ControlPlane, scratch: Path, variant: str) -> None:
    """A server-side dry run drops fields unknown to its schema: every field sent has to come back."""
    for document in rendered(variant, scratch):
        named = dict(document, metadata=document["metadata"] | {"name": "dry-run"})
        answer = plane.request("POST", f"{PATHS[document['kind']]}?dryRun=All", named)
        assert _lost(named, answer) == []


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_adapter_reads_the_configuration_it_is_given(scratch: Path, variant: str) -> None:
    (config,) = [document for document in rendered(variant, scratch) if document["kind"] == "ConfigMap"]
    parsed = parse_config(yaml.safe_load(config["data"]["config.yaml"]))
    assert parsed.cluster == "default"
    assert parsed.service.allow_plaintext_token == variant.startswith("plain")
    assert parsed.listen.is_volcano_served == (variant.startswith("plain") or variant == "Volcano alone")
    assert parsed.listen.is_bind_served == (variant in ("a network policy alone", "extender that binds"))
    assert bool(parsed.listen.client_ca_path) != (
        variant in ("plain, behind a network policy", "a network policy alone")
    )
    assert (parsed.listen.health_port, parsed.listen.volcano_body_bytes) == (8081, 16 * 2**20)
    service_target(parsed.service).check()
    is_gated = VARIANTS[variant].get("gates", {}).get("enabled", True)
    assert parsed.gates.is_enabled == parsed.rules.is_whole == is_gated
    assert parsed.gates.pin == ("hard" if variant == "gates, hard" else "soft")
    if variant == "more configuration":
        assert (parsed.fail_open_s, parsed.settings.admit_policy, parsed.tolerated_taints) == (0.05, "qos", ("team",))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"listen": {"clientCertificates": False}}, "listen.clientCertificates=true"),
        ({"listen": {"clientCertificates": False}}, "networkPolicy.enabled=true"),
        ({"listen": {"tlsSecret": "", "insecure": True}}, "nobody guards the adapter's port"),
        ({"networkPolicy": {"enabled": True}}, "networkPolicy.from"),
        ({"listen": {"clientCertificates": False}, "networkPolicy": {"enabled": True}}, "networkPolicy.from"),
        # What `helm upgrade --reuse-values` brings from a chart that did not know these values.
        ({"listen": {"clientCertificates": False, "bind": None, "volcano": None}}, "listen.clientCertificates=true"),
        ({"gates": {"enabled": True, "guard": False}}, "gates.guard is false"),
        ({"listen": {"bind": None}}, "listen.bind is not set"),
        ({"listen": {"volcano": None}}, "listen.volcano is not set"),
    ],
)
def test_the_chart_refuses_what_would_leave_the_port_open(values: dict[str, Any], says: str, scratch: Path) -> None:
    try:
        with pytest.raises(subprocess.CalledProcessError) as refused:
            render(values, scratch)
    except RendererUnavailableError as error:
        pytest.skip(str(error))
    assert says in refused.value.stderr


def test_no_more_rights_than_are_used(scratch: Path) -> None:
    least = {
        " nodes list",
        " nodes watch",
        " pods list",
        " pods watch",
        " pods/status patch",
        " events create",
        "batch jobs get",
        "coordination.k8s.io leases create",
        "coordination.k8s.io leases get of placewise-kubernetes",
        "coordination.k8s.io leases patch of placewise-kubernetes",
    }
    jobs = {"batch jobs list", "batch jobs watch"}
    binds = {" pods/binding create", " pods get"}
    watched = ("get", "list", "watch")
    volcano = {f"scheduling.volcano.sh podgroups {verb}" for verb in watched}
    kinds = ("batch.volcano.sh jobs", "scheduling.volcano.sh queues", "topology.volcano.sh hypernodes")
    volcano |= {f"{kind} {verb}" for kind in kinds for verb in watched[1:]}
    trainings = ("pytorchjobs", "tfjobs", "xgboostjobs", "paddlejobs", "jaxjobs", "mpijobs")
    owners = {
        "jobset.x-k8s.io jobsets get",
        "ray.io rayclusters get",
        "apps statefulsets get",
        *(f"kubeflow.org {kind} get" for kind in trainings),
    }
    kinds = ("resourceslices", "resourceclaims", "deviceclasses")
    devices = {f"resource.k8s.io {kind} {verb}" for kind in kinds for verb in watched[1:]}
    kinds = ("scheduling.k8s.io", "scheduling.x-k8s.io")
    groups = {f"{kind} podgroups {verb}" for kind in kinds for verb in watched} | volcano | owners | devices
    assert _rights("extender only", scratch) == least | jobs
    assert _rights("extender and own name", scratch) == least | jobs | binds | groups
    assert _rights("extender that binds", scratch) == least | jobs | binds | groups
    assert _rights("more configuration", scratch) == least | binds | groups  # Jobs are not watched there
    gates = {" pods patch", " persistentvolumeclaims get", " persistentvolumes get"}
    gates |= {"storage.k8s.io storageclasses get"}
    assert _rights("default", scratch) == least | jobs | binds | groups | gates
    assert _rights("gates, hard", scratch) == least | jobs | binds | groups | gates
    assert _rights("gates from pod templates", scratch) == least | jobs | binds | groups | gates
    assert _rights("Volcano alone", scratch) == least | jobs | volcano | owners | devices


def test_a_listener_without_certificate_has_to_be_wanted(scratch: Path) -> None:
    try:
        found = documents(render({"listen": {"tlsSecret": ""}, "networkPolicy": POLICY}, scratch))
    except RendererUnavailableError as error:
        pytest.skip(str(error))
    (config,) = [document for document in found if document["kind"] == "ConfigMap"]
    with pytest.raises(ValueError, match="is_insecure"):
        parse_config(yaml.safe_load(config["data"]["config.yaml"]))


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/secrets"),
        ("GET", "/api/v1/namespaces/default/configmaps"),
        ("DELETE", "/api/v1/namespaces/default/pods/any"),
        ("POST", "/api/v1/namespaces/default/pods"),
        ("PATCH", "/api/v1/namespaces/default/pods/any/ephemeralcontainers"),
        ("PATCH", "/api/v1/nodes/n00"),
        ("POST", "/api/v1/namespaces/default/pods/any/eviction"),
        ("PATCH", "/apis/batch/v1/namespaces/default/jobs/any"),
        ("DELETE", "/apis/batch/v1/namespaces/default/jobs/any"),
        ("PATCH", "/apis/batch.volcano.sh/v1alpha1/namespaces/default/jobs/any"),
        ("PATCH", "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups/any"),
        ("GET", "/apis/scheduling.volcano.sh/v1beta1/queues/any"),
        ("PATCH", "/apis/scheduling.volcano.sh/v1beta1/queues/any"),
        ("GET", "/apis/topology.volcano.sh/v1alpha1/hypernodes/any"),
        ("PATCH", "/apis/topology.volcano.sh/v1alpha1/hypernodes/any"),
        ("GET", "/apis/apps/v1/deployments"),
        ("GET", "/apis/apps/v1/statefulsets"),
        ("PATCH", "/apis/apps/v1/namespaces/default/statefulsets/any"),
        ("PATCH", "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups/any"),
        ("GET", "/apis/scheduling.k8s.io/v1beta1/namespaces/default/workloads/any"),
        ("GET", "/apis/coordination.k8s.io/v1/namespaces/placewise/leases/of-another"),
        ("GET", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/placewise-kubernetes"),
    ],
)
def test_the_adapter_may_not(plane: ControlPlane, method: str, path: str) -> None:
    headers = {"Authorization": f"Bearer {ADAPTER_TOKEN}", "Content-Type": "application/json"}
    if method == "PATCH":
        headers["Content-Type"] = "application/merge-patch+json"
    data = None if method == "GET" else b"{}"
    request = urllib.request.Request(plane.url + path, data=data, method=method, headers=headers)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, context=plane.tls(), timeout=10)
    refused.value.close()
    assert refused.value.code == 403


def test_who_may_patch_the_status_may_annotate_a_pod_and_not_change_its_image(plane: ControlPlane) -> None:
    plane.request("POST", PODS, pod("annotated"))
    headers = {"Authorization": f"Bearer {ADAPTER_TOKEN}", "Content-Type": "application/strategic-merge-patch+json"}
    patch = {
        "metadata": {"annotations": {"placewise.dev/wake": "1"}},
        "spec": {"containers": [{"name": "main", "image": "another"}]},
    }
    request = urllib.request.Request(
        f"{plane.url}{PODS}/annotated/status", data=json.dumps(patch).encode(), method="PATCH", headers=headers
    )
    with urllib.request.urlopen(request, context=plane.tls(), timeout=10) as response:
        assert response.status == 200
    found = plane.request("GET", f"{PODS}/annotated")
    assert found["metadata"]["annotations"]["placewise.dev/wake"] == "1"
    assert found["spec"]["containers"][0]["image"] == "none"
    remove_pods(plane)


def test_kube_scheduler_takes_the_shipped_configuration(plane: ControlPlane) -> None:
    """Its decoder is strict: an unknown field ends it."""
    shipped = yaml.safe_load((REPOSITORY / "deploy" / "kubernetes" / "scheduler-config.yaml").read_text())
    (extender,) = shipped["extenders"]
    adapter = AdapterProcess(plane, free_port())
    assert set(adapter.extender()) == set(extender)  # the end-to-end tests use the same fields
    assert set(adapter.extender()["tlsConfig"]) == set(extender["tlsConfig"])
    extender["tlsConfig"] = adapter.extender()["tlsConfig"]
    plane.start_scheduler("shipped", {"extenders": [extender]})
    plane.wait_for_log("shipped", "Serving securely")
    plane.stop_process("shipped")


def _rights(variant: str, scratch: Path) -> set[str]:
    """All rights of the adapter, cluster-wide and in its namespace: "GROUP RESOURCE VERB[ of NAME]"."""
    return {
        f"{group} {resource} {verb}{''.join(f' of {name}' for name in rule.get('resourceNames', ()))}"
        for document in rendered(variant, scratch)
        if document["kind"] in ("ClusterRole", "Role")
        for rule in document["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def _lost(sent: Any, received: Any, path: str = "") -> list[str]:
    """Paths of fields that were sent and did not come back."""
    if isinstance(sent, dict):
        if not isinstance(received, dict):
            return [path] if sent else []
        return [lost for key, value in sent.items() for lost in _lost(value, received.get(key), f"{path}.{key}")]
    if isinstance(sent, list):
        if not sent:
            return []
        if not isinstance(received, list) or len(received) != len(sent):
            return [path]
        return [lost for n, value in enumerate(sent) for lost in _lost(value, received[n], f"{path}[{n}]")]
    return [] if sent == received or (sent == "" and received is None) else [path]


def examined(plane: ControlPlane, folder: Path, service: str, token: str = ADAPTER_TOKEN, **config: Any) -> int:
    """The exit code; the findings are on stdout."""
    path, kubeconfig = folder / "doctor.yaml", folder / "doctor.kubeconfig"
    lease = "placewise/placewise-kubernetes"
    path.write_text(yaml.safe_dump({"cluster": "e2e", "lease": lease, "service": {"targets": [service]}} | config))
    kubeconfig.write_text(json.dumps(plane.kubeconfig(token)))
    return cli.main(["doctor", "--config", str(path), "--kubeconfig", str(kubeconfig)])


def test_all_is_well_with_the_shipped_rights(
    plane: ControlPlane, placewise: PlacewiseServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = examined(plane, tmp_path, placewise.http_target)
    lines = capsys.readouterr().out.splitlines()
    assert [line[:4] for line in lines] == ["ok  "] * 8, lines
    assert code == 0
    assert "v1." in lines[0]
    assert "native groups: not served: the API server drops spec.schedulingGroup" in lines[2]
    assert lines[3] == "ok    StatefulSets: can be read"
    assert "nvidia.com/gpu" in lines[4]
    assert "no ResourceSlice" in lines[5]


def test_each_fault_is_named(plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A Lease of another name, GPUs of another vendor, and a service that is not there."""
    missing = {"lease": "elsewhere/ours", "rules": {"gpu_resources": ["example.com/gpu"]}}
    code = examined(plane, tmp_path, "http://127.0.0.1:9", **missing)
    found = dict(line[6:].split(": ", 1) for line in capsys.readouterr().out.splitlines() if line.startswith("FAIL"))
    assert code == 1
    assert sorted(found) == ["decision service", "nodes", "rights"]
    assert "create leases.coordination.k8s.io in namespace elsewhere" in found["rights"]
    assert "list nodes" not in found["rights"]
    assert "example.com/gpu" in found["nodes"]
