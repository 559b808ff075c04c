"""Judges the search: paired seeds on the judging truth, against every heuristic and against perfect knowledge.

    python -m placewise_training.lab.compare_search --model var/train/reward/reward.onnx --json

Harmony's setting: intervals of 20 minutes, first come first served with backfill, its job mix, three arrival patterns.
"oracle" chooses among the same heuristics' placements by the truth itself, as a perfect reward model would. Every
contender sees the same jobs and noise under one seed. Trains nothing.
"""

import argparse
import functools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from placewise_core.gang.policy import PlacementPolicy
from placewise_core.policies.registry import placement_policies, search_policy
from placewise_core.policies.search import SpeedScorer
from placewise_models.reward import RewardRuntime
from placewise_training.lab.compare import FIRST_SEED, ORACLE, PATTERNS, SEARCH, Setting, average_jct_s, interval
from placewise_training.sim.gangs.engine import Simulation
from placewise_training.sim.gangs.oracle import Oracle
from placewise_training.sim.statistics import estimate

# Called with (title, done, total).
Show = Callable[[str, int, int], None]


def setting_of(pattern: str, nodes: int, jobs: int) -> Setting:
    """Three jobs an interval on six servers and as many per server on more, then of up to ten workers."""
    if nodes <= 6:
        return Setting(pattern, nodes, 3.0, 3, jobs)
    return Setting(pattern, nodes, 0.5 * nodes * 2 / 5.5, 10, jobs)


def compare(
    setting: Setting,
    scorer: SpeedScorer,
    seeds: int,
    names: Sequence[str],
    show: Show = lambda title, done, total: None,
) -> dict[str, Any]:
    """Average JCT per contender with 95 % intervals, and how much lower the search's is.

    `lower` is 1 − (search / other) of the JCT, paired by seed; its interval is of the mean over seeds.
    """
    jct: dict[str, list[float]] = {}
    contenders = [*names, SEARCH, ORACLE]
    paired = range(FIRST_SEED, FIRST_SEED + seeds)
    for i, name in enumerate(contenders):
        show(f"{setting.pattern}, {setting.nodes} nodes: {name}", i, len(contenders))
        made = average_jct_s(setting, (functools.partial(_policy, name, scorer), "fifo"), paired)
        jct[name] = list(made.values())
    return {
        "pattern": setting.pattern,
        "nodes": setting.nodes,
        "jobs": setting.jobs,
        "seeds": seeds,
        "avg_jct_s": {name: interval(estimate(values)) for name, values in jct.items()},
        "search_lower_than": {
            name: interval(estimate([1.0 - ours / theirs for ours, theirs in zip(jct[SEARCH], values, strict=True)]))
            for name, values in jct.items()
            if name != SEARCH
        },
    }


def _policy(name: str, scorer: SpeedScorer, simulation: Simulation) -> PlacementPolicy:
    policies = placement_policies()
    if name == ORACLE:
        return Oracle(simulation, 0, "progress")
    return search_policy(scorer, policies) if name == SEARCH else policies[name]


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
            setting = setting_of(pattern, nodes, args.jobs)
            json.dump(compare(setting, scorer, args.seeds, names), sys.stdout)
            sys.stdout.write("\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
