"""Exploration of policies that decide about one job per slot and keep the decision in the queue's state.

The first question of a slot decides about the first job that waits. Its draw (exploring.py) is made then; the queue's
state has the answer from there on, so that questions later in the slot draw nothing and get the same one.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from placewise_core.admit import blockers
from placewise_core.admit.exploring import DrawnAnswer, Draws, with_draw
from placewise_core.admit.policy import NOT_EXPLORED, AdmissionPolicy, AdmitContext
from placewise_core.admit.pool import Pool, take_promised
from placewise_core.admit.shapes import Options
from placewise_core.domain.cluster import QueueState
from placewise_core.domain.decision import Admission, AdmitPlan, Verdict
from placewise_core.domain.job import Job, Shape
from placewise_core.view.view import ClusterView


def admit(
    policy: AdmissionPolicy, jobs: Sequence[Job], view: ClusterView, queue: QueueState, context: AdmitContext
) -> AdmitPlan:
    """The policy's plan, explored if the context says so."""
    if context.exploration.rate <= 0 or policy.explores_itself:
        return policy.admit(jobs, view, queue, context)
    unexplored = replace(context, exploration=NOT_EXPLORED)
    plan = policy.admit(jobs, view, queue, unexplored)
    job = _decided(jobs, view, queue, plan)
    if job is None:
        return plan
    pool = _pool_for(job, jobs, view, plan.queue, unexplored)
    options = pool.options(job)
    own = _index(job, options, plan.queue)
    if not len(options) or (own is None and job.id in plan.queue.admitted):
        return plan
    draws = Draws(view, queue, context)
    drawn = draws.draw(job, pool, options, own)
    if drawn.is_held_back or drawn.i != own or drawn.options is not options:
        plan = _changed(policy, job, drawn, jobs, view, plan, unexplored)
    return AdmitPlan(tuple([with_draw(given, draws.found) for given in plan.admissions]), plan.queue)


def _decided(jobs: Sequence[Job], view: ClusterView, before: QueueState, plan: AdmitPlan) -> Job | None:
    """The job that this slot's decision is about; None if an earlier question made the decision, or if none waits."""
    after = plan.queue
    if after.slot <= before.slot:
        return None
    by_id = {job.id: job for job in jobs if job.id not in view.jobs}
    ranked = [by_id[given.job_id] for given in sorted(plan.admissions, key=_rank) if given.job_id in by_id]
    new = [job for job in ranked if job.id in after.admitted and job.id not in before.admitted]
    waiting = [job for job in ranked if job.id in before.waiting and job.id not in after.admitted]
    return next(iter([*new, *waiting]), None)


def _rank(given: Admission) -> int:
    return given.rank


def _pool_for(job: Job, jobs: Sequence[Job], view: ClusterView, queue: QueueState, context: AdmitContext) -> Pool:
    """The free resources, without those promised to other jobs that are to start."""
    pool = Pool.free(view, context.now_s)
    shapes = {name: Shape(nodes, per_node) for name, (nodes, per_node, _) in queue.admitted.items()}
    others = [other for other in jobs if other.id in shapes and other.id not in (*view.jobs, job.id)]
    take_promised(others, pool, shapes, context.slices)
    return pool


def _index(job: Job, options: Options, queue: QueueState) -> int | None:
    """The option that the policy admitted the job with; None if it waits."""
    nodes, per_node, _ = queue.admitted.get(job.id, (0, 0, 0))
    if job.id not in queue.admitted or not len(options):
        return None
    if job.is_rigid:
        return 0
    found = np.flatnonzero((options.nodes == nodes) & (options.gpus_per_node == per_node))
    return int(found[0]) if len(found) else None


def _changed(
    policy: AdmissionPolicy,
    job: Job,
    drawn: DrawnAnswer,
    jobs: Sequence[Job],
    view: ClusterView,
    plan: AdmitPlan,
    context: AdmitContext,
) -> AdmitPlan:
    """The plan with chance's answer in the queue's state. The others keep theirs."""
    queue = plan.queue
    others = {name: answer for name, answer in queue.admitted.items() if name != job.id}
    if drawn.is_held_back or drawn.i is None:
        rank = next(given.rank for given in plan.admissions if given.job_id == job.id)
        waits = Admission(job.id, Verdict.WAIT, rank=rank, blockers=(blockers.HELD_BACK,))
        given = [waits if each.job_id == job.id else each for each in plan.admissions]
        return AdmitPlan(tuple(given), replace(queue, admitted=others))
    shape = drawn.options.shape(drawn.i)
    admitted = {**others, job.id: (shape.nodes, shape.gpus_per_node, queue.slot)}
    return policy.admit(jobs, view, replace(queue, admitted=admitted), context)
