"""The files of deploy/kubernetes: callers show certificates, bind is served to nobody, and the rights are the least."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from placewise_kubernetes.config import KubernetesConfig, ListenConfig, parse_config
from placewise_kubernetes.gang.spec import GangRules

FOLDER = Path(__file__).parents[3] / "deploy" / "kubernetes"
CLUSTER_RULES = [
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["persistentvolumeclaims", "persistentvolumes"], "verbs": ["get"]},
    {"apiGroups": ["storage.k8s.io"], "resources": ["storageclasses"], "verbs": ["get"]},
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list", "watch"]},
    {
        "apiGroups": ["resource.k8s.io"],
        "resources": ["resourceslices", "resourceclaims", "deviceclasses"],
        "verbs": ["list", "watch"],
    },
    {"apiGroups": ["scheduling.k8s.io"], "resources": ["podgroups"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": ["scheduling.x-k8s.io"], "resources": ["podgroups"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": ["scheduling.volcano.sh"], "resources": ["podgroups"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": ["scheduling.volcano.sh"], "resources": ["queues"], "verbs": ["list", "watch"]},
    {"apiGroups": ["batch.volcano.sh"], "resources": ["jobs"], "verbs": ["list", "watch"]},
    {"apiGroups": ["topology.volcano.sh"], "resources": ["hypernodes"], "verbs": ["list", "watch"]},
    {"apiGroups": ["jobset.x-k8s.io"], "resources": ["jobsets"], "verbs": ["get"]},
    {
        "apiGroups": ["kubeflow.org"],
        "resources": ["pytorchjobs", "tfjobs", "xgboostjobs", "paddlejobs", "jaxjobs", "mpijobs"],
        "verbs": ["get"],
    },
    {"apiGroups": ["ray.io"], "resources": ["rayclusters"], "verbs": ["get"]},
    {"apiGroups": ["apps"], "resources": ["statefulsets"], "verbs": ["get"]},
]
# Where in the tier of capacity the extender stands.
NEXT = "volcano-scheduler-1.16.conf"
VOLCANO_FILES = {"volcano-scheduler.conf": 0, NEXT: -1}
LEASE = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
NAMESPACE_RULES = [
    LEASE | {"verbs": ["create"]},
    LEASE | {"resourceNames": ["placewise-kubernetes"], "verbs": ["get", "patch"]},
]


def manifests(kind: str) -> list[dict[str, Any]]:
    documents = yaml.safe_load_all((FOLDER / "placewise-kubernetes.yaml").read_text("utf-8"))
    return [document for document in documents if document["kind"] == kind]


def shipped_config() -> KubernetesConfig:
    (config,) = manifests("ConfigMap")
    return parse_config(yaml.safe_load(config["data"]["config.yaml"]))


def listen_config() -> ListenConfig:
    return shipped_config().listen


def scheduler_extender() -> dict[str, Any]:
    (extender,) = yaml.safe_load((FOLDER / "scheduler-config.yaml").read_text("utf-8"))["extenders"]
    assert isinstance(extender, dict)
    return extender


def test_the_adapter_asks_callers_for_a_certificate() -> None:
    listen = listen_config()
    assert listen.client_ca_path == "/etc/placewise/tls/ca.crt"
    assert (listen.certificate_path, listen.key_path) == ("/etc/placewise/tls/tls.crt", "/etc/placewise/tls/tls.key")
    assert not listen.is_insecure


def test_a_new_installation_works_by_gates_and_guards_the_right_to_patch_pods() -> None:
    """No scheduler's configuration is needed for it."""
    assert shipped_config().gates.is_enabled
    for kind in ("ValidatingAdmissionPolicy", "MutatingAdmissionPolicy"):
        (policy,) = manifests(kind)
        (binding,) = manifests(f"{kind}Binding")
        assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    (guard,) = manifests("ValidatingAdmissionPolicy")
    assert guard["spec"]["failurePolicy"] == "Fail"
    adapter = "system:serviceaccount:placewise:placewise-kubernetes"
    assert guard["spec"]["matchConditions"][0]["expression"].endswith(f"== '{adapter}'")


def test_the_gate_is_kept_from_the_system_from_daemon_sets_and_from_pods_that_the_adapter_binds() -> None:
    (policy,) = manifests("MutatingAdmissionPolicy")
    conditions = {found["name"]: found["expression"] for found in policy["spec"]["matchConditions"]}
    assert "['kube-system', 'placewise']" in conditions["not-of-the-system"]
    assert "'DaemonSet'" in conditions["not-of-a-daemon-set"]
    assert "'placewise'" in conditions["not-bound-by-us"]


