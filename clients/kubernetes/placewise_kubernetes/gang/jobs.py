"""Batch Jobs with the job label in their pod template: decided while the Job controller is about to make the pods.

It opens a gang from the Job's pod template and ends it if no pod ever came. The pods themselves show when they come and
how they end; a Job is never written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from placewise_kubernetes.gang.book import GangBook
from placewise_kubernetes.gang.gang import Gang
from placewise_kubernetes.gang.groups import facts_of
from placewise_kubernetes.gang.owners import described
from placewise_kubernetes.gang.spec import GangRules, Source, role_of
from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.objects import Pod, template_pod

log = logging.getLogger(__name__)

_JOB_CONTROLLER = "kubernetes.io/job-controller"


class JobMirror:
    """Opens and ends gangs in the book; `notify` is called when one can be decided or is over.

    A Job that is there before the adapter, or comes while the watch is broken, has its gang decided by its pods:
    whether any will come soon, or a quota has held them up for days, it does not say.
    """

    def __init__(
        self,
        rules: GangRules,
        book: GangBook,
        notify: Callable[[], None],
        clock: Callable[[], float],
        complete: Callable[[Pod], Pod],
    ) -> None:
        self._rules = rules
        self._book = book
        self._notify = notify
        self._clock = clock
        self._complete = complete
        self._gangs: dict[str, Gang | None] = {}

    def read(self, item: Mapping[str, Any]) -> str:
        """The uid of a Job that will make pods; "" of any other."""
        return str(item["metadata"]["uid"]) if _will_make_pods(item) else ""

    def replace(self, items: Iterable[str]) -> None:
        listed = set(filter(None, items))
        for uid in self._gangs.keys() - listed:
            self._give_up(uid)
        self._gangs = dict.fromkeys(listed) | self._gangs

    def change(self, item: Mapping[str, Any]) -> None:
        uid = item["metadata"]["uid"]
        if not _will_make_pods(item):
            self._give_up(uid)
        elif uid not in self._gangs and not _has_made_pods(item):
            try:
                self._gangs[uid] = self._open(uid, item)
            except (ValueError, KeyError) as error:
                log.warning("a Job cannot be read, its gang is decided by its pods: %s", error)

    def remove(self, item: Mapping[str, Any]) -> None:
        self._give_up(item["metadata"]["uid"])

    def _open(self, uid: str, item: Mapping[str, Any]) -> Gang | None:
        pod = self._complete(described(template_pod(item["metadata"], item["spec"]["template"]), self._rules.owners))
        if names.JOB not in pod.labels or pod.gang or pod.group or not self._rules.is_managed(pod):
            return None  # a Job of a JobSet, or of a native PodGroup, is a part of its gang
        if pod.device_claims:
            return None  # the claims, and with them the demands, are made after the pods
        reference = self._rules.reference(pod)
        is_own = pod.scheduler == self._rules.own_scheduler
        generation = str(item["metadata"].get("generation", ""))  # another one after a suspension
        gang = self._book.open(reference, uid, generation, is_own=is_own)
        if gang.pods or gang.plan is not None:
            return gang  # the pods were quicker
        if not gang.templates:
            gang.facts = facts_of(Source.BATCH_JOB, item)
        gang.templates.setdefault(role_of(pod), pod)
        gang.asked_at_s = self._clock()
        self._book.touch(gang)
        self._notify()
        return gang

    def _give_up(self, uid: str) -> None:
        gang = self._gangs.pop(uid, None)
        if gang is not None and not gang.pods:
            self._book.end(gang)
            self._notify()


def _is_of_another(job: Mapping[str, Any]) -> bool:
    """Whether somebody else says when its pods come (Kueue, another controller), or makes a native PodGroup for it."""
    manager = job["spec"].get("managedBy") or _JOB_CONTROLLER
    is_queued = names.KUEUE_QUEUE in (job["metadata"].get("labels") or {})
    return is_queued or manager != _JOB_CONTROLLER or bool(job["spec"].get("scheduling"))


def _will_make_pods(job: Mapping[str, Any]) -> bool:
    """Neither another's, nor suspended, nor scaled to none, nor over, nor being deleted."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    is_over = any(item.get("type") in ("Complete", "Failed") and item.get("status") == "True" for item in conditions)
    is_idle = job["spec"].get("suspend") or job["spec"].get("parallelism") == 0  # its later size is unknown
    return not (is_over or is_idle or _is_of_another(job) or job["metadata"].get("deletionTimestamp"))


def _has_made_pods(job: Mapping[str, Any]) -> bool:
    status = job.get("status") or {}
    return any(status.get(count) for count in ("active", "succeeded", "failed"))
