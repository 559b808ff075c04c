"""The rights that the doctor asks about are those that the shipped manifest grants."""

from pathlib import Path
from typing import Any

import yaml

from placewise_kubernetes.config import parse_config
from placewise_kubernetes.doctor import Right, needed_rights

MANIFEST = Path(__file__).parents[3] / "deploy" / "kubernetes" / "placewise-kubernetes.yaml"


def granted() -> list[dict[str, Any]]:
    roles = [found for found in yaml.safe_load_all(MANIFEST.read_text()) if found["kind"] in ("ClusterRole", "Role")]
    return [rule for role in roles for rule in role["rules"]]


def is_granted(right: Right) -> bool:
    resource = f"{right.resource}/{right.part}" if right.part else right.resource
    return any(
        right.group in rule["apiGroups"]
        and resource in rule["resources"]
        and right.verb in rule["verbs"]
        and right.name in rule.get("resourceNames", [right.name])
        for rule in granted()
    )


def test_the_shipped_manifest_grants_what_the_doctor_asks_about() -> None:
    config = parse_config({"cluster": "prod", "lease": "placewise/placewise-kubernetes"})
    assert [str(right) for right in needed_rights(config) if not is_granted(right)] == []


def test_a_replica_needs_to_read_and_to_renew_its_lease() -> None:
    needed = needed_rights(parse_config({"cluster": "prod", "lease": "ours/mine"}))
    leases = [(right.verb, right.namespace, right.name) for right in needed if right.resource == "leases"]
    assert leases == [("create", "ours", ""), ("get", "ours", "mine"), ("patch", "ours", "mine")]


def test_gates_and_bind_need_more() -> None:
    plain = needed_rights(parse_config({"cluster": "prod", "rules": {"own_scheduler": ""}}))
    gated = needed_rights(
        parse_config({"cluster": "prod", "rules": {"own_scheduler": ""}, "gates": {"is_enabled": True}})
    )
    assert Right("patch", "pods") in gated
    assert Right("patch", "pods") not in plain
    binding = Right("create", "pods", part="binding")
    assert binding not in plain
    assert binding in needed_rights(parse_config({"cluster": "prod"}))
    assert str(binding) == "create pods/binding"
    assert str(Right("create", "leases", "coordination.k8s.io", namespace="x")) == (
        "create leases.coordination.k8s.io in namespace x"
    )
