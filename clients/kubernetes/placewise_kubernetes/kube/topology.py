"""Volcano's HyperNodes: which nodes form one, and which of them a gang of hard topology may use. Pure.

The nodes of one HyperNode of the lowest tier are a rack to Placewise. For each higher tier a node gets a label with the
largest HyperNode up to that tier that it is in: a gang that may cross that tier stays on the nodes of one value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from placewise.v1.cluster_pb2 import Node
from placewise.v1.job_pb2 import Job
from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.constraints import Term, is_selected
from placewise_kubernetes.kube.nodes import RACK_LABELS

# A node that no HyperNode has would be a rack of its own.
_IN_RACK = f"{names.HYPER_NODE}is-in-one"


@dataclass(frozen=True, slots=True)
class HardTopology:
    """The highest tier that a gang may cross, by number or by the name that HyperNodes give it."""

    tier: int | None = None
    tier_name: str = ""

    def __str__(self) -> str:
        return f"tier {self.tier_name if self.tier is None else self.tier}"


@dataclass(frozen=True, slots=True)
class HyperNode:
    """One HyperNode: the nodes that it names, and its children."""

    name: str
    tier: int
    tier_name: str = ""
    nodes: frozenset[str] = frozenset()
    patterns: tuple[str, ...] = ()
    terms: tuple[Term, ...] = ()
    children: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Within:
    """The nodes that a gang may use: those of one rack, or those with these labels, or both."""

    is_rack: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)

    def constrain(self, job: Job) -> None:
        """A gang that has to be on one node stays so."""
        if self.is_rack and job.keep_together != Job.NODE:
            job.keep_together = Job.RACK
        for group in job.groups:
            group.node_selector.update(self.labels)


def read_topology(spec: Mapping[str, Any]) -> HardTopology | None:
    """The hard topology of a PodGroup's spec; None if it has none that Volcano would heed."""
    found = spec.get("networkTopology")
    if not isinstance(found, Mapping) or (found.get("mode") or "hard") != "hard":
        return None
    tier, name = found.get("highestTierAllowed"), str(found.get("highestTierName") or "")
    if isinstance(tier, int):
        return HardTopology(tier)
    return HardTopology(tier_name=name) if name else None


def read_hyper_node(document: Mapping[str, Any]) -> HyperNode:
    """Raises KeyError, TypeError, ValueError, AttributeError: the document is of another shape."""
    spec = document["spec"]
    nodes, patterns, terms, children = set[str](), list[str](), list[Term](), list[str]()
    for member in spec.get("members") or ():
        selector = member.get("selector") or {}
        exact = (selector.get("exactMatch") or {}).get("name")
        if member["type"] == "HyperNode":
            children += [exact] if exact else []
            continue
        nodes |= {exact} if exact else set()
        patterns += [pattern] if (pattern := (selector.get("regexMatch") or {}).get("pattern")) else []
        terms += [_term(label)] if (label := selector.get("labelMatch")) else []
    return HyperNode(
        name=document["metadata"]["name"],
        tier=int(spec["tier"]),
        tier_name=spec.get("tierName") or "",
        nodes=frozenset(nodes),
        patterns=tuple(patterns),
        terms=tuple(terms),
        children=tuple(children),
    )


