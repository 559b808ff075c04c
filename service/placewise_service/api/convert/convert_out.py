"""Domain → contract: the three answers, and decisions of the past. What GetCluster shows is convert_cluster.py."""

import contextlib
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from placewise.v1 import bundle_pb2, cluster_pb2, decision_pb2, job_pb2
from placewise_core.domain.checks import MAX_TIME_S
from placewise_core.domain.cluster import Assignment, QueueSettings, QueueState
from placewise_core.domain.decision import (
    Admission,
    AdmitDecision,
    Blocker,
    Candidate,
    DecisionMeta,
    Excluded,
    JobDecision,
    LearnedCapability,
    LearnedCoRun,
    LearnedHeat,
    Outcome,
    PartitionDecision,
    PlaceDecision,
    Reason,
    Share,
    Verdict,
)
from placewise_core.domain.job import Resources, Role
from placewise_service.engine.registry import BundleState, BundleStatus
from placewise_service.state.store import BundleChange, CanaryChoice, ChangeKind

if TYPE_CHECKING:  # the stubs' name; at run time the container is of another class
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

_MOST_ITEMS = 512  # tasks, candidates and neighbours that are written in one go, of some milliseconds

Answer = PlaceDecision | PartitionDecision | AdmitDecision

# Domain and contract spell their values alike; a test walks both.
# Numbers are typed Any: the stubs have no type for an enum's number that their own constructors accept.
_OUTCOMES: dict[Outcome, Any] = {outcome: decision_pb2.Outcome.Value(outcome) for outcome in Outcome}
_REASONS: dict[Reason, Any] = {reason: decision_pb2.Reason.Value(reason) for reason in Reason}
_VERDICTS: dict[Verdict, Any] = {verdict: decision_pb2.Admission.Verdict.Value(verdict) for verdict in Verdict}
_ROLES: dict[Role, Any] = {role: job_pb2.TaskGroup.Role.Value(role) for role in Role}

_NO_RESOURCES = job_pb2.Resources()
_BUNDLE_STATES: dict[BundleState, Any] = {state: bundle_pb2.Bundle.State.Value(state) for state in BundleState}
_CHANGE_KINDS: dict[ChangeKind, Any] = {kind: bundle_pb2.BundleChange.Kind.Value(kind) for kind in ChangeKind}
_ARM_UNITS = {"job": bundle_pb2.Canary.JOB, "time": bundle_pb2.Canary.TIME}


def is_large(decision: PlaceDecision) -> bool:
    """True for an answer that takes long to write."""
    return sum([len(d.assignments) + len(d.candidates) + len(d.neighbours) for d in decision.decisions]) > _MOST_ITEMS


# Messages of an answer are added to it and filled field by field: a third of the time that keyword arguments take, and
# nothing is copied.


def place_response(decision: PlaceDecision, request_id: str = "") -> decision_pb2.PlaceResponse:
    message = decision_pb2.PlaceResponse(request_id=request_id)
    _fill_meta(message.meta, decision.meta)
    for job in decision.decisions:
        _fill_job_decision(message.decisions.add(), job)
    return message


def set_expiry(message: decision_pb2.PlaceResponse, decision: PlaceDecision) -> None:
    """Adds the expiry of each reservation to the message of the same decision, written before it was known."""
    for written, job in zip(message.decisions, decision.decisions, strict=True):
        if job.reservation_id:
            set_time(written.reservation_expire_time, job.expire_time_s)


def _fill_job_decision(message: decision_pb2.JobDecision, decision: JobDecision) -> None:
    message.job_id = decision.job_id
    message.outcome = _OUTCOMES[decision.outcome]
    message.predicted_speed = decision.predicted_speed
    message.profile_model = decision.profile_model
    message.propensity = decision.propensity
    fill_assignments(message.assignments, decision.assignments)
    if decision.reservation_id:
        message.reservation_id = decision.reservation_id
        set_time(message.reservation_expire_time, decision.expire_time_s)
    for neighbour in decision.neighbours:
        beside = message.neighbours.add()
        beside.job_id = neighbour.job_id
        beside.speed_before = neighbour.speed_before
        beside.speed_after = neighbour.speed_after
    if decision.blockers:
        message.blockers.extend(_blockers(decision.blockers))
    if decision.candidates:
        message.candidates.extend(_candidate(candidate) for candidate in decision.candidates)


