"""Trains the variants of Harmony's policy that its paper compares, each a bundle of its own under build/ablations.

    python -m placewise_training.policy_ablations --tasks 20000 [--only heads-1 layers-4]

Table II leaves out one technique at a time, figures 12 and 15 vary the interval, neurons, layers and heads; "ppo" and
"imitate" are other methods with the same budget. `placewise reproduce harmony --ablations` judges whichever are there.
Judges nothing itself.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from placewise_training.export_policy import export_policy
from placewise_training.policy_args import Args
from placewise_training.train_policy import train

FOLDER = Path("build/ablations")
# Everything the paper describes; the budget is the caller's.
PAPERS = Args(method="actor-critic", width=128, heads=8, layers=2)
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "all-techniques": {},
    "without-value-net": {"value": False},
    "without-exploration": {"explore": 0.0},
    "without-multi-head": {"heads": 1},
    "without-replay": {"replay": 0},
    "neurons-64": {"width": 64},
    "neurons-256": {"width": 256},
    "layers-1": {"layers": 1},
    "layers-4": {"layers": 4},
    "heads-1": {"heads": 1},
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
    """What trains it. Raises KeyError for a name VARIANTS lacks."""
    return replace(base, out=folder / name, **VARIANTS[name])


def main(arguments: Sequence[str]) -> None:
    """Trains and exports one variant after the other; what is there already goes on from its checkpoint."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", type=int, default=20_000, help="budget of each: tasks placed in simulations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--only", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--width", type=int, default=PAPERS.width, help="neurons where the variant does not say")
    args = parser.parse_args(arguments)
    base = replace(PAPERS, tasks=args.tasks, seed=args.seed, width=args.width)
    for name in args.only:
        chosen = variant(name, base, args.out)
        report = train(replace(chosen, resume=(chosen.out / "policy.pt").is_file()))
        export_policy(chosen.out, chosen.out)
        sys.stdout.write(f"{name}: {report['metrics']['validation_vs_consolidate']:.3f} × consolidate's JCT\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
