"""PodGroups and vcjobs as the API server shows them, by name. Fed by watches; never talks to the API."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from placewise_kubernetes.gang.groups import facts_of
from placewise_kubernetes.gang.spec import POD_GROUPS, GangRef, GroupFacts, Source

_VOLCANO_JOBS = "batch.volcano.sh/"


class GroupCatalog:
    """Facts by kind and name; a PodGroup's with those of the vcjob that it was made for."""

    def __init__(self) -> None:
        self._facts: dict[GangRef, GroupFacts] = {}
        self._group_of: dict[str, GangRef] = {}

    def find(self, group: GangRef) -> GroupFacts | None:
        """The facts of a PodGroup; None if none of this name is shown."""
        facts = self._facts.get(group)
        return None if facts is None else self.complete(group, facts)

    def complete(self, group: GangRef, facts: GroupFacts) -> GroupFacts:
        """Facts of a PodGroup, with sizes, roles and pods as its vcjob has them: the sum alone does not tell them."""
        job = self._job(group, facts)
        if job is None or not job.templates:
            return facts
        return dataclasses.replace(facts, roles=job.roles, templates=job.templates)

    def has_job(self, group: GangRef, facts: GroupFacts) -> bool:
        """Whether the vcjob that the PodGroup was made for is shown; True if it was made for none."""
        is_of_job = facts.owner is not None and facts.owner.api.startswith(_VOLCANO_JOBS)
        return not is_of_job or self._job(group, facts) is not None

    def admitted(self) -> list[tuple[GangRef, GroupFacts]]:
        """Volcano's PodGroups that it has let in and not started yet, where their demands are known."""
        groups = [(group, self.complete(group, facts)) for group, facts in self._facts.items() if facts.is_admitted]
        return [(group, facts) for group, facts in groups if facts.templates or facts.min_resources]

    def of_kind(self, source: Source) -> Iterator[GangRef]:
        return (reference for reference in list(self._facts) if reference.source is source)

    def put(self, reference: GangRef, facts: GroupFacts) -> GangRef | None:
        """Takes in an object. Returns the PodGroup of which there is news, if any."""
        before, self._facts[reference] = self._facts.get(reference), facts
        if reference.source in POD_GROUPS and facts.owner is not None:
            self._group_of[facts.owner.uid] = reference
        return None if before == facts else self._group(reference, facts)

    def forget(self, reference: GangRef) -> GangRef | None:
        """The object is gone. Returns the PodGroup that is gone with it, if any."""
        facts = self._facts.pop(reference, GroupFacts())
        group = self._group(reference, facts)
        if reference.source in POD_GROUPS and facts.owner is not None:
            self._group_of.pop(facts.owner.uid, None)
        return group

    def is_same(self, reference: GangRef, facts: GroupFacts) -> bool:
        """Whether no other object of this name is known."""
        return reference not in self._facts or self._facts[reference].uid == facts.uid

    def _group(self, reference: GangRef, facts: GroupFacts) -> GangRef | None:
        return reference if reference.source in POD_GROUPS else self._group_of.get(facts.uid)

    def _job(self, group: GangRef, facts: GroupFacts) -> GroupFacts | None:
        if facts.owner is None:
            return None
        job = self._facts.get(GangRef(Source.VOLCANO_JOB, group.namespace, facts.owner.name))
        return job if job is not None and job.uid == facts.owner.uid else None


class GroupMirror:
    """Objects of one kind; the callbacks are given the PodGroup that changes with an object, or goes with it."""

    def __init__(
        self,
        source: Source,
        catalog: GroupCatalog,
        has_changed: Callable[[GangRef], None],
        is_gone: Callable[[GangRef], None],
    ) -> None:
        self._source = source
        self._catalog = catalog
        self._has_changed = has_changed
        self._is_gone = is_gone

    def read(self, item: Mapping[str, Any]) -> Mapping[str, Any]:
        """All of it: groups are small beside their pods."""
        return item

    def replace(self, items: Iterable[Mapping[str, Any]]) -> None:
        items = list(items)
        listed = {self._reference(item) for item in items}
        for reference in self._catalog.of_kind(self._source):
            if reference not in listed:
                self._forget(reference)
        for item in items:
            self.change(item)

    def change(self, item: Mapping[str, Any]) -> None:
        reference = self._reference(item)
        if item["metadata"].get("deletionTimestamp"):
            self._forget(reference)
            return
        facts = facts_of(self._source, item)
        if not self._catalog.is_same(reference, facts):
            self._forget(reference)  # deleted and made again while nobody looked
        group = self._catalog.put(reference, facts)
        if group is not None:
            self._has_changed(group)

    def remove(self, item: Mapping[str, Any]) -> None:
        self._forget(self._reference(item))

    def _forget(self, reference: GangRef) -> None:
        group = self._catalog.forget(reference)
        if group is not None:
            self._is_gone(group)

    def _reference(self, item: Mapping[str, Any]) -> GangRef:
        return GangRef(self._source, item["metadata"].get("namespace") or "default", item["metadata"]["name"])
