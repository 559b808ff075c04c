"""The arms of AdmitOrWait and Partition: one arm answers the whole request.

Partition: u(salt, task) < share, as Place draws for a job. AdmitOrWait: u(salt, queue and slot) < share. It is one
decision about all jobs of a queue, which compete for the same GPUs: two policies, each answering some of the jobs,
would admit more than fits. Policies that decide once per slot give all questions of a slot one answer.
"""

from collections.abc import Callable
from dataclasses import replace

from placewise_core.basics.frozen import frozen
from placewise_core.basics.slices import Slices
from placewise_core.policies.trial.arms import Arm, over_both
from placewise_log.record import ADMIT_OR_WAIT, PARTITION, CanarySeen, DecisionRecord, JobArm
from placewise_models.bundle import Bundle
from placewise_service.engine.canary.mixtures import BUSY
from placewise_service.engine.registry import BundleRegistry, Canary
from placewise_service.engine.shadowing.questions import Question
from placewise_service.engine.shadows import PolicySet
from placewise_service.telemetry import Telemetry

DRAWN = "the answer was drawn"  # why a mixture is unknown


@frozen
class CallArm:
    """The arm that answers a request at `now_s`, and the policies of both. `error` is that of the canary's policy where
    the incumbent answered in its place."""

    canary: Canary
    now_s: float
    arm: Arm
    incumbent: PolicySet
    error: str = ""

    @property
    def policies(self) -> PolicySet:
        """Those that answer."""
        return self.canary.serving.policies if self.arm is Arm.CANARY and not self.error else self.incumbent

    @property
    def others(self) -> PolicySet:
        """Those of the other arm."""
        return self.incumbent if self.arm is Arm.CANARY else self.canary.serving.policies

    @property
    def bundle(self) -> Bundle | None:
        """The canary's if it answers, else None for the incumbent's."""
        return self.canary.serving.bundle if self.arm is Arm.CANARY and not self.error else None

    def failed(self, policy: str, error: Exception) -> "CallArm":
        """The incumbent answers in place of the canary's policy. Raises the error of the incumbent's own."""
        if self.arm is not Arm.CANARY:
            raise error
        return replace(self, error=f"{policy}: {type(error).__name__}")


def arm_of_task(registry: BundleRegistry, cluster: str, task: str, now_s: float) -> CallArm | None:
    """Who splits a task; None without a canary."""
    return _arm(registry, cluster, f"{PARTITION}\n{task}", now_s)


def arm_of_slot(registry: BundleRegistry, cluster: str, queue: str, slot: int, now_s: float) -> CallArm | None:
    """Who admits jobs in this slot of a queue; None without a canary."""
    return _arm(registry, cluster, f"{ADMIT_OR_WAIT}\n{queue}\n{slot}", now_s)


def _arm(registry: BundleRegistry, cluster: str, unit: str, now_s: float) -> CallArm | None:
    canary = registry.canary_of(cluster) if registry.canaries else None
    if canary is None or registry.kill_of(cluster):
        return None
    return CallArm(canary, now_s, canary.rule.of(unit, now_s), registry.policies_of(cluster))


class CallMixture:
    """Asks the other arm about an answer that has gone, on a copy of its inputs, and hands the record on with both. See
    studying.Deferred."""

    def __init__(
        self,
        record: DecisionRecord,
        arm: CallArm,
        question: Question | None,
        hand_on: Callable[[DecisionRecord], None],
        telemetry: Telemetry,
        *,
        is_drawn: bool = False,
    ) -> None:
        """`is_drawn`: by exploration, or by a policy that draws. The mixture is unknown then, since the other arm would
        have drawn among other answers."""
        self._record, self._arm, self._question = record, arm, question
        self._hand_on, self._telemetry = hand_on, telemetry
        self._same: dict[str, bool] = {}  # by job or task: whether the other arm answers alike
        self._unknown = arm.error or (DRAWN if is_drawn else BUSY if question is None else "")

    @property
    def decision_id(self) -> str:
        return self._record.decision_id

    def study(self, slices: Slices) -> None:
        if self._unknown or self._question is None:
            return
        try:
            meta = self._record.meta
            other = self._question.answered(meta.policy, self._arm.others, meta, slices)
            self._same = {each.job_id: each.is_same for each in self._question.compared(self._record, other)}
        except Exception as error:  # of the other arm's policy
            self._unknown = type(error).__name__

    def finish(self) -> None:
        self._hand_on(self._completed())

    def shed(self) -> None:
        self._unknown = self._unknown or BUSY
        self.finish()

    def _completed(self) -> DecisionRecord:
        rule, bundle, arm = self._arm.canary.rule, self._arm.canary.serving.bundle, self._arm.arm
        arms = []
        for name in subjects(self._record):
            mixture = None if self._unknown else self._mixture(self._same[name])
            arms.append(JobArm(name, arm.value, mixture, self._unknown))
            self._telemetry.canary_decision(bundle.name, arm.value, "unknown" if self._unknown else "known")
        is_washout = rule.is_washout(self._arm.now_s)
        given = (rule.salt, rule.share, rule.unit.value, is_washout, tuple(arms))
        return replace(self._record, canary=CanarySeen(bundle.name, bundle.digest, *given))

    def _mixture(self, is_same: bool) -> float:
        """P(a) of an answer that its own arm gives for sure."""
        canary, incumbent = (1.0, float(is_same)) if self._arm.arm is Arm.CANARY else (float(is_same), 1.0)
        return over_both(self._arm.canary.rule.share, incumbent, canary)


def subjects(record: DecisionRecord) -> tuple[str, ...]:
    """The task of a Partition, the jobs of an AdmitOrWait."""
    return (record.task.id,) if record.task is not None else tuple([job.id for job in record.jobs])
