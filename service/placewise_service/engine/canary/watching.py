"""Watches the canaries: counts what becomes of jobs on this replica, adds it to that of all, and lets guards judge.

A job counts once, by its first decision on a replica, and by its first report of progress to the replica that decided
it; a task of Partition once, and a job of AdmitOrWait once, which has arms by slot and so is counted by time alone.
Counting comes after the answer; the sums are exchanged every 0.4 seconds while a canary runs, and never else.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import structlog

from placewise_core.basics.bounded import Latest
from placewise_core.basics.frozen import frozen
from placewise_core.domain.commands import JobEvent, JobEventKind
from placewise_core.domain.decision import Outcome, Verdict
from placewise_core.domain.errors import PlacewiseError
from placewise_core.policies.trial import guards
from placewise_core.policies.trial.arms import Arm, Unit, is_accident
from placewise_core.policies.trial.guards import Counts, Guard, Reference
from placewise_log.record import DecisionRecord
from placewise_service.engine.bundles import SharedBundles
from placewise_service.engine.canary.arming import Arming
from placewise_service.engine.canary.calls import CallArm
from placewise_service.engine.registry import BundleRegistry, Canary
from placewise_service.state.store import StateStore
from placewise_service.telemetry import Telemetry

log = structlog.get_logger(__name__)
Kind = TypeVar("Kind")

_PERIOD_S: Final = 0.4
_MOST_JOBS: Final = 20_000  # decided and without a report of progress, of each canary
_MOST_REFERENCES: Final = 2_000
_LEAST_SPEEDS: Final = 5  # reports of a kind of job before others are compared with them


@frozen
class _Trial:
    """How one job was decided."""

    arm: Arm
    scope: str
    kind: tuple[str, float]  # model and GPUs


@dataclass(slots=True)
class _Watch:
    """One canary on this replica, by its salt."""

    counts: Counter[str] = field(default_factory=Counter)
    jobs: Latest[str, _Trial] = field(default_factory=lambda: Latest(_MOST_JOBS))
    called: Latest[tuple[str, str], None] = field(default_factory=lambda: Latest(_MOST_JOBS))  # call and job
    latencies_ms: Latest[tuple[str, int], Reference] = field(default_factory=lambda: Latest(_MOST_REFERENCES))
    speeds: Latest[tuple[str, float], Reference] = field(default_factory=lambda: Latest(_MOST_REFERENCES))
    failures: int = 0  # of the canary's policy, one after the other

    def count(self, guard: Guard, trial: _Trial, is_event: bool) -> None:
        key = f"{trial.scope}|{guard.name}|{trial.arm.value}"
        self.counts[key] += 1
        if is_event:
            self.counts[f"{key}|events"] += 1


class Watching:
    """The guards of all canaries of this replica. One event loop owns it."""

    def __init__(
        self, store: StateStore, registry: BundleRegistry, bundles: SharedBundles, telemetry: Telemetry
    ) -> None:
        self._store, self._registry, self._bundles, self._telemetry = store, registry, bundles, telemetry
        self._watches: dict[str, _Watch] = {}
        self._wakes = asyncio.Event()

    def count_place(self, record: DecisionRecord, arming: Arming) -> None:
        """Counts the jobs of a Place that was answered."""
        watch = self._watches.setdefault(arming.canary.rule.salt, _Watch())
        known = set(record.asked.repeats) if record.asked is not None else set()
        decisions = {each.job_id: each for each in record.place.decisions} if record.place is not None else {}
        reasons = {draw.job_id: draw.fallback_reason for draw in record.draws}
        is_washout = arming.canary.rule.is_washout(arming.now_s)
        for job in record.jobs:
            arm = arming.taken.get(job.id)
            if arm is None:
                continue
            reason = reasons.get(job.id, "")
            if arm is Arm.CANARY:
                self._note_failure(watch, is_accident(reason))
            if is_washout or job.id in known:
                continue
            trial = _Trial(arm, _scope(arming.canary, arming.now_s), (job.model, job.gpus))
            is_placed = decisions[job.id].outcome is Outcome.PLACED
            watch.count(Guard.FALLBACK, trial, bool(reason))
            watch.count(Guard.NO_FIT, trial, not is_placed)
            if len(record.jobs) == 1:  # a request of several jobs is one draw of none of them
                self._note_latency(watch, trial, (record.meta.policy, job.task_count), record.meta.decide_ms)
            if is_placed:
                watch.jobs[job.id] = trial

    def count_call(self, record: DecisionRecord, arm: CallArm) -> None:
        """Counts an AdmitOrWait or a Partition that was answered. By job, jobs of an AdmitOrWait count for no guard:
        those of one slot have one arm, and so are no draws of their own."""
        rule = arm.canary.rule
        watch = self._watches.setdefault(rule.salt, _Watch())
        if arm.arm is Arm.CANARY:
            self._note_failure(watch, is_accident(arm.error))
        if rule.is_washout(arm.now_s) or (record.admit is not None and rule.unit is Unit.JOB):
            return
        trial = _Trial(arm.arm, _scope(arm.canary, arm.now_s), ("", 0.0))
        found = _found(record)
        new = [name for name in found if (record.rpc, name) not in watch.called]
        for name in new:
            watch.called[record.rpc, name] = None
            watch.count(Guard.FALLBACK, trial, bool(arm.error))
            watch.count(Guard.NO_FIT, trial, not found[name])
        if len(found) == 1 and new:
            self._note_latency(watch, trial, (f"{record.rpc} {record.meta.policy}", 1), record.meta.decide_ms)

    def count_reports(self, cluster: str, events: Sequence[JobEvent]) -> None:
        """Counts the first report of progress of each job that was decided here."""
        canary = self._registry.canary_of(cluster)
        watch = self._watches.get(canary.rule.salt) if canary is not None else None
        if watch is None:
            return
        for event in events:
            if event.kind is not JobEventKind.PROGRESS or event.speed <= 0:
                continue
            trial = watch.jobs.pop(event.job_id, None)
            if trial is not None:
                reference = _reference(watch.speeds, trial.kind, _LEAST_SPEEDS)
                usual = reference.value
                if usual is not None:
                    watch.count(Guard.SPEED, trial, event.speed < guards.SLOW_SPEED * usual)
                if trial.arm is Arm.INCUMBENT:
                    reference.add(event.speed)

    async def follow(self) -> None:
        """Looks for ever; outlives every failure of the store."""
        while True:
            try:
                async with asyncio.timeout(_PERIOD_S):
                    await self._wakes.wait()
            except TimeoutError:
                pass
            self._wakes.clear()
            try:
                await self.look()
            except PlacewiseError as error:
                log.warning("the guards of a canary could not look", reason=error.message)

    async def look(self) -> None:
        """Exchanges the sums of every canary in force and ends those that do worse. Raises PlacewiseError."""
        canaries = dict(self._registry.canaries)
        salts = {canary.rule.salt for canary in canaries.values()}
        self._watches = {salt: watch for salt, watch in self._watches.items() if salt in salts}
        for cluster, canary in canaries.items():
            verdict = await self._verdict(cluster, canary)
            if verdict:
                self._telemetry.canary_rolled_back(canary.serving.bundle.name)
                await self._bundles.roll_back_canary(cluster, verdict, canary.rule.salt)

    async def _verdict(self, cluster: str, canary: Canary) -> str:
        """Why the canary ends; "" if it goes on."""
        watch = self._watches.setdefault(canary.rule.salt, _Watch())
        if watch.failures >= guards.FAILURES:
            return f"its policy failed {watch.failures} times in a row"
        sent, watch.counts = watch.counts, Counter()
        try:
            sums = await self._store.add_evidence(canary.rule.salt, sent)
        except PlacewiseError:
            watch.counts.update(sent)  # a store that took them and did not say so counts them twice
            raise
        found = _counts(sums)
        for guard in Guard:
            counts = list(_of_guard(found, guard, canary))
            value = (guards.by_job if canary.rule.unit is Unit.JOB else guards.by_time)(counts)
            self._telemetry.canary_evidence(canary.serving.bundle.name, cluster, guard.name.lower(), value)
            if guards.is_worse(value):
                return guards.reason(guard, value, counts)
        return ""

    def _note_failure(self, watch: _Watch, is_failure: bool) -> None:
        watch.failures = watch.failures + 1 if is_failure else 0
        if watch.failures >= guards.FAILURES:
            self._wakes.set()

    def _note_latency(self, watch: _Watch, trial: _Trial, kind: tuple[str, int], latency_ms: float) -> None:
        reference = _reference(watch.latencies_ms, kind)
        usual_ms = reference.value
        if usual_ms is not None:
            watch.count(Guard.LATENCY, trial, latency_ms > guards.SLOW_LATENCY * usual_ms)
        if trial.arm is Arm.INCUMBENT:
            reference.add(latency_ms)


def _reference(references: dict[Kind, Reference], kind: Kind, least: int = 20) -> Reference:
    if kind not in references:
        references[kind] = Reference(least)
    return references[kind]


def _found(record: DecisionRecord) -> Mapping[str, bool]:
    """Whether the task was split, and whether each job was admitted."""
    if record.partition is not None and record.task is not None:
        return {record.task.id: record.partition.plan.outcome is Outcome.PLACED}
    admissions = record.admit.plan.admissions if record.admit is not None else ()
    return {given.job_id: given.verdict is Verdict.ADMIT for given in admissions}


def _scope(canary: Canary, now_s: float) -> str:
    """What events are counted by: the share, or the period of time."""
    rule = canary.rule
    return repr(rule.share) if rule.unit is Unit.JOB else str(int(now_s // rule.period_s))


def _counts(sums: Mapping[str, int]) -> Mapping[str, Mapping[str, int]]:
    """The sums by scope, and there by the rest of their names."""
    found: dict[str, dict[str, int]] = {}
    for name, count in sums.items():
        scope, _, rest = name.partition("|")
        found.setdefault(scope, {})[rest] = count
    return found


def _of_guard(found: Mapping[str, Mapping[str, int]], guard: Guard, canary: Canary) -> Iterator[Counts]:
    """Of every share; or of every period but the last one, which may not be over."""
    is_by_job = canary.rule.unit is Unit.JOB
    scopes = list(found) if is_by_job else sorted(found, key=int)[:-1]
    for scope in scopes:
        of = [f"{guard.name}|{arm.value}" for arm in (Arm.CANARY, Arm.INCUMBENT)]
        canary_of, incumbent_of = (found[scope].get(name, 0) for name in of)
        events = [found[scope].get(f"{name}|events", 0) for name in of]
        yield Counts(float(scope) if is_by_job else 0.5, events[0], canary_of, events[1], incumbent_of)
