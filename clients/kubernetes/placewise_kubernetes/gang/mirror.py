"""The cluster as the adapter has seen it: nodes, pods, free resources. Fed by watches; never talks to the API."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from placewise.v1.cluster_pb2 import Assignment, Node
from placewise.v1.job_pb2 import TaskGroup
from placewise_client.adapter.native import End, NativeJob, Placement, Stage
from placewise_kubernetes.gang.book import UID_LENGTH, GangBook
from placewise_kubernetes.gang.devices.inventory import Devices
from placewise_kubernetes.gang.devices.reported import ReportedGpus
from placewise_kubernetes.gang.gang import UNREADABLE, Gang
from placewise_kubernetes.gang.gates.gated import Taints
from placewise_kubernetes.gang.gpus import GpuLedger, gpus_by_node
from placewise_kubernetes.gang.passed import PassedPods
from placewise_kubernetes.gang.spec import GangRules, GroupFacts, Source, build_job, role_of
from placewise_kubernetes.kube.nodes import NodeReader, allocatable, tellable
from placewise_kubernetes.kube.objects import Pod
from placewise_kubernetes.kube.quantity import add_amounts
from placewise_kubernetes.kube.topology import Topology

log = logging.getLogger(__name__)

ReadNode = tuple[Node, Taints, Mapping[str, float]]
# A scheduler asks about one pod at a time, and there are few schedulers.
MOST_AWAITED = 64


class NodeMirror:
    """Nodes by name; notes whether they changed since they were last taken."""

    def __init__(
        self,
        reader: NodeReader,
        notify: Callable[[], None],
        labelled: Callable[[Node, Taints], Node] = lambda node, _: node,
        with_devices: Callable[[Node], Node] = lambda node: node,
    ) -> None:
        self._reader = reader
        self._with_devices = with_devices
        self._as_read: dict[str, Node] = {}
        self._labelled = labelled
        self._taints: dict[str, Taints] = {}
        self._amounts: dict[str, Mapping[str, float]] = {}
        self._total: dict[str, float] | None = None
        self._topology = Topology()
        self._notify = notify
        self._has_changed = True
        self.nodes: dict[str, Node] = {}

    def read(self, item: Mapping[str, Any]) -> ReadNode | None:
        """The node, its taints and its allocatable amounts; None if the object cannot be read."""
        try:
            return self._reader.read(item), (item.get("spec") or {}).get("taints") or (), allocatable(item)
        except (ValueError, KeyError) as error:
            log.warning("a node is ignored, its object cannot be read: %s", error)
            return None

    def replace(self, items: Iterable[ReadNode | None]) -> None:
        for known in (self.nodes, self._as_read, self._taints, self._amounts):
            known.clear()
        for item in items:
            self._put(item)
        self._note_change()

    def change(self, item: Mapping[str, Any]) -> None:
        if self._put(self.read(item)):
            self._note_change()

    def remove(self, item: Mapping[str, Any]) -> None:
        for known in (self.nodes, self._as_read, self._taints, self._amounts):
            known.pop(item["metadata"]["name"], None)
        self._note_change()

    def update_devices(self, changed: Collection[str] | None) -> None:
        """Gives these nodes, or all, the GPUs that their slices show now."""
        for name in list(self.nodes) if changed is None else self.nodes.keys() & set(changed):
            node = self._with_devices(self._as_read[name])
            if node != self.nodes[name]:
                self.nodes[name] = node
                self._note_change()

    def gpu_indices(self, name: str) -> Sequence[int]:
        """Those of a node's GPUs; none for one that is not known."""
        node = self.nodes.get(name)
        return [gpu.index for gpu in node.gpus] if node is not None and node.gpus else range(self.gpus(name))

    def gpus(self, name: str) -> int:
        """GPUs of a node; 0 for one that is not known."""
        return int(self.nodes[name].capacity.gpus) if name in self.nodes else 0

    def are_ready(self, placement: Placement) -> bool:
        """Whether all of its nodes take pods: one may be lost while the decision is on its way."""
        nodes = [self.nodes.get(name) for name in placement.nodes]
        return all(node is not None and node.state == Node.READY for node in nodes)

    def total(self) -> Mapping[str, float]:
        """The allocatable amounts of all nodes, by resource name."""
        if self._total is None:
            self._total = {}
            for amounts in self._amounts.values():
                add_amounts(self._total, amounts)
        return self._total

    def take(self, *, full: bool) -> list[Node] | None:
        """All nodes as the service takes them; None if none has changed since the last call and not `full`."""
        if not self._has_changed and not full:
            return None
        self._has_changed = False
        return [tellable(self._labelled(node, self._taints.get(node.id, ()))) for node in self.nodes.values()]

    def arrange(self, topology: Topology) -> None:
        """Has all nodes reported again, with the racks and labels of these HyperNodes."""
        self._topology = topology
        for node in self._as_read.values():
            topology.arrange(node)
        self.nodes = {name: self._with_devices(node) for name, node in self._as_read.items()}
        self._note_change()

    def report_again(self) -> None:
        """Has all nodes reported again: their labels of our own have changed."""
        self._has_changed = True

    def _put(self, item: ReadNode | None) -> bool:
        """Whether the node has changed (a heartbeat is no change)."""
        if item is None:
            return False
        node, taints, amounts = item
        if self._topology.tiers:
            self._topology.arrange(node)
        self._as_read[node.id] = node
        node = self._with_devices(node)
        is_new = self.nodes.get(node.id) != node or self._taints.get(node.id) != taints
        self.nodes[node.id], self._taints[node.id], self._amounts[node.id] = node, taints, amounts
        return is_new

    def _note_change(self) -> None:
        self._has_changed, self._total = True, None
        self._notify()