class Topology:
    """All HyperNodes at one time."""

    def __init__(self, hyper_nodes: Iterable[HyperNode] = ()) -> None:
        self._by_name = {found.name: found for found in hyper_nodes}
        self._parents: dict[str, list[str]] = {}
        self._by_node: dict[str, list[str]] = {}
        self._patterns: list[tuple[re.Pattern[str], str]] = []
        self._terms: list[tuple[Term, str]] = []
        for name in sorted(self._by_name):
            self._take(self._by_name[name])
        self.tiers = sorted({found.tier for found in self._by_name.values()})

    def domains(self, node: str, labels: Mapping[str, str]) -> dict[int, str]:
        """By tier, the largest HyperNode up to it that has the node."""
        of_tier: dict[int, str] = {}
        for name in sorted(self._around(node, labels)):
            of_tier.setdefault(self._by_name[name].tier, name)
        domains: dict[int, str] = {}
        largest = ""
        for tier in self.tiers:
            largest = of_tier.get(tier, largest)
            if largest:
                domains[tier] = largest
        return domains

    def arrange(self, node: Node) -> None:
        """Sets the rack and the labels of a node, in place; its own rack label counts if no HyperNode has it."""
        for label in [label for label in node.labels if label.startswith(names.HYPER_NODE)]:
            del node.labels[label]
        domains = self.domains(node.id, node.labels)
        own = next((node.labels[label] for label in RACK_LABELS if node.labels.get(label)), "")
        node.rack = own
        for tier, name in domains.items():
            if self.is_racks(tier):
                node.rack, node.labels[_IN_RACK] = name, "true"
            else:
                node.labels[label_of(tier)] = name

    def tier_of(self, hard: HardTopology) -> int | None:
        """The tier of HyperNodes that a gang has to stay within; None: there is none that it may use."""
        named = (found.tier for found in self._by_name.values() if found.tier_name == hard.tier_name)
        highest = hard.tier if hard.tier is not None else next(named, None)
        return None if highest is None else max((tier for tier in self.tiers if tier <= highest), default=None)

    def within(self, tier: int, domain: str = "") -> Within:
        """Within racks the service chooses; for a higher tier the caller names the HyperNode."""
        if self.is_racks(tier):
            return Within(is_rack=True, labels={_IN_RACK: "true"})
        return Within(labels={label_of(tier): domain})

    def is_racks(self, tier: int) -> bool:
        """Whether the HyperNodes of this tier are the racks."""
        return tier == self.tiers[0]

    def _take(self, found: HyperNode) -> None:
        for child in found.children:
            self._parents.setdefault(child, []).append(found.name)
        for node in found.nodes:
            self._by_node.setdefault(node, []).append(found.name)
        self._patterns += [(compiled, found.name) for text in found.patterns if (compiled := _compiled(text))]
        self._terms += [(term, found.name) for term in found.terms]

    def _around(self, node: str, labels: Mapping[str, str]) -> set[str]:
        """All HyperNodes that have the node."""
        left = list(self._by_node.get(node, ()))
        left += [name for pattern, name in self._patterns if pattern.search(node)]
        left += [name for term, name in self._terms if is_selected((term,), node, labels)]
        around: set[str] = set()
        while left:
            name = left.pop()
            if name not in around:
                around.add(name)
                left += self._parents.get(name, ())
        return around


@dataclass(frozen=True, slots=True)
class Domain:
    """GPUs of the nodes of one HyperNode that take gangs, and those of them that are free."""

    gpus: float
    free_gpus: float


def choose(domains: Mapping[str, Domain], gpus: float, before: str = "") -> str:
    """The HyperNode for a gang that asks for so many GPUs: of those with room, the one with the least.

    `before`: the last choice, on which the gang did not find its nodes; the next with room is tried. Without room
    anywhere, the largest: it is the first that the gang may fit on.
    """
    fitting = sorted((domain.free_gpus, name) for name, domain in domains.items() if domain.free_gpus >= gpus)
    order = [name for _, name in fitting]
    if not order:
        return max(sorted(domains), key=lambda name: domains[name].gpus, default="")
    return order[(order.index(before) + 1) % len(order)] if before in order else order[0]


def label_of(tier: int) -> str:
    """The label that names a node's HyperNode of this tier."""
    return f"{names.HYPER_NODE}tier-{tier}"


def _term(label_match: Mapping[str, Any]) -> Term:
    labels = label_match.get("matchLabels") or {}
    rules: Sequence[Mapping[str, Any]] = [
        *({"key": key, "operator": "In", "values": [value]} for key, value in labels.items()),
        *(label_match.get("matchExpressions") or ()),
    ]
    return {"matchExpressions": list(rules)}


def _compiled(text: str) -> re.Pattern[str] | None:
    """None if it is no regular expression: to Volcano it has no members then."""
    try:
        return re.compile(text)
    except re.error:
        return None
