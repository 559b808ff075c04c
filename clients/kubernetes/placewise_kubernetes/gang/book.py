"""All gangs of a cluster, found by pod or by name. Never talks to anybody.

It puts each pod into its gang, notices when a gang has started, and knows which gangs have news.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from placewise_client.adapter.bounded import Bounded
from placewise_client.adapter.native import NativeJob, Stage
from placewise_kubernetes.gang.catalog import GroupCatalog
from placewise_kubernetes.gang.gang import UNREADABLE, Gang, native_job
from placewise_kubernetes.gang.owners import owner_uid
from placewise_kubernetes.gang.spec import (
    POD_GROUPS,
    GangRef,
    GangRules,
    GroupFacts,
    Source,
    count_roles,
    id_again,
    single,
)
from placewise_kubernetes.gang.stand_ins import stand_ins
from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.objects import Pod

log = logging.getLogger(__name__)

UID_LENGTH = 8
# So many gangs named after their Job are remembered: when all pods of one have failed, the Job makes another.
_NAMED_LIMIT = 100_000


class GangBook:
    """All gangs, found by pod or by name; notes which ones have news.

    `active` are those that still need something: a node for a pod, or the size of the gang. `emptied` are
    Volcano's without pods that have no stand-ins any more: their places were taken back.
    """

    def __init__(self, rules: GangRules, complete: Callable[[Pod], Pod] = lambda pod: pod) -> None:
        self.rules = rules
        self._complete = complete
        self.groups = GroupCatalog()
        self.gangs: dict[str, Gang] = {}
        self.active: dict[str, Gang] = {}
        self.emptied: dict[str, Gang] = {}
        self._current: dict[GangRef, Gang] = {}
        self._by_pod: dict[str, Gang] = {}
        self._dirty: dict[str, Gang] = {}
        self._named: Bounded[str, None] = Bounded(_NAMED_LIMIT)
        self._unreadable: list[Gang] = []

    def gang_of(self, pod_uid: str) -> Gang | None:
        """The gang a pod was put into."""
        return self._by_pod.get(pod_uid)

    def uids(self, key: str) -> Iterable[str]:
        """The pods of a gang."""
        gang = self.gangs.get(key)
        return gang.pods if gang is not None else ()

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
        gang.is_by_gate = gang.is_by_gate or pod.is_held
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
        gang.nominated.pop(pod_uid, None)
        self._note_size_due(gang, gone)
        # The last one stays as it ended (or was deleted), so that the end of the gang can be reported.
        if not gang.pods:
            gang.pods[pod_uid] = dataclasses.replace(gone, is_gone=True)
            gang.templates.clear()
            if self._current.get(gang.ref) is gang:
                del self._current[gang.ref]
        self.touch(gang)
        return gang

    def _note_size_due(self, gang: Gang, gone: Pod) -> None:
        """A controller whose object is scaled down deletes pods, and perhaps nobody watches that object."""
        gang.group = gang.group or self.rules.group_object(gone)
        is_held = gang.stage in (Stage.WAITING, Stage.APPLIED) and not gang.is_bound_in_part()
        is_read = gang.group is not None and gang.group.source is not Source.VOLCANO
        gang.is_size_due = bool(is_held and is_read and gang.pods)

    def resize(self, gang: Gang, facts: GroupFacts) -> None:
        """Takes in the size of a gang that is held, as its controller's object says it now. While more pods than that
        are left, the controller is about to delete others."""
        if len(gang.live()) <= sum(facts.roles.values()) and not gang.is_bound_in_part():
            gang.templates.clear()  # a Job's, before it made its pods
            self._resize(gang, facts)

    def open(
        self,
        reference: GangRef,
        *uids: str,
        is_own: bool = False,
        group: GangRef | None = None,
        gang_id: str = "",
    ) -> Gang:
        """The gang of this name; a new one if none is known or the known one has ended.

        `uids` are those of the object that it is of, if any, and of its first pod. The object's uid names the gang,
        even if the pod is seen first and also after a restart. It names one gang only; the next is named by its pod.
        A pod that has named one, too, names the next with a number. `gang_id` is what an earlier run wrote to it then.
        """
        gang = self._current.get(reference)
        if gang is None or gang.stage is Stage.ENDED:
            before = gang
            key = self._new_key(reference, uids, gang_id)
            self._named.put(key, None)
            gang = Gang(reference, key, is_own, group, None if group else GroupFacts())
            if before is not None and before.is_in_order:
                there = (pod for pod in before.pods.values() if not pod.is_gone and not pod.is_deleting)
                gang.done = count_roles(pod for pod in there if pod.phase == "Succeeded")
            self.gangs[key] = self._current[reference] = gang
        return gang

    def _new_key(self, reference: GangRef, uids: Sequence[str], gang_id: str) -> str:
        """One that no gang has had: its events would be taken for those of the other."""
        again = [_key(reference, gang_id, len(gang_id))] if id_again(gang_id) else []
        keys = again + [_key(reference, uid) for uid in uids]
        keys_in_turn = itertools.chain(keys, (f"{keys[-1]}.r{number}" for number in itertools.count(1)))
        return next(key for key in keys_in_turn if key not in self._named)

    def open_group(self, reference: GangRef, facts: GroupFacts) -> Gang:
        """The gang of a PodGroup, with stand-ins if it has no pods yet. Raises ValueError: a demand cannot be read."""
        facts = dataclasses.replace(facts, roles=facts.roles or {names.DEFAULT_ROLE: 1})
        templates = self._stand_ins(reference, facts)
        gang = self.open(reference, *facts.uids)
        if not (gang.templates or gang.pods):  # another call, or the pods, may have been quicker
            gang.facts, gang.templates = self._completed(facts), templates
            self.touch(gang)
        return gang

    def complete_templates(self) -> None:
        """Pods that are still to come may need other nodes, now that there are devices, or none any more."""
        for gang in list(self.active.values()):
            if gang.facts is not None and gang.facts.templates:
                gang.facts = self._completed(gang.facts)
            templates = self._completed_pods(gang.templates)
            if templates != gang.templates:
                gang.templates = templates
                self.touch(gang)

    def regroup(self, reference: GangRef) -> None:
        """A PodGroup, or its vcjob, has come or changed: a gang that has not started is as they say now."""
        gang, facts = self.find(reference), self.groups.find(reference)
        if gang is None or facts is None or gang.stage in (Stage.RUNNING, Stage.ENDED):
            return
        if gang.facts is None:
            self.inform(gang, facts)
        elif not gang.is_bound_in_part():
            self._resize(gang, facts)

    def end_group(self, reference: GangRef) -> None:
        """A PodGroup, or its vcjob, is gone: no pods will come any more."""
        gang = self.find(reference)
        if gang is not None and not gang.pods:
            self.end(gang)

    def remove(self, gang: Gang) -> None:
        """Drops a gang that is over, or never had pods; a complete look shows that it is gone."""
        if self.gangs.get(gang.key) is gang:
            for gangs in (self.gangs, self.active, self.emptied):
                gangs.pop(gang.key, None)
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
        """Notes that the gang has news; one that was removed has none."""
        if self.gangs.get(gang.key) is not gang:
            return
        is_in_order = gang.is_in_order  # once: all pods are looked at
        if gang.stage is Stage.RELEASED and gang.facts is not None and is_in_order and not gang.reduced_to:
            gang.give_up_missing()  # it is not known when the others come, and nothing is held for them
        is_size_read = gang.facts is not None or gang.group is None or gang.group.source is not Source.OWNER
        if gang.pods and gang.is_over() and is_size_read:
            gang.mark_ended()
        elif gang.stage is not Stage.RUNNING and _has_started(gang, is_in_order):
            gang.mark_bound()
        if gang.stage is Stage.RUNNING and is_in_order:
            gang.give_up_succeeded()
        self._dirty[gang.key] = gang
        is_awaited = gang.waiting() or (is_in_order and gang.to_come())
        if gang.facts is None or is_awaited or (gang.templates and not gang.pods):
            self.active[gang.key] = gang
        else:
            self.active.pop(gang.key, None)
        if gang.ref.source is Source.VOLCANO and not (gang.pods or gang.templates):
            self.emptied[gang.key] = gang
        else:
            self.emptied.pop(gang.key, None)

    def inform(self, gang: Gang, facts: GroupFacts) -> None:
        """Takes in the group object; pods beyond its size, and those of a basic group, become gangs of their own."""
        gang.facts = self._completed(facts)
        if gang.ref.source in POD_GROUPS:
            self._rename(gang, facts.uids)
        pods = list(gang.pods.values())
        gang.pods.clear()
        for pod in pods:
            home = self._home(gang, pod)
            if pod.uid in self._by_pod:
                self._by_pod[pod.uid] = home
            home.pods[pod.uid] = pod
            home.is_by_gate = home.is_by_gate or pod.is_held
            if home is not gang and pod.uid in gang.nominated:
                home.nominated[pod.uid] = gang.nominated.pop(pod.uid)
            if home is not gang:
                self.touch(home)
        if facts.is_basic:
            self.remove(gang)
        else:
            self.touch(gang)

    def _home(self, gang: Gang, pod: Pod) -> Gang:
        """The gang of a pod that was put into this one before its size was known."""
        if gang.facts is not None and gang.facts.is_basic:
            return self._gang_for(_alone(pod))
        is_of_gang = pod.is_gone or gang.has_room_for(pod)
        return gang if is_of_gang else self.open(single(pod), pod.uid, is_own=gang.is_own)

    def part(self, gang: Gang, pods: Sequence[Pod]) -> None:
        """Makes waiting pods gangs of their own: their places in this one are lost. If no other pod is left of it, it
        is over, and they are the next gang of its name."""
        for pod in pods:
            gang.give_up(pod)
            del self._by_pod[pod.uid]
        is_over = not gang.is_left()
        if is_over:
            gang.pods = gang.pods or {pods[0].uid: dataclasses.replace(pods[0], is_gone=True)}
            gang.mark_ended()
        self.touch(gang)
        for pod in pods:
            home = self._gang_for(pod) if is_over else self.open(single(pod), pod.uid, is_own=gang.is_own)
            home.is_by_gate = home.is_by_gate or pod.is_held
            home.pods[pod.uid] = pod
            self._by_pod[pod.uid] = home
            self.touch(home)

    def finish(self, gang: Gang) -> None:
        """A gang of which no pod is left is over, although others were still to come."""
        gang.mark_ended()
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
                gang.is_start_reported = gang.is_start_reported or stage is Stage.RUNNING
                jobs.append(self._native(gang, stage))
            if stage is Stage.ENDED and not any(self._by_pod.get(uid) is gang for uid in gang.pods):
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
        known = self.find(reference)
        if known is not None and known.stage is Stage.ENDED and pod.is_over:
            return known  # after a restart the pods of a gang that is over are seen one after the other
        is_own = pod.scheduler == self.rules.own_scheduler
        group = self.rules.group_object(pod)
        facts = self.groups.find(group) if group is not None else None
        if facts is not None and facts.is_basic:
            return self._gang_for(_alone(pod))
        uids = facts.uids if facts is not None else _owner_uids(pod, reference)
        gang_id = pod.annotations.get(names.GANG_ID, "")
        gang = self.open(reference, *uids, pod.uid, is_own=is_own, group=group, gang_id=gang_id)
        if gang.facts is None and facts is not None:
            gang.facts = self._completed(facts)
        if gang.has_room_for(pod):
            return gang
        if gang.turn_away(pod):
            self.touch(gang)
        return self.open(single(pod), pod.uid, is_own=gang.is_own)

    def _stand_ins(self, reference: GangRef, facts: GroupFacts) -> dict[str, Pod]:
        return self._completed_pods(stand_ins(reference, facts, self.rules))

    def _completed(self, facts: GroupFacts) -> GroupFacts:
        if not facts.templates:
            return facts
        return dataclasses.replace(facts, templates=self._completed_pods(facts.templates))

    def _completed_pods(self, pods: Mapping[str, Pod]) -> dict[str, Pod]:
        return {role: self._complete(pod) for role, pod in pods.items()}

    def _resize(self, gang: Gang, facts: GroupFacts) -> None:
        before = gang.roles(), gang.templates
        gang.facts = self._completed(facts)
        if gang.templates:
            try:
                gang.templates = self._stand_ins(gang.ref, facts)
            except ValueError as error:
                log.warning("group of %s: %s", gang.key, error)
        if (gang.roles(), gang.templates) != before:
            if gang.plan is not None:
                gang.mark_waiting()
            self.inform(gang, facts)
        self.touch(gang)

    def _rename(self, gang: Gang, uids: tuple[str, ...]) -> None:
        """A gang whose pods were seen before its PodGroup takes the PodGroup's name, if nobody has heard of it yet."""
        keys = [_key(gang.ref, uid) for uid in uids]
        key = next((key for key in keys if key not in self._named), None)
        if gang.is_reported or gang.key in keys or key is None or id_again(gang.key):
            return
        for gangs in (self.gangs, self.active, self.emptied, self._dirty):
            if gangs.pop(gang.key, None) is not None:
                gangs[key] = gang
        self._named.put(key, None)
        gang.key = key


