"""Proteus says when, the QoS-aware policy says who is next and in which shape: two admission policies as one."""

from collections.abc import Sequence
from dataclasses import replace

from placewise_core.admit.policy import AdmissionPolicy, AdmitContext
from placewise_core.cluster import QueueState
from placewise_core.decision import Admission, AdmitPlan, Verdict
from placewise_core.job import Job
from placewise_core.view import ClusterView


class Composed:
    """Jobs go to Proteus in the order of `shapes`; the one it admits starts in the shape `shapes` gives it now.

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
