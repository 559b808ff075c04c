"""Remembers which nodes the last filter call left to each pod that was let through. Never talks to anybody.

If the scheduler binds through the adapter, such a pod is bound to one of these nodes and to no other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from placewise_client.adapter.bounded import Bounded
from placewise_kubernetes.kube.objects import Pod

# kube-scheduler offers some hundred nodes, and binds within moments of its filter call. At the limit, the pod that was
# let through longest ago is forgotten: its scheduler asks again before it binds.
MOST_NAMES = 500_000
# A pod itself takes as much memory as so many names.
_NAMES_PER_POD = 8


class PassedPods:
    """By pod uid; `most_names` bounds the names of nodes that are kept in all."""

    def __init__(self, most_names: int = MOST_NAMES) -> None:
        self._answers: Bounded[str, tuple[str, frozenset[str]]] = Bounded(most_names)

    def note(self, pod: Pod, nodes: Iterable[str]) -> None:
        """These nodes were left to the pod; the answer before does not hold any more."""
        left = frozenset(nodes)
        self._answers.put(pod.uid, (pod.path, left), len(left) + _NAMES_PER_POD)

    def allows(self, pod: Pod, node: str) -> bool:
        """Whether the last answer left this pod that node."""
        path, left = self._answers.get(pod.uid) or ("", frozenset())
        return path == pod.path and node in left

    def forget(self, uid: str) -> None:
        """The pod is bound, gone, or got another answer."""
        self._answers.forget(uid)

    def keep(self, uids: Collection[str]) -> None:
        """Forgets every pod but these."""
        for uid in self._answers.keys() - set(uids):
            self.forget(uid)
