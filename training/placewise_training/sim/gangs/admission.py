"""Asks an admission policy which waiting jobs start now, and gives those it admits their shape. Decides nothing."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from placewise_core.admit.greedy import GreedyAdmission
from placewise_core.admit.policy import AdmissionPolicy, AdmitContext
from placewise_core.domain.cluster import QueueSettings, QueueState
from placewise_core.domain.decision import Admission, Verdict
from placewise_core.domain.job import Shape
from placewise_core.view.view import ClusterView
from placewise_training.sim.jobs import SimJob, demand_signature, with_shape


class Admitter:
    """One admission policy over all queues of a run. Q and Z live here, as they live in the store of a service."""

    def __init__(self, policy: AdmissionPolicy, seed: int, settings: QueueSettings) -> None:
        self.policy = policy
        self.settings = settings
        self.queues: dict[str, QueueState] = {}
        # Queues whose first job waits until something is given back, with that job. Only free resources matter to it.
        self._blocked: dict[str, str] = {}
        self._is_in_order = isinstance(policy, GreedyAdmission) and policy.stops_in_order
        self._rng = np.random.default_rng(seed)

    def released(self) -> None:
        """Something was given back: every queue is asked again."""
        self._blocked.clear()

    def admitted(self, jobs: Sequence[SimJob], view: ClusterView, now_s: float) -> list[SimJob]:
        """The jobs to start now, with their shape, by rank."""
        ranked: list[tuple[int, int, SimJob]] = []
        by_queue: dict[str, list[SimJob]] = {}
        blocked = set[str]()
        for job in jobs:
            name = job.job.queue
            if name in by_queue:
                by_queue[name].append(job)
            elif name not in blocked:
                if self._blocked.get(name) == job.id:
                    blocked.add(name)
                else:
                    by_queue[name] = [job]
        for name, waiting in by_queue.items():
            for job, admission in self._ask(name, waiting, view, now_s):
                ranked.append((admission.rank, job.number, shaped(job, admission)))
        return [job for _, _, job in sorted(ranked, key=lambda entry: entry[:2])]

    def _ask(self, name: str, jobs: list[SimJob], view: ClusterView, now_s: float) -> list[tuple[SimJob, Admission]]:
        context = AdmitContext(
            now_s=now_s,
            slot=int(now_s // self.settings.slot_s),
            settings=self.settings,
            randomness=self._rng,
            starts_only=True,
        )
        state = self.queues.get(name) or QueueState(queue=name)
        plan = self.policy.admit([job.job for job in jobs], view, state, context)
        if plan.queue is not state:
            queue = self.queues[name] = replace(plan.queue, seq=state.seq + 1)
            view.show_queue(queue)  # as the events of a service tell its views
        admitted = {a.job_id: a for a in plan.admissions if a.verdict is Verdict.ADMIT}
        if self._is_in_order and jobs[0].job.id not in admitted:
            self._blocked[name] = jobs[0].id
        return [(job, admitted[job.job.id]) for job in jobs if job.job.id in admitted] if admitted else []


def shaped(job: SimJob, admission: Admission) -> SimJob:
    """The job as admitted: rigid ones stay as they are, elastic ones become a gang of the shape given."""
    if job.job.is_rigid or admission.nodes <= 0:
        return job
    made = with_shape(job.job, Shape(admission.nodes, admission.gpus_per_node))
    return replace(job, job=made, signature=demand_signature(made))
