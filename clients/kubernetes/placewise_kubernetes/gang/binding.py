"""Starts gangs that no scheduler asks about: whole, if their resources are still free, and no pod twice.

Pods of our own scheduler name are bound; pods that our gate holds are nominated and lose it.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

from placewise.v1.cluster_pb2 import Assignment, Node
from placewise_client.adapter.native import Applied, Stage
from placewise_kubernetes.gang.fit import first_fit, have_room
from placewise_kubernetes.gang.gang import BY_CLAIM, Gang
from placewise_kubernetes.gang.gates.opening import GateOpener, Pin
from placewise_kubernetes.gang.mirror import NodeMirror, PodMirror
from placewise_kubernetes.gang.spec import id_notes
from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.bind import Binder, Bound, Target
from placewise_kubernetes.kube.objects import Pod
from placewise_kubernetes.kube.quantity import add_amounts
from placewise_kubernetes.kube.wake import PodWriter

BIND_RETRY_S = 1.0
PLACE_LOST_S = 30.0


class GangBinder:
    """`poke` and `poke_soon` wake the loop."""

    def __init__(
        self,
        binder: Binder,
        opener: GateOpener,
        writer: PodWriter,
        nodes: NodeMirror,
        pods: PodMirror,
        poke: Callable[[], None],
        poke_soon: Callable[[], None],
    ) -> None:
        self._binder = binder
        self._opener = opener
        self._writer = writer
        self._nodes = nodes
        self._pods = pods
        self._rules = pods.book.rules
        self._poke = poke
        self._poke_soon = poke_soon
        self._tasks: set[asyncio.Task[Applied]] = set()

    def bind(self, gang: Gang) -> asyncio.Task[Applied] | None:
        """Begins to bind the pods of a gang that wait; None if none may be bound now, or if there is no room.

        A decided gang goes to its decided nodes. For one that was left to the adapter, nodes are found that take all of
        it. Neither other gangs nor later pods wait for it.
        """
        is_free = gang.is_by_gate and gang.stage is Stage.RELEASED
        targets = self._targets(gang) if is_free or gang.may_bind(self._rules) else []
        if not targets:
            return None
        gang.being_bound.update(
            pod.uid for pod, _, _ in targets
        )  # at once: none is bound twice or taken back meanwhile
        task = asyncio.create_task(self._finish(gang, targets))
        self._tasks.add(task)
        task.add_done_callback(self._after_binding)
        return task

    async def apply(self, gang: Gang) -> Applied:
        """Binds a gang that was just decided. Without room it is undecided again. One whose pods are still being made,
        or that has run since before a restart, is bound as they come (`bind_late`)."""
        if gang.stage is Stage.RUNNING:
            self.bind(gang)
            return Applied.DONE
        if not gang.may_bind(self._rules):
            return Applied.DONE
        has_tasks = all(gang.task_of(pod) is not None for pod in gang.waiting())
        if has_tasks and gang.is_by_gate and not self._startable(gang):
            return Applied.DONE  # an earlier run has done it
        task = self.bind(gang) if has_tasks else None
        if task is None and not (has_tasks and self._has_room(gang)):
            return self._undecided(gang)
        outcome = await task if task is not None and gang.is_complete() else Applied.DONE
        if outcome is not Applied.REFUSED:
            return outcome
        # Bound pods stay, and the others are tried again.
        return Applied.DONE if gang.is_bound_in_part() else self._undecided(gang)

    def _undecided(self, gang: Gang) -> Applied:
        """Its reservation is about to be freed: nothing may be bound by this decision any more."""
        gang.mark_waiting()
        self._pods.book.touch(gang)
        return Applied.REFUSED

    async def bind_late(self) -> None:
        """Pods that the loop will not bring up again.

        Gangs that were decided before all of their pods were made; pods that replace others of a decided gang; and
        gangs that got no decision, which are bound if they fit as a whole, or wait on.
        """
        for gang in [gang for gang in self._pods.book.active.values() if gang.is_started_here]:
            task = self.bind(gang)
            if task is not None and gang.plan is None:
                await task  # the next gang has to fit beside it

    def part_lost(self, now_s: float) -> None:
        """Pods of a gang that runs, whose decided places others have taken, become gangs of their own after a while:
        the rest of the gang runs, and is not decided again. One of which no pod is left is over."""
        running = [gang for gang in self._pods.book.active.values() if gang.stage is Stage.RUNNING]
        for gang in [gang for gang in running if gang.plan is not None]:
            lost = [
                pod for pod in gang.waiting() if self._is_bound_to_place(gang, pod) and not self._has_place(gang, pod)
            ]
            if gang.is_left() and not lost:
                gang.lost_since_s = None
            elif gang.lost_since_s is None:
                gang.lost_since_s = now_s
            elif now_s - gang.lost_since_s >= PLACE_LOST_S:
                self.explain_unbound(gang, lost)
                if parting := [pod for pod in lost if not pod.admitted_to]:
                    self._part(gang, parting)
                elif not gang.is_left():
                    self._pods.book.finish(gang)

    def _part(self, gang: Gang, pods: Sequence[Pod]) -> None:
        book = self._pods.book
        book.part(gang, pods)
        for pod in pods:
            home = book.gang_of(pod.uid)
            if home is not None and (notes := id_notes(home.key)):
                self._writer.wake([pod], notes)

    def explain_unbound(self, gang: Gang, pods: Iterable[Pod]) -> None:
        """A pin cannot be changed once the gate is gone."""
        for pod in pods if self._opener.pin is Pin.HARD else ():
            text = f"{pod.admitted_to} did not take it in time, and it is pinned there: delete the pod to have it"
            if pod.admitted_to and gang.refused.get(pod.uid) != text:
                gang.refused[pod.uid] = text
                self._writer.explain([pod], f"{text} decided again")

    def _is_bound_to_place(self, gang: Gang, pod: Pod) -> bool:
        """Whether nothing but its decided place will do: a soft pin leaves others, and a gate says that it is not there
        yet."""
        is_let_go = bool(pod.admitted_to) and self._opener.pin is not Pin.HARD
        return not (pod.is_gated or is_let_go or pod.uid in gang.being_bound)

    def _has_place(self, gang: Gang, pod: Pod) -> bool:
        task = gang.task_of(pod)
        return task is not None and self._have_room({task.node: pod.requests})

    def _targets(self, gang: Gang) -> list[Target]:
        """The pods to bind now, with their nodes."""
        if gang.plan is None:
            return self._undecided_targets(gang) if gang.stage in (Stage.RELEASED, Stage.RUNNING) else []
        waiting = (pod for pod in self._startable(gang) if pod.uid not in gang.being_bound)
        tasks = [(pod, task) for pod in waiting if (task := gang.task_of(pod)) is not None]
        if gang.stage is Stage.RUNNING:
            tasks = self._fitting(gang, tasks)
        elif tasks and not self._has_room(gang):
            return []
        return [(pod, task.node, gang.notes(task)) for pod, task in tasks]

    def _fitting(self, gang: Gang, tasks: Sequence[tuple[Pod, Assignment]]) -> list[tuple[Pod, Assignment]]:
        """Those that have room. A gang that runs does not wait for a pod of it that has none."""
        wanted: dict[str, dict[str, float]] = {}
        for pod in gang.waiting():
            begun = gang.task_of(pod) if pod.admitted_to or pod.uid in gang.being_bound else None
            if begun is not None:
                add_amounts(wanted.setdefault(begun.node, {}), pod.requests)
        fitting = []
        for pod, task in tasks:
            both = dict(wanted.get(task.node, {}))
            add_amounts(both, pod.requests)
            if self._have_room({task.node: both}):
                wanted[task.node] = both
                fitting.append((pod, task))
        return fitting

    def _startable(self, gang: Gang) -> list[Pod]:
        """Pods that need something of us now. One without our gate waits for its own scheduler; one with the gate of
        another counts as not yet there."""
        waiting = [pod for pod in gang.waiting() if not pod.is_gated]
        return [pod for pod in waiting if not gang.is_by_gate or (pod.is_held and not pod.is_unread)]

    def _undecided_targets(self, gang: Gang) -> list[Target]:
        if not gang.is_by_gate:
            return self._by_fit(gang)
        released = {names.RELEASED: "true"}
        return [(pod, "", released) for pod in self._startable(gang) if pod.uid not in gang.being_bound]

    def _by_fit(self, gang: Gang) -> list[Target]:
        if gang.being_bound:
            return []
        nodes, waiting = list(self._nodes.nodes.values()), gang.waiting()
        chosen = first_fit(waiting, nodes, self._pods.in_use(self._nodes.nodes), self._rules.gpu_resources)
        return [(pod, chosen[pod.uid], {}) for pod in waiting] if chosen else []

    def _has_room(self, gang: Gang) -> bool:
        """Whether the decided resources are still free, also for pods that are still to come.

        Checked before each binding: while the service was away, or before it had the report, gangs may have been bound
        on reserved resources.
        """
        return self._have_room(gang.wanted())

    def _have_room(self, wanted: Mapping[str, Mapping[str, float]]) -> bool:
        """Whether all of these nodes take pods and have room for the requests; by node and resource name."""
        known = (self._nodes.nodes.get(name) for name in wanted)
        nodes = [node for node in known if node is not None and node.state == Node.READY]
        return len(nodes) == len(wanted) and have_room(
            wanted, nodes, self._pods.used(wanted), self._rules.gpu_resources
        )

    async def _finish(self, gang: Gang, targets: list[Target]) -> Applied:
        decision_id = gang.plan.decision_id if gang.plan else ""
        try:
            starter = self._opener if gang.is_by_gate else self._binder
            outcomes = await starter.bind_all(targets)
        finally:
            gang.being_bound.difference_update(pod.uid for pod, _, _ in targets)
        for (pod, node, _), outcome in zip(targets, outcomes, strict=True):
            if outcome is not Bound.DONE:
                continue
            if gang.is_by_gate:
                self._note_opened(pod, node, decision_id)
            else:
                self._note_bound(pod, node, decision_id)
        return _worst(outcomes)

    def _after_binding(self, task: asyncio.Task[Applied]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.result() is not Applied.DONE:
            asyncio.get_running_loop().call_later(BIND_RETRY_S, self._poke)

    def _note_opened(self, pod: Pod, node: str, decision_id: str) -> None:
        """Notes it before the watch shows it, so that nobody takes the decision back meanwhile."""
        current = self._pods.book.gang_of(pod.uid)
        if current is not None and current.pods[pod.uid].is_held:
            known = current.pods[pod.uid]
            annotations = {**known.annotations, **({names.NODE: node} if node else {})}
            self._pods.put(dataclasses.replace(known, is_held=False, annotations=annotations))
            self._poke_soon()
        if node:
            self._writer.report_admitted(pod, node, decision_id)

    def _note_bound(self, pod: Pod, node: str, decision_id: str) -> None:
        """Notes the binding before the watch shows it, so that nobody binds the pod again meanwhile."""
        current = self._pods.book.gang_of(pod.uid)
        if current is not None and not current.pods[pod.uid].node:
            self._pods.put(dataclasses.replace(current.pods[pod.uid], node=node))
            self._poke_soon()
        self._writer.report_scheduled(pod, node, decision_id)


def lacks(gang: Gang) -> str:
    """The reason, for its users, why nobody decides a gang that we start; empty for one that the loop explains."""
    is_unasked = gang.stage is Stage.WAITING and gang.plan is None and not (gang.is_reported and gang.may_decide_early)
    if not (gang.is_started_here and is_unasked) or any(pod.is_gated for pod in gang.waiting()):
        return ""
    missing = gang.missing()
    return f"waiting: {missing}" if missing and missing != BY_CLAIM else ""


def _worst(outcomes: list[Bound]) -> Applied:
    """The gang as a whole: the worst outcome of its pods."""
    if Bound.UNREACHABLE in outcomes:
        return Applied.UNREACHABLE
    if Bound.REFUSED in outcomes:
        return Applied.REFUSED
    return Applied.GONE if Bound.GONE in outcomes else Applied.DONE
