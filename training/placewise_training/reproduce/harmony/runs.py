"""Runs of Harmony's experiments: one scenario, one method, one seed. Judges nothing.

Equal scenarios are run once per method and seed, however many figures look at them.
"""

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from placewise_core.domain.job import Job
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import PlacementPolicy, Proposal
from placewise_core.view.view import ClusterView
from placewise_models.bundle import Bundle
from placewise_training.reproduce.design import InterruptedRunError, NeedsBundleError
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
FRESH_SEED = 90_000  # no price, order or net was chosen on these

PAPER_BASELINES = ("load-balance", "tetris", "tiresias", "lif-linear", "lif-quadratic")
CONSOLIDATE = "consolidate"
SEARCH, HARMONY, PRINTED = "search", "harmony", "harmony-paper"
ORACLE = "oracle"
_SHORTEST, _FIRST_COME = ", shortest first", ", first come first served"
_ORDERS: Mapping[str, Order] = {_SHORTEST: "srtf", _FIRST_COME: "fifo"}
# Declared lengths are off by e^(σ·N(0, 1)); None: no job declares one. Policies that read no lengths have no such rows.
_LENGTHS: Mapping[str, float | None] = {
    ", lengths off by σ = 0.5": 0.5,
    ", lengths off by σ = 1": 1.0,
    ", no lengths": None,
}


def shortest(method: str) -> str:
    """The same placement, with the shortest remaining job first instead of the policy's own order."""
    return method + _SHORTEST


def first_come(method: str) -> str:
    """The same placement in the order of arrival."""
    return method + _FIRST_COME


def misled(method: str) -> list[str]:
    """The same policy among jobs that tell wrong lengths, and among jobs that tell none."""
    return [method + suffix for suffix in _LENGTHS]


SHORTEST = shortest(CONSOLIDATE)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything of a run but method and seed. `length` stretches every job; `every_s` is the scheduling interval;
    seeds count from `first_seed`."""

    nodes: int = 6
    pattern: str = "uniform"
    per_interval: float = 3.0
    most_tasks: int = 3
    length: float = 1.0
    every_s: float = INTERVAL_S
    jobs: int = 200
    first_seed: int = FIRST_SEED

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


def policy_of(method: str, bundle: Bundle, nodes: int) -> PlacementPolicy:
    """The policy behind a method's name. Raises NeedsBundleError for a learned one that the bundle has no model for, or
    whose model is for another number of nodes."""
    name = method.partition(", ")[0]
    if name == PRINTED and bundle.harmony_paper is not None and bundle.harmony_paper.nodes != nodes:
        raise NeedsBundleError(f"needs a bundle: the net of {name} is for {bundle.harmony_paper.nodes} nodes")
    return placement_policy(name, bundle)


def misdeclared(jobs: Sequence[SimJob], sigma: float | None, seed: int) -> list[SimJob]:
    """The same jobs with lengths declared wrongly, by a factor e^(σ·N(0, 1)) each, or not at all (None). A host still
    counts true passes over the data."""
    rng = np.random.default_rng((seed, 12))
    factors = [0.0 if sigma is None else float(np.exp(sigma * draw)) for draw in rng.standard_normal(len(jobs))]
    return [_telling(job, factor) for job, factor in zip(jobs, factors, strict=True)]


def _telling(job: SimJob, factor: float) -> SimJob:
    true = job.job
    changed = replace(true, single_gpu_s=factor * true.single_gpu_s, total_epochs=factor * true.total_epochs)
    return replace(job, job=changed, epoch_samples=job.samples / true.total_epochs)


@functools.cache
def run(scenario: Scenario, method: str, seed: int, bundle: Bundle | None = None) -> Mapping[str, float]:
    """JCT in intervals of 20 minutes, in all and by model ("jct resnet50"), and further metrics of the run.

    `bundle` is the shipped one unless given. Raises NeedsBundleError, and InterruptedRunError after Ctrl-C.
    """
    by_model = {model: Distribution() for model in HARMONY_MODELS}

    def observe(now_s: float, what: str, job: SimJob, places: Sequence[str]) -> None:
        if what == "finish":
            by_model[job.job.model].add(now_s - job.submit_time_s)

    simulation = _simulation(scenario, method, seed, bundle, observe)
    metrics = _finished(simulation).metrics
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
    simulation = _simulation(scenario, method, seed, bundle)
    assert simulation.policy is not None
    simulation.policy = policy = _Timed(simulation.policy)
    _finished(simulation)
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


def _simulation(scenario: Scenario, method: str, seed: int, bundle: Bundle | None, *observers: Observer) -> Simulation:
    drawn = scenario.first_seed + seed
    truth = make_truth("judge", drawn)
    order: Order = next((order for suffix, order in _ORDERS.items() if method.endswith(suffix)), "policy")
    options = SimOptions(
        discipline=Discipline(every_s=scenario.every_s, order=order),
        belief=make_truth("train", drawn).sharing,
        observers=observers,
        reports_progress=True,
    )
    jobs = scenario.workload().generate(truth, drawn)
    for suffix, sigma in _LENGTHS.items():
        if method.endswith(suffix):
            jobs = misdeclared(jobs, sigma, drawn)
    simulation = Simulation(harmony_cluster(scenario.nodes), jobs, truth, None, options=options, seed=seed)
    is_oracle = method.partition(", ")[0] == ORACLE
    simulation.policy = Oracle(simulation) if is_oracle else policy_of(method, bundle or shipped(), scenario.nodes)
    return simulation


def _finished(simulation: Simulation) -> SimResult:
    result = simulation.run()
    if result.is_partial:
        raise InterruptedRunError
    return result
