"""Admission policies in another order: a bound, with knowledge that a host does not have."""

import math
from collections.abc import Sequence

from placewise_core.admit.policy import AdmissionPolicy, AdmitContext
from placewise_core.domain.cluster import QueueState
from placewise_core.domain.decision import AdmitPlan
from placewise_core.domain.job import Job
from placewise_core.view.view import ClusterView
from placewise_training.sim.policies import admission_policy

SHORTEST = ", shortest first"


def admission(method: str) -> AdmissionPolicy:
    """An admission policy by name; with ", shortest first" behind it, the same policy given the shortest job first.

    Raises ValueError for an unknown name.
    """
    policy = admission_policy(method.removesuffix(SHORTEST))
    if policy is None:
        raise ValueError("no admission policy is named")
    return ShortestFirst(policy) if method.endswith(SHORTEST) else policy


class ShortestFirst(AdmissionPolicy):
    """Shortest remaining time on one GPU first. The jobs of these experiments declare their true times, which a host
    seldom knows: a bound."""

    def __init__(self, policy: AdmissionPolicy) -> None:
        self.name = policy.name + SHORTEST
        self._policy = policy

    def admit(self, jobs: Sequence[Job], view: ClusterView, queue: QueueState, context: AdmitContext) -> AdmitPlan:
        shortest = sorted(jobs, key=lambda job: job.single_gpu_s)
        plan = self._policy.admit(shortest, view, queue, context)
        context.same_until_s = -math.inf  # a shorter job that comes stands before those asked about
        found = {admission.job_id: admission for admission in plan.admissions}
        return AdmitPlan(tuple([found[job.id] for job in jobs if job.id in found]), plan.queue)
