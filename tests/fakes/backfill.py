"""Queues with a head on a small cluster: jobs, questions and placements as the service has them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from tests.fakes.proteus_queue import bundled, cluster_of, gpu_nodes

from placewise_core.admit.policy import AdmitContext
from placewise_core.admit.registry import admission_policies
from placewise_core.domain.cluster import QueueSettings, QueueState, RunningJob
from placewise_core.domain.decision import AdmitPlan, Verdict
from placewise_core.domain.events import Event, QueueAdvanced
from placewise_core.domain.job import Job, JobId, Resources, Role, TaskGroup
from placewise_core.gang.context import PlaceContext
from placewise_core.policies.consolidate import Consolidate
from placewise_core.speed.throughput import ThroughputModel
from placewise_core.view.heads import barred
from placewise_core.view.view import ClusterView

POLICIES = admission_policies(ThroughputModel(bundled("throughput.json")))
NOW_S = 100_000.0
BOUND_S = 1000.0


def job(name: str, gpus: int, told_s: float = 100.0, tasks: int = 1) -> Job:
    """`told_s` on all its GPUs, by the pessimistic gain of a GPU that heads.py assumes."""
    single_s = told_s * (1.0 + 0.5 * (gpus * tasks - 1)) if told_s > 0 else 0.0
    groups = (TaskGroup(Role.WORKER, tasks, Resources(gpus=float(gpus))),)
    return Job(JobId(name), model="VGG16", batch_size=256, single_gpu_s=single_s, groups=groups, submit_time_s=NOW_S)


def ask(jobs: Sequence[Job], view: ClusterView, queue: QueueState, now_s: float = NOW_S) -> AdmitPlan:
    """The plan; the view learns the queue's next state, as from the store's event."""
    context = AdmitContext(now_s, int(now_s / 10), QueueSettings(bound_s=BOUND_S), np.random.default_rng(0))
    plan = POLICIES["fifo"].admit(jobs, view, queue, context)
    if plan.queue is not queue:
        tell(view, replace(plan.queue, seq=queue.seq + 1))
    return plan


def tell(view: ClusterView, queue: QueueState) -> None:
    view.apply(Event(view.version + 1, view.epoch, QueueAdvanced(queue)))


def admitted(plan: AdmitPlan) -> set[str]:
    return {a.job_id for a in plan.admissions if a.verdict is Verdict.ADMIT}


def start(view: ClusterView, started: Job, now_s: float) -> bool:
    """Places the job as the service would, heads of queues obeyed."""
    context = PlaceContext(now_s, 0, barred=barred(view, started, started.gpus, now_s))
    proposal = Consolidate().propose(started, view, context)
    if proposal is None:
        return False
    view.add_job(RunningJob(started, proposal.assignments, start_time_s=now_s))
    return True


def busy(told_s: float = 500.0) -> ClusterView:
    """Two nodes of four GPUs; on the first, one job with two of them that ends in `told_s`."""
    view = cluster_of(gpu_nodes(2, 4))
    assert start(view, job("runs", 2, told_s), NOW_S)
    return view
