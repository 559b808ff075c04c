"""Judges the learned policy: paired seeds on the judging truth, place and order apart, against every heuristic.

    python -m placewise_training.lab.compare --bundle DIR [--nodes 6 30] > results.jsonl

Harmony's settings: 6 and 30 servers, three arrival patterns, intervals of 20 minutes; `--length` stretches the jobs.
Every contender places in two orders, first come first served and shortest first by what jobs declare; the learned
policy also in its own. Other policies are tried in that order, too: a gain of the order is not credited to the place.
Under one seed all see the same jobs and noise. Trains nothing.
"""

import argparse
import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from placewise_core.domain.job import Job
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import PlacementPolicy, Proposal
from placewise_core.policies.adaptive import Adaptive
from placewise_core.policies.harmony import Harmony
from placewise_core.policies.search import BestOfK
from placewise_core.view.view import ClusterView
from placewise_models.bundle import Bundle
from placewise_training.lab.work.asked import add_option, workers_of
from placewise_training.lab.work.workers import Here, Workers
from placewise_training.sim.arrivals import INTERVAL_S
from placewise_training.sim.discipline import Discipline, Order
from placewise_training.sim.gangs.engine import SimOptions, Simulation
from placewise_training.sim.gangs.metrics import Metrics
from placewise_training.sim.gangs.oracle import Oracle
from placewise_training.sim.hardware import harmony_cluster
from placewise_training.sim.policies import opened, placement_policy, policies_of
from placewise_training.sim.statistics import Estimate, estimate, paired_change
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import HarmonyWorkload, Lengths

FIRST_SEED = 10_000  # evaluation counts from here (docs/truths.md)
PATTERNS: Mapping[str, float] = {"uniform": 3.0, "poisson": 2.0, "google": 2.0}  # jobs per interval on 6 servers
HARMONY, SEARCH, ADAPTIVE, ORACLE = Harmony.name, BestOfK.name, Adaptive.name, "oracle"
BASELINES = ("load-balance", "tetris", "tiresias", "lif-linear", "lif-quadratic", "consolidate")
_LARGE_TASKS = 10
_LARGE_RATE = 5 / 2.75  # 30 servers have five times the GPUs, gangs of 1 to 10 tasks 2.75 times the workers
_ORDERS: Mapping[str, Order] = {"fifo": "fifo", "declared": "declared", "own": "policy"}
# Makes the policy that plays in a simulation, and the order its batch is placed in.
Contender = tuple[Callable[[Simulation], PlacementPolicy], Order]


@dataclass(frozen=True, slots=True)
class Setting:
    """A cluster and its load: `length` stretches every job, `per_interval` jobs arrive in 20 minutes."""

    pattern: str = "uniform"
    nodes: int = 6
    per_interval: float = 3.0
    most_tasks: int = 3
    jobs: int = 200
    length: float = 1.0
    every_s: float = INTERVAL_S
    truth: str = "judge"

    @classmethod
    def of(cls, pattern: str, nodes: int, jobs: int, length: float) -> "Setting":
        """Harmony's, on 6 servers, or on more with larger gangs and a load in proportion."""
        rate = PATTERNS[pattern]
        if nodes <= 6:
            return cls(pattern, nodes, rate, jobs=jobs, length=length)
        return cls(pattern, nodes, rate * _LARGE_RATE * nodes / 30, _LARGE_TASKS, jobs, length)

    @property
    def workload(self) -> HarmonyWorkload:
        usual = Lengths()
        return HarmonyWorkload(
            jobs=self.jobs,
            pattern=self.pattern,
            per_interval=self.per_interval,
            most_tasks=self.most_tasks,
            lengths=replace(usual, median_s=usual.median_s * self.length, high_s=usual.high_s * self.length),
        )


class OrderedBy(PlacementPolicy):
    """One policy's placements in another's order."""

    def __init__(self, policy: PlacementPolicy, orderer: PlacementPolicy) -> None:
        self.name = f"{policy.name} in the order of {orderer.name}"
        self._policy, self._orderer = policy, orderer

    def order(self, jobs: Sequence[Job], view: ClusterView, context: PlaceContext) -> Sequence[Job]:
        ordered = self._orderer.order(jobs, view, context)
        self._policy.order(ordered, view, context)  # which may learn of its batch by it
        return ordered

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        return self._policy.propose(job, view, context)


def run(setting: Setting, contender: Contender, seed: int) -> Metrics:
    """One simulation, with progress reports as a host would send them."""
    make, order = contender
    truth = make_truth(setting.truth, seed)
    options = SimOptions(
        discipline=Discipline(every_s=setting.every_s, order=order),
        belief=make_truth("train", seed).sharing,
        reports_progress=True,
        learns_disturbance=True,
    )
    jobs = setting.workload.generate(truth, seed)
    simulation = Simulation(harmony_cluster(setting.nodes), jobs, truth, None, options=options, seed=seed)
    simulation.policy = make(simulation)
    return simulation.run().metrics