def test_the_certificates_are_mounted_where_the_adapter_reads_them() -> None:
    (deployment,) = manifests("Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (mount,) = [mount for mount in container["volumeMounts"] if mount["mountPath"] == "/etc/placewise/tls"]
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == mount["name"]]
    assert volume["secret"]["secretName"] == "placewise-kubernetes-tls"


def test_the_kubelet_asks_the_port_that_needs_no_certificate() -> None:
    (deployment,) = manifests("Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports["health"] == listen_config().health_port != ports["extender"]
    probes = {name: container[name]["httpGet"] for name in ("readinessProbe", "livenessProbe")}
    assert probes == {
        "readinessProbe": {"path": "/readyz", "port": "health"},
        "livenessProbe": {"path": "/healthz", "port": "health"},
    }


def test_a_hung_adapter_is_killed_within_ten_seconds() -> None:
    (deployment,) = manifests("Deployment")
    probe = deployment["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]
    noticed_s = probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]
    assert noticed_s + probe["terminationGracePeriodSeconds"] <= 10


def test_kube_scheduler_shows_a_certificate() -> None:
    extender = scheduler_extender()
    assert extender["urlPrefix"].startswith("https://")
    assert extender["enableHTTPS"] is True
    assert extender["tlsConfig"] == {
        "caFile": "/etc/kubernetes/pki/placewise-ca.crt",
        "certFile": "/etc/kubernetes/pki/placewise-client.crt",
        "keyFile": "/etc/kubernetes/pki/placewise-client.key",
    }


def test_neither_bind_nor_volcanos_calls_are_served_or_asked_for() -> None:
    listen = listen_config()
    assert (listen.is_bind_served, listen.is_volcano_served) == (False, False)
    assert {key: verb for key, verb in scheduler_extender().items() if key.endswith("Verb")} == {
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
    }


@pytest.mark.parametrize("file", VOLCANO_FILES)
def test_volcano_is_pointed_at_the_calls_that_are_served_for_it(file: str) -> None:
    """The plugin's arguments, whole: with another verb Volcano would ask for a page that the adapter does not have."""
    shipped = yaml.safe_load((FOLDER / file).read_text("utf-8"))
    (plugin,) = [plugin for plugin in shipped["tiers"][1]["plugins"] if plugin["name"] == "extender"]
    assert plugin["arguments"] == {
        "extender.urlPrefix": "http://placewise-kubernetes.placewise.svc:8443/volcano",
        "extender.httpTimeout": "200ms",
        "extender.jobEnqueueableVerb": "jobEnqueueable",
        "extender.prioritizeVerb": "prioritize",
        "extender.ignorable": True,
        "extender.managedResources": list(GangRules().gpu_resources),
    }
    assert "enqueue" in shipped["actions"].split(", ")


@pytest.mark.parametrize(("file", "place"), VOLCANO_FILES.items())
def test_volcano_asks_placewise_in_the_tier_that_keeps_the_quotas(file: str, place: int) -> None:
    """In an earlier tier, a yes would end the round before the quotas are asked for."""
    first, second = yaml.safe_load((FOLDER / file).read_text("utf-8"))["tiers"]
    assert not {"extender", "capacity", "proportion"} & {plugin["name"] for plugin in first["plugins"]}
    ordered = [plugin["name"] for plugin in second["plugins"]]
    assert "capacity" in ordered
    assert ordered[place] == "extender"


@pytest.mark.parametrize(
    ("file", "says"), [("volcano-scheduler.conf", "1.15.1 was run"), (NEXT, "no release has been run")]
)
def test_each_file_for_volcano_says_itself_what_was_run(file: str, says: str) -> None:
    lines = (FOLDER / file).read_text("utf-8").splitlines()
    assert says in " ".join(line.removeprefix("# ") for line in lines if line.startswith("#"))


@pytest.mark.parametrize(("kind", "rules"), [("ClusterRole", CLUSTER_RULES), ("Role", NAMESPACE_RULES)])
def test_the_rights_are_these_and_no_others(kind: str, rules: list[dict[str, Any]]) -> None:
    (role,) = manifests(kind)
    assert role["rules"] == rules


@pytest.mark.parametrize("kind", ["ClusterRole", "Role"])
def test_the_rights_go_to_the_adapter_alone(kind: str) -> None:
    (binding,) = manifests(f"{kind}Binding")
    assert binding["roleRef"] == {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": kind,
        "name": "placewise-kubernetes",
    }
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "placewise-kubernetes", "namespace": "placewise"}]
