"""Questions of AdmitOrWait, Partition and scope NODE with copies of their inputs, and their answers by another policy.

Each is asked on a copy of the view that was answered on, without exploration and without a deadline.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final, Protocol

from placewise_core.admit.policies.lyapunov import with_shapes
from placewise_core.admit.policy import AdmitContext
from placewise_core.admit.seen import ShapeNotes
from placewise_core.basics.frozen import frozen
from placewise_core.basics.slices import Slices
from placewise_core.domain.cluster import QueueState
from placewise_core.domain.commands import AdmitCommand, PartitionCommand, PlaceCommand
from placewise_core.domain.decision import (
    Admission,
    AdmitDecision,
    DecisionMeta,
    JobDecision,
    PartitionDecision,
    PlaceDecision,
    Verdict,
)
from placewise_core.partition.policy import PartitionContext, partitioned
from placewise_core.policies.studies.shadow import Compared
from placewise_core.view.view import ClusterView
from placewise_log.record import AdmitSeen, DecisionRecord
from placewise_service.engine.shadows import PolicySet

# Rules of scope NODE whose metrics a bundle completes.
COMPLETED: Final = ("iawp", "iawp-paper")


class Question(Protocol):
    """One question of a call."""

    @staticmethod
    def names(policies: PolicySet) -> Collection[str]:
        """The call's policies."""
        ...

    @staticmethod
    def resting(policies: PolicySet) -> Collection[str]:
        """Those of them that rest on the bundle."""
        ...

    def answered(self, name: str, policies: PolicySet, meta: DecisionMeta, slices: Slices) -> DecisionRecord:
        """A record with this policy's answer, of AdmitOrWait also its shapes. Raises the policy's errors."""
        ...

    def compared(self, answer: DecisionRecord, shadow: DecisionRecord) -> Sequence[Compared]:
        """Whether the two are the same, for each job or task."""
        ...


@frozen
class AdmitQuestion:
    """The queue as it was, and the context of the answer. Without exploration."""

    command: AdmitCommand
    view: ClusterView
    queue: QueueState
    context: AdmitContext

    @staticmethod
    def names(policies: PolicySet) -> Collection[str]:
        return policies.admission.keys()

    @staticmethod
    def resting(policies: PolicySet) -> Collection[str]:
        return policies.admission.keys()  # on the bundle's throughput

    def answered(self, name: str, policies: PolicySet, meta: DecisionMeta, slices: Slices) -> DecisionRecord:
        jobs, noted = self.command.jobs, ShapeNotes()
        context = replace(self.context, slices=slices, is_explaining=True, noted=noted)
        plan = policies.admission[name].admit(jobs, self.view, self.queue, context)
        decision, known = AdmitDecision(with_shapes(plan, jobs, context.slot), meta), noted.work_out()
        seen = AdmitSeen(scores=known.scores, tables=known.tables, jobs=known.jobs)
        return DecisionRecord.of_admit(self.command, decision, time_s=context.now_s, seed=0, latency_ms=0.0, seen=seen)

    def compared(self, answer: DecisionRecord, shadow: DecisionRecord) -> Sequence[Compared]:
        assert answer.admit is not None
        assert shadow.admit is not None
        pairs = zip(answer.admit.plan.admissions, shadow.admit.plan.admissions, strict=True)
        return [
            _compared(one.job_id, _shape(one), _shape(other), one.draw.explorer if one.draw is not None else "")
            for one, other in pairs
        ]


def _shape(admission: Admission) -> tuple[str, ...]:
    if admission.verdict is not Verdict.ADMIT:
        return ()
    return (f"{admission.nodes} × {admission.gpus_per_node} GPUs" if admission.nodes else f"{admission.gpus} GPUs",)


@frozen
class PartitionQuestion:
    """A task to be split."""

    command: PartitionCommand
    view: ClusterView
    now_s: float

    @staticmethod
    def names(policies: PolicySet) -> Collection[str]:
        return policies.partition.keys()

    @staticmethod
    def resting(policies: PolicySet) -> Collection[str]:
        return policies.partition.keys()  # on the bundle's capabilities

    def answered(self, name: str, policies: PolicySet, meta: DecisionMeta, slices: Slices) -> DecisionRecord:
        command = self.command
        context = PartitionContext(self.now_s, command.units, slices=slices)
        plan = partitioned(policies.partition[name], command.task, command.progress, self.view, context)
        return DecisionRecord.of_partition(command, PartitionDecision(plan, meta), time_s=self.now_s, latency_ms=0.0)

    def compared(self, answer: DecisionRecord, shadow: DecisionRecord) -> Sequence[Compared]:
        return [_compared(self.command.task.id, _shares(answer), _shares(shadow))]


def _shares(record: DecisionRecord) -> tuple[str, ...]:
    assert record.partition is not None
    return tuple(sorted([f"{each.node}/{each.unit}: {each.scale:.6g}" for each in record.partition.plan.shares]))


@frozen
class NodeQuestion:
    """Ready subtasks for the units of one node."""

    command: PlaceCommand
    view: ClusterView
    now_s: float
    seed: int

    @staticmethod
    def names(policies: PolicySet) -> Collection[str]:
        return policies.subtasks.keys()

    @staticmethod
    def resting(policies: PolicySet) -> Collection[str]:
        return COMPLETED

    def answered(self, name: str, policies: PolicySet, meta: DecisionMeta, slices: Slices) -> DecisionRecord:
        command, rules = self.command, policies.subtasks[name]
        decided = rules.assign(command.jobs, command.node_id, self.view, self.now_s, seed=self.seed)
        reason = rules.caveat(command.jobs, self.view)
        meta = replace(meta, is_fallback=bool(reason), fallback_reason=reason)
        answer = PlaceDecision(tuple(decided), meta)
        return DecisionRecord.of_place(command, answer, time_s=self.now_s, seed=self.seed, latency_ms=0.0)

    def compared(self, answer: DecisionRecord, shadow: DecisionRecord) -> Sequence[Compared]:
        assert answer.place is not None
        assert shadow.place is not None
        pairs = zip(answer.place.decisions, shadow.place.decisions, strict=True)
        return [_compared(one.job_id, _units(one), _units(other)) for one, other in pairs]


def _units(decision: JobDecision) -> tuple[str, ...]:
    return tuple(sorted([f"{each.subtask}: {each.cpu_unit}" for each in decision.assignments]))


def _compared(of: str, answer: tuple[str, ...], shadow: tuple[str, ...], explorer: str = "") -> Compared:
    return Compared(of, answer == shadow, answer, shadow, explorer, None, None)
