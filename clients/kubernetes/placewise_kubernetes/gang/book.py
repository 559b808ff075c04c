"""All gangs of a cluster, found by pod or by name. Never talks to anybody.

It puts each pod into its gang, notices when a gang has started, and knows which gangs have news.
"""

from __future__ import annotations

import dataclasses
import logging

from placewise_client.adapter.bounded import Bounded
from placewise_client.adapter.native import NativeJob, Stage
from placewise_kubernetes.gang.gang import UNREADABLE, Gang, native_job
from placewise_kubernetes.gang.owners import owner_uid
from placewise_kubernetes.gang.spec import GangRef, GangRules, GroupFacts, Source, single
from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.objects import Pod

log = logging.getLogger(__name__)

UID_LENGTH = 8
# So many gangs named after their Job are remembered: when all pods of one have failed, the Job makes another.
_NAMED_LIMIT = 100_000


class GangBook:
    """All gangs, found by pod or by name; notes which ones have news.

    `active` are those that still need something: a node for a pod, or the size of the gang.
    """

    def __init__(self, rules: GangRules) -> None:
        self.rules = rules
        self.gangs: dict[str, Gang] = {}
        self.active: dict[str, Gang] = {}
        self._current: dict[GangRef, Gang] = {}
        self._by_pod: dict[str, Gang] = {}
        self._dirty: dict[str, Gang] = {}
        self._named: Bounded[str, None] = Bounded(_NAMED_LIMIT)
        self._unreadable: list[Gang] = []

    def gang_of(self, pod_uid: str) -> Gang | None:
        """The gang a pod was put into."""
        return self._by_pod.get(pod_uid)

    def find(self, reference: GangRef) -> Gang | None:
        """The present gang of this name."""
        return self._current.get(reference)

    def put(self, pod: Pod) -> Gang:
        """Adds or updates a pod."""
        gang = self._by_pod.get(pod.uid)
        if gang is None:
            gang = self._gang_for(pod)
            self._by_pod[pod.uid] = gang
        before = gang.pods.get(pod.uid)
        gang.pods[pod.uid] = pod
        if before is None and not gang.suits(pod):
            _reconsider(gang)
        if pod.annotations.get(names.RELEASED) == "true":
            gang.mark_released()
        if before != pod:
            self.touch(gang)
        return gang

    def drop(self, pod_uid: str) -> Gang | None:
        """Removes a pod that is gone from the API."""
        gang = self._by_pod.pop(pod_uid, None)
        if gang is None:
            return None
        gone = gang.pods.pop(pod_uid)
        gang.refused.pop(pod_uid, None)
        # The last one stays as it ended (or was deleted), so that the end of the gang can be reported.
        if not gang.pods:
            gang.pods[pod_uid] = dataclasses.replace(gone, is_gone=True)
            gang.templates.clear()
            if self._current.get(gang.ref) is gang:
                del self._current[gang.ref]
        self.touch(gang)
        return gang

    def open(
        self,
        reference: GangRef,
        *uids: str,
        is_own: bool = False,
        group: GangRef | None = None,
    ) -> Gang:
        """The gang of this name; a new one if none is known or the known one has ended.

        `uids` are those of its Job, if it has one, and of its first pod. The Job's uid names the gang, even if the pod
        is seen first and also after a restart. It names one gang only; the next is named by its pod.
        """
        gang = self._current.get(reference)
        if gang is None or gang.stage is Stage.ENDED:
            keys = [f"{reference.namespace}/{reference.name}/{uid[:UID_LENGTH]}" for uid in uids]
            key = next((key for key in keys if key not in self._named), keys[-1])
            self._named.put(key, None)
            gang = Gang(reference, key, is_own, group, None if group else GroupFacts())
            self.gangs[key] = self._current[reference] = gang
        return gang

    def remove(self, gang: Gang) -> None:
        """Drops a gang that is over, or never had pods; a complete look shows that it is gone."""
        self.gangs.pop(gang.key, None)
        self.active.pop(gang.key, None)
        if self._current.get(gang.ref) is gang:
            del self._current[gang.ref]

    def end(self, gang: Gang) -> None:
        """The object of a gang without pods is gone: the gang is reported as cancelled, which frees its resources."""
        for template in gang.templates.values():
            gang.pods[template.uid] = dataclasses.replace(template, is_gone=True)
        gang.templates.clear()
        if not gang.pods:
            self.remove(gang)
            return
        if self._current.get(gang.ref) is gang:
            del self._current[gang.ref]
        self.touch(gang)

    def touch(self, gang: Gang) -> None:
        """Notes that the gang has news."""
        if gang.pods and all(pod.is_over for pod in gang.pods.values()):
            gang.mark_ended()
        elif gang.facts is not None and _is_all_bound(gang):
            gang.mark_bound()
        self._dirty[gang.key] = gang
        if gang.facts is None or gang.waiting() or (gang.templates and not gang.pods):
            self.active[gang.key] = gang
        else:
            self.active.pop(gang.key, None)

    def inform(self, gang: Gang, facts: GroupFacts) -> None:
        """Takes in the group object; pods beyond its size become gangs of their own."""
        gang.facts = facts
        pods = list(gang.pods.values())
        gang.pods.clear()
        for pod in pods:
            home = gang if gang.has_room_for(pod) else self.open(single(pod), pod.uid, is_own=gang.is_own)
            self._by_pod[pod.uid] = home
            home.pods[pod.uid] = pod
            self.touch(home)
        self.touch(gang)

    def news(self, *, full: bool) -> list[NativeJob]:
        """Gangs with news since the last call, or all; in the order they came."""
        chosen = list(self.gangs.values()) if full else list(self._dirty.values())
        self._dirty.clear()
        jobs = []
        for gang in chosen:
            stage = gang.reported_stage()
            if stage is not None:
                gang.is_reported = True
                jobs.append(self._native(gang, stage))
            if stage is Stage.ENDED and not any(uid in self._by_pod for uid in gang.pods):
                self.remove(gang)
        return jobs

    def take_unreadable(self) -> list[Gang]:
        """Gangs that `news` could make no job of, since the last call."""
        taken, self._unreadable = self._unreadable, []
        return taken

    def _native(self, gang: Gang, stage: Stage) -> NativeJob:
        """One gang that cannot be understood must not hide all the others."""
        try:
            return native_job(gang, stage, self.rules)
        except UNREADABLE:
            log.exception("gang %s cannot be read and is left to its scheduler", gang.key)
            gang.is_unreadable = True
            self._unreadable.append(gang)
            is_over = stage in (Stage.RUNNING, Stage.ENDED)
            return native_job(gang, stage if is_over else Stage.RELEASED, self.rules)

    def has_news(self) -> bool:
        return bool(self._dirty)

    def _gang_for(self, pod: Pod) -> Gang:
        reference = self.rules.reference(pod)
        is_own = pod.scheduler == self.rules.own_scheduler
        is_of_job = pod.owner is not None and pod.owner.kind == "Job" and reference.source is Source.LABEL
        owner = owner_uid(pod) if pod.gang else pod.owner.uid if pod.owner is not None and is_of_job else ""
        uids = (owner, pod.uid) if owner else (pod.uid,)
        gang = self.open(reference, *uids, is_own=is_own, group=self.rules.group_object(pod))
        if gang.has_room_for(pod):
            return gang
        return self.open(single(pod), pod.uid, is_own=gang.is_own)


def _reconsider(gang: Gang) -> None:
    """A pod asks for more than its task: the gang is decided again, unless a part of it is bound already."""
    gang.has_outgrown = True
    if gang.stage in (Stage.WAITING, Stage.APPLIED) and not gang.is_bound_in_part():
        gang.mark_waiting()


def _is_all_bound(gang: Gang) -> bool:
    bound = sum(1 for pod in gang.pods.values() if pod.node)
    return bound > 0 and bound >= gang.size()