def fill_assignments(
    messages: "RepeatedCompositeFieldContainer[cluster_pb2.Assignment]", items: Iterable[Assignment]
) -> None:
    """One message per task. Tasks of one group ask for the same and follow each other: their demand is built once."""
    asked, demand = None, _NO_RESOURCES
    for item in items:
        if item.demand is not asked:
            asked, demand = item.demand, resources(item.demand)
        message = messages.add()
        message.task = item.task
        message.role = _ROLES[item.role]
        message.node = item.node
        message.gpu_indices.extend(item.gpu_indices)
        message.demand.CopyFrom(demand)
        if item.cpu_unit:
            message.cpu_unit = item.cpu_unit
        if item.subtask:
            message.subtask = item.subtask


def resources(amounts: Resources) -> job_pb2.Resources:
    message = job_pb2.Resources(
        cpu_cores=amounts.cpu_cores,
        gpus=amounts.gpus,
        memory_gib=amounts.memory_gib,
        gpu_memory_gib=amounts.gpu_memory_gib,
        network_gbps=amounts.network_gbps,
    )
    if amounts.extended:
        message.extended.update(amounts.extended)
    return message


def _blockers(blockers: Iterable[Blocker]) -> list[decision_pb2.Blocker]:
    return [
        decision_pb2.Blocker(
            reason=_REASONS[b.reason], nodes=b.nodes, shortfall=b.shortfall, resource=b.resource, message=b.message
        )
        for b in blockers
    ]


def _candidate(candidate: Candidate) -> decision_pb2.Candidate:
    return decision_pb2.Candidate(
        task=candidate.task,
        node=candidate.node,
        score=candidate.score,
        terms=[decision_pb2.ScoreTerm(name=name, value=value) for name, value in candidate.terms],
        chosen=candidate.is_chosen,
    )


def learned_heat(found: LearnedHeat) -> cluster_pb2.LearnedHeat:
    """How the units of a type of node warm up."""
    return cluster_pb2.LearnedHeat(
        node_type=found.node_type,
        unit=found.unit,
        rise_celsius=found.rise_celsius,
        low_celsius=found.low_celsius,
        high_celsius=found.high_celsius,
        shipped_celsius=found.shipped_celsius,
        time_constant_seconds=found.time_constant_s,
        low_seconds=found.low_s,
        high_seconds=found.high_s,
        shipped_seconds=found.shipped_s,
        reports=found.reports,
    )


def learned_capability(found: LearnedCapability) -> cluster_pb2.LearnedCapability:
    """How fast the units of a type of node do a kind of task."""
    return cluster_pb2.LearnedCapability(
        task_kind=found.task_kind,
        node_type=found.node_type,
        unit=found.unit,
        scale_per_second=found.per_second,
        low_per_second=found.low_per_second,
        high_per_second=found.high_per_second,
        shipped_per_second=found.shipped_per_second,
        reports=found.reports,
    )


def learned_co_run(found: LearnedCoRun) -> cluster_pb2.LearnedCoRun:
    """How fast a model runs beside another on one GPU."""
    return cluster_pb2.LearnedCoRun(
        model=found.model,
        partner=found.partner,
        gpu_type=found.gpu_type,
        relative_speed=found.relative_speed,
        low=found.low,
        high=found.high,
        shipped=found.shipped,
        reports=found.reports,
    )


