"""GPUs that nodes offer by ResourceSlice, and the claims that ask for them or hold them. Never allocates a claim.

A node's GPUs are its whole devices without those that are tainted, and without those that a claim holds, unless the
service counts them on the job of the one pod that holds them. A pod's GPUs are those that its claims ask for, or hold.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from placewise.v1.cluster_pb2 import Gpu, Node
from placewise_kubernetes.gang.devices.claims import MIG, OTHER_DEVICES, Claim, ClaimKey, DeviceClass
from placewise_kubernetes.gang.devices.slices import Device, DeviceId, PoolId, Pools, Slice
from placewise_kubernetes.gang.gang import UNREADABLE
from placewise_kubernetes.gang.spec import GangRules
from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.objects import Pod

log = logging.getLogger(__name__)

# Every DeviceClass can be named as an extended resource, too.
_IMPLICIT = "deviceclass.resource.kubernetes.io/"
UNREADABLE_CLAIMS = "resource_claims"
K = TypeVar("K")
V = TypeVar("V")


@dataclass(slots=True)
class _PodClaims:
    """The GPUs of one pod by its claims."""

    gpus: int = 0
    unjudged: str = ""
    is_unclaimed: bool = False
    held: list[DeviceId] = field(default_factory=list)


def _nothing(_: Collection[str] | None) -> None:
    """Nobody listens."""


class Devices:
    """Changes are noted one by one; `tell` then calls `tell_nodes` and `tell_pods` with all that have to be read again.

    None: all nodes; all pods. `is_served`: slices and claims can be read. `is_counted`: the service counts the GPU of
    this node and index on the job of the pod with this uid.
    """

    def __init__(self, rules: GangRules) -> None:
        self._rules = rules
        self._pools = Pools(rules.device_drivers)
        self._classes: dict[str, DeviceClass] = {}
        self._claims: dict[ClaimKey, Claim] = {}
        self._in_pool: dict[PoolId, set[ClaimKey]] = {}
        self._of_class: dict[str, set[ClaimKey]] = {}
        self._held_by: dict[str, set[ClaimKey]] = {}
        self._users: dict[ClaimKey, set[str]] = {}
        self._used_by: dict[str, set[ClaimKey]] = {}
        self._asking: set[str] = set()
        """Pods that ask for GPUs by an extended resource."""
        self._nodes: set[str] = set()
        self._pods: set[str] = set()
        self._sent = (False, True)
        self.is_served: Callable[[], bool] = lambda: True
        self.is_counted: Callable[[str, str, int], bool] = lambda *_: True
        self.tell_nodes: Callable[[Collection[str] | None], None] = _nothing
        self.tell_pods: Callable[[Collection[str] | None], None] = _nothing

    def __bool__(self) -> bool:
        """Whether a node has GPUs by slices."""
        return bool(self._pools)

    # --- news of the API ----------------------------------------------------------------------------------------------

    def tell(self) -> None:
        """Tells of all changes since the last call."""
        is_all, self._sent = self._sent != (bool(self._pools), self.is_served()), (bool(self._pools), self.is_served())
        nodes, self._nodes = self._nodes, set()
        pods, self._pods = self._pods, set()
        if is_all or nodes:
            self.tell_nodes(None if is_all else nodes)
        if is_all or pods:
            self.tell_pods(None if is_all else pods)

    def note_slice(self, key: ClaimKey, item: Slice | None) -> None:
        """A ResourceSlice as it is now; None: it is gone."""
        nodes = self._pools.put(item) if item is not None else self._pools.remove(key[1])
        self._nodes |= nodes
        for pool in [pool for node in nodes for pool in self._pools.pools_on(node)]:
            self._pods.update(uid for claim in self._holding(pool) for uid in claim.consumers)

    def note_class(self, key: ClaimKey, item: DeviceClass | None) -> None:
        """A DeviceClass as it is now; None: it is gone."""
        before = self._classes.pop(key[1], None)
        if item is not None:
            self._classes[key[1]] = item
        if before == item:
            return
        for claim in self._of_class.get(key[1], ()):
            self._pods |= self._users.get(claim, set())
        resources = {found.resource for found in (before, item) if found is not None} | {_IMPLICIT + key[1]}
        if resources.intersection(self._rules.gpu_resources):
            self._pods |= self._asking

    def note_claim(self, key: ClaimKey, item: Claim | None) -> None:
        """A ResourceClaim as it is now; None: it is gone."""
        before = self._claims.pop(key, None)
        if item is not None:
            self._claims[key] = item
        if before == item:
            return
        for claim in (before, item):
            self._nodes.update(filter(None, map(self._pools.node_of, self._pools_of(claim))))
        if before is not None:
            self._index(key, before, _leave)
        if item is not None:
            self._index(key, item, _enter)
        self._pods |= self._users.get(key, set())

    def _index(self, key: ClaimKey, claim: Claim, change: Callable[[dict[Any, set[Any]], Any, Any], None]) -> None:
        for name in {request.device_class for request in claim.requests}:
            change(self._of_class, name, key)
        for uid in claim.consumers:
            change(self._held_by, uid, key)
        for pool in self._pools_of(claim):
            change(self._in_pool, pool, key)

    def note_pod(self, pod: Pod) -> None:
        """A pod that the API shows: it uses its claims until it is over."""
        is_asking = not pod.is_over and any(pod.requests.get(name) for name in self._rules.gpu_resources)
        (self._asking.add if is_asking else self._asking.discard)(pod.uid)
        keys = {(pod.namespace, use.claim) for use in pod.device_claims if use.claim} if not pod.is_over else set()
        before = self._used_by.get(pod.uid, set())
        if keys == before:
            return
        for key in before - keys:
            _leave(self._users, key, pod.uid)
        for key in keys - before:
            _enter(self._users, key, pod.uid)
        self._used_by[pod.uid] = keys
        self.look_again(pod.uid)
        for key in keys ^ before:
            self._pods |= self._users.get(key, set()) - {pod.uid}

    def keep(self, uids: Collection[str]) -> None:
        """These pods are all that there are."""
        for uid in self._used_by.keys() - set(uids):
            self.forget(uid)

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self._asking.discard(uid)
        self.look_again(uid)
        for key in self._used_by.pop(uid, ()):
            _leave(self._users, key, uid)
            self._pods |= self._users.get(key, set())

    def look_again(self, uid: str) -> None:
        """The service may count other GPUs on the pod's job."""
        for key in self._held_by.get(uid, ()):
            self._nodes.update(filter(None, map(self._pools.node_of, self._pools_of(self._claims[key]))))

    # --- nodes --------------------------------------------------------------------------------------------------------

    def arrange(self, node: Node) -> Node:
        """The node with the GPUs of its slices in place of those that it counts itself; they are the same ones.

        A label of our own says whose they are: a pod that claims devices gets none of a device plugin, nor the reverse.
        """
        if not self._pools:
            return node
        copy = Node()
        copy.CopyFrom(node)
        if self._pools.has_node(node.id):
            del copy.gpus[:]
            try:
                copy.gpus.extend(self._gpus(node.id))
            except UNREADABLE:
                log.exception("node %s has no GPUs, its slices cannot be read", node.id)
            copy.capacity.gpus = len(copy.gpus)
            copy.labels[names.GPU_SOURCE] = names.BY_CLAIM
        elif node.capacity.gpus:
            copy.labels[names.GPU_SOURCE] = names.BY_PLUGIN
        return copy

    def _gpus(self, node: str) -> list[Gpu]:
        """None as long as nobody says which of them are held."""
        if not self.is_served():
            return []
        whole, order = self._pools.whole_on(node), self._pools.indices_on(node)
        held: set[DeviceId] = set()
        blocked: set[DeviceId] = set()
        for pool in self._pools.pools_on(node):
            for claim in self._holding(pool):
                mine = {device: order[device] for device in self._held_whole(claim) if device in order}
                counted = {device for device, index in mine.items() if self._is_counted(claim, node, index)}
                held |= counted
                blocked |= mine.keys() - counted
                blocked.update(self._blocked(claim, pool, whole))
        return [
            Gpu(index=order[key], model=device.model, memory_gib=device.memory_gib)
            for key, device in sorted(whole.items(), key=lambda item: order[item[0]])
            if key not in blocked and (not device.is_tainted or key in held)
        ]

    def _is_counted(self, claim: Claim, node: str, index: int) -> bool:
        (uid,) = claim.consumers
        return self.is_counted(uid, node, index)

    def _blocked(self, claim: Claim, pool: PoolId, whole: dict[DeviceId, Device]) -> Iterable[DeviceId]:
        """Whole devices of the pool of which the claim holds something in another way than whole and for one pod."""
        mine = set(self._held_whole(claim))
        known = {(*pool, device.name): device for device in self._pools.devices(pool)}
        used = [known[result.device] for result in claim.results if result.device in known.keys() - mine]
        for device_id, device in whole.items():
            if device_id in known and any(device.overlaps(other) for other in used):
                yield device_id

    def _held_whole(self, claim: Claim) -> list[DeviceId]:
        """The whole devices that the claim holds for one pod alone."""
        results = claim.results if claim.is_of_one_pod else ()
        return [
            found.device for found in results if found.device in self._pools.whole(found.pool) and not found.is_share
        ]

    def _holding(self, pool: PoolId) -> Iterable[Claim]:
        return [self._claims[key] for key in self._in_pool.get(pool, ())]

    def _pools_of(self, claim: Claim | None) -> set[PoolId]:
        """Pools of our drivers of which the claim holds devices."""
        results = claim.results if claim is not None else ()
        return {result.pool for result in results if result.pool[0] in self._rules.device_drivers}

    # --- pods ---------------------------------------------------------------------------------------------------------

    def complete(self, pod: Pod) -> Pod:
        """The pod with the GPUs of its claims among its requests, and all else that follows from them; idempotent."""
        if not (pod.device_claims or self._pools or names.GPU_SOURCE in pod.node_selector):
            return pod
        found = self._found(pod)
        requests = dict(pod.requests)
        first = self._rules.gpu_resources[0]
        if found.gpus or pod.claimed_gpus:
            requests[first] = requests.get(first, 0.0) - pod.claimed_gpus + found.gpus
        selector = {key: value for key, value in pod.node_selector.items() if key != names.GPU_SOURCE}
        is_backed = bool(self._backing(pod))
        if source := self._source(pod, found, is_backed):
            selector[names.GPU_SOURCE] = source
        return dataclasses.replace(
            pod,
            requests=requests,
            node_selector=selector,
            claimed_gpus=found.gpus,
            gpu_indices=self._indices(found.held),
            unjudged_claims=found.unjudged,
            is_unclaimed=found.is_unclaimed,
            is_by_claim=is_backed or any(not use.is_extended for use in pod.device_claims),
        )

    def _found(self, pod: Pod) -> _PodClaims:
        found = _PodClaims()
        uses = [use for use in pod.device_claims if use.is_extended or self.is_served()]
        if len(uses) < len(pod.device_claims):
            found.unjudged = UNREADABLE_CLAIMS
        for use in uses:
            self._add(found, pod, (pod.namespace, use.claim), is_extended=use.is_extended)
        found.unjudged = found.unjudged or next(filter(None, map(_sharing_of, self._backing(pod))), "")
        if pod.node:
            found.unjudged = ""
            found.is_unclaimed = found.is_unclaimed and pod.phase == "Pending" and self.is_served()
        return found

    def _add(self, found: _PodClaims, pod: Pod, key: ClaimKey, *, is_extended: bool) -> None:
        """One claim of the pod. Of an extended resource the pod itself says how many devices it asks for."""
        claim = self._claims.get(key)
        if claim is not None and claim.is_allocated and pod.uid in claim.consumers:
            held = self._held_whole(claim)
            found.held += held
            # The pod itself asks for the extended resource: what of it is held in another way is taken from the node.
            others = sum(1 for other in claim.results if self._pools.node_of(other.pool) and other.device not in held)
            found.gpus += -others if is_extended else len(held)
            return
        found.is_unclaimed = found.is_unclaimed or claim is None or bool(pod.node)
        if claim is None or is_extended:
            return
        gpus, reason = self._judged(claim)
        if claim.is_allocated:
            reason = reason or "allocated_claim"
        if self._users.get(key, set()) - {pod.uid}:
            reason = reason or "shared_claim"
        found.gpus += gpus
        found.unjudged = found.unjudged or reason

    def _judged(self, claim: Claim) -> tuple[int, str]:
        """The whole GPUs that a claim asks for, or the reason why its scheduler alone finds a place for it."""
        gpus, reasons = 0, []
        for request in claim.requests:
            reason = request.unjudged or self._why_not(request.device_class)
            reasons.append(reason)
            gpus += 0 if reason else request.count
        return gpus, next(filter(None, (*reasons, claim.unjudged)), "")

    def _why_not(self, name: str) -> str:
        found = self._classes.get(name)
        is_of_gpus = name in self._rules.device_classes or (
            found is not None and found.resource in self._rules.gpu_resources
        )
        if is_of_gpus:
            return found.unjudged if found is not None else ""
        return MIG if found is not None and found.is_mig else OTHER_DEVICES

    def _backing(self, pod: Pod) -> list[DeviceClass]:
        """Classes behind an extended resource of the pod: kube-scheduler allocates it by a claim that it makes."""
        asked = self._asked(pod) if self._pools else set()
        return [found for name, found in self._classes.items() if asked & {found.resource, _IMPLICIT + name}]

    def _asked(self, pod: Pod) -> set[str]:
        """The resources by which the pod asks for GPUs beside its claims."""
        first = self._rules.gpu_resources[0]
        own = {**pod.requests, first: pod.requests.get(first, 0.0) - pod.claimed_gpus}
        return {name for name in self._rules.gpu_resources if own.get(name)}

    def _source(self, pod: Pod, found: _PodClaims, is_backed: bool) -> str:
        if found.gpus > 0:
            return names.BY_CLAIM
        return names.BY_PLUGIN if self._pools and not is_backed and self._asked(pod) else ""

    def _indices(self, held: Iterable[DeviceId]) -> tuple[int, ...]:
        """The indices of devices on their node; none if one of them is not known."""
        held = list(held)
        nodes = {self._pools.node_of(device[:2]) for device in held}
        if len(nodes) != 1:
            return ()
        order = self._pools.indices_on(nodes.pop())
        return tuple(sorted(order[device] for device in held))


def _sharing_of(found: DeviceClass) -> str:
    return found.unjudged or (MIG if found.is_mig else "")


def _enter(index: dict[K, set[V]], key: K, value: V) -> None:
    index.setdefault(key, set()).add(value)


def _leave(index: dict[K, set[V]], key: K, value: V) -> None:
    index[key].discard(value)
    if not index[key]:
        del index[key]
