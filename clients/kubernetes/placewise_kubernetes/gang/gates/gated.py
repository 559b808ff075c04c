"""Pods that our scheduling gate holds, read for a decision: their requests, and the nodes that they may use.

The service knows nodes by labels and amounts. Any other rules become a label of our own. Nodes that satisfy them carry
it in our reports, never in the API. Never talks to the API.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import json

from placewise.v1.cluster_pb2 import Node
from placewise_client.adapter.bounded import Bounded
from placewise_kubernetes.gang.spec import GangRules
from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.constraints import Constraints, Term, is_selected, parse_constraints, tolerates
from placewise_kubernetes.kube.objects import Pod
from placewise_kubernetes.kube.quantity import whole_amounts
from placewise_kubernetes.kube.volumes import Volume

_MOST_RULES = 256
_MOST_VOLUMES = 20_000
_HASH_LENGTH = 12
Taints = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class NodeRules:
    """All of the selectors hold, and the taints are tolerated."""

    selectors: tuple[Sequence[Term], ...]
    tolerations: Sequence[Mapping[str, Any]]

    def allow(self, node: Node, taints: Taints) -> bool:
        """Whether a pod with these rules may use the node."""
        labels = node.labels
        return all(is_selected(terms, node.id, labels) for terms in self.selectors) and tolerates(
            self.tolerations, taints
        )


class GatedPods:
    """Reads pods; `has_new_rules` is called when nodes have to be reported with another label."""

    def __init__(self, rules: GangRules, has_new_rules: Callable[[], None]) -> None:
        self._rules = rules
        self._has_new_rules = has_new_rules
        self._labels: Bounded[str, NodeRules] = Bounded(_MOST_RULES)
        self.volumes: Bounded[tuple[str, str], Volume] = Bounded(_MOST_VOLUMES)

    def read(self, document: Mapping[str, Any]) -> Pod:
        """A v1.Pod. Raises ValueError and KeyError as `parse_pod`."""
        pod = self._rules.pod(document)
        pod = dataclasses.replace(pod, requests=whole_amounts({**pod.requests, "pods": 1.0}))
        if names.GATE not in pod.gates:
            return pod
        constraints = parse_constraints(document)
        if not constraints.unjudged and pod.setting(names.IGNORE).lower() == "true":
            constraints = dataclasses.replace(constraints, unjudged="ignored")
        held = dataclasses.replace(pod, is_held=True, is_gated=len(pod.gates) > 1, constraints=constraints)
        return self.resolve(held)

    def read_template(self, document: Mapping[str, Any]) -> Pod:
        """A stand-in for pods that will come with our gate. Raises ValueError and KeyError as `parse_pod`."""
        return self.read({**document, "spec": {**document["spec"], "schedulingGates": [{"name": names.GATE}]}})

    def unread(self, pod: Pod) -> list[str]:
        """Volume claims of the pod that have to be read before it is decided."""
        if not pod.is_held or pod.constraints.unjudged:
            return []
        return [claim for claim in pod.constraints.claims if (pod.namespace, claim) not in self.volumes]

    def resolve(self, pod: Pod) -> Pod:
        """The pod with its rules as a node selector, as soon as all of its volumes are known."""
        constraints = pod.constraints
        if constraints.unjudged:
            return pod
        if self.unread(pod):
            return dataclasses.replace(pod, is_unread=True)
        volumes = [self.volumes.get((pod.namespace, claim)) or Volume() for claim in constraints.claims]
        if any(volume.is_unjudged for volume in volumes):
            constraints = dataclasses.replace(constraints, unjudged="volume")
            return dataclasses.replace(pod, is_unread=False, constraints=constraints)
        label = self._label(constraints, [volume.terms for volume in volumes])
        return dataclasses.replace(pod, is_unread=False, node_selector={**pod.node_selector, label: "1"})

    def labelled(self, node: Node, taints: Taints) -> Node:
        """The node with the label of every set of rules that it satisfies."""
        if not self._labels.keys():
            return node
        copy = Node()
        copy.CopyFrom(node)
        for label in tuple(self._labels.keys()):
            rules = self._labels.get(label)
            if rules is not None and rules.allow(node, taints):
                copy.labels[label] = "1"
        return copy

    def _label(self, constraints: Constraints, volumes: Sequence[Sequence[Term]]) -> str:
        rules = NodeRules(tuple(terms for terms in (constraints.terms, *volumes) if terms), constraints.tolerations)
        text = json.encode([rules.selectors, rules.tolerations], order="sorted")
        label = f"{names.DOMAIN}/rules-{hashlib.sha256(text).hexdigest()[:_HASH_LENGTH]}"
        if label not in self._labels:
            self._labels.put(label, rules)
            self._has_new_rules()
        return label
