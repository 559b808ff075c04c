"""The world of the fault tests in which every gang is a vcjob, whose pods Volcano's own controllers make, and make
again."""

from __future__ import annotations

import asyncio
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.kubernetes.faults.kubernetes_fault_world import ENDED, Note, until
from tests.e2e.kubernetes.kubernetes_scenario import events_of, finish, names_of
from tests.e2e.volcano.volcano_cluster import JOBS, VOLCANO, pods_of, vcjob
from tests.e2e.volcano.volcano_fault_world import MERGE, VolcanoWorld
from tests.e2e.volcano.volcano_gangs import last_rows

from placewise_kubernetes.kube import names

_UID = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


@dataclass
class VcjobWorld(VolcanoWorld):
    """A gang has its vcjob's name. `made_again` counts pods that Volcano made in place of deleted ones, by gang."""

    made_again: Counter[str] = field(default_factory=Counter)

    async def make(self, name: str, pods: list[dict[str, Any]]) -> None:
        """Makes a vcjob of such pods, a task for each role."""
        job = _vcjob_of(name, self.prepared(pods))
        self.gangs[name] = [{"metadata": {"name": made}} for made in pods_of(job)]
        self.vcjobs[name] = (name, await asyncio.to_thread(self.volcano.submit, job))

    def name_of(self, job: str) -> str:
        """A gang's id at the service has the name of its PodGroup. A vcjob whose pods are all made again has another
        gang, which its first pod names."""
        group, _, uid = super().name_of(job), *job.rpartition("/")[1:]
        name = _UID.sub("", group)
        return name if not uid or group.startswith(f"{name}-{uid}") else job

    def twice(self, *, has_outage: bool) -> list[str]:
        """A gang that runs, and moves with a pod that is made again, is reported with its new places."""
        found = super().twice(has_outage=has_outage)
        return [text for text in found if not self._is_moved(*text.split())]

    def _is_moved(self, job: str, kind: str, count: str, _: str) -> bool:
        return kind == "STARTED" and int(count) <= 1 + self.made_again[self.name_of(job)]

    def told(self, name: str) -> list[str]:
        """A vcjob that was not let in has no pods: its PodGroup says why."""
        texts = self.volcano.events_of("PodGroup", "-".join(self.vcjobs[name]))
        texts += [text for made in names_of(self.gangs[name]) for text in events_of(self.plane, made)]
        return sorted(set(texts))

    async def bound(self, names: Iterable[str], limit_s: float = 45.0) -> None:
        """A gang counts by the places of its start: pods that are made again have others."""
        names, before = list(names), dict(self.ran)
        await super().bound(names, limit_s)
        for name in names:
            if name not in before and len(self.gangs[name]) == self.ran[name].total():
                await asyncio.to_thread(finish, self.plane, names_of(self.gangs[name]), "Running")
        self.ran.update(before)

    async def fail(self, name: str, node: str) -> None:
        """Volcano makes its deleted pods again, on other nodes than this one; then all fail."""
        wanted, before = set(names_of(self.gangs[name])), self.on_nodes(name)

        def is_whole() -> bool:
            items = {item["metadata"]["name"]: item for item in self.volcano.pods()}
            left = [items[made] for made in wanted & items.keys()]
            left = [item for item in left if item["status"].get("phase") in ENDED or item["spec"].get("nodeName")]
            return len(left) == len(wanted)

        await until(is_whole, what=f"all pods of {name}, once on {dict(before)}")
        items = [item for item in self.volcano.pods() if item["metadata"]["name"] in wanted]
        again = [item for item in items if item["status"].get("phase") == "Pending"]
        assert all(item["spec"]["nodeName"] != node for item in again)
        self.made_again[name] += len(again)
        if again:  # a pod that has failed keeps its place as long as its gang runs
            await self.agree()
        await asyncio.to_thread(finish, self.plane, list(wanted), "Failed")

    def shrink(self, name: str, size: int) -> None:
        """So many pods of its one task are left, and are all that it needs. For threads, too."""
        path = f"{JOBS}/{name}"
        (task,) = self.plane.request("GET", path)["spec"]["tasks"]
        change = {"minAvailable": size, "tasks": [task | {"replicas": size, "minAvailable": size}]}
        self.plane.request("PATCH", path, {"spec": change}, MERGE)
        self.gangs[name] = self.gangs[name][:size]

    async def on_decision(self, name: str, size: int, gpus: int, hit: Callable[[], None]) -> None:
        """Makes a gang, and hits before the adapter has its decision."""
        done: list[str] = []

        def hit_it() -> None:
            self.way.placed = None
            hit()
            done.append(name)

        self.way.placed = hit_it
        await self.make(name, self.gang(name, size, gpus))
        await until(lambda: bool(done), what="a decision and the hit")

    async def on_hold(self, name: str, size: int, gpus: int, hit: Callable[[], None]) -> None:
        """Makes a gang, and hits while its place is held and Volcano, which hangs, cannot bind it."""
        hang = lambda: self.plane.signal_process(VOLCANO, signal.SIGSTOP)  # noqa: E731
        try:
            await self.on_decision(name, size, gpus, hang)
            await until(lambda: any(self.name_of(job) == name for job in self.reserved()), what="a place")
            await asyncio.sleep(1.0)  # the adapter has it, too
            assert not self.on_nodes(name)
            await asyncio.to_thread(hit)
        finally:
            self.plane.signal_process(VOLCANO, signal.SIGCONT)

    async def close(self, title: str, note: Note) -> None:
        await super().close(title, note)
        if not self.made_again:
            return
        rows = last_rows(self.placewise, self.cluster, "outcomes", "job_id", "kind", "decision_id")
        started = [row for row in rows if row["kind"].upper() == "STARTED" and "/filler-" not in row["job_id"]]
        # Volcano does not ask again about a group that it has let in.
        whole = [row for row in started if self.name_of(row["job_id"]) == row["job_id"]]
        words = f"{title}: {self.made_again.total()} pods of {len(+self.made_again)} gangs made again; "
        words += f"of {len(whole)} that lost all pods {sum(bool(row['decision_id']) for row in whole)} by a decision"
        note("made again", words)
        print(f"  {words}")


def _vcjob_of(name: str, pods: list[dict[str, Any]]) -> dict[str, Any]:
    by_role: dict[str, list[dict[str, Any]]] = {}
    for document in pods:
        notes = document["metadata"]["annotations"]
        del notes[names.VOLCANO_GROUP]  # the vcjob's controller says it
        by_role.setdefault(notes.pop(names.VOLCANO_TASK), []).append(document)
    job = vcjob(name, {role: (len(of_role), 0) for role, of_role in by_role.items()})
    for task, (first, *_) in zip(job["spec"]["tasks"], by_role.values(), strict=True):
        metadata = {"annotations": first["metadata"]["annotations"]}
        task["template"] = {"metadata": metadata, "spec": first["spec"]}
    return job
