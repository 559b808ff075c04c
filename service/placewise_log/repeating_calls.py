"""Repeats logged decisions of scope NODE, AdmitOrWait and Partition on the view that each of them read.

Another policy may be asked instead of the logged one. Nothing here reads a file.
"""

from collections.abc import Mapping
from dataclasses import replace

from placewise_core.admit import slot_exploring
from placewise_core.admit.policies.lyapunov import with_shapes
from placewise_core.admit.policy import NOT_EXPLORED, AdmissionPolicy, AdmitContext, exploration_of, slot_of
from placewise_core.domain.cluster import QueueState
from placewise_core.domain.commands import Scope
from placewise_core.domain.decision import AdmitPlan, JobDecision, PartitionPlan
from placewise_core.partition.policy import PartitionContext, PartitionPolicy, partitioned
from placewise_core.subtasks.iawp import SubtaskScheduler
from placewise_core.view.view import ClusterView
from placewise_log.record import DecisionRecord


def assign_again(
    record: DecisionRecord, view: ClusterView, schedulers: Mapping[str, SubtaskScheduler], policy: str = ""
) -> list[JobDecision]:
    """The subtasks of a Place with scope NODE on the units of its node. Raises ValueError for other records."""
    if record.place is None or record.scope != Scope.NODE or not record.reads:
        raise _not_repeated(record, "Place with scope NODE")
    scheduler = schedulers[policy or record.meta.policy]
    return scheduler.assign(record.jobs, record.node_id, view, record.reads[0].now_s, seed=record.seed)


def admit_again(
    record: DecisionRecord, view: ClusterView, policies: Mapping[str, AdmissionPolicy], policy: str = ""
) -> AdmitPlan:
    """The answers of AdmitOrWait, and the queue after them. Raises ValueError for other records."""
    seen = record.seen
    if record.admit is None or not record.reads or seen is None or seen.settings is None:
        raise _not_repeated(record, "AdmitOrWait")
    queue = view.queues.get(record.queue) or QueueState(record.queue)
    now_s, seed = record.reads[0].now_s, record.seed if seen.is_seeded else None
    slot = slot_of(queue, now_s, seen.settings)
    exploration = NOT_EXPLORED if record.is_dry_run else exploration_of(view.settings, seed)
    context = AdmitContext(
        now_s, slot, seen.settings, record.seed, is_explaining=record.is_explaining, exploration=exploration
    )
    chosen = policies[policy or record.meta.policy]
    plan = with_shapes(slot_exploring.admit(chosen, record.jobs, view, queue, context), record.jobs, slot)
    if plan.queue is queue:
        return plan
    return AdmitPlan(plan.admissions, replace(plan.queue, seq=queue.seq + 1))


def partition_again(
    record: DecisionRecord, view: ClusterView, policies: Mapping[str, PartitionPolicy], policy: str = ""
) -> PartitionPlan:
    """The shares of Partition. Raises ValueError for other records."""
    if record.partition is None or record.task is None or not record.reads:
        raise _not_repeated(record, "Partition")
    context = PartitionContext(record.reads[0].now_s, record.asked_units, record.is_explaining)
    return partitioned(policies[policy or record.meta.policy], record.task, record.progress, view, context)


def _not_repeated(record: DecisionRecord, call: str) -> ValueError:
    return ValueError(f"decision {record.decision_id} cannot be repeated: it is no {call} on a known view")
