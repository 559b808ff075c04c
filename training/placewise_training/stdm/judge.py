"""What completed metrics are worth to a schedule: IAWP's throughput with two known metrics, completed ones, and all.

    python -m placewise_training.stdm.judge --run var/train/stdm --seeds 16 --card docs/models/stdm.md

Judging truth, paired seeds: the same tasks, noise and profiles for each. The result joins the report of the training
run, `stdm.json`, from which the card is written. Trains nothing.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from placewise_core.subtasks.completed_metrics import CompletedMetrics
from placewise_core.subtasks.metrics import KnownMetrics, SubtaskMetrics
from placewise_models.stdm import STDM_MODEL, StdmRuntime
from placewise_training.sim.hardware import ldwp_cluster
from placewise_training.sim.pipelines.applications import PipelineWorkload, subtask_truths
from placewise_training.sim.pipelines.choosers import BacklogEct
from placewise_training.sim.pipelines.engine import PipelineSimulation
from placewise_training.sim.pipelines.units import IawpUnits
from placewise_training.sim.statistics import Estimate, estimate
from placewise_training.stdm.card import card
from placewise_training.stdm.data import PROFILE_ERROR
from placewise_training.stdm.train import REPORT

FIRST_SEED = 10_005
_SIGMA = PROFILE_ERROR * (np.pi / 2.0) ** 0.5


def short_profiles(seed: int) -> dict[str, dict[str, float]]:
    """Two metrics of every kind, at random, with the profiler's error."""
    rng = np.random.default_rng((seed, 77))
    found = {}
    for kind, truth in subtask_truths("judge").items():
        row = truth.profile()
        chosen = [str(name) for name in rng.choice(sorted(row), 2, replace=False)]
        found[kind] = {name: _noisy(name, row[name], rng) for name in chosen}
    return found


def _noisy(name: str, value: float, rng: np.random.Generator) -> float:
    most = 99.0 if name == "speedup" else 1.0
    return float(np.clip(value * (1.0 + _SIGMA * rng.standard_normal()), 0.0, most))


def throughput(metrics: SubtaskMetrics, seed: int, tasks: int = 150) -> float:
    """Tasks a minute of one simulation of three nodes."""
    work = PipelineWorkload(tasks=tasks, per_minute=40.0, is_profiled=False).generate("judge", seed)
    units = IawpUnits(metrics)
    simulation = PipelineSimulation(ldwp_cluster(3), work, "judge", BacklogEct("judge"), units, seed=seed)
    return simulation.run().throughput_per_min


def compare(completion: StdmRuntime, seed: int, tasks: int = 150) -> Mapping[str, float]:
    """Throughput by the known metrics of the subtasks."""
    two = KnownMetrics(short_profiles(seed))
    every = KnownMetrics({kind: truth.profile() for kind, truth in subtask_truths("judge").items()})
    sources: dict[str, SubtaskMetrics] = {"two": two, "completed": CompletedMetrics(two, completion), "all": every}
    return {name: throughput(metrics, seed, tasks) for name, metrics in sources.items()}


def worth(rows: Sequence[Mapping[str, float]], tasks: int) -> dict[str, Any]:
    """Means with 95 % intervals by the known metrics, and changes against two metrics alone, paired by seed."""
    changes = {name: estimate([row[name] / row["two"] - 1.0 for row in rows]) for name in rows[0] if name != "two"}
    return {
        "seeds": len(rows),
        "tasks": tasks,
        "throughput": {name: _pair(estimate([row[name] for row in rows])) for name in rows[0]},
        "change": {name: _pair(change) for name, change in changes.items()},
    }


def _pair(value: Estimate) -> dict[str, float]:
    return {"mean": value.mean, "half_width": value.half_width}


def main(arguments: Sequence[str]) -> None:
    """Prints one JSON object per seed; their summary goes into the report of the run, and into its card."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", type=Path, default=Path("var/train/stdm"))
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--tasks", type=int, default=150)
    parser.add_argument("--card", type=Path, default=None)
    args = parser.parse_args(arguments)
    completion = StdmRuntime.opened((args.run / STDM_MODEL).read_bytes())
    rows = []
    for seed in range(FIRST_SEED, FIRST_SEED + args.seeds):
        rows.append(compare(completion, seed, args.tasks))
        json.dump({"seed": seed, **rows[-1]}, sys.stdout)
        sys.stdout.write("\n")
        sys.stdout.flush()
    path = args.run / REPORT
    report = json.loads(path.read_text("utf-8")) | {"worth": worth(rows, args.tasks)}
    path.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    if args.card is not None:
        args.card.write_text(card(report), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
