"""Runs of Harmony's experiments: one scenario, one method, one seed. Judges nothing.

Equal scenarios are run once per method and seed, however many figures look at them.
"""

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from placewise_core.domain.job import Job
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import PlacementPolicy, Proposal
from placewise_core.view.view import ClusterView
from placewise_models.bundle import Bundle
from placewise_training.reproduce.design import InterruptedRunError
from placewise_training.sim.arrivals import INTERVAL_S
from placewise_training.sim.discipline import Discipline, Order
from placewise_training.sim.gangs.engine import Observer, SimOptions, SimResult, Simulation
from placewise_training.sim.gangs.oracle import Oracle
from placewise_training.sim.hardware import harmony_cluster
from placewise_training.sim.jobs import SimJob
from placewise_training.sim.policies import placement_policy, shipped
from placewise_training.sim.statistics import Distribution
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import HARMONY_MODELS, HarmonyWorkload, Lengths

FIRST_SEED = 10_000  # evaluation counts up from here, training from 0 (docs/truths.md)

PAPER_BASELINES = ("load-balance", "tetris", "tiresias", "lif-linear", "lif-quadratic")
CONSOLIDATE = "consolidate"
SEARCH, HARMONY = "search", "harmony"
ORACLE = "oracle"
_SHORTEST = ", shortest first"


def shortest(method: str) -> str:
    """The same placement, with the shortest remaining job first instead of the policy's own order."""
    return method + _SHORTEST


SHORTEST = shortest(CONSOLIDATE)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything of a run but method and seed. `length` stretches every job; `every_s` is the scheduling interval."""

    nodes: int = 6
    pattern: str = "uniform"
    per_interval: float = 3.0
    most_tasks: int = 3
    length: float = 1.0
    every_s: float = INTERVAL_S
    jobs: int = 200

    def workload(self) -> HarmonyWorkload:
        usual = Lengths()
        lengths = replace(usual, median_s=usual.median_s * self.length, high_s=usual.high_s * self.length)
        return HarmonyWorkload(
            jobs=self.jobs,
            pattern=self.pattern,
            per_interval=self.per_interval,
            most_tasks=self.most_tasks,
            lengths=lengths,
        )


def policy_of(method: str, bundle: Bundle) -> PlacementPolicy:
    """The policy behind a method's name. Raises NeedsBundleError for a learned one the bundle has no model for."""
    name = method.removesuffix(_SHORTEST)
    return Oracle() if name == ORACLE else placement_policy(name, bundle)


@functools.cache
def run(scenario: Scenario, method: str, seed: int, bundle: Bundle | None = None) -> Mapping[str, float]:
    """JCT in intervals of 20 minutes, in all and by model ("jct resnet50"), and further metrics of the run.

    `bundle` is the shipped one unless given. Raises NeedsBundleError, and InterruptedRunError after Ctrl-C.
    """
    by_model = {model: Distribution() for model in HARMONY_MODELS}

    def observe(now_s: float, what: str, job: SimJob, places: Sequence[str]) -> None:
        if what == "finish":
            by_model[job.job.model].add(now_s - job.submit_time_s)

    metrics = _simulated(scenario, method, policy_of(method, bundle or shipped()), seed, observe).metrics
    return {
        "jct": metrics.avg_jct_s / INTERVAL_S,
        "p95": metrics.p95 / INTERVAL_S,
        "queueing": metrics.avg_queueing_s / INTERVAL_S,
        "slowdown": metrics.avg_slowdown,
        "gpu_util": metrics.gpu_util,
        "makespan": metrics.makespan_s / INTERVAL_S,
        **{f"jct {model}": seen.mean / INTERVAL_S for model, seen in by_model.items()},
    }


def decision_ms(scenario: Scenario, method: str, seed: int, bundle: Bundle | None = None) -> float:
    """CPU milliseconds of a run's decisions, of ordering the queue and of attempts that placed nothing too, per task
    placed. Raises as `run` does."""
    policy = _Timed(policy_of(method, bundle or shipped()))
    _simulated(scenario, method, policy, seed)
    return 1000.0 * policy.spent_s / max(1, policy.tasks)


class _Timed(PlacementPolicy):
    """A policy, and what its decisions cost."""

    def __init__(self, policy: PlacementPolicy) -> None:
        self.name = policy.name
        self.spent_s, self.tasks = 0.0, 0
        self._policy = policy

    def order(self, jobs: Sequence[Job], view: ClusterView, context: PlaceContext) -> Sequence[Job]:
        began = time.thread_time()
        found = self._policy.order(jobs, view, context)
        self.spent_s += time.thread_time() - began
        return found

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        began = time.thread_time()
        proposal = self._policy.propose(job, view, context)
        self.spent_s += time.thread_time() - began
        self.tasks += 0 if proposal is None else len(proposal.assignments)
        return proposal


def _simulated(scenario: Scenario, method: str, policy: PlacementPolicy, seed: int, *observers: Observer) -> SimResult:
    truth = make_truth("judge", FIRST_SEED + seed)
    order: Order = "srtf" if method.endswith(_SHORTEST) else "policy"
    options = SimOptions(
        discipline=Discipline(every_s=scenario.every_s, order=order),
        belief=make_truth("train", FIRST_SEED + seed).sharing,
        observers=observers,
        reports_progress=True,
    )
    jobs = scenario.workload().generate(truth, FIRST_SEED + seed)
    simulation = Simulation(harmony_cluster(scenario.nodes), jobs, truth, policy, options=options, seed=seed)
    if isinstance(policy, Oracle):
        policy.attach(simulation)
    result = simulation.run()
    if result.is_partial:
        raise InterruptedRunError
    return result