def average_jct_s(
    setting: Setting, contender: Contender, seeds: Sequence[int], workers: Workers | None = None
) -> dict[int, float]:
    """By seed. A fresh policy for each, so that nothing is carried from one to the next."""
    found = (workers or Here()).mapped(functools.partial(_jct_s, setting, {"": contender}), [("", s) for s in seeds])
    return dict(zip(seeds, found, strict=True))


def _jct_s(setting: Setting, entered: Mapping[str, Contender], one: tuple[str, int]) -> float:
    name, seed = one
    return run(setting, entered[name], seed).avg_jct_s


def contenders(bundle: Bundle, names: Sequence[str], *, with_oracle: bool) -> dict[str, Contender]:
    """Every policy in every order, by "policy, order"; the learned ones as far as the bundle has them."""
    found: dict[str, Contender] = {}
    learned = [name for name in (SEARCH, ADAPTIVE, HARMONY) if name in policies_of(bundle)]
    for name in (*names, *learned):
        for title in ("fifo", "declared"):
            found[f"{name}, {title}"] = (_blind(placement_policy, name, bundle), _ORDERS[title])
    if HARMONY in learned:
        found[f"{HARMONY}, own"] = (_blind(placement_policy, HARMONY, bundle), "policy")
        for name in ("consolidate", *(name for name in learned if name == SEARCH)):
            found[f"{name}, {HARMONY}'s"] = (_blind(_in_harmonys_order, bundle, name), "policy")
    if with_oracle:
        for title in ("fifo", "declared"):
            found[f"{ORACLE}, {title}"] = (functools.partial(Oracle, objective="delay"), _ORDERS[title])
    return found


def _blind(make: Callable[..., PlacementPolicy], *given: object) -> Callable[[Simulation], PlacementPolicy]:
    """Makes a policy that does not look at the simulation."""
    return functools.partial(_made, make, given)


def _made(make: Callable[..., PlacementPolicy], given: Sequence[object], _: Simulation) -> PlacementPolicy:
    return make(*given)


def _in_harmonys_order(bundle: Bundle, name: str) -> PlacementPolicy:
    policies = policies_of(bundle)
    return OrderedBy(policies[name], policies[HARMONY])


def compare(
    setting: Setting,
    entered: Mapping[str, Contender],
    seeds: Sequence[int],
    workers: Workers | None = None,
) -> dict[str, Any]:
    """JCT by contender and seed, and the relative change of each learned contender against each other, paired."""
    jct: dict[str, dict[int, float]] = {name: {} for name in entered}
    runs = [(name, seed) for name in entered for seed in seeds]
    found = (workers or Here()).mapped(functools.partial(_jct_s, setting, entered), runs)
    for (name, seed), jct_s in zip(runs, found, strict=True):
        jct[name][seed] = jct_s
    change = {
        ours: {
            theirs: interval(paired_change(list(jct[ours].values()), list(values.values())))
            for theirs, values in jct.items()
            if theirs != ours
        }
        for ours in jct
        if ours.startswith((HARMONY, SEARCH, ADAPTIVE))
    }
    means = {name: interval(estimate(list(values.values()))) for name, values in jct.items()}
    described = {"pattern": setting.pattern, "nodes": setting.nodes, "jobs": setting.jobs, "length": setting.length}
    return {**described, "seeds": list(seeds), "avg_jct_s": means, "by_seed": jct, "change": change}


def interval(found: Estimate) -> dict[str, float]:
    """A mean with half of its 95 % interval, which is 0 for one seed."""
    return {"mean": found.mean, "ci95": found.half_width}


def main(arguments: Sequence[str]) -> None:
    """Prints one JSON object per setting."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bundle", type=Path, required=True, help="directory with policy_*.onnx, reward.onnx")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--nodes", type=int, nargs="+", default=[6])
    parser.add_argument("--length", type=float, default=1.0, help="times the usual length of jobs")
    parser.add_argument("--patterns", nargs="+", default=list(PATTERNS))
    parser.add_argument("--policies", nargs="+", default=list(BASELINES))
    parser.add_argument("--oracle", action="store_true")
    add_option(parser)
    args = parser.parse_args(arguments)
    entered = contenders(opened(args.bundle), args.policies, with_oracle=args.oracle)
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    with workers_of(args.ray) as workers:
        for nodes in args.nodes:
            for pattern in args.patterns:
                setting = Setting.of(pattern, nodes, args.jobs, args.length)
                json.dump(compare(setting, entered, seeds, workers), sys.stdout)
                sys.stdout.write("\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
