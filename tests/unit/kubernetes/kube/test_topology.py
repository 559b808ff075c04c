"""HyperNodes: their nodes and tiers, racks and labels of nodes, and the choice of one for a gang."""

from __future__ import annotations

from typing import Any

import pytest

from placewise.v1.cluster_pb2 import Node
from placewise.v1.job_pb2 import Job, TaskGroup
from placewise_kubernetes.kube.topology import (
    Domain,
    HardTopology,
    Topology,
    Within,
    choose,
    label_of,
    read_hyper_node,
    read_topology,
)


def hyper_node(name: str, tier: int, *selectors: dict[str, Any], kind: str = "Node", **spec: Any) -> dict[str, Any]:
    members = [{"type": kind, "selector": selector} for selector in selectors]
    return {"metadata": {"name": name}, "spec": {"tier": tier, "members": members, **spec}}


def exact(name: str) -> dict[str, Any]:
    return {"exactMatch": {"name": name}}


def topology(*documents: dict[str, Any]) -> Topology:
    return Topology(map(read_hyper_node, documents))


# Two switches of two nodes each below one block, and one switch beside it.
TREE = topology(
    hyper_node("s1", 1, exact("n1"), exact("n2")),
    hyper_node("s2", 1, exact("n3"), exact("n4")),
    hyper_node("s3", 1, exact("n5")),
    hyper_node("block", 2, exact("s1"), exact("s2"), kind="HyperNode"),
    hyper_node("hall", 3, exact("block"), exact("s3"), kind="HyperNode", tierName="hall"),
)


def test_a_node_is_in_the_largest_hyper_node_up_to_each_tier() -> None:
    assert TREE.domains("n1", {}) == {1: "s1", 2: "block", 3: "hall"}
    assert TREE.domains("n5", {}) == {1: "s3", 2: "s3", 3: "hall"}
    assert TREE.domains("n9", {}) == {}


@pytest.mark.parametrize(
    "selector",
    [
        exact("gpu-1"),
        {"regexMatch": {"pattern": "^gpu-[0-9]+$"}},
        {"labelMatch": {"matchLabels": {"row": "a"}}},
        {"labelMatch": {"matchExpressions": [{"key": "row", "operator": "Exists"}]}},
    ],
)
def test_members_are_found_by_name_pattern_or_label(selector: dict[str, Any]) -> None:
    found = topology(hyper_node("s1", 1, selector))
    assert found.domains("gpu-1", {"row": "a"}) == {1: "s1"}
    assert found.domains("cpu-1", {}) == {}


@pytest.mark.parametrize(
    "selector", [{}, {"regexMatch": {"pattern": "("}}, {"labelMatch": {}}, {"labelMatch": {"matchLabels": {}}}]
)
def test_a_selector_without_a_sense_has_no_members(selector: dict[str, Any]) -> None:
    assert topology(hyper_node("s1", 1, selector)).domains("n1", {"row": "a"}) == {}


def test_hyper_nodes_in_a_circle_end_the_search() -> None:
    found = topology(
        hyper_node("s1", 1, exact("n1")),
        hyper_node("b1", 2, exact("s1"), exact("b2"), kind="HyperNode"),
        hyper_node("b2", 3, exact("b1"), kind="HyperNode"),
    )
    assert found.domains("n1", {}) == {1: "s1", 2: "b1", 3: "b2"}


@pytest.mark.parametrize("document", [{"metadata": {"name": "s"}}, hyper_node("s", 1, {"exactMatch": 3})])
def test_a_document_of_another_shape_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        read_hyper_node(document)


# --- nodes ----------------------------------------------------------------------------------------------------------


def test_the_lowest_tier_is_the_rack_and_higher_ones_are_labels() -> None:
    node = Node(id="n1", rack="r9", labels={"placewise.dev/rack": "r9"})
    TREE.arrange(node)
    assert node.rack == "s1"
    assert (node.labels[label_of(2)], node.labels[label_of(3)]) == ("block", "hall")
    Topology().arrange(node)
    assert (node.rack, dict(node.labels)) == ("r9", {"placewise.dev/rack": "r9"})


