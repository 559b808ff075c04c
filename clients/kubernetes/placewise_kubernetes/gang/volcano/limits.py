"""Rules of Volcano's own, by which it would not start a gang in any place, or in some. Never talks to the API."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from placewise.v1.cluster_pb2 import Node
from placewise_client.adapter.native import Stage
from placewise_kubernetes.gang.gang import Gang
from placewise_kubernetes.gang.mirror import NodeMirror, PodMirror
from placewise_kubernetes.gang.spec import GangRules, GroupFacts, Source
from placewise_kubernetes.gang.volcano.queues import SUM_AGE_S, QueueMirror, has_every_role, held
from placewise_kubernetes.gang.volcano.writer import VolcanoWriter
from placewise_kubernetes.kube.topology import (
    Domain,
    HardTopology,
    HyperNode,
    Topology,
    Within,
    choose,
    label_of,
    read_hyper_node,
)

log = logging.getLogger(__name__)

HYPER_NODES_PATH = "/apis/topology.volcano.sh/v1alpha1/hypernodes"
# A gang that has not found its nodes on one HyperNode tries the next after some questions.
_TRY_S = 2.0


class HyperNodeMirror:
    """HyperNodes by name. `changed` hears each change that moves a node. `is_listed`: there is at least one."""

    def __init__(self, changed: Callable[[Topology], None]) -> None:
        self._changed = changed
        self._found: dict[str, HyperNode] = {}
        self.topology = Topology()
        self.is_listed = False

    def read(self, item: Mapping[str, Any]) -> Mapping[str, Any]:
        """All of it: they are small."""
        return item

    def replace(self, items: Iterable[Mapping[str, Any]]) -> None:
        read = (self._read(item) for item in items)
        self._take({found.name: found for found in read if found is not None})

    def change(self, item: Mapping[str, Any]) -> None:
        found = self._read(item)
        name = item["metadata"]["name"]
        rest = {known: other for known, other in self._found.items() if known != name}
        self._take(rest | ({} if found is None else {name: found}))

    def remove(self, item: Mapping[str, Any]) -> None:
        self._take({name: found for name, found in self._found.items() if name != item["metadata"]["name"]})

    def _read(self, item: Mapping[str, Any]) -> HyperNode | None:
        if item["metadata"].get("deletionTimestamp"):
            return None
        try:
            return read_hyper_node(item)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            log.warning("HyperNode %s cannot be read: %r", item["metadata"]["name"], error)
            return None

    def _take(self, found: dict[str, HyperNode]) -> None:
        if found != self._found:  # its status changes more often
            self._found, self.is_listed = found, bool(found)
            self.topology = Topology(found.values())
            self._changed(self.topology)


class VolcanoLimits:
    """Bars waiting gangs that Volcano would not start, and keeps those of hard topology within a HyperNode.

    As long as no HyperNodes have been listed, no gang is kept within any. `poke`: has it judge again.
    """

    def __init__(
        self,
        rules: GangRules,
        pods: PodMirror,
        nodes: NodeMirror,
        queues: QueueMirror,
        writer: VolcanoWriter,
        clock: Callable[[], float],
        poke: Callable[[], None],
    ) -> None:
        self._rules = rules
        self._pods = pods
        self._nodes = nodes
        self._writer = writer
        self._queues = queues
        self._clock = clock
        self._poke = poke
        self._is_poke_due = False
        self._tried_at_s: dict[str, float] = {}
        self.hyper_nodes = HyperNodeMirror(nodes.arrange)

    def judge(self) -> None:
        """Looks at each gang of Volcano's that waits for its decision."""
        domains: dict[int, dict[str, Domain]] = {}
        waiting = [gang for gang in self._pods.book.active.values() if _is_judged(gang)]
        self._tried_at_s = {gang.key: self._tried_at_s.get(gang.key, 0.0) for gang in waiting}
        are_sums_new = any(gang.barred for gang in waiting) and self._queues.refresh()
        for gang in waiting:
            within, barred = self._placed(gang, domains)
            if not barred and not gang.is_counted:
                is_known = gang.barred and gang.within == within and not are_sums_new
                barred = gang.barred if is_known else self._beyond_quota(gang)
            if (within, barred) != (gang.within, gang.barred):
                self._tell(gang, within, barred)
        if not are_sums_new and any(gang.barred for gang in waiting):
            self._judge_later()

    def _beyond_quota(self, gang: Gang) -> str:
        """A group that Volcano has let in by its sum counts in its queue, even if we refuse it."""
        facts = self._pods.book.groups.find(gang.ref) or gang.facts or GroupFacts()
        is_let_in = facts.is_admitted and bool(facts.min_resources)
        reason = "" if is_let_in or gang.is_bound_in_part() else self._queues.why_full(facts, gang)
        if not reason and has_every_role(gang):  # until then it is judged with each pod that comes
            self._queues.count(gang)
        return reason

    def _judge_later(self) -> None:
        """The sums were too young to be made again: resources that came free meanwhile are seen then."""
        if not self._is_poke_due:
            self._is_poke_due = True
            asyncio.get_running_loop().call_later(2 * SUM_AGE_S, self._poke_late)

    def _poke_late(self) -> None:
        self._is_poke_due = False
        self._poke()

    def _tell(self, gang: Gang, within: Within | None, barred: str) -> None:
        if barred != gang.barred:
            gang.text = barred
            self._writer.explain_gang(gang, barred)
            self._writer.nominate(gang)
        gang.within, gang.barred = within, barred
        self._pods.book.touch(gang)
        gang.answer_callers()

    def _placed(self, gang: Gang, domains: dict[int, dict[str, Domain]]) -> tuple[Within | None, str]:
        hard, topology = gang.facts.topology if gang.facts else None, self.hyper_nodes.topology
        if hard is None or not self.hyper_nodes.is_listed:
            return None, ""
        tier = topology.tier_of(hard)
        if tier is None:
            return None, _no_tier(hard)
        if topology.is_racks(tier):
            return topology.within(tier), ""
        if tier not in domains:
            domains[tier] = self._domains(label_of(tier))
        return topology.within(tier, self._chosen(gang, label_of(tier), domains[tier])), ""

    def _chosen(self, gang: Gang, label: str, domains: Mapping[str, Domain]) -> str:
        before = gang.within.labels.get(label, "") if gang.within is not None else ""
        if before in domains and self._clock() - self._tried_at_s[gang.key] < _TRY_S:
            return before
        self._tried_at_s[gang.key] = self._clock()
        wanted = held(gang)
        return choose(domains, sum(wanted.get(name, 0.0) for name in self._rules.gpu_resources), before)

    def _domains(self, label: str) -> dict[str, Domain]:
        nodes: dict[str, set[str]] = {}
        for node in self._nodes.nodes.values():
            if node.state == Node.READY and node.labels.get(label):
                nodes.setdefault(node.labels[label], set()).add(node.id)
        domains = {}
        for name, members in nodes.items():
            gpus = float(sum(self._nodes.gpus(member) for member in members))
            domains[name] = Domain(gpus, gpus - sum(self._pods.gpus_in_use(members).values()))
        return domains


def _is_judged(gang: Gang) -> bool:
    return gang.ref.source is Source.VOLCANO and gang.stage is Stage.WAITING and gang.facts is not None


def _no_tier(hard: HardTopology) -> str:
    return f"its PodGroup may cross no HyperNode above {hard}, and there is none up to it"