def _alone(pod: Pod) -> Pod:
    """The pod as it would be without its native PodGroup."""
    return dataclasses.replace(pod, group="")


def _key(reference: GangRef, uid: str, most: int = UID_LENGTH) -> str:
    return f"{reference.namespace}/{reference.name}/{uid[:most]}"


def _owner_uids(pod: Pod, reference: GangRef) -> tuple[str, ...]:
    """Uid of the object that made the pods of the gang, if it is known to name the gang."""
    if pod.gang:
        uid = owner_uid(pod)
    else:
        is_of_job = reference.source is Source.LABEL and pod.owner is not None and pod.owner.kind == "Job"
        uid = pod.owner.uid if pod.owner is not None and (is_of_job or reference.source in POD_GROUPS) else ""
    return (uid,) if uid else ()


def _reconsider(gang: Gang) -> None:
    """A pod asks for more than its task: the gang is decided again, unless a part of it is bound already."""
    gang.has_outgrown = True
    if gang.stage in (Stage.WAITING, Stage.APPLIED) and not gang.is_bound_in_part():
        gang.mark_waiting()


def _has_started(gang: Gang, is_in_order: bool) -> bool:
    if gang.facts is None:
        return False
    return (is_in_order and gang.is_begun()) or _is_all_bound(gang)


def _is_all_bound(gang: Gang) -> bool:
    bound = sum(1 for pod in gang.pods.values() if pod.node)
    return bound > 0 and bound >= gang.size()
