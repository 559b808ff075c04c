"""One run of elastic jobs under an admission policy, with the papers' metrics of it. Decides nothing."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from placewise_core.admit.policy import AdmissionPolicy, AdmitContext
from placewise_core.domain.cluster import QueueSettings, QueueState
from placewise_core.domain.decision import AdmitPlan
from placewise_core.domain.job import Job
from placewise_core.policies.adaptive import Adaptive
from placewise_core.view.view import ClusterView
from placewise_models.bundle import Bundle
from placewise_models.learned import LEARNED_POLICIES
from placewise_training.reproduce.design import InterruptedRunError
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.gangs.engine import SimOptions, SimResult, Simulation
from placewise_training.sim.hardware import NodeSpec
from placewise_training.sim.jobs import SimJob
from placewise_training.sim.policies import placement_policy
from placewise_training.sim.speed.base import SpeedModel
from placewise_training.sim.truths import make_truth


@dataclass(slots=True)
class JobLog:
    """What happened to each job: submission, start, end (s), GPUs held, and its time on one GPU."""

    starts_s: dict[str, float] = field(default_factory=dict)
    ends_s: dict[str, float] = field(default_factory=dict)
    gpus: dict[str, int] = field(default_factory=dict)
    jobs: dict[str, SimJob] = field(default_factory=dict)

    def observe(self, now_s: float, what: str, job: SimJob, places: tuple[str, ...]) -> None:
        """An Observer of the simulation."""
        if what == "start":
            self.starts_s[job.id] = now_s
            self.gpus[job.id] = round(job.job.gpus)
            self.jobs[job.id] = job
        elif what == "finish":
            self.ends_s[job.id] = now_s

    def mean(self, what: str) -> float:
        """Mean over finished jobs of service, queueing, gpus, gpu_hours, slowdown (service over one-GPU time)."""
        rows = [self._row(name)[what] for name in self.ends_s]
        return float(np.mean(rows)) if rows else 0.0

    def _row(self, name: str) -> dict[str, float]:
        job, start_s, gpus = self.jobs[name], self.starts_s[name], self.gpus[name]
        service_s = self.ends_s[name] - start_s
        return {
            "service": service_s,
            "queueing": start_s - job.submit_time_s,
            "gpus": float(gpus),
            "gpu_hours": gpus * service_s / 3600.0,
            "slowdown": service_s / job.job.single_gpu_s,
            "response": (self.ends_s[name] - job.submit_time_s) / job.job.single_gpu_s,
        }

    def backlog_s(self) -> float:
        """Time average of Q, the one-GPU seconds of the waiting jobs (Little: Σ wait · work / time)."""
        span = max(self.ends_s.values(), default=0.0) - min((j.submit_time_s for j in self.jobs.values()), default=0.0)
        area = sum(self._row(name)["queueing"] * self.jobs[name].job.single_gpu_s for name in self.ends_s)
        return area / span if span > 0 else 0.0

    def completions(self) -> tuple[list[float], list[float]]:
        """Hours, and the share of all jobs finished by then."""
        ends = sorted(self.ends_s.values())
        return [end / 3600.0 for end in ends], [(i + 1) / len(ends) for i in range(len(ends))]


class TimedAdmission(AdmissionPolicy):
    """An admission policy with a stopwatch: CPU seconds spent in it."""

    def __init__(self, policy: AdmissionPolicy) -> None:
        self.name = policy.name
        self._policy = policy
        self.spent_s = 0.0

    def admit(self, jobs: Sequence[Job], view: ClusterView, queue: QueueState, context: AdmitContext) -> AdmitPlan:
        began = time.process_time()
        plan = self._policy.admit(jobs, view, queue, context)
        self.spent_s += time.process_time() - began
        return plan


@dataclass(frozen=True, slots=True)
class Trialled:
    """One run with its log; `decide_s` is CPU time in admission."""

    result: SimResult
    log: JobLog
    decide_s: float


def run_elastic(
    nodes: Sequence[NodeSpec],
    jobs: Sequence[SimJob],
    truth: SpeedModel,
    admission: AdmissionPolicy,
    place: str,
    seed: int,
    *,
    slot_s: float = 0.0,
    queue_settings: QueueSettings | None = None,
    bundle: Bundle | None = None,
) -> Trialled:
    """To the end of the last job. `slot_s` > 0: decisions at slots, else at every event. `bundle` holds the learned
    placement policies: the shipped one unless given.

    Raises InterruptedRunError on Ctrl-C, NeedsBundleError for a learned placement that is not there.
    """
    log, timed = JobLog(), TimedAdmission(admission)
    options = SimOptions(
        discipline=Discipline(every_s=slot_s),
        queue_settings=queue_settings or QueueSettings(slot_s=slot_s or 10.0),
        belief=make_truth("train", seed).sharing,
        observers=(log.observe,),
        reports_progress=place in LEARNED_POLICIES,
        learns_disturbance=place == Adaptive.name,
    )
    policy = placement_policy(place, bundle)
    simulation = Simulation(nodes, jobs, truth, policy, admission=timed, options=options, seed=seed)
    result = simulation.run()
    if result.is_partial:
        raise InterruptedRunError
    return Trialled(result, log, timed.spent_s)