def test_a_node_of_no_hyper_node_keeps_its_own_rack() -> None:
    node = Node(id="n9", rack="r9", labels={"placewise.dev/rack": "r9"})
    TREE.arrange(node)
    assert (node.rack, dict(node.labels)) == ("r9", {"placewise.dev/rack": "r9"})


# --- gangs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"networkTopology": {"mode": "hard", "highestTierAllowed": 1}}, HardTopology(1)),
        ({"networkTopology": {"highestTierAllowed": 2}}, HardTopology(2)),
        ({"networkTopology": {"mode": "hard", "highestTierName": "hall"}}, HardTopology(tier_name="hall")),
        ({"networkTopology": {"mode": "soft", "highestTierAllowed": 1}}, None),
        ({"networkTopology": {"mode": "hard"}}, None),
        ({"networkTopology": None}, None),
        ({"networkTopology": "hard"}, None),
        ({}, None),
    ],
)
def test_only_a_hard_topology_with_a_tier_binds(spec: dict[str, Any], expected: HardTopology | None) -> None:
    assert read_topology(spec) == expected


@pytest.mark.parametrize(
    ("hard", "tier"),
    [
        (HardTopology(0), None),
        (HardTopology(1), 1),
        (HardTopology(2), 2),
        (HardTopology(9), 3),
        (HardTopology(tier_name="hall"), 3),
        (HardTopology(tier_name="unknown"), None),
    ],
)
def test_a_gang_stays_within_the_highest_tier_that_it_may_cross(hard: HardTopology, tier: int | None) -> None:
    assert TREE.tier_of(hard) == tier


def constrained(within: Within, together: Job.KeepTogether = Job.KEEP_TOGETHER_UNSPECIFIED) -> Job:
    job = Job(groups=[TaskGroup(count=2, node_selector={"zone": "a"}), TaskGroup(count=1)], keep_together=together)
    within.constrain(job)
    return job


def test_within_a_rack_the_service_chooses_which() -> None:
    node = Node(id="n1")
    TREE.arrange(node)
    job = constrained(TREE.within(1))
    assert job.keep_together == Job.RACK
    for group in job.groups:  # and a node without a HyperNode, a rack of its own, is none of them
        wanted = {label: value for label, value in group.node_selector.items() if label != "zone"}
        assert wanted
        assert wanted.items() <= dict(node.labels).items()


def test_a_gang_that_has_to_be_on_one_node_stays_so() -> None:
    assert constrained(TREE.within(1), Job.NODE).keep_together == Job.NODE


def test_within_a_higher_tier_the_nodes_are_selected_by_its_label() -> None:
    job = constrained(TREE.within(2, "block"))
    assert job.keep_together == Job.KEEP_TOGETHER_UNSPECIFIED
    assert [dict(group.node_selector) for group in job.groups] == [
        {"zone": "a", label_of(2): "block"},
        {label_of(2): "block"},
    ]


DOMAINS = {"a": Domain(16, 16), "b": Domain(32, 8), "c": Domain(32, 24)}


@pytest.mark.parametrize(
    ("gpus", "before", "expected"),
    [
        (8, "", "b"),
        (9, "", "a"),
        (17, "", "c"),
        (25, "", "b"),  # the first of the largest
        (8, "b", "a"),
        (8, "c", "b"),
        (9, "b", "a"),
        (0, "gone", "b"),
    ],
)
def test_the_tightest_hyper_node_with_room_is_tried_first(gpus: float, before: str, expected: str) -> None:
    assert choose(DOMAINS, gpus, before) == expected


def test_no_hyper_node_is_none() -> None:
    assert choose({}, 1) == ""
