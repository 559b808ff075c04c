"""Judges the search: paired seeds on the judging truth, against every heuristic and against perfect knowledge.

    python -m placewise_training.lab.compare_search --model var/train/reward/reward.onnx --json

Harmony's setting: intervals of 20 minutes, first come first served with backfill, its job mix, three arrival patterns.
"oracle" chooses among the same heuristics' placements by the truth itself, as a perfect reward model would. Every
contender sees the same jobs and noise under one seed. Trains nothing.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placewise_core.place.policy import PlacementPolicy
from placewise_core.place.registry import placement_policies, search_policy
from placewise_core.place.search import SpeedScorer
from placewise_models.reward import RewardRuntime
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.gangs.engine import SimOptions, Simulation
from placewise_training.sim.gangs.metrics import Metrics
from placewise_training.sim.gangs.oracle import Oracle
from placewise_training.sim.hardware import harmony_cluster
from placewise_training.sim.statistics import estimate
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import HarmonyWorkload

FIRST_SEED = 10_000  # evaluation counts from here (docs/truths.md)
INTERVAL_S = 1200.0
SEARCH, ORACLE = "search", "oracle"
PATTERNS = ("uniform", "poisson", "google")
# Calls back with (what, done, total).
Show = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table: a cluster size and an arrival pattern."""

    pattern: str = "uniform"
    nodes: int = 6
    jobs: int = 200

    @property
    def workload(self) -> HarmonyWorkload:
        """Three jobs an interval on six servers and as many per server on more, then of up to ten workers."""
        tasks = 3 if self.nodes <= 6 else 10
        rate = 3.0 if self.nodes <= 6 else 0.5 * self.nodes * 2 / 5.5
        return HarmonyWorkload(jobs=self.jobs, pattern=self.pattern, per_interval=rate, most_tasks=tasks)


def run(setting: Setting, policy: PlacementPolicy, seed: int) -> Metrics:
    """One simulation on the judging truth, with progress reports as a host would send them."""
    truth = make_truth("judge", seed)
    options = SimOptions(
        discipline=Discipline(every_s=INTERVAL_S, order="fifo"),
        belief=make_truth("train", seed).sharing,
        reports_progress=True,
    )
    jobs = setting.workload.generate(truth, seed)
    simulation = Simulation(harmony_cluster(setting.nodes), jobs, truth, policy, options=options, seed=seed)
    if isinstance(policy, Oracle):
        policy.attach(simulation)
    return simulation.run().metrics


def compare(
    setting: Setting,
    scorer: SpeedScorer,
    seeds: int,
    names: Sequence[str],
    show: Show = lambda what, done, total: None,
) -> dict[str, Any]:
    """Average JCT per contender with 95 % intervals, and how much lower the search's is.

    `lower` is 1 − (search / other) of the JCT, paired by seed; its interval is of the mean over seeds.
    """
    jct: dict[str, list[float]] = {}
    contenders = [*names, SEARCH, ORACLE]
    for i, name in enumerate(contenders):
        for k in range(seeds):
            show(f"{setting.pattern}, {setting.nodes} nodes: {name}", i * seeds + k, len(contenders) * seeds)
            jct.setdefault(name, []).append(run(setting, _policy(name, scorer), FIRST_SEED + k).avg_jct_s)
    return {
        "pattern": setting.pattern,
        "nodes": setting.nodes,
        "jobs": setting.jobs,
        "seeds": seeds,
        "avg_jct_s": {name: _cell(values) for name, values in jct.items()},
        "search_lower_than": {
            name: _cell([1.0 - ours / theirs for ours, theirs in zip(jct[SEARCH], values, strict=True)])
            for name, values in jct.items()
            if name != SEARCH
        },
    }


def _policy(name: str, scorer: SpeedScorer) -> PlacementPolicy:
    policies = placement_policies()
    if name == ORACLE:
        return Oracle(0, "progress")
    return search_policy(scorer, policies) if name == SEARCH else policies[name]


def _cell(values: Sequence[float]) -> dict[str, float]:
    made = estimate(values)
    return {"mean": made.mean, "ci95": made.half_width if made.count > 1 else 0.0}


def main(arguments: Sequence[str]) -> None:
    """Prints one JSON object per setting."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="reward.onnx")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--nodes", type=int, nargs="+", default=[6])
    parser.add_argument("--patterns", nargs="+", default=list(PATTERNS))
    args = parser.parse_args(arguments)
    scorer = RewardRuntime.from_file(args.model)
    names = [name for name in placement_policies() if name != "random"]
    for nodes in args.nodes:
        for pattern in args.patterns:
            setting = Setting(pattern, nodes, args.jobs)
            json.dump(compare(setting, scorer, args.seeds, names), sys.stdout)
            sys.stdout.write("\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
