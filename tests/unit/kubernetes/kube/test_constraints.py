"""Rules of pods about nodes, against the API's own definitions of them."""

from __future__ import annotations

from typing import Any

import pytest

from placewise.v1.cluster_pb2 import Node
from placewise_kubernetes.gang.gates.gated import GatedPods
from placewise_kubernetes.gang.spec import GangRules
from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.constraints import (
    Constraints,
    is_selected,
    parse_constraints,
    pinned,
    preferring,
    tolerates,
)
from placewise_kubernetes.kube.volumes import Volume

LABELS = {"zone": "a", "cores": "64"}
HERE = {"key": "metadata.name", "operator": "In", "values": ["n1"]}


def rule(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        (rule("zone", "In", "a", "b"), True),
        (rule("zone", "In", "b"), False),
        (rule("rack", "In", "b"), False),
        (rule("zone", "NotIn", "b"), True),
        (rule("zone", "NotIn", "a"), False),
        (rule("rack", "NotIn", "b"), True),
        (rule("zone", "Exists"), True),
        (rule("rack", "Exists"), False),
        (rule("rack", "DoesNotExist"), True),
        (rule("zone", "DoesNotExist"), False),
        (rule("cores", "Gt", "63"), True),
        (rule("cores", "Gt", "64"), False),
        (rule("cores", "Lt", "65"), True),
        (rule("zone", "Gt", "1"), False),
        (rule("zone", "Like", "a"), False),
    ],
)
def test_an_expression_selects_nodes(expression: dict[str, Any], holds: bool) -> None:
    assert is_selected([{"matchExpressions": [expression]}], "n1", LABELS) is holds


def test_terms_are_alternatives_and_their_rules_are_not() -> None:
    good, bad = rule("zone", "In", "a"), rule("zone", "In", "b")
    assert is_selected([{"matchExpressions": [bad]}, {"matchExpressions": [good]}], "n1", LABELS)
    assert not is_selected([{"matchExpressions": [good, bad]}], "n1", LABELS)
    assert is_selected([], "n1", LABELS)
    assert not is_selected([{}], "n1", LABELS)
    assert is_selected([{"matchFields": [HERE]}], "n1", LABELS)
    assert not is_selected([{"matchFields": [HERE]}], "n2", LABELS)


@pytest.mark.parametrize(
    ("toleration", "taint", "holds"),
    [
        ({"key": "k", "operator": "Exists"}, {"key": "k", "value": "v", "effect": "NoSchedule"}, True),
        ({"key": "k", "value": "v"}, {"key": "k", "value": "v", "effect": "NoExecute"}, True),
        ({"key": "k", "value": "v"}, {"key": "k", "value": "w", "effect": "NoSchedule"}, False),
        ({"key": "k", "value": "v", "effect": "NoExecute"}, {"key": "k", "value": "v", "effect": "NoSchedule"}, False),
        ({"operator": "Exists"}, {"key": "k", "effect": "NoSchedule"}, True),
        ({"key": "other", "operator": "Exists"}, {"key": "k", "effect": "NoSchedule"}, False),
        ({"key": "k", "operator": "Lt", "value": "5"}, {"key": "k", "value": "4", "effect": "NoSchedule"}, False),
        ({"key": "other", "operator": "Exists"}, {"key": "k", "effect": "PreferNoSchedule"}, True),
    ],
)
def test_a_toleration_lets_a_pod_onto_a_tainted_node(
    toleration: dict[str, Any], taint: dict[str, Any], holds: bool
) -> None:
    assert tolerates([toleration], [taint]) is holds


