"""Kubernetes as the adapter skeleton sees it: gangs of pods, placed by answering a scheduler or by binding.

Gangs of a scheduler that asks (kube-scheduler, Volcano) are applied by remembering the plan, which `extender` and
`volcano` hand out pod by pod; gangs of our own scheduler name are bound here. It never touches a pod that has a node.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial

from prometheus_client import Counter

from placewise_client.adapter.native import Applied, HostState, HostUnreachableError, NativeJob, Placement, Stage
from placewise_kubernetes.gang.binding import GangBinder, lacks
from placewise_kubernetes.gang.catalog import GroupMirror
from placewise_kubernetes.gang.devices.inventory import Devices
from placewise_kubernetes.gang.devices.mirrors import device_reflectors
from placewise_kubernetes.gang.gang import BY_CLAIM, UNREADABLE, Gang, ShareNotes
from placewise_kubernetes.gang.gates.gated import GatedPods
from placewise_kubernetes.gang.gates.opening import GateOpener, GateRules, restore
from placewise_kubernetes.gang.gates.volumes import VolumeReader
from placewise_kubernetes.gang.gpus import GpuLedger
from placewise_kubernetes.gang.groups import WATCHED_PATHS, GroupLookup, read_group
from placewise_kubernetes.gang.jobs import JobMirror
from placewise_kubernetes.gang.mirror import NodeMirror, PodMirror
from placewise_kubernetes.gang.spec import GangRef, GangRules, GroupFacts, Source
from placewise_kubernetes.gang.volcano.limits import HYPER_NODES_PATH, VolcanoLimits
from placewise_kubernetes.gang.volcano.queues import QUEUES_PATH, QueueMirror
from placewise_kubernetes.gang.volcano.writer import VolcanoWriter
from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.bind import Binder
from placewise_kubernetes.kube.client import KubeClient, KubeUnreachableError
from placewise_kubernetes.kube.nodes import NodeReader
from placewise_kubernetes.kube.wake import PodWriter
from placewise_kubernetes.kube.watch import Reflector
from placewise_kubernetes.watches import SYNC_LIMIT_S, Watches

log = logging.getLogger(__name__)

NODES_PATH = "/api/v1/nodes"
PODS_PATH = "/api/v1/pods"
JOBS_PATH = "/apis/batch/v1/jobs"
GROUP_RETRY_S = 1.0
# The pods of a gang are bound within some milliseconds of each other: they are reported together, and not while the
# machine is busy with binding the rest.
LINGER_S = 0.025
MISSING_S = 5.0
# A PodGroup that was asked about, and neither asked about again nor given pods for this long, is taken for deleted.
GROUP_FORGOTTEN_S = 300.0
# One that its watch does not show by then was deleted while it was being read.
GROUP_UNSHOWN_S = 5.0
# A waiting Job that has made no pods for this long (a quota?) leaves the queue.
JOB_FORGOTTEN_S = 30.0
RELEASED_NOTE = {names.RELEASED: "true"}


async def _no_shares(_: Gang, __: Placement) -> ShareNotes:
    return {}


class KubernetesHost:
    """The native layer: implements `placewise_client.adapter.native.NativeScheduler`."""

    def __init__(
        self,
        client: KubeClient,
        rules: GangRules,
        reader: NodeReader,
        clock: Callable[[], float] = time.monotonic,
        gates: GateRules | None = None,
        ask_shares: Callable[[Gang, Placement], Awaitable[ShareNotes]] = _no_shares,
    ) -> None:
        self.ask_shares = ask_shares
        self.rules = rules
        self.gates = gates or GateRules()
        self.gated = GatedPods(rules, self._report_nodes_again)
        self.devices = Devices(rules)
        self.nodes = NodeMirror(reader, self.poke, self.gated.labelled, self.devices.arrange)
        ledger, read = GpuLedger(self.nodes.gpu_indices), self.gated.read if self.gates.is_enabled else rules.pod
        self._read_template = self.gated.read_template if self.gates.is_enabled else rules.pod
        self.pods = PodMirror(rules, self.poke, self.poke_soon, self._serve, ledger, self.devices, read)
        self.devices.tell_nodes, self.devices.tell_pods = self.nodes.update_devices, self.pods.update_devices
        self.writer = PodWriter(client)
        self.volcano_writer = VolcanoWriter(self.writer)
        self.binder = Binder(client)
        self.opener = GateOpener(client, self.gates.pin)
        starters = (self.binder, self.opener, self.writer)
        self.binding = GangBinder(*starters, self.nodes, self.pods, self.poke, self.poke_soon)
        self.groups = GroupLookup(client)
        self.volumes = VolumeReader(client, self.gated, self.pods.book, self.pods.put, self.poke)
        self.refused = Counter(
            "placewise_kubernetes_refused", "Calls of schedulers refused, by reason", ["reason"], registry=None
        )
        self._client = client
        self._clock = clock
        self._news = asyncio.Event()
        self._is_poke_due = False
        jobs = JobMirror(rules, self.pods.book, self.poke, clock, self.devices.complete)
        # Held gangs are decided by their pods: a Job's template lacks the gate and the nodes of its volumes.
        is_job_watched = rules.is_job_watched and not self.gates.is_enabled
        self.queues = QueueMirror(self.pods.book, clock, self.nodes.total)
        limited = (rules, self.pods, self.nodes, self.queues, self.volcano_writer)
        self.limits = VolcanoLimits(*limited, clock, self.poke)
        self._watches = Watches(
            needed=(Reflector(client, NODES_PATH, self.nodes), Reflector(client, PODS_PATH, self.pods)),
            devices=device_reflectors(client, self.devices),
            groups={
                source: Reflector(client, path, self._group_mirror(source), may_be_absent=True)
                for source, path in WATCHED_PATHS.items()
            },
            others=(
                Reflector(client, QUEUES_PATH, self.queues, may_be_absent=True),
                Reflector(client, HYPER_NODES_PATH, self.limits.hyper_nodes, may_be_absent=True),
            ),
            jobs=(Reflector(client, JOBS_PATH, jobs),) if is_job_watched else (),
        )
        self._has_looked = False
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._missing_since_s: dict[str, float] = {}

    def _group_mirror(self, source: Source) -> GroupMirror:
        book = self.pods.book

        def tell(change: Callable[[GangRef], None], group: GangRef) -> None:
            change(group)
            self.volcano_writer.nominate(book.find(group))
            if book.has_news():
                self.poke()

        return GroupMirror(source, book.groups, partial(tell, book.regroup), partial(tell, book.end_group))

    async def run(self) -> None:
        """Watches nodes, pods, Jobs, and the groups of other projects until it is cancelled."""
        await self._watches.run()

    def is_synced(self) -> bool:
        """See Watches."""
        return self._watches.is_synced()

    def is_current(self) -> bool:
        """See Watches."""
        return self._watches.is_current()

    def are_groups_watched(self, source: Source) -> bool:
        """Whether every object of this kind is known as it is now."""
        return self._watches.groups[source].is_live()

    # --- NativeScheduler ----------------------------------------------------------------------------------------------

    async def wait(self, timeout_s: float) -> bool:
        """See NativeScheduler."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    async def observe(self, full: bool) -> HostState:
        """See NativeScheduler."""
        self._news.clear()  # before anything fails: else the loop would not wait before it looks again
        await self._watches.wait_synced()
        if self.devices and await self.pods.reported.learn(len(self.nodes.nodes)):
            self.nodes.update_devices(None)
        self._forget_groups()
        self._read_groups()
        self.volumes.read()
        if not self._has_looked:
            await self._wait_read()
            self._open_admitted()
            self._restore()
            self.volcano_writer.clear_left(self.pods.book.active.values())
            self._has_looked = True
        self._leave_unjudged()
        self._explain_missing()
        for gang in self.pods.book.active.values():
            if gang.plan is not None and not gang.is_started_here:
                self._wake(gang)
        self.volcano_writer.nominate_again()
        self.binding.part_lost(self._clock())
        await self.binding.bind_late()
        self.limits.judge()
        jobs = self.pods.news(full=full)
        for gang in self.pods.book.take_unreadable():
            if _needs_nodes(gang):
                self.release_gang(gang)
        return HostState(jobs, self.nodes.take(full=full), is_complete=full)

    async def apply(self, job: NativeJob, placement: Placement) -> Applied:
        """See NativeScheduler."""
        gang = self.pods.book.gangs.get(job.key)
        shares = await self.ask_shares(gang, placement) if gang is not None and gang.plan is None else {}
        if gang is None or gang.stage is Stage.RELEASED or not _needs_nodes(gang):
            return Applied.GONE
        if gang.plan is None:
            if not (_asks_for(gang, job, self.rules) and (gang.is_bound_in_part() or self.nodes.are_ready(placement))):
                return Applied.REFUSED
            gang.mark_applied(placement)
            gang.shares = shares
        if gang.is_in_order:
            self.pods.book.touch(gang)  # after a restart some of its pods run, and no event may come for a long time
        if gang.is_started_here:
            return await self.binding.apply(gang)
        gang.answer_callers()
        self._wake(gang)
        self.volcano_writer.nominate(gang)
        return Applied.DONE

    async def release(self, job: NativeJob) -> Applied:
        """See NativeScheduler. A gang of a Job that has made no pods yet is asked about again when they come."""
        gang = self.pods.book.gangs.get(job.key)
        if gang is None or not _needs_nodes(gang):
            return Applied.GONE
        if gang.is_by_gate and not self._may_release(gang):
            return Applied.REFUSED
        if gang.live() or gang.ref.source is Source.VOLCANO:
            self.release_gang(gang)
        else:
            gang.templates.clear()
            self.pods.book.touch(gang)
        return Applied.DONE

    async def withdraw(self, job: NativeJob) -> Applied:
        """See NativeScheduler. A gang of which some pods are bound cannot be taken back: the others are released.

        If the others were never made, the bound pods are the gang, and are reported as such.
        """
        gang = self.pods.book.gangs.get(job.key)
        if gang is None or not _needs_nodes(gang):
            return Applied.GONE
        if gang.being_bound:
            return Applied.UNREACHABLE
        if gang.is_bound_in_part():
            log.warning("gang %s is bound in part; its other pods are left to the scheduler", gang.key)
            self.binding.explain_unbound(gang, gang.waiting())
            if not gang.is_complete():
                gang.give_up_missing()
            self.release_gang(gang)
            return Applied.REFUSED
        if gang.is_by_gate:
            await self.opener.clear(gang.waiting())
        if not gang.pods:  # Volcano does not ask again about a group that it has let in: its pods may never come
            gang.templates.clear()
        self._undecide(gang)
        return Applied.DONE

    async def explain(self, job: NativeJob, text: str) -> None:
        """See NativeScheduler."""
        gang = self.pods.book.gangs.get(job.key)
        if gang is None:
            return
        gang.text, gang.first_refused_s = text, None
        gang.answer_callers()
        self.volcano_writer.nominate(gang)
        if gang.is_started_here:
            self._serve(gang)
            return
        if not gang.pods and gang.facts is not None:
            self.volcano_writer.explain(gang.ref, gang.facts, text)
        # The pod's own scheduler reports our refusal; if it has not asked about the pod yet, we report it.
        stale = [pod for pod in gang.waiting() if gang.refused.get(pod.uid, text) != text]
        self.writer.wake(stale)
        self.writer.explain((pod for pod in gang.waiting() if pod.uid not in gang.refused), text)

    # --- for the extender and Volcano ---------------------------------------------------------------------------------

    def poke(self) -> None:
        """Something changed: the loop looks at once."""
        self._news.set()

    def poke_soon(self) -> None:
        """Something changed that nobody waits for: the loop looks at it with other changes of the next moment."""
        if not self._is_poke_due:
            self._is_poke_due = True
            asyncio.get_running_loop().call_later(LINGER_S, self._poke_late)

    def _poke_late(self) -> None:
        self._is_poke_due = False
        self.poke()

    async def find_group(self, reference: GangRef) -> GroupFacts | None:
        """The facts of a PodGroup that a caller names; None if the API server has none of that name.

        Raises:
            KubeUnreachableError: the API server did not say in time, or shows no vcjob yet, or no more, for the group.
        """
        catalog = self.pods.book.groups
        facts = catalog.find(reference) or await self.groups.find(reference)
        if facts is None:
            return None
        if self._is_orphan(reference, facts):
            raise KubeUnreachableError("its vcjob is not there")
        return catalog.complete(reference, facts)

    def open_group(self, reference: GangRef, facts: GroupFacts) -> Gang:
        """The gang of a PodGroup, which may have no pods yet. Raises ValueError: its demands cannot be read."""
        known = self.pods.book.find(reference)
        is_new = known is None or not (known.templates or known.pods)
        if is_new:
            self.queues.note(facts)
        gang = self.pods.book.open_group(reference, facts)
        gang.is_counted = gang.is_counted or is_new
        gang.asked_at_s = self._clock()
        self.poke()
        return gang

    async def wait_settled(self, gang: Gang, timeout_s: float) -> bool:
        """Waits until the gang has a plan, has a reason to wait or is released. False if that takes too long."""
        if gang.stage is not Stage.WAITING or gang.text:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await gang.answered.wait()
        except TimeoutError:
            return False
        return True

    def release_gang(self, gang: Gang) -> None:
        """Leaves a gang to the scheduler's own choice, and notes that on its pods for a later run of the adapter."""
        gang.mark_released()
        self.pods.book.touch(gang)
        gang.answer_callers()
        if gang.is_by_gate:
            held = [pod for pod in gang.waiting() if pod.is_held]
            reason = gang.unjudged() or "released"
            self.writer.report_left(held, f"left to its scheduler ({reason.replace('_', ' ')})")
        if gang.is_started_here:
            self.poke()
        else:
            self.volcano_writer.nominate(gang)
            self.writer.wake(gang.waiting(), RELEASED_NOTE)

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _wait_read(self) -> None:
        """A running gang whose size is unknown at the first look would be taken for one that is over."""
        reading = [*self._reading.values(), *self.volumes.under_way.values()]
        if reading and (await asyncio.wait(reading, timeout=SYNC_LIMIT_S))[1]:
            raise HostUnreachableError("the sizes of gangs have not been read yet")

    def _undecide(self, gang: Gang) -> None:
        gang.mark_waiting()
        self.pods.book.touch(gang)
        self.volcano_writer.nominate(gang)

    def _wake(self, gang: Gang) -> None:
        """Once per decision: a pod that its scheduler has put aside would be looked at again only after a minute."""
        asleep = [
            pod
            for pod in gang.waiting()
            if pod.uid not in gang.woken and (pod.uid in gang.refused or pod.is_unschedulable)
        ]
        gang.woken.update(pod.uid for pod in asleep)
        gang.refused.clear()
        self.writer.wake(asleep)

    def _serve(self, gang: Gang) -> None:
        """Pods that we bind or nominate have come: each gets its node, or the reason why its gang waits."""
        if gang.is_nominated:
            self.volcano_writer.nominate(gang)
            return
        if gang.plan is not None:
            if self.is_current():
                self.binding.bind(gang)
            return
        unheard = [pod for pod in gang.waiting() if gang.text and gang.refused.get(pod.uid) != gang.text]
        gang.refused.update((pod.uid, gang.text) for pod in unheard)
        if gang.is_by_gate:
            self.writer.hold([pod for pod in unheard if pod.is_held], gang.text)
        else:
            self.writer.unschedulable(unheard, gang.text)

    def _report_nodes_again(self) -> None:
        self.nodes.report_again()

    def _restore(self) -> None:
        for gang in list(self.pods.book.active.values()) if self.gates.is_enabled else ():
            if restore(gang, self.rules):
                log.info("gang %s is finished as an earlier run has decided it", gang.key)
                self.pods.book.touch(gang)

    def _leave_unjudged(self) -> None:
        """Gangs with rules that are not evaluated go to their scheduler undecided."""
        for gang in list(self.pods.book.active.values()):
            if gang.stage is Stage.APPLIED and gang.unjudged() and not gang.is_bound_in_part():
                self.release_gang(gang)  # another pod has come that uses a claim of it, for example
            if gang.stage is not Stage.WAITING:
                continue
            if gang.is_own and any(pod.is_by_claim for pod in gang.waiting()):
                if gang.text != BY_CLAIM:
                    gang.text = BY_CLAIM
                    self._serve(gang)
            elif unjudged := gang.unjudged():
                if not gang.is_by_gate:  # else they are counted as they lose their gates
                    self.opener.undecided.labels(unjudged).inc(len(gang.waiting()))
                self.release_gang(gang)

    def _explain_missing(self) -> None:
        """A gang that we start says which pods it lacks: no scheduler of its own would. Its controller has a while."""
        now_s, before = self._clock(), self._missing_since_s
        self._missing_since_s = {}
        for gang in self.pods.book.active.values():
            reason = lacks(gang)
            if not reason:
                continue
            since_s = self._missing_since_s[gang.key] = before.get(gang.key, now_s)
            if gang.text != reason and now_s - since_s >= MISSING_S:
                gang.text = reason
                self._serve(gang)

    def _may_release(self, gang: Gang) -> bool:
        """A gang that the service finds no node for waits a while: a node may come."""
        if gang.first_refused_s is None:
            gang.first_refused_s = self._clock()
        if self._clock() - gang.first_refused_s >= self.gates.scale_up_after_s:
            return True
        gang.text = f"no node can take it; left to its scheduler after {self.gates.scale_up_after_s:.0f} s"
        self._serve(gang)
        return False

    def _read_groups(self) -> None:
        for gang in self.pods.book.active.values():
            is_due = gang.is_size_due or (gang.facts is None and not self._is_to_be_shown(gang))
            if is_due and gang.key not in self._reading:
                task = self._reading[gang.key] = asyncio.create_task(self._read_group(gang))
                task.add_done_callback(partial(self._reading.pop, gang.key))

    def _is_to_be_shown(self, gang: Gang) -> bool:
        """Whether the watch will show its size: nobody starts pods of a native PodGroup that is not there, nor does
        Volcano of one of its own."""
        source, is_begun = gang.ref.source, any(pod.node for pod in gang.pods.values())
        is_needed = source is Source.NATIVE or (source is Source.VOLCANO and not gang.is_started_here)
        return is_needed and self.are_groups_watched(source) and not is_begun

    async def _read_group(self, gang: Gang) -> None:
        while (gang.facts is None or gang.is_size_due) and gang.group is not None:
            gang.is_size_due = False
            try:
                facts = await read_group(self._client, gang.group, self._read_template)
            except KubeUnreachableError as error:
                log.warning("group of %s: %s", gang.key, error)
                gang.is_size_due = gang.facts is not None
                await asyncio.sleep(GROUP_RETRY_S)
                continue
            if gang.facts is None:
                self.pods.book.inform(gang, facts or GroupFacts())
            elif facts is not None:
                self.pods.book.resize(gang, facts)
            self.poke()

    def _open_admitted(self) -> None:
        """Groups that Volcano let in before this run, and whose pods are still to come: it asks about none again."""
        for group, facts in self.pods.book.groups.admitted():
            is_known = self.pods.book.find(group) is not None
            if is_known or not self.rules.has_say(facts) or self._is_orphan(group, facts):
                continue
            try:
                self.open_group(group, facts)
            except ValueError as error:
                log.warning("group %s/%s: %s", group.namespace, group.name, error)

    def _is_orphan(self, group: GangRef, facts: GroupFacts) -> bool:
        """Whether the vcjob of a PodGroup is gone, or not shown yet."""
        return self.are_groups_watched(Source.VOLCANO_JOB) and not self.pods.book.groups.has_job(group, facts)

    def _forget_groups(self) -> None:
        book = self.pods.book
        for gang in [gang for gang in book.active.values() if gang.templates] + list(book.emptied.values()):
            age_s = self._clock() - gang.asked_at_s
            if gang.pods:
                continue
            if gang.ref.source is Source.VOLCANO:
                is_watched = self.are_groups_watched(Source.VOLCANO)
                if age_s > GROUP_UNSHOWN_S and is_watched and book.groups.find(gang.ref) is None:
                    book.end(gang)
                elif age_s > GROUP_FORGOTTEN_S and (gang.templates or not is_watched):
                    book.remove(gang)  # one without stand-ins holds nothing: as long as it is shown, its pods may come
            elif age_s > JOB_FORGOTTEN_S and gang.plan is None:
                book.end(gang)


def _needs_nodes(gang: Gang) -> bool:
    """Whether the gang has yet to start: pods of it wait, or are still to be made."""
    return gang.stage not in (Stage.RUNNING, Stage.ENDED) and bool(gang.live() or gang.templates)


def _asks_for(gang: Gang, job: NativeJob, rules: GangRules) -> bool:
    """Whether the gang still has the demands of the question: a larger pod may have come meanwhile."""
    try:
        return list(gang.build(rules).groups) == list(job.job.groups)
    except UNREADABLE:
        return False  # the next look releases it
