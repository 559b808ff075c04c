"""Admission policies made of others: in another order, or two as one."""

from collections.abc import Sequence
from dataclasses import replace

from placewise_core.admit.policy import AdmissionPolicy, AdmitContext
from placewise_core.cluster import QueueState
from placewise_core.decision import Admission, AdmitPlan, Verdict
from placewise_core.job import Job
from placewise_core.view import ClusterView
from placewise_training.sim.policies import admission_policy

SHORTEST = ", shortest first"


def admission(method: str) -> AdmissionPolicy:
    """An admission policy by name; with ", shortest first" behind it, the same told of the shortest job first.

    Raises ValueError for an unknown name.
    """
    policy = admission_policy(method.removesuffix(SHORTEST))
    if policy is None:
        raise ValueError("no admission policy is named")
    return ShortestFirst(policy) if method.endswith(SHORTEST) else policy


class ShortestFirst:
    """Shortest remaining time on one GPU first. The jobs of these experiments declare their true times, which a host
    seldom knows: a bound."""

    def __init__(self, policy: AdmissionPolicy) -> None:
        self.name = policy.name + SHORTEST
        self._policy = policy

    def admit(self, jobs: Sequence[Job], view: ClusterView, queue: QueueState, context: AdmitContext) -> AdmitPlan:
        order = sorted(range(len(jobs)), key=lambda i: (jobs[i].single_gpu_s, i))
        plan = self._policy.admit([jobs[i] for i in order], view, queue, context)
        found = dict(zip(order, plan.admissions, strict=True))
        return AdmitPlan(tuple(found[i] for i in range(len(jobs))), plan.queue)


class Composed:
    """Proteus says when, the QoS-aware policy says who is next and in which shape.

    Jobs go to Proteus in the order of `shapes`; the one it admits starts in the shape `shapes` gives it now.

    Where `shapes` would let that job wait, `fallback` names its shape: Proteus has said that it starts, and its GPUs
    stay promised until it does.
    """

    name = "proteus × qos"

    def __init__(self, proteus: AdmissionPolicy, shapes: AdmissionPolicy, fallback: AdmissionPolicy) -> None:
        self._proteus, self._shapes, self._fallback = proteus, shapes, fallback

    def admit(self, jobs: Sequence[Job], view: ClusterView, queue: QueueState, context: AdmitContext) -> AdmitPlan:
        wishes = self._shapes.admit(jobs, view, queue, context).admissions
        order = sorted(range(len(jobs)), key=lambda i: (wishes[i].rank, i))
        plan = self._proteus.admit([jobs[i] for i in order], view, queue, context)
        found: dict[int, Admission] = {}
        for i, admission in zip(order, plan.admissions, strict=True):
            is_new = admission.verdict is Verdict.ADMIT and jobs[i].id not in view.jobs
            found[i] = self._shaped(jobs[i], wishes[i], admission, view, queue, context) if is_new else admission
        return AdmitPlan(tuple(found[i] for i in range(len(jobs))), plan.queue)

    def _shaped(
        self,
        job: Job,
        wish: Admission,
        admission: Admission,
        view: ClusterView,
        queue: QueueState,
        context: AdmitContext,
    ) -> Admission:
        if wish.verdict is not Verdict.ADMIT:
            (wish,) = self._fallback.admit([job], view, queue, context).admissions
        if wish.verdict is not Verdict.ADMIT:
            return replace(wish, rank=admission.rank)
        return replace(admission, gpus=wish.gpus, nodes=wish.nodes, gpus_per_node=wish.gpus_per_node)
