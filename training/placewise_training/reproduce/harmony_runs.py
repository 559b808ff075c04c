"""Runs of Harmony's experiments: one scenario, one method, one seed. Says nothing about what they mean.

Equal scenarios are run once per method and seed, however many figures look at them.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from placewise_core.place.policy import PlacementPolicy
from placewise_core.place.registry import placement_policies, search_policy
from placewise_core.place.search import SpeedScorer
from placewise_training.reproduce.design import InterruptedRunError, NeedsBundleError
from placewise_training.reproduce.harmony_oracle import OracleSearch
from placewise_training.sim.arrivals import INTERVAL_S
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.engine import SimOptions, Simulation
from placewise_training.sim.hardware import harmony_cluster
from placewise_training.sim.jobs import SimJob
from placewise_training.sim.statistics import Distribution
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import HARMONY_MODELS, HarmonyWorkload, Lengths

FIRST_SEED = 10_000  # evaluation counts up from here, training from 0 (docs/truths.md)

PAPER_BASELINES = ("load-balance", "tetris", "tiresias", "lif-linear", "lif-quadratic")
CONSOLIDATE = "consolidate"
SHORTEST = "consolidate, shortest first"
ORACLE = "oracle: best of 200 on true speeds"
SHORTEST_ORACLE = "oracle, shortest first"
HARMONY = "harmony"
SEARCH = "best of 8 by the reward model"
_LEARNED = (HARMONY,)


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


def policy_of(method: str) -> PlacementPolicy:
    """The policy behind a method's name. Raises NeedsBundleError for a learned one that is not there yet."""
    if method in (ORACLE, SHORTEST_ORACLE):
        return OracleSearch()
    if method == SEARCH:
        scorer = shipped_reward_model()
        if scorer is None:
            raise NeedsBundleError("needs a bundle: the reward model is not trained yet")
        return search_policy(scorer, placement_policies())
    name = CONSOLIDATE if method == SHORTEST else method
    policies = placement_policies()
    if name not in policies and name in _LEARNED:
        raise NeedsBundleError("needs a bundle: the learned policy is not trained yet")
    return policies[name]


@functools.cache
def shipped_reward_model() -> SpeedScorer | None:
    """The reward model of the bundle the service ships; None while there is none."""
    found = resources.files("placewise_service").joinpath("bundles", "default", "reward.onnx")
    if not found.is_file():
        return None
    from placewise_training.sim.nets import OnnxScorer  # noqa: PLC0415

    return OnnxScorer.load(Path(str(found)))


@functools.cache
def run(scenario: Scenario, method: str, seed: int) -> Mapping[str, float]:
    """JCT in intervals of 20 minutes, in all and by model ("jct resnet50"), and what goes with it.

    Raises NeedsBundleError, and InterruptedRunError after Ctrl-C.
    """
    policy = policy_of(method)
    truth = make_truth("judge", FIRST_SEED + seed)
    by_model = {model: Distribution() for model in HARMONY_MODELS}

    def observe(now_s: float, what: str, job: SimJob, places: Sequence[str]) -> None:
        if what == "finish":
            by_model[job.job.model].add(now_s - job.submit_time_s)

    is_shortest_first = method in (SHORTEST, SHORTEST_ORACLE)
    options = SimOptions(
        discipline=Discipline(every_s=scenario.every_s, order="srtf" if is_shortest_first else "policy"),
        belief=make_truth("train", FIRST_SEED + seed).sharing,
        observers=(observe,),
        reports_progress=True,
    )
    jobs = scenario.workload().generate(truth, FIRST_SEED + seed)
    simulation = Simulation(harmony_cluster(scenario.nodes), jobs, truth, policy, options=options, seed=seed)
    if isinstance(policy, OracleSearch):
        policy.attach(simulation)
    result = simulation.run()
    if result.is_partial:
        raise InterruptedRunError
    metrics = result.metrics
    return {
        "jct": metrics.avg_jct_s / INTERVAL_S,
        "p95": metrics.p95 / INTERVAL_S,
        "queueing": metrics.avg_queueing_s / INTERVAL_S,
        "slowdown": metrics.avg_slowdown,
        "gpu_util": metrics.gpu_util,
        "makespan": metrics.makespan_s / INTERVAL_S,
        **{f"jct {model}": seen.mean / INTERVAL_S for model, seen in by_model.items()},
    }