class PodMirror:
    """Pods: those of gangs go to the book; of the others only the usage counts."""

    def __init__(
        self,
        rules: GangRules,
        notify: Callable[[], None],
        notify_soon: Callable[[], None],
        serve: Callable[[Gang], None],
        gpus: GpuLedger,
        devices: Devices,
        read: Callable[[Mapping[str, Any]], Pod] | None = None,
    ) -> None:
        self._rules = rules
        self._read = read or rules.pod
        self._notify = notify
        self._notify_soon = notify_soon
        self._serve = serve
        self._gpus = gpus
        self._devices = devices
        self._claiming: dict[str, Pod] = {}
        """Waiting pods that may turn out to be ours when their claims, or classes, are made."""
        self.reported = ReportedGpus(notify)
        devices.is_counted = self.is_counted
        self.book = GangBook(rules, devices.complete)
        self.passed = PassedPods()
        self._awaited: dict[str, asyncio.Event] = {}
        self.others: dict[str, Pod] = {}
        self._other_news: dict[str, Pod] = {}
        self._foreign_jobs: dict[str, tuple[Pod, NativeJob | None]] = {}
        self._on_node: dict[str, dict[str, Pod]] = {}
        self._node_of: dict[str, str] = {}

    def replace(self, items: Iterable[Pod | None]) -> None:
        pods = [pod for pod in items if pod is not None]
        seen = {pod.uid for pod in pods}
        for uid in self._all() - seen:
            self._drop(uid)
        self.passed.keep(seen)
        self._devices.keep(seen)
        # The first of a gang names it, so the order must be the same after a restart.
        for pod in sorted(pods, key=lambda pod: (pod.created_s, pod.namespace, pod.name)):
            self.put(pod)
        self._devices.tell()
        self._notify()

    def change(self, item: Mapping[str, Any]) -> None:
        pod = self.read(item)
        if pod is not None:
            self.put(pod)
            self._devices.tell()
            self._notify_if_news(pod)

    def read(self, item: Mapping[str, Any]) -> Pod | None:
        """The pod; None if the object cannot be read."""
        try:
            return self._read(item)
        except (ValueError, KeyError) as error:
            log.warning("a pod is ignored, its object cannot be read: %s", error)
            return None

    def remove(self, item: Mapping[str, Any]) -> None:
        self._drop(item["metadata"]["uid"])
        self._devices.tell()
        self._notify_if_news(None)

    def put(self, pod: Pod) -> None:
        """Takes in a pod as it is now."""
        self._devices.note_pod(pod)
        pod = self._devices.complete(pod)
        self._claiming.pop(pod.uid, None)
        self._move(pod.uid, pod if pod.node and not pod.is_over else None)
        if not pod.is_waiting:
            self.passed.forget(pod.uid)
        if self.book.gang_of(pod.uid) is not None or self._is_ours(pod):
            self.book.put(pod)
            if (event := self._awaited.pop(pod.uid, None)) is not None:
                event.set()
        elif pod.node and self.others.get(pod.uid) != pod:
            self.others[pod.uid] = self._other_news[pod.uid] = pod
        elif pod.is_waiting and pod.device_claims:
            self._claiming[pod.uid] = pod

    def update_devices(self, uids: Collection[str] | None) -> None:
        """Takes these pods in again, or all, since their claims, or the devices, have changed."""
        if uids is None:
            self.book.complete_templates()
        is_awaited = False
        for pod in [pod for uid in (self._all() if uids is None else uids) if (pod := self._known(uid)) is not None]:
            try:
                if self._devices.complete(pod) != pod:
                    self.put(pod)
                    is_awaited |= pod.is_waiting
            except UNREADABLE:
                log.exception("pod %s stays as it was, its devices cannot be read", pod.path)
        if self._other_news or self.book.has_news():
            (self._notify if is_awaited else self._notify_soon)()

    def is_counted(self, uid: str, node: str, index: int) -> bool:
        """Whether the service counts this GPU on the pod's job: as a part of its start, or of its reservation."""
        pod, gang = self._known(uid), self.book.gang_of(uid)
        if pod is None or pod.is_over:
            return False
        reported = self.reported.gpus(gang.key if gang is not None else _key(pod), node)
        if reported is not None:
            return index in reported
        return gang is not None and gang.plan is not None and any(task.node == node for task in gang.plan.assignments)

    def _all(self) -> set[str]:
        return set(self.others).union(self._claiming, *(gang.pods for gang in self.book.gangs.values()))

    def _known(self, uid: str) -> Pod | None:
        gang = self.book.gang_of(uid)
        return gang.pods.get(uid) if gang is not None else self.others.get(uid) or self._claiming.get(uid)

    async def wait_shown(self, uid: str, timeout_s: float) -> Gang | None:
        """The gang of a pod that a scheduler may know before the watch has shown it.

        None if the watch does not show it in time, or too many are awaited: a pod that exists only in a call leaves
        nothing behind.
        """
        gang = self.book.gang_of(uid)
        if gang is not None or (len(self._awaited) >= MOST_AWAITED and uid not in self._awaited):
            return gang
        event = self._awaited.setdefault(uid, asyncio.Event())
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            self._awaited.pop(uid, None)
        return self.book.gang_of(uid)

    def news(self, *, full: bool) -> list[NativeJob]:
        """Gangs and other pods with news since the last call, or all."""
        others = {**self.others, **self._other_news} if full else dict(self._other_news)
        self._other_news.clear()
        gangs = self.book.news(full=full)
        for gang in self.book.active.values():
            if gang.plan is not None:
                self._gpus.hold(gang.key, gang.plan.assignments)
        jobs = [(list(self.book.uids(job.key)), self._indexed(job)) for job in gangs]
        foreign = ((pod, self._foreign(pod)) for pod in others.values())
        jobs += [([pod.uid], job) for pod, job in foreign if job is not None]
        for uids, job in jobs:
            for uid in uids if self.reported.note(job) else ():
                self._devices.look_again(uid)
        if full:
            self.reported.keep({job.key for _, job in jobs})
        self._devices.tell()
        return [job for _, job in jobs]

    def used(self, nodes: Iterable[str]) -> dict[str, dict[str, float]]:
        """Requests of the pods on each of these nodes that have not ended, by resource name.

        Looked at before every binding: it costs as much as there is on these nodes, not in the cluster.
        """
        used: dict[str, dict[str, float]] = {}
        for node in nodes:
            amounts = used.setdefault(node, {})
            for pod in self._on_node.get(node, {}).values():
                add_amounts(amounts, pod.requests)
                # GPUs that are left out of the node cannot be taken from it a second time.
                if left_out := set(pod.gpu_indices).difference(self._gpus.indices(node)):
                    add_amounts(amounts, {self._rules.gpu_resources[0]: -float(len(left_out))})
        return used

    def gpus_held(self) -> dict[str, float]:
        """GPUs per node that are held free for pods of decided gangs."""
        return gpus_by_node(task for gang in self.book.active.values() for task in gang.planned())

    def gpus_in_use(self, nodes: Collection[str]) -> dict[str, float]:
        """GPUs on each of these nodes that pods hold or that are held free for decided gangs."""
        held = {node: gpus for node, gpus in self.gpus_held().items() if node in nodes}
        for node, amounts in self.used(nodes).items():
            held[node] = held.get(node, 0.0) + sum(amounts.get(name, 0.0) for name in self._rules.gpu_resources)
        return held

    def in_use(self, nodes: Collection[str]) -> dict[str, dict[str, float]]:
        """As `used`, with GPUs that are held for decided gangs."""
        used = self.used(nodes)
        for node, gpus in self.gpus_in_use(nodes).items():
            amounts = used.setdefault(node, {})
            for name in self._rules.gpu_resources:
                amounts.pop(name, None)
            amounts[self._rules.gpu_resources[0]] = gpus
        return used

    def _indexed(self, job: NativeJob) -> NativeJob:
        if job.are_gpus_exact:
            self._gpus.release(job.key)  # the decided indices, or the guessed ones
        placement = self._gpus.indexed(job.key, job.placement)
        if job.stage is Stage.ENDED:
            self._gpus.release(job.key)
        return dataclasses.replace(job, placement=placement)

    def _move(self, uid: str, pod: Pod | None) -> None:
        """Notes the node on which a pod holds resources; None: on no node."""
        before = self._node_of.pop(uid, "")
        if before:
            self._on_node[before].pop(uid, None)
        if pod is not None:
            self._node_of[uid] = pod.node
            self._on_node.setdefault(pod.node, {})[uid] = pod

    def _is_ours(self, pod: Pod) -> bool:
        """Whether its gang is decided: also a Volcano group's that was asked about while its pods do not show it."""
        if pod.is_held or pod.admitted_to or self._rules.is_managed(pod):
            return True
        reference = self._rules.reference(pod)
        return reference.source is Source.VOLCANO and self.book.find(reference) is not None

    def _drop(self, uid: str) -> None:
        self._move(uid, None)
        self._devices.forget(uid)
        self._claiming.pop(uid, None)
        self.passed.forget(uid)
        other = self.others.pop(uid, None)
        self._foreign_jobs.pop(uid, None)
        if other is not None and not other.is_ended:
            self._other_news[uid] = _ended(other)
        self.book.drop(uid)

    def _notify_if_news(self, pod: Pod | None) -> None:
        if not (self._other_news or self.book.has_news()):
            return
        gang = self.book.gang_of(pod.uid) if pod is not None else None
        if gang is not None and gang.is_written_to and pod is not None and pod.is_waiting:
            self._serve(gang)
        (self._notify if self._is_awaited(pod, gang) else self._notify_soon)()

    def _is_awaited(self, pod: Pod | None, gang: Gang | None) -> bool:
        """Whether somebody waits for the loop: for the pod's own node, or for resources that a pod has freed.

        A pod that was bound or has started, one of a gang that is decided already, or one whose gang is still being
        made: these are only reported, and together.
        """
        if pod is not None and gang is not None and pod.is_waiting:
            return gang.plan is None
        return (pod is None or pod.is_over) and any(gang.plan is None for gang in self.book.active.values())

    def _foreign(self, pod: Pod) -> NativeJob | None:
        """A pod that Placewise does not decide for; its usage counts all the same.

        None: it cannot be read, or the claims that name its GPUs are about to be seen.

        Kept while the pod stays as it is: a complete look at a large cluster must not hold up the scheduler.
        """
        known = self._foreign_jobs.get(pod.uid)
        if known is not None and known[0] is pod:
            return known[1]
        try:
            is_to_come = pod.is_unclaimed and not self.reported.is_started(_key(pod))
            job = None if is_to_come else self._indexed(self._foreign_job(pod))
        except UNREADABLE:
            log.exception("pod %s cannot be read and is passed over", pod.path)
            job = None
        if pod.uid in self.others:
            self._foreign_jobs[pod.uid] = (pod, job)
        return job

    def _foreign_job(self, pod: Pod) -> NativeJob:
        key, role = _key(pod), role_of(pod)
        job = build_job(key, {role: 1}, {role: pod}, GroupFacts(), self._rules)
        task = Assignment(
            task=pod.name,
            role=TaskGroup.WORKER,
            node=pod.node,
            demand=job.groups[0].demand,
            gpu_indices=pod.gpu_indices,
        )
        end = None
        if pod.is_over:
            end = {"Succeeded": End.FINISHED, "Failed": End.FAILED}.get(pod.phase, End.CANCELLED)
        return NativeJob(
            key=key,
            job=job,
            stage=Stage.ENDED if pod.is_over else Stage.RUNNING,
            placement=(task,),
            is_managed=False,
            are_gpus_exact=bool(pod.gpu_indices),
            start_time_s=pod.started_s,
            end=end,
            end_time_s=pod.ended_s,
            end_reason=pod.reason,
        )


def _key(pod: Pod) -> str:
    """The job of a pod that Placewise does not decide for."""
    return f"{pod.path}/{pod.uid[:UID_LENGTH]}"


def _ended(pod: Pod) -> Pod:
    return dataclasses.replace(pod, is_gone=True)
