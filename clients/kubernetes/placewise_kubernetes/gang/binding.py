"""Binds gangs of our own scheduler name: whole, if their resources are still free, and no pod twice."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

from placewise_client.adapter.native import Applied, Stage
from placewise_kubernetes.gang.fit import first_fit, have_room
from placewise_kubernetes.gang.gang import Gang
from placewise_kubernetes.gang.mirror import NodeMirror, PodMirror
from placewise_kubernetes.kube.bind import Binder, Bound, Target, decision_notes
from placewise_kubernetes.kube.objects import Pod
from placewise_kubernetes.kube.wake import PodWriter

BIND_RETRY_S = 1.0


class GangBinder:
    """`is_current`: the mirrors are up to date. `poke` and `poke_soon` wake the loop."""

    def __init__(
        self,
        binder: Binder,
        writer: PodWriter,
        nodes: NodeMirror,
        pods: PodMirror,
        is_current: Callable[[], bool],
        poke: Callable[[], None],
        poke_soon: Callable[[], None],
    ) -> None:
        self._binder = binder
        self._writer = writer
        self._nodes = nodes
        self._pods = pods
        self._rules = pods.book.rules
        self._is_current = is_current
        self._poke = poke
        self._poke_soon = poke_soon
        self._tasks: set[asyncio.Task[Applied]] = set()

    async def bind(self, gang: Gang) -> Applied:
        """Binds a gang that was just decided. Without room it is undecided again."""
        if not gang.may_bind(self._rules):
            return Applied.DONE  # decided while its pods are being made; `bind_late` binds them together
        if any(gang.task_of(pod) is None for pod in gang.waiting()) or not self._has_room(gang):
            gang.mark_waiting()
            self._pods.book.touch(gang)
            return Applied.REFUSED
        if not gang.is_complete():
            self.bind_planned(gang)
            return Applied.DONE
        return await self._start(gang, _planned_targets(gang))

    async def bind_late(self) -> None:
        """Pods of our own scheduler name that the loop will not bring up again.

        Gangs that were decided before all of their pods were made; pods that replace others of a decided gang; and
        gangs that got no decision, which are bound if they fit as a whole, or wait on.
        """
        for gang in [gang for gang in self._pods.book.active.values() if gang.is_own]:
            is_left_to_us = gang.plan is None and gang.stage in (Stage.RELEASED, Stage.RUNNING)
            if is_left_to_us and gang.may_bind(self._rules) and not gang.being_bound:
                await self._bind_by_fit(gang)
            else:
                self.bind_planned(gang)

    def bind_planned(self, gang: Gang) -> None:
        """Binds what waits of a decided gang while the loop goes on: neither other gangs nor pods to come wait for it.

        Without room, the loop takes the decision back.
        """
        if gang.plan is None or not (gang.may_bind(self._rules) and self._is_current()):
            return
        targets = _planned_targets(gang)
        if targets and self._has_room(gang):
            task = self._start(gang, targets)
            self._tasks.add(task)
            task.add_done_callback(self._after_binding)

    async def _bind_by_fit(self, gang: Gang) -> None:
        nodes = list(self._nodes.nodes.values())
        chosen = first_fit(gang.waiting(), nodes, self._pods.in_use(self._nodes.nodes), self._rules.gpu_resources)
        if chosen:
            await self._start(gang, [(pod, chosen[pod.uid], {}) for pod in gang.waiting()])

    def _has_room(self, gang: Gang) -> bool:
        """Whether the decided resources are still free, also for pods that are still to come.

        Checked before each binding: while the service was away, or before it had the report, gangs may have been bound
        on reserved resources.
        """
        wanted = gang.wanted()
        nodes = [self._nodes.nodes[name] for name in wanted if name in self._nodes.nodes]
        return len(nodes) == len(wanted) and have_room(
            wanted, nodes, self._pods.used(wanted), self._rules.gpu_resources
        )

    def _start(self, gang: Gang, targets: list[Target]) -> asyncio.Task[Applied]:
        """Begins to bind these pods; noted at once, so that none is bound twice or taken back meanwhile."""
        gang.being_bound.update(pod.uid for pod, _, _ in targets)
        return asyncio.create_task(self._finish(gang, targets))

    async def _finish(self, gang: Gang, targets: list[Target]) -> Applied:
        decision_id = gang.plan.decision_id if gang.plan else ""
        try:
            outcomes = await self._binder.bind_all(targets)
        finally:
            gang.being_bound.difference_update(pod.uid for pod, _, _ in targets)
        for (pod, node, _), outcome in zip(targets, outcomes, strict=True):
            if outcome is Bound.DONE:
                self._note_bound(pod, node, decision_id)
        return _worst(outcomes)

    def _after_binding(self, task: asyncio.Task[Applied]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.result() is not Applied.DONE:
            asyncio.get_running_loop().call_later(BIND_RETRY_S, self._poke)

    def _note_bound(self, pod: Pod, node: str, decision_id: str) -> None:
        """Notes the binding before the watch shows it, so that nobody binds the pod again meanwhile."""
        current = self._pods.book.gang_of(pod.uid)
        if current is not None and not current.pods[pod.uid].node:
            self._pods.put(dataclasses.replace(current.pods[pod.uid], node=node))
            self._poke_soon()
        self._writer.report_scheduled(pod, node, decision_id)


def _planned_targets(gang: Gang) -> list[Target]:
    """The pods of a decided gang to bind now."""
    decision_id = gang.plan.decision_id if gang.plan else ""
    waiting = (pod for pod in gang.waiting() if pod.uid not in gang.being_bound)
    tasks = [(pod, task) for pod in waiting if (task := gang.task_of(pod)) is not None]
    return [(pod, task.node, decision_notes(task, decision_id)) for pod, task in tasks]


def _worst(outcomes: list[Bound]) -> Applied:
    """The gang as a whole: the worst outcome of its pods."""
    if Bound.UNREACHABLE in outcomes:
        return Applied.UNREACHABLE
    if Bound.REFUSED in outcomes:
        return Applied.REFUSED
    return Applied.GONE if Bound.GONE in outcomes else Applied.DONE
