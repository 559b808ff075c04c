"""The shadow of one answer of AdmitOrWait, Partition or scope NODE, once it has gone."""

from dataclasses import replace

from placewise_core.basics.slices import Slices
from placewise_core.domain.decision import DecisionMeta
from placewise_core.policies.studies.shadow import Stopwatch
from placewise_log.record import AdmitSeen, DecisionRecord
from placewise_service.engine.ids import uuid7
from placewise_service.engine.place.shadowing import Shadowing, agreement
from placewise_service.engine.shadowing.questions import Question
from placewise_service.engine.shadows import LeftOut, Shadow


def offer(shadowing: Shadowing, kind: type[Question], question: Question | None, answered: DecisionRecord) -> None:
    """Takes an answer that is in the log, with a copy of its inputs if there was time to make one."""
    shadow, jobs = shadowing.registry.shadows.of(answered.cluster), len(answered.jobs) or 1
    if shadow is None or answered.is_dry_run:
        return
    policies = shadowing.policies_of(shadow, answered.cluster)
    name = shadow.policy_beside(answered.meta.policy, kind.names(policies), kind.resting(policies))
    if not name:
        shadowing.count_left_out(jobs, LeftOut.CALL)
    elif question is None:
        shadowing.count_left_out(jobs, LeftOut.BUSY)
    else:
        shadowing.studying.offer(_QuestionStudy(shadowing, shadow, name, question, answered))


class _QuestionStudy:
    """One answer's. See studying.Deferred."""

    def __init__(
        self, shadowing: Shadowing, shadow: Shadow, name: str, question: Question, answered: DecisionRecord
    ) -> None:
        self._of, self._shadow, self._name = shadowing, shadow, name
        self._question, self._answered = question, answered
        self._record: DecisionRecord | None = None

    @property
    def decision_id(self) -> str:
        return self._answered.decision_id

    def study(self, slices: Slices) -> None:
        of, answered, question = self._of, self._answered, self._question
        bundle = self._shadow.bundle or of.registry.bundle_of(answered.cluster)
        meta = DecisionMeta(
            decision_id=uuid7(),
            policy=self._name,
            bundle=bundle.name,
            bundle_digest=bundle.digest,
            snapshot_version=answered.meta.snapshot_version,
            is_stale=answered.meta.is_stale,
            caller=answered.meta.caller,
        )
        watch = Stopwatch(slices, of.clock.monotonic_s)
        found = question.answered(self._name, of.policies_of(self._shadow, answered.cluster), meta, watch)
        self._record = replace(
            found,
            time_s=answered.time_s,
            latency_ms=1000.0 * watch.stopped(),
            seed=answered.seed,
            request_id="",
            requested_policy=self._shadow.policy,
            shadow_of=answered.decision_id,
            epoch=answered.epoch,
            compared=tuple(question.compared(answered, found)),
            seen=_seen_alike(answered, found),
        )

    def finish(self) -> None:
        record = self._record
        if record is None:
            self._of.count_left_out(len(self._answered.jobs) or 1, LeftOut.FAILED)
            return
        self._of.sink.offer(record)
        busy_s = record.latency_ms / 1000.0 / len(record.compared)
        for compared in record.compared:
            self._of.telemetry.shadow_decision(record.meta.bundle, self._name, agreement(compared), busy_s)

    def shed(self) -> None:
        self._of.count_left_out(len(self._answered.jobs) or 1, LeftOut.BUSY)


def _seen_alike(answered: DecisionRecord, shadow: DecisionRecord) -> AdmitSeen | None:
    """The state behind the answer, with the shapes that the shadow knew."""
    if answered.seen is None or shadow.seen is None:
        return None
    own = shadow.seen
    return replace(answered.seen, scores=own.scores, tables=own.tables, jobs=own.jobs, left_out=0, refused_before={})
