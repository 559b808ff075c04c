"""Shadows of Place: another bundle or policy decides on the view that was answered on, once the answer has gone.

Its decision is logged with `shadow_of` and counted; it holds nothing and changes no answer. Jobs of a cluster with a
shadow that it does not decide about are counted with the reason.
"""

import math
from collections.abc import Sequence

from placewise_core.basics.clock import Clock
from placewise_core.basics.frozen import frozen
from placewise_core.basics.slices import Slices
from placewise_core.domain.commands import PlaceCommand
from placewise_core.domain.decision import DecisionMeta, PlaceDecision
from placewise_core.gang.policy import Proposal
from placewise_core.policies.studies.alternatives import Study
from placewise_core.policies.studies.shadow import Compared, Shadowed, ShadowInputs, shadowed
from placewise_log.record import PLACE, DecisionRecord, Draw
from placewise_service.declog.sink import DecisionSink
from placewise_service.engine.ids import uuid7
from placewise_service.engine.place.draft import Draft
from placewise_service.engine.place.studying import Studying
from placewise_service.engine.registry import BundleRegistry
from placewise_service.engine.shadows import Agreement, LeftOut, PolicySet, Shadow
from placewise_service.telemetry import Telemetry


@frozen
class Shadowing:
    """Lets shadows decide. One event loop owns it."""

    registry: BundleRegistry
    studying: Studying
    sink: DecisionSink
    telemetry: Telemetry
    clock: Clock

    def wants(self, command: PlaceCommand) -> bool:
        """Whether to copy the inputs of this decision for a shadow."""
        shadow = self.registry.shadows.of(command.cluster)
        if shadow is None or not self.wants_copy(command.cluster, command.is_dry_run):
            return False
        return not shadow.policy or shadow.policy in self.policies_of(shadow, command.cluster).placement

    def wants_copy(self, cluster: str, is_dry_run: bool) -> bool:
        """As `wants`, of a question of any call."""
        shadows = self.registry.shadows
        return (
            bool(shadows.by_cluster) and not is_dry_run and shadows.of(cluster) is not None and self.studying.has_room
        )

    def offer(self, record: DecisionRecord, draft: Draft) -> None:
        """Takes an answered decision. It is in the log already."""
        shadow = self.registry.shadows.of(record.cluster)
        if shadow is None or record.is_dry_run or not (jobs := draft.count):
            return
        policies = self.policies_of(shadow, record.cluster)
        if shadow.policy and shadow.policy not in policies.placement:
            is_of_another_call = shadow.policy in policies.of_other_calls
            self.count_left_out(jobs, LeftOut.CALL if is_of_another_call else LeftOut.POLICY)
            return
        if not draft.terms.is_shadowed:
            self.count_left_out(jobs, LeftOut.BUSY)
            return
        studies = draft.studies
        self.count_left_out(jobs - len(studies), LeftOut.JOBS)
        if any(shadow.policy_for(study.policy.name, policies) is None for study in studies):
            self.count_left_out(len(studies), LeftOut.POLICY)
            return
        self.studying.offer(_ShadowStudy(self, shadow, record, studies))

    def policies_of(self, shadow: Shadow, cluster: str) -> PolicySet:
        """The shadow's policies: those of its bundle, else those of the bundle that answers for the cluster."""
        return shadow.policies or self.registry.policies_of(cluster)

    def count_left_out(self, jobs: int, reason: LeftOut) -> None:
        """Counts jobs that the shadow does not decide about."""
        self.telemetry.shadow_left_out(reason, jobs)


class _ShadowStudy:
    """The shadow's decision beside one that was answered. The shadow may be another one by the time it is its turn."""

    def __init__(
        self, shadowing: Shadowing, shadow: Shadow, answered: DecisionRecord, studies: Sequence[Study]
    ) -> None:
        self._of = shadowing
        self._shadow = shadow
        self._answered = answered
        self._studies = studies
        self._found: list[tuple[Study, str, Shadowed]] = []

    @property
    def decision_id(self) -> str:
        return self._answered.decision_id

    def study(self, slices: Slices) -> None:
        for study in self._studies:
            if (decided := self._decided(study, slices)) is not None:
                self._found.append(decided)

    def finish(self) -> None:
        self._of.count_left_out(len(self._studies) - len(self._found), LeftOut.FAILED)
        if not self._found:
            return
        record = self._record()
        self._of.sink.offer(record)
        meta = record.meta
        for _, policy, result in self._found:
            self._of.telemetry.shadow_decision(meta.bundle, policy, agreement(result.compared), result.busy_s)

    def shed(self) -> None:
        self._of.count_left_out(len(self._studies), LeftOut.BUSY)

    def _decided(self, study: Study, slices: Slices) -> tuple[Study, str, Shadowed] | None:
        active = self._of.registry.policies_of(self._answered.cluster)
        policies = self._of.policies_of(self._shadow, self._answered.cluster)
        policy = self._shadow.policy_for(study.policy.name, policies)
        if policy is None:
            return None
        inputs = ShadowInputs(
            policy, policies.interference, policies.solo_speed, active.learned.search, policies.learned.search
        )
        seed = study.seed or self._answered.seed
        return study, policy.name, shadowed(study, inputs, seed, self._of.clock.monotonic_s, slices)

    def _record(self) -> DecisionRecord:
        found, answered = self._found, self._answered
        latency_ms = 1000.0 * sum(result.busy_s for _, _, result in found)
        draws = [(study, result.proposal) for study, _, result in found if result.proposal is not None]
        reason = next((proposal.fallback_reason for _, proposal in draws if proposal.fallback_reason), "")
        bundle = self._shadow.bundle or self._of.registry.bundle_of(answered.cluster)
        meta = DecisionMeta(
            decision_id=uuid7(),
            policy=found[0][1],
            bundle=bundle.name,
            bundle_digest=bundle.digest,
            snapshot_version=answered.meta.snapshot_version,
            propensity=math.prod([proposal.propensity for _, proposal in draws]),
            is_fallback=bool(reason),
            fallback_reason=reason,
            decide_ms=latency_ms,
            is_stale=answered.meta.is_stale,
            caller=answered.meta.caller,
        )
        return DecisionRecord(
            rpc=PLACE,
            time_s=answered.time_s,
            cluster=answered.cluster,
            latency_ms=latency_ms,
            seed=answered.seed,
            requested_policy=self._shadow.policy,
            shadow_of=answered.decision_id,
            jobs=tuple([study.job for study, _, _ in found]),
            draws=tuple([_draw(study, proposal) for study, proposal in draws]),
            place=PlaceDecision(tuple([result.decision for _, _, result in found]), meta),
            epoch=answered.epoch,
            scope=answered.scope,
            compared=tuple([result.compared for _, _, result in found]),
        )


def _draw(study: Study, proposal: Proposal) -> Draw:
    return Draw(
        study.job.id,
        own_propensity=proposal.propensity,
        fallback_reason=proposal.fallback_reason,
        info=proposal.info,
        seed=study.seed or None,
    )


def agreement(compared: Compared) -> Agreement:
    """One word for the two sides of a job."""
    if compared.explorer:
        return Agreement.EXPLORED
    if compared.is_same:
        return Agreement.SAME
    if not compared.answer_nodes:
        return Agreement.SHADOW_ONLY
    return Agreement.OTHER if compared.shadow_nodes else Agreement.ANSWER_ONLY
