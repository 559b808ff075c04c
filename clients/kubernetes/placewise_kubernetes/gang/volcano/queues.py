"""Volcano's queues: the limits of each, and the amounts that its gangs hold. Fed by a watch; never talks to the API."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from placewise_client.adapter.native import Stage
from placewise_kubernetes.gang.book import GangBook
from placewise_kubernetes.gang.gang import Gang
from placewise_kubernetes.gang.spec import GroupFacts, Source, role_of
from placewise_kubernetes.gang.stand_ins import minimum_requests
from placewise_kubernetes.gang.volcano.quotas import Quota, Quotas, read_quota
from placewise_kubernetes.kube.objects import Pod
from placewise_kubernetes.kube.quantity import add_amounts

log = logging.getLogger(__name__)

QUEUES_PATH = "/apis/scheduling.volcano.sh/v1beta1/queues"
# Volcano asks about thousands of groups one after the other. One sum serves all questions of this time.
SUM_AGE_S = 0.25


class QueueMirror:
    """The quota of each queue, and the sum of the requests of its gangs and of those of the queues below it.

    A gang that waits counts, too: two gangs must not get the same room at once. So the gangs of a full queue are
    decided in the order in which Volcano first names them, or in which their pods come. `total`: the allocatable
    amounts of all nodes.
    """

    def __init__(
        self,
        book: GangBook,
        clock: Callable[[], float] = time.monotonic,
        total: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._book = book
        self._clock = clock
        self._total = total
        self._read: dict[str, Quota] = {}
        self._quotas = Quotas({}, {})
        self._taken: dict[str, dict[str, float]] = {}
        self._summed_at_s = float("-inf")

    def read(self, item: Mapping[str, Any]) -> Mapping[str, Any]:
        """All of it: queues are small."""
        return item

    def replace(self, items: Iterable[Mapping[str, Any]]) -> None:
        self._read.clear()
        for item in items:
            self.change(item)
        self._sum_again()

    def change(self, item: Mapping[str, Any]) -> None:
        name = item["metadata"]["name"]
        try:
            self._read[name] = read_quota(item.get("spec") or {})
        except (ValueError, TypeError, AttributeError) as error:
            log.warning("queue %s: its quota cannot be read: %s", name, error)
            self._read.pop(name, None)
        self._sum_again()

    def remove(self, item: Mapping[str, Any]) -> None:
        self._read.pop(item["metadata"]["name"], None)
        self._sum_again()

    def why_full(self, facts: GroupFacts, gang: Gang | None = None) -> str:
        """Why a new gang would hold more than its queue may use; empty if it would not, or if no limit is known.

        The text leaves out the amount that the others hold: every other text makes one more event.
        `gang`: the gang itself, if it has pods. It must not be counted yet.
        """
        if not self._read:
            return ""
        self.refresh()
        name, wanted = _name(facts), held(gang) if gang is not None else _amounts(facts)
        if self._quotas.has_children(name):
            return f"queue {name} has queues below it: Volcano starts nothing in such a one"
        for queue in self._quotas.lineage(name):
            taken = self._taken.get(queue, {})
            for resource, limit in self._quotas.most(queue).items():
                total = taken.get(resource, 0.0) + wanted.get(resource, 0.0)
                if resource in wanted and total > limit * (1 + 1e-9):
                    return f"queue {queue} may use {limit:g} {resource}, and with this gang it would hold more"
        return ""

    def note(self, facts: GroupFacts) -> None:
        """A gang of these facts is about to be opened: afterwards the sums might count it already."""
        if self._read:
            self.refresh()
            self._add(facts, _amounts(facts))

    def count(self, gang: Gang) -> None:
        """The gang counts from now on."""
        if self._read and gang.facts is not None:
            self.refresh()
            self._add(gang.facts, held(gang))
        gang.is_counted = True

    def _sum_again(self) -> None:
        self._summed_at_s = float("-inf")

    def refresh(self) -> bool:
        """Sums up again, if the sums are old."""
        if self._clock() - self._summed_at_s <= SUM_AGE_S:
            return False
        self._summed_at_s = self._clock()
        self._quotas = Quotas(self._read, self._total())
        self._taken = {}
        for gang in self._book.gangs.values():
            if _is_counted(gang) and gang.facts is not None:
                self._add(gang.facts, held(gang))
        return True

    def _add(self, facts: GroupFacts, amounts: Mapping[str, float]) -> None:
        for queue in self._quotas.lineage(_name(facts)):
            add_amounts(self._taken.setdefault(queue, {}), amounts)


def _name(facts: GroupFacts) -> str:
    """A group that names no queue is in Volcano's default one."""
    return facts.queue or "default"


def _is_counted(gang: Gang) -> bool:
    """One that still waits may have come before its queue had room for it."""
    if gang.ref.source is not Source.VOLCANO or gang.stage is Stage.ENDED:
        return False
    return gang.is_counted or gang.stage is not Stage.WAITING or gang.is_bound_in_part()


def has_every_role(gang: Gang) -> bool:
    """Whether the requests of all its pods are known."""
    return bool(gang.templates) or gang.roles().keys() <= {role_of(pod) for pod in gang.live()}


def held(gang: Gang) -> dict[str, float]:
    """The requests of its pods, and at least those of the whole gang while pods are still to come."""
    amounts: dict[str, float] = {}
    for pod in gang.live():
        add_amounts(amounts, pod.requests)
    whole: Mapping[str, float] = {}
    if gang.templates:
        whole = _whole(gang)
    elif gang.stage in (Stage.WAITING, Stage.APPLIED):
        whole = _of_roles({role_of(pod): pod for pod in gang.live()}, gang.roles())
    return {name: max(amounts.get(name, 0.0), whole.get(name, 0.0)) for name in amounts.keys() | whole.keys()}


def _whole(gang: Gang) -> dict[str, float]:
    facts = gang.facts or GroupFacts()
    try:
        return _amounts(facts)
    except ValueError:  # it could be read when the gang was opened: its stand-ins are of that time
        return _of_roles(gang.templates, gang.roles())


def _of_roles(pods: Mapping[str, Pod], roles: Mapping[str, int]) -> dict[str, float]:
    amounts: dict[str, float] = {}
    for role, pod in pods.items():
        add_amounts(amounts, {name: amount * roles.get(role, 0) for name, amount in pod.requests.items()})
    return amounts


def _amounts(facts: GroupFacts) -> dict[str, float]:
    """Requests of the whole gang: by its vcjob's pods, or as its PodGroup says. Raises ValueError: unreadable."""
    if facts.templates:
        return _of_roles(facts.templates, facts.roles)
    return minimum_requests(facts.min_resources)
