"""A cluster of GPUs behind one Proteus queue, slot by slot: jobs arrive, the policy is asked, jobs run C(n) and end."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from placewise_core.admit.policy import AdmissionPolicy, AdmitContext
from placewise_core.domain.cluster import Assignment, Gpu, Node, QueueSettings, QueueState, RunningJob
from placewise_core.domain.decision import Admission, Verdict
from placewise_core.domain.events import ClusterRecords
from placewise_core.domain.job import ElasticRange, Job, JobId, NodeId, Resources, Role
from placewise_core.view.view import ClusterView
from placewise_models.folder import shipped_bundle


def gpu_nodes(nodes: int, gpus: int) -> tuple[Node, ...]:
    return tuple(
        Node(
            NodeId(f"n{i}"),
            Resources(cpu_cores=32, gpus=gpus, memory_gib=256, network_gbps=100),
            tuple(Gpu(g, "T4", 16) for g in range(gpus)),
        )
        for i in range(nodes)
    )


def bundled(name: str) -> dict[str, Any]:
    """A JSON file of the default bundle."""
    text = (shipped_bundle() / name).read_text("utf-8")
    parsed: dict[str, Any] = json.loads(text)
    return parsed


def cluster_of(nodes: tuple[Node, ...]) -> ClusterView:
    return ClusterView(ClusterRecords("c", 1, "e", nodes=nodes))


@dataclass
class Trace:
    """Results of a run: Q and Z per slot; C(n)/C(1) and n of every job that started."""

    backlog_s: list[float] = field(default_factory=list)
    delay_s: list[float] = field(default_factory=list)
    cost_s: list[float] = field(default_factory=list)
    gpus: list[int] = field(default_factory=list)


def run(
    policy: AdmissionPolicy,
    settings: QueueSettings,
    arrivals_per_slot: float,
    slots: int,
    seed: int,
    single_gpu_s: float = 600.0,
    max_gpus: int = 4,
    work_s: Callable[[np.random.Generator], float] | None = None,
) -> Trace:
    """Poisson arrivals of elastic jobs on 2 × 4 GPUs; every job is placed at once where its shape fits. A job takes
    half to one and a half times `single_gpu_s` on one GPU, or as `work_s` draws it."""
    view = cluster_of(gpu_nodes(2, 4))
    rng = np.random.default_rng(seed)
    queue, waiting, ends, trace, count = QueueState("q"), [], {}, Trace(), 0
    for slot in range(slots):
        now_s = slot * settings.slot_s
        for job_id in [j for j, end in ends.items() if end <= now_s]:
            view.remove_job(job_id)
            del ends[job_id]
        for _ in range(int(rng.poisson(arrivals_per_slot))):
            work = work_s(rng) if work_s is not None else single_gpu_s * float(rng.uniform(0.5, 1.5))
            waiting.append(
                Job(
                    JobId(f"j{count}"),
                    model="ResNet-18",
                    batch_size=512,
                    single_gpu_s=work,
                    elastic=ElasticRange(1, max_gpus),
                    submit_time_s=now_s,
                )
            )
            count += 1
        plan = policy.admit(waiting, view, queue, AdmitContext(now_s, slot, settings, rng))
        queue = plan.queue
        for job, admission in zip(list(waiting), plan.admissions, strict=True):
            if admission.verdict is Verdict.ADMIT:
                start(view, job, admission)
                seconds = admission.expected_finish_time_s - now_s
                ends[job.id] = now_s + math.ceil(seconds / settings.slot_s) * settings.slot_s
                trace.cost_s.append(seconds / job.single_gpu_s)
                trace.gpus.append(admission.gpus)
                waiting.remove(job)
        trace.backlog_s.append(queue.backlog_s)
        trace.delay_s.append(queue.delay_s)
    return trace


def start(view: ClusterView, job: Job, admission: Admission) -> None:
    """Gives the job its shape on the first nodes that have room. Fails if the shape does not fit."""
    left, assignments = admission.nodes, []
    for m in np.argsort(view.usage.free_gpus, kind="stable"):
        if left and view.usage.free_gpus[m] >= admission.gpus_per_node:
            free = [
                g
                for g in range(view.nodes.gpu_exists.shape[1])
                if view.nodes.gpu_exists[m, g] and not view.usage.tenants(int(m), g)
            ]
            indices = tuple(free[: admission.gpus_per_node])
            demand = Resources(gpus=float(len(indices)))
            assignments.append(Assignment(f"worker-{m}", Role.WORKER, view.nodes.records[m].id, indices, demand))
            left -= 1
    assert left == 0, f"the admitted shape {admission.nodes}×{admission.gpus_per_node} does not fit"
    view.add_job(RunningJob(job, tuple(assignments)))
