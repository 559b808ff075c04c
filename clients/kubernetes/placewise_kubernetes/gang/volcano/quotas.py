"""How much each of Volcano's queues may hold, by the rule of its plugin capacity (1.15.1). Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from placewise_kubernetes.kube.quantity import add_amounts, parse_quantity

ROOT = "root"
# An amount of these that is not positive is no limit to capacity.
_LIMITED_IF_POSITIVE = ("cpu", "memory")

Amounts = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Quota:
    """The amounts of a Queue object, by resource name.

    `deserved` is left out: a queue may hold more than it deserves until another asks for its own.
    """

    capability: Amounts = field(default_factory=dict)
    guarantee: Amounts = field(default_factory=dict)
    parent: str = ROOT


def read_quota(spec: Mapping[str, Any]) -> Quota:
    """The spec of a Queue. Raises ValueError, TypeError, AttributeError: it is of another shape."""
    capability = _amounts(spec.get("capability"))
    return Quota(
        {name: most for name, most in capability.items() if most > 0 or name not in _LIMITED_IF_POSITIVE},
        _amounts((spec.get("guarantee") or {}).get("resource")),
        str(spec.get("parent") or ROOT),
    )


class Quotas:
    """All queues at one time. `total`: the allocatable amounts of all nodes.

    Queues form a tree if one of them has another parent than the root. Then capacity has to run with
    `enableHierarchy`, and weighs guarantees among the queues of one parent. Else it weighs them in the whole cluster.
    """

    def __init__(self, quotas: Mapping[str, Quota], total: Amounts) -> None:
        self._quotas = quotas
        self._total = total
        self._is_tree = any(quota.parent != ROOT for quota in quotas.values())
        self._guaranteed: dict[str, dict[str, float]] = {}
        for name, quota in quotas.items():
            if name != ROOT:
                add_amounts(self._guaranteed.setdefault(self._parent(quota), {}), quota.guarantee)
        self._most: dict[str, Amounts] = {}

    def lineage(self, name: str) -> tuple[str, ...]:
        """The queues that a gang of this queue counts in: itself and, in a tree, its ancestors."""
        return tuple(self._ancestry(name)) if self._is_tree else (name,)

    def has_children(self, name: str) -> bool:
        """Whether other queues are below it: capacity lets in no gang of such a one."""
        return self._is_tree and name in self._guaranteed

    def most(self, name: str) -> Amounts:
        """The most that the queue may hold, if that is less than everything."""
        if name not in self._most:
            most: Amounts = {}
            for queue in reversed(self.lineage(name)):
                most = self._limits(queue, most)
            self._most[name] = most
        return self._most[name]

    def _limits(self, name: str, above: Amounts) -> Amounts:
        """The limits of a queue whose parent has those of `above`."""
        quota = self._quotas.get(name, Quota())
        if name == ROOT:
            return quota.capability
        guaranteed, most = self._guaranteed.get(self._parent(quota), {}), dict(quota.capability)
        for resource in above.keys() | guaranteed.keys():
            own = quota.guarantee.get(resource, 0.0)
            others = guaranteed.get(resource, 0.0) - own
            if others > 0:
                room = above.get(resource, self._unlimited(resource))
                most[resource] = min(most.get(resource, math.inf), max(0.0, room - others - own) + own)
            elif resource in above:
                most[resource] = min(most.get(resource, math.inf), above[resource])
        return {resource: amount for resource, amount in most.items() if amount < math.inf}

    def _unlimited(self, resource: str) -> float:
        """Capacity takes a tree's root for unlimited if it has no capability, and else the cluster for the limit."""
        return math.inf if self._is_tree else self._total.get(resource, 0.0)

    def _parent(self, quota: Quota) -> str:
        return quota.parent if self._is_tree else ROOT

    def _ancestry(self, name: str) -> Iterator[str]:
        """Ends at the root, at a queue that is not there, and before a circle closes."""
        seen: set[str] = set()
        while name in self._quotas and name not in seen:
            yield name
            seen.add(name)
            name = self._quotas[name].parent


def _amounts(quantities: Mapping[str, Any] | None) -> dict[str, float]:
    return {resource: parse_quantity(amount) for resource, amount in (quantities or {}).items()}