def _fill_meta(message: decision_pb2.DecisionMeta, meta: DecisionMeta) -> None:
    message.decision_id = meta.decision_id
    message.policy = meta.policy
    message.bundle = meta.bundle
    message.bundle_digest = meta.bundle_digest
    message.snapshot_version = meta.snapshot_version
    message.propensity = meta.propensity
    message.decide_ms = meta.decide_ms
    message.stale = meta.is_stale
    message.repeated = meta.is_repeated
    message.explored = meta.is_explored
    message.caller = meta.caller
    for length in meta.lengths:
        message.lengths.add(
            job_id=length.job_id,
            single_gpu_seconds=length.single_gpu_s,
            low_seconds=length.low_s,
            high_seconds=length.high_s,
            reports=length.reports,
            source=length.source,
        )
    for speed in meta.speeds:
        message.speeds.add(
            job_id=speed.job_id,
            gpu_type=speed.gpu_type,
            nodes=speed.nodes,
            gpus=speed.gpus,
            samples_per_second=speed.samples_per_s,
            low_per_second=speed.low_per_s,
            high_per_second=speed.high_per_s,
            forecast_per_second=speed.forecast_per_s,
            reports=speed.reports,
            source=speed.source,
        )
    message.heat.extend(map(learned_heat, meta.heat))
    message.capabilities.extend(map(learned_capability, meta.capabilities))
    if meta.is_fallback:
        message.fallback = True
        message.fallback_reason = meta.fallback_reason


def partition_response(decision: PartitionDecision) -> decision_pb2.PartitionResponse:
    plan = decision.plan
    message = decision_pb2.PartitionResponse(
        outcome=_OUTCOMES[plan.outcome],
        units=len(plan.shares),
        threshold_scale=plan.threshold_scale,
        predicted_seconds=plan.predicted_s,
        overhead_s=plan.overhead_s,
        blockers=_blockers(plan.blockers),
    )
    _fill_meta(message.meta, decision.meta)
    message.MergeFromString(_UNITS.part(plan.shares))
    for share, item in zip(plan.shares, message.shares, strict=True):
        item.scale = share.scale
        item.predicted_seconds = share.predicted_s
        if share.predicted_peak_celsius:
            item.predicted_peak_celsius = share.predicted_peak_celsius
    if plan.excluded:
        message.MergeFromString(_EXCLUDED.part(plan.excluded))
    return message


class _UnitsPart:
    """The units of an answer's shares and their capabilities, in their binary form: most answers have the same ones
    until something happens in the cluster."""

    def __init__(self) -> None:
        self._kept: tuple[list[tuple[str, str, float]], bytes] = ([], b"")  # at once, as in _ExcludedPart

    def part(self, shares: Sequence[Share]) -> bytes:
        """A PartitionResponse of these alone."""
        units = [(share.node, share.unit, share.capability) for share in shares]
        written, part = self._kept
        if units != written:
            answer = decision_pb2.PartitionResponse()
            add = answer.shares.add
            for node, unit, capability in units:
                message = add()
                message.node = node
                message.unit = unit
                message.capability = capability
            part = answer.SerializeToString()
            self._kept = (units, part)
        return part


_UNITS = _UnitsPart()


class _ExcludedPart:
    """The excluded units of an answer, in their binary form: a message and a part of it after the other are one.

    The policy gives the same tuple until something happens in the cluster, often of hundreds: it is written once.
    """

    def __init__(self) -> None:
        self._kept: tuple[tuple[Excluded, ...], bytes] = ((), b"")  # at once: large answers are written in a thread

    def part(self, excluded: tuple[Excluded, ...]) -> bytes:
        """A PartitionResponse of these alone."""
        written, part = self._kept
        if excluded is not written:
            answer = decision_pb2.PartitionResponse()
            add = answer.excluded.add
            for item in excluded:
                message = add()
                message.node = item.node
                message.unit = item.unit
                message.reason = _REASONS[item.reason]
                message.message = item.message
            part = answer.SerializeToString()
            self._kept = (excluded, part)
        return part


_EXCLUDED = _ExcludedPart()


def admit_response(decision: AdmitDecision, settings: QueueSettings) -> decision_pb2.AdmitOrWaitResponse:
    message = decision_pb2.AdmitOrWaitResponse()
    for admission in decision.plan.admissions:
        _fill_admission(message.admissions.add(), admission)
    fill_queue_state(message.queue, decision.plan.queue, settings)
    _fill_meta(message.meta, decision.meta)
    return message