def test_a_pin_is_added_to_every_alternative_and_a_preference_to_the_others() -> None:
    terms = [{"matchExpressions": [rule("zone", "Exists")]}, {"matchExpressions": [rule("rack", "Exists")]}]
    other = {"weight": 1, "preference": {"matchExpressions": [rule("zone", "In", "b")]}}
    constraints = Constraints(terms=terms, preferred=[other])
    required = pinned(constraints, "n1")["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert required == [{**term, "matchFields": [HERE]} for term in terms]
    preferred = preferring(constraints, "n1")["preferredDuringSchedulingIgnoredDuringExecution"]
    assert preferred == [other, {"weight": 100, "preference": {"matchFields": [HERE]}}]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"affinity": {"nodeAffinity": {}}}, ""),
        ({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}}, "pod_affinity"),
        ({"topologySpreadConstraints": [{}]}, "topology_spread"),
        ({"containers": [{"ports": [{"containerPort": 80}]}]}, ""),
        ({"containers": [{"ports": [{"containerPort": 80, "hostPort": 80}]}]}, "host_ports"),
        ({"containers": [{"ports": [{"containerPort": 80}]}], "hostNetwork": True}, "host_ports"),
        ({"volumes": [{"name": "d", "ephemeral": {}}]}, ""),
        ({"volumes": [{"name": "d", "ephemeral": {"volumeClaimTemplate": {}}}]}, "ephemeral_volume"),
    ],
)
def test_a_rule_that_is_not_evaluated_has_a_name(changes: dict[str, Any], reason: str) -> None:
    document = {"metadata": {"namespace": "default"}, "spec": {"containers": []} | changes}
    assert parse_constraints(document).unjudged == reason


def test_pods_of_the_system_and_of_daemons_are_not_held() -> None:
    system = {"metadata": {"namespace": "kube-system"}, "spec": {}}
    daemon = {"metadata": {"namespace": "a", "ownerReferences": [{"kind": "DaemonSet"}]}, "spec": {}}
    assert [parse_constraints(document).unjudged for document in (system, daemon)] == ["kube_system", "daemon_set"]


def held(**spec: Any) -> dict[str, Any]:
    gates = [{"name": names.GATE}]
    return {
        "metadata": {"name": "p", "namespace": "default", "uid": "u"},
        "spec": {"containers": [], "schedulingGates": gates} | spec,
    }


def test_nodes_that_satisfy_a_pod_s_rules_carry_a_label_of_ours_in_reports() -> None:
    news: list[None] = []
    gated = GatedPods(GangRules(), lambda: news.append(None))
    volumes = [{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}]
    pod = gated.read(held(volumes=volumes, tolerations=[{"key": "k", "operator": "Exists"}]))
    assert (pod.is_held, pod.is_gated, pod.is_unread, gated.unread(pod)) == (True, False, True, ["c"])
    gated.volumes.put(("default", "c"), Volume([{"matchExpressions": [rule("zone", "In", "a")]}]))
    pod = gated.resolve(pod)
    assert (pod.is_unread, len(news)) == (False, 1)
    ((label, value),) = pod.node_selector.items()
    here, elsewhere = Node(id="n1", labels={"zone": "a"}), Node(id="n2", labels={"zone": "b"})
    taint = {"key": "k", "effect": "NoSchedule"}
    assert gated.labelled(here, [taint]).labels[label] == value
    assert label not in here.labels
    assert label not in gated.labelled(here, [{"key": "other", "effect": "NoSchedule"}]).labels
    assert label not in gated.labelled(elsewhere, []).labels


def test_a_volume_that_is_made_where_its_pod_goes_is_not_evaluated() -> None:
    gated = GatedPods(GangRules(), lambda: None)
    gated.volumes.put(("default", "c"), Volume(is_unjudged=True))
    pod = gated.read(held(volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}]))
    assert (pod.constraints.unjudged, pod.is_unread) == ("volume", False)


def test_pods_count_as_one_and_disks_in_mib() -> None:
    gated = GatedPods(GangRules(), lambda: None)
    requests = {"ephemeral-storage": "20Gi", "hugepages-2Mi": "4Mi", "memory": "1Gi"}
    pod = gated.read(held(containers=[{"resources": {"requests": requests}}]))
    assert pod.requests == {"ephemeral-storage": 20480, "hugepages-2Mi": 4, "memory": 2**30, "pods": 1}
