"""The propensity of each placement over both arms of a canary, once it was answered; an unknown one is left out."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from placewise_core.basics.slices import Slices
from placewise_core.policies.studies.alternatives import Study
from placewise_core.policies.trial.arms import Arm, UnknownMixtureError, check_exact, over_both, propensity
from placewise_log.record import CanarySeen, DecisionRecord, JobArm
from placewise_service.engine.canary.arming import Arming
from placewise_service.telemetry import Telemetry

BUSY, JOBS, TRIED = "busy", "more jobs than are worked out", "a dry run"  # why a mixture is unknown


class MixtureStudy:
    """Of one record, which is handed on in any case: with unknown mixtures if there is no time. See
    studying.Deferred."""

    def __init__(
        self,
        record: DecisionRecord,
        studies: Sequence[Study],
        arming: Arming,
        hand_on: Callable[[DecisionRecord], None],
        telemetry: Telemetry,
    ) -> None:
        self._record = record
        self._studies = studies
        self._arming = arming
        self._hand_on = hand_on
        self._telemetry = telemetry
        self._found: dict[str, tuple[float | None, str]] = {}

    @property
    def decision_id(self) -> str:
        return self._record.decision_id

    def study(self, slices: Slices) -> None:
        for study in self._studies:
            try:
                self._found[study.job.id] = (self._mixture(study, slices), "")
            except UnknownMixtureError as unknown:
                self._found[study.job.id] = (None, str(unknown))
            except Exception as error:  # of the other arm's policy
                self._found[study.job.id] = (None, type(error).__name__)

    def finish(self) -> None:
        self._hand_on(self._completed(JOBS))

    def shed(self) -> None:
        self._hand_on(self._completed(BUSY))

    def _mixture(self, study: Study, slices: Slices) -> float | None:
        """P(a) over both arms; None for a job that found no place."""
        drawn = study.drawn
        if drawn is None:
            return None
        check_exact(study.policy.name, drawn.proposal)
        arm = self._arming.taken[study.job.id]
        other = self._arming.sides[Arm.CANARY if arm is Arm.INCUMBENT else Arm.INCUMBENT]
        context = replace(study, interference=other.interference).context(slices)
        given = propensity(other.policy, other.exploration, drawn.proposal, study.job, study.view, context)
        own = drawn.proposal.propensity
        canary, incumbent = (own, given) if arm is Arm.CANARY else (given, own)
        return over_both(self._arming.canary.rule.share, incumbent, canary)

    def _completed(self, unstudied: str) -> DecisionRecord:
        """The record with both arms. `unstudied` says why jobs that were not looked at have no mixture."""
        bundle = self._arming.canary.serving.bundle
        placed = {draw.job_id for draw in self._record.draws}
        arms = []
        for job_id, arm in self._arming.taken.items():
            mixture, why = self._found.get(job_id, (None, unstudied if job_id in placed else ""))
            self._telemetry.canary_decision(bundle.name, arm.value, "unknown" if why else "known")
            arms.append(JobArm(job_id, arm.value, mixture, why))
        return _with_arms(self._record, self._arming, arms)


def with_tried(record: DecisionRecord, arming: Arming) -> DecisionRecord:
    """The record of a dry run, with the arms that answered it."""
    return _with_arms(record, arming, [JobArm(job_id, arm.value, None, TRIED) for job_id, arm in arming.taken.items()])


def _with_arms(record: DecisionRecord, arming: Arming, arms: Sequence[JobArm]) -> DecisionRecord:
    rule, bundle = arming.canary.rule, arming.canary.serving.bundle
    given = (rule.salt, rule.share, rule.unit.value, rule.is_washout(arming.now_s), tuple(arms))
    return replace(record, canary=CanarySeen(bundle.name, bundle.digest, *given))
