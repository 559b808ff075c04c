"""Volcano's extender protocol: jobEnqueueable (AdmitOrWait) and prioritize (Place). Answers from memory.

The payloads are Volcano's own Go structures as JSON, which change with every minor release, and anybody who reaches the
port may make one up. So only names are taken from them: groups and pods are read from the API server.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from placewise_client.adapter.native import Stage
from placewise_kubernetes.gang.gang import Gang
from placewise_kubernetes.gang.spec import GangRef, GroupFacts, Source
from placewise_kubernetes.host import KubernetesHost
from placewise_kubernetes.kube.client import KubeUnreachableError

log = logging.getLogger(__name__)

PERMIT, ABSTAIN, REJECT = 1, 0, -1
# Scores of Volcano's own plugins are up to 100 × their weight: a decision has to stand above their sum.
DECIDED_SCORE = 100_000.0
# How far Volcano's own watch of pods may be ahead of ours.
WATCH_LEAD_S = 0.02


class QueueFullError(Exception):
    """A group's queue may use no more. Nothing is reserved for the group, as others may use the room."""


@dataclass(frozen=True, slots=True)
class VolcanoExtender:
    """Answers Volcano's calls; each method takes and gives decoded JSON."""

    host: KubernetesHost
    enqueue_budget_s: float
    clock: Callable[[], float] = time.monotonic

    async def job_enqueueable(self, arguments: Mapping[str, Any]) -> dict[str, int]:
        """1 once the gang is admitted and its place reserved, -1 while it waits, 0 where Placewise has no say.

        Raises:
            ValueError, KeyError: the job cannot be read.
        """
        info = arguments["job"]
        reference = GangRef(Source.VOLCANO, str(info["Namespace"]), str(info["Name"]))
        try:
            gang = self._known(reference) or await self._opened(reference)
        except KubeUnreachableError as error:
            log.warning("group %r/%r: %s", reference.namespace, reference.name, error)
            return {"status": REJECT}  # it asks again in a second
        except QueueFullError:
            return {"status": REJECT}
        if gang is None or not self.host.rules.has_say(gang.facts or GroupFacts()):
            return {"status": ABSTAIN}
        gang.asked_at_s = self.clock()
        if gang.barred:
            self.host.poke_soon()  # a change of its queue is no news of a gang
        await self.host.wait_settled(gang, self.enqueue_budget_s)
        if gang.stage is Stage.RELEASED:
            return {"status": ABSTAIN}
        return {"status": PERMIT if gang.plan is not None or gang.stage is Stage.RUNNING else REJECT}

    async def prioritize(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """A score for the decided node that outweighs all plugins; no score if nothing was decided."""
        uid = str(arguments["task"]["UID"])
        offered = {str(node.get("Name", "")) for node in arguments.get("nodes") or ()}
        gang = self.host.pods.book.gang_of(uid)
        if gang is None and self.host.pods.book.find(_reference(arguments["task"]["Job"])) is not None:
            gang = await self.host.pods.wait_shown(uid, WATCH_LEAD_S)
        # An object is always expected: null counts as an error.
        scores: dict[str, float] = {}
        if gang is not None and gang.plan is not None:
            task = gang.task_of(gang.pods[uid])
            if task is not None and task.node in offered:
                scores[task.node] = DECIDED_SCORE
        return {"nodeScore": scores, "errorMessage": ""}

    def _known(self, reference: GangRef) -> Gang | None:
        """The gang of a PodGroup that was asked about before, or has pods."""
        gang = self.host.pods.book.find(reference)
        if gang is None or gang.stage is Stage.ENDED or not (gang.templates or gang.pods):
            return None
        return gang

    async def _opened(self, reference: GangRef) -> Gang | None:
        """The gang of a PodGroup that has no pods yet; None if there is no such group, or if it is not ours.

        Raises:
            KubeUnreachableError: the API server did not say in time whether there is such a group.
            QueueFullError: with it, the gangs of its queue would hold more than they may use.
            ValueError: its demands cannot be read.
        """
        facts = await self.host.find_group(reference)
        if facts is None:
            self.host.refused.labels("unknown_group").inc()
            return None
        if not self.host.rules.has_say(facts):
            return None
        if reason := self.host.queues.why_full(facts):
            self.host.volcano_writer.explain(reference, facts, reason)
            raise QueueFullError
        return self.host.open_group(reference, facts)


def _reference(job_id: str) -> GangRef:
    namespace, _, name = str(job_id).partition("/")
    return GangRef(Source.VOLCANO, namespace, name)
