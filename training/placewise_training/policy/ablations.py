"""Trains the variants of Harmony's policy that its paper compares, each a bundle of its own under build/ablations.

    python -m placewise_training.policy.ablations --tasks 10000 --seeds 3 [--only heads-4 layers-2]

Table II leaves out one technique at a time, figures 12 and 15 vary the interval, neurons, layers and heads; "ppo" and
"imitate" are other methods with the same budget. Each is trained once per seed, under VARIANT/SEED, one seed of all
before the next, so that an interrupted run leaves comparable variants. `placewise reproduce harmony --ablations` judges
those that are there. Judges nothing itself.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from placewise_training.policy.args import Args
from placewise_training.policy.checkpoint import CHECKPOINT
from placewise_training.policy.export import export_policy
from placewise_training.policy.train import train

FOLDER = Path("build/ablations")
# The paper's method on a smaller budget than the paper's: a faster Adam, two steps per interval instead of one,
# rounds of four simulations, and a tenth of its entropy weight, under which so short a training would stay near chance.
# Width and layers are those of the net that ships.
PAPERS = Args(
    method="actor-critic",
    width=64,
    heads=8,
    layers=1,
    rate=5e-4,
    updates=2,
    entropy=0.05,
    simulations=4,
    validate_every=5,
    judged_seeds=0,  # `placewise reproduce harmony --ablations` judges
)
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "all-techniques": {},
    "without-value-net": {"value": False},
    "without-exploration": {"explore": 0.0},
    "without-multi-head": {"heads": 1},
    "without-replay": {"replay": 0},
    "neurons-32": {"width": 32},
    "neurons-128": {"width": 128},
    "layers-2": {"layers": 2},
    "layers-4": {"layers": 4},
    "heads-4": {"heads": 4},
    "heads-32": {"heads": 32},
    "interval-10": {"interval_s": 600.0},
    "interval-40": {"interval_s": 2400.0},
    "interval-70": {"interval_s": 4200.0},
    "ppo": {"method": "ppo"},
    "imitate": {"method": "imitate"},
    "imitate-reward-model": {"method": "imitate", "teacher": "reward"},
    "imitate-then-actor-critic": {"method": "imitate+actor-critic"},
    "imitate-then-ppo": {"method": "imitate+ppo"},
}


def variant(name: str, base: Args, folder: Path) -> Args:
    """What trains it with the seed of `base`. Raises KeyError for a name VARIANTS lacks."""
    return replace(base, out=folder / name / str(base.seed), **VARIANTS[name])


def main(arguments: Sequence[str]) -> None:
    """Trains and exports one variant after the other; a variant that was begun goes on from its checkpoint."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", type=int, default=10_000, help="budget of each: tasks placed in simulations")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--only", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    args = parser.parse_args(arguments)
    for seed in range(args.seeds):
        for name in args.only:
            chosen = variant(name, replace(PAPERS, tasks=args.tasks, seed=seed), args.out)
            report = train(replace(chosen, resume=(chosen.out / CHECKPOINT).is_file()))
            export_policy(chosen.out, chosen.out)
            best = report["metrics"]["validation_vs_consolidate"]
            sys.stdout.write(f"{name}, seed {seed}: {best:.3f} × consolidate's JCT\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