def _fill_admission(message: decision_pb2.Admission, admission: Admission) -> None:
    message.job_id = admission.job_id
    message.verdict = _VERDICTS[admission.verdict]
    message.gpus = admission.gpus
    message.nodes = admission.nodes
    message.gpus_per_node = admission.gpus_per_node
    message.rank = admission.rank
    message.slack_seconds = admission.slack_s
    message.profile_model = admission.profile_model
    message.cer = admission.cer
    set_time(message.expected_finish_time, admission.expected_finish_time_s)
    if admission.drift_plus_penalty:
        message.drift_plus_penalty.extend(
            decision_pb2.DriftPlusPenalty(gpus=s.gpus, value=s.value, cost_seconds=s.cost_s)
            for s in admission.drift_plus_penalty
        )
    if admission.blockers:
        message.blockers.extend(_blockers(admission.blockers))
    if admission.draw is not None:
        message.propensity = admission.draw.propensity


def fill_queue_state(message: cluster_pb2.QueueState, state: QueueState, settings: QueueSettings) -> None:
    message.queue = state.queue
    message.backlog_seconds = state.backlog_s
    message.delay_seconds = state.delay_s
    message.slot = max(state.slot, 0)  # a queue that no slot has moved yet
    message.v = settings.v
    message.epsilon_seconds = settings.epsilon_s
    message.tau_seconds = settings.tau_s
    message.waiting_jobs = len(state.waiting)
    set_duration(message.slot_duration, settings.slot_s)
    set_duration(message.wait_bound, settings.bound_s)


def past_decision(
    rpc: str, time_s: float, answer: Answer, settings: QueueSettings, request_id: str = ""
) -> bundle_pb2.GetDecisionResponse:
    """A past decision with its answer. `settings` are those of its queue, if it has one."""
    message = bundle_pb2.GetDecisionResponse(decision_id=answer.meta.decision_id, rpc=rpc)
    set_time(message.decide_time, time_s)
    match answer:
        case PlaceDecision():
            message.place.CopyFrom(place_response(answer, request_id))
        case PartitionDecision():
            message.partition.CopyFrom(partition_response(answer))
        case AdmitDecision():
            message.admit_or_wait.CopyFrom(admit_response(answer, settings))
    return message


def bundle(status: BundleStatus) -> bundle_pb2.Bundle:
    message = bundle_pb2.Bundle(name=status.name, state=_BUNDLE_STATES[status.state], refusal=status.refusal)
    if status.bundle is not None:
        manifest = status.bundle.manifest
        message.digest = status.bundle.digest
        message.signed_by = status.bundle.signed_by
        message.feature_schema = manifest.feature_schema
        message.sha256.update(manifest.files)
        with contextlib.suppress(ValueError):  # a manifest may date itself as it likes
            message.create_time.FromJsonString(manifest.created)
    return message


def canary(cluster: str, chosen: CanaryChoice) -> bundle_pb2.Canary:
    message = bundle_pb2.Canary(
        cluster=cluster, bundle=chosen.bundle, share=chosen.share, by=_ARM_UNITS[chosen.unit], salt=chosen.salt
    )
    if chosen.period_s:
        message.period.CopyFrom(duration(chosen.period_s))
        message.washout.CopyFrom(duration(chosen.washout_s))
    set_time(message.start_time, chosen.start_time_s)
    return message


def bundle_change(change: BundleChange) -> bundle_pb2.BundleChange:
    message = bundle_pb2.BundleChange(
        cluster=change.cluster,
        kind=_CHANGE_KINDS[change.kind],
        bundle=change.bundle,
        digest=change.digest,
        previous=change.previous,
        share=change.share,
        policy=change.policy,
        caller=change.caller,
        reason=change.reason,
    )
    set_time(message.change_time, change.time_s)
    return message


def set_time(message: Timestamp, time_s: float) -> None:
    """Fills a timestamp field; 0, and times that no timestamp can hold (never, unknown), leave it absent."""
    if not 0.0 < time_s <= MAX_TIME_S:
        return
    whole = int(time_s)
    message.seconds = whole
    message.nanos = min(int((time_s - whole) * 1e9), 999_999_999)


def duration(span_s: float) -> Duration:
    message = Duration()
    set_duration(message, span_s)
    return message


def set_duration(message: Duration, span_s: float) -> None:
    """Fills a duration field, which is there afterwards even if the span is 0."""
    whole = math.floor(span_s)
    message.seconds = whole
    message.nanos = min(round((span_s - whole) * 1e9), 999_999_999)
