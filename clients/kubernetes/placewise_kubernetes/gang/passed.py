"""Remembers which nodes the last filter call left each pod that was let through. Never talks to anybody.

A scheduler that binds by the adapter has such a pod bound to one of these and to no other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from placewise_kubernetes.kube.objects import Pod

# kube-scheduler offers some hundred nodes, and binds within moments of its filter call. At the limit, the pod that was
# let through longest ago is forgotten: its scheduler asks again before it binds.
MOST_NAMES = 500_000
# A pod itself takes as much memory as so many names.
_NAMES_PER_POD = 8


@dataclass(slots=True)
class PassedPods:
    """By pod uid; `most_names` bounds the names of nodes that are kept in all."""

    most_names: int = MOST_NAMES
    _answers: dict[str, tuple[str, str, frozenset[str]]] = field(default_factory=dict)
    _count: int = 0

    def note(self, pod: Pod, nodes: Iterable[str]) -> None:
        """These nodes were left to the pod; what was said of it before no longer holds."""
        self.forget(pod.uid)
        left = frozenset(nodes)
        self._answers[pod.uid] = (pod.namespace, pod.name, left)
        self._count += len(left) + _NAMES_PER_POD
        while self._count > self.most_names:
            self.forget(next(iter(self._answers)))

    def allows(self, pod: Pod, node: str) -> bool:
        """Whether the last answer left this pod that node."""
        namespace, name, left = self._answers.get(pod.uid, ("", "", frozenset[str]()))
        return (namespace, name) == (pod.namespace, pod.name) and node in left

    def forget(self, uid: str) -> None:
        """The pod is bound, gone, or was told something else."""
        if uid in self._answers:
            _, _, left = self._answers.pop(uid)
            self._count -= len(left) + _NAMES_PER_POD

    def keep(self, uids: Collection[str]) -> None:
        """Forgets every pod but these."""
        for uid in self._answers.keys() - set(uids):
            self.forget(uid)
