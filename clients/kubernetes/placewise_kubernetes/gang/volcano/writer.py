"""Writes for Volcano and its users: the node that each pod should try first, and the reason that a PodGroup waits."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from placewise_client.adapter.bounded import Bounded
from placewise_client.adapter.native import Stage
from placewise_kubernetes.gang.gang import Gang
from placewise_kubernetes.gang.groups import group_object
from placewise_kubernetes.gang.spec import GangRef, GroupFacts, Source
from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.objects import Pod
from placewise_kubernetes.kube.wake import PodWriter

# Attempts to name a node on a pod, one at a pass of the loop.
NOMINATIONS = 3
# Pods that are remembered with the nodes that could not be named on them.
_FAILURES_LIMIT = 100_000
# PodGroups that are remembered with the last reason of an event.
_EXPLAINED_LIMIT = 100_000


class VolcanoWriter:
    """Writes to Volcano's pods and PodGroups in the background; to other gangs' it does nothing."""

    def __init__(self, writer: PodWriter) -> None:
        self._writer = writer
        self._failures: Bounded[tuple[str, str], int] = Bounded(_FAILURES_LIMIT)
        self._again: set[Gang] = set()
        self._explained: Bounded[str, str] = Bounded(_EXPLAINED_LIMIT)

    def nominate(self, gang: Gang | None) -> None:
        """Has each pod name its node, or none if none is decided for it.

        Volcano looks at some nodes of a large cluster only: without this, often not at the decided one.
        """
        if gang is None or not gang.is_nominated:
            return
        for pod in gang.waiting():
            task = gang.task_of(pod) if gang.plan is not None else None
            node = task.node if task is not None else ""
            before = gang.nominated.get(pod.uid, _named_by_us(pod))
            if before != node and (self._failures.get((pod.uid, node)) or 0) < NOMINATIONS:
                gang.nominated[pod.uid] = node
                notes = gang.notes(task) if task is not None else {}
                has_failed = partial(self._note_failure, gang, pod.uid, before, node)
                self._writer.nominate(pod, node, has_failed, dict.fromkeys(names.DECISION_NOTES) | notes)

    def clear_left(self, gangs: Iterable[Gang]) -> None:
        """Takes away the nodes that an earlier run has named on pods which are Volcano's to place now."""
        for gang in gangs:
            if gang.stage is Stage.RELEASED:
                self.nominate(gang)

    def nominate_again(self) -> None:
        """Once more for the pods of which it failed since the last call."""
        gangs, self._again = self._again, set()
        for gang in gangs:
            self.nominate(gang)

    def explain(self, reference: GangRef, facts: GroupFacts, text: str) -> None:
        """An event on a PodGroup; the same text comes once in a row."""
        if reference.source is not Source.VOLCANO or self._explained.get(facts.uid) == text:
            return
        self._explained.put(facts.uid, text)
        self._writer.explain_object(group_object(reference, facts), text)

    def explain_gang(self, gang: Gang, text: str) -> None:
        """An event on the pods of a gang, or on its PodGroup while it has none."""
        if not text:
            return
        if gang.pods:
            self._writer.explain(gang.waiting(), text)
        elif gang.facts is not None:
            self.explain(gang.ref, gang.facts, text)

    def _note_failure(self, gang: Gang, uid: str, before: str, node: str) -> None:
        self._failures.put((uid, node), (self._failures.get((uid, node)) or 0) + 1)
        if gang.nominated.get(uid) == node:  # no later call has named another
            gang.nominated[uid] = before
            self._again.add(gang)


def _named_by_us(pod: Pod) -> str:
    """The node that the pod names by a decision of ours, maybe of an earlier run; Volcano names nodes itself, too."""
    return pod.nominated if names.DECISION in pod.annotations else ""
