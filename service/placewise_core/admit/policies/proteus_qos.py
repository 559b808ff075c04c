"""Proteus and the QoS-aware policy as one: the first says when a job starts, the second who is next and in which shape.

Not in the papers. Proteus takes jobs as they are listed and a shape by drift plus penalty alone; the QoS-aware policy
knows the shapes that each job may take, and starts every job that fits. Here jobs go to Proteus by rank; the one it
admits starts in the shape the QoS-aware policy gives it now, or the cheapest per unit of work if that policy would let
it wait.
"""

from collections.abc import Sequence
from dataclasses import replace

from placewise_core.admit.policies.proteus import Proteus
from placewise_core.admit.policies.qos import QosAware
from placewise_core.admit.policies.qos_savable import QosSavable
from placewise_core.admit.policies.tetris import TetrisCer
from placewise_core.admit.policy import AdmitContext
from placewise_core.admit.pool import Pool, promised
from placewise_core.domain.cluster import QueueState
from placewise_core.domain.decision import Admission, AdmitPlan, Verdict
from placewise_core.domain.job import Job, Shape
from placewise_core.speed.throughput import ThroughputModel
from placewise_core.view.view import ClusterView


class ProteusQos:
    """One decision a slot, as Proteus; the shape is promised with it, so that every later answer is the same."""

    name = "proteus-qos"
    shapes: type[QosAware] = QosAware

    def __init__(self, throughput: ThroughputModel) -> None:
        self._proteus = Proteus(throughput)
        self._shapes = self.shapes(throughput)
        self._shapes.backfills = False  # it ranks jobs and shapes them; Proteus says who starts
        self._cheapest = TetrisCer(throughput)

    def admit(self, jobs: Sequence[Job], view: ClusterView, queue: QueueState, context: AdmitContext) -> AdmitPlan:
        wishes = self._shapes.admit(jobs, view, queue, context).admissions
        order = sorted(range(len(jobs)), key=lambda i: (wishes[i].rank, i))
        ranked = [jobs[i] for i in order]
        plan = self._proteus.admit(ranked, view, queue, context)
        for i in order:
            if _is_new(jobs[i], plan.queue, queue, view):
                state = self._shaped(jobs[i], wishes[i], jobs, view, plan.queue, context)
                plan = self._proteus.admit(ranked, view, state, context)  # the same decision, told in this shape
        found = dict(zip(order, plan.admissions, strict=True))
        return AdmitPlan(tuple([found[i] for i in range(len(jobs))]), plan.queue)

    def _shaped(
        self,
        job: Job,
        wish: Admission,
        jobs: Sequence[Job],
        view: ClusterView,
        queue: QueueState,
        context: AdmitContext,
    ) -> QueueState:
        """The state with the wished shape promised, if other promises leave room for it."""
        if wish.verdict is not Verdict.ADMIT:
            (wish,) = self._cheapest.admit([job], view, queue, context).admissions
        shape = Shape(wish.nodes, wish.gpus_per_node)
        if wish.verdict is not Verdict.ADMIT or not _fits(job, shape, jobs, view, queue, context):
            return queue  # in Proteus' own shape
        _, _, slot = queue.admitted[job.id]
        return replace(queue, admitted={**queue.admitted, job.id: (shape.nodes, shape.gpus_per_node, slot)})


class ProteusQosSavable(ProteusQos):
    """The same with late jobs behind those that can still be in time."""

    name = "proteus-qos-savable"
    shapes = QosSavable


def _is_new(job: Job, state: QueueState, before: QueueState, view: ClusterView) -> bool:
    return job.id in state.admitted and job.id not in before.admitted and job.id not in view.jobs


def _fits(
    job: Job, shape: Shape, jobs: Sequence[Job], view: ClusterView, queue: QueueState, context: AdmitContext
) -> bool:
    """Whether the shape is one of those the job could take beside the promises to other jobs that are to start."""
    pool = Pool.free(view, context.now_s)
    shapes = {name: Shape(nodes, per_node) for name, (nodes, per_node, _) in queue.admitted.items()}
    promised(
        [other for other in jobs if other.id in shapes and other is not job and other.id not in view.jobs], pool, shapes
    )
    options = pool.options(job)
    return bool(((options.nodes == shape.nodes) & (options.gpus_per_node == shape.gpus_per_node)).any())
