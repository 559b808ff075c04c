"""Compares orders of the queue under one placement, `consolidate`: that of `harmony`, the shortest declared first, and
first come, first served. Trains nothing.

    python -m placewise_training.reproduce.harmony.orders --out docs/orders.jsonl
    python -m placewise_training.reproduce.harmony.orders --table docs/orders.jsonl

Harmony's six servers and three patterns, with a decision every 20 minutes; jobs behind one that does not fit may start.
A line of JSON has one pattern and seed. All orders get the same jobs and noise there. Lengths are declared exactly, off
by a factor e^(0.7 · N(0, 1)), or not at all. Nothing was trained or chosen on these seeds.
"""

import argparse
import functools
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from placewise_core.basics.frozen import frozen
from placewise_core.gang.policy import PlacementPolicy
from placewise_training.lab.compare import PATTERNS, OrderedBy, Setting
from placewise_training.lab.origin import origin
from placewise_training.lab.work.asked import add_option, workers_of
from placewise_training.lab.work.workers import Here, Workers
from placewise_training.reproduce.harmony.runs import CONSOLIDATE, HARMONY, misdeclared
from placewise_training.sim.arrivals import INTERVAL_S
from placewise_training.sim.discipline import Discipline, Order
from placewise_training.sim.gangs.engine import SimOptions, Simulation
from placewise_training.sim.hardware import harmony_cluster
from placewise_training.sim.policies import placement_policy
from placewise_training.sim.statistics import Estimate, estimate
from placewise_training.sim.truths import make_truth

FIRST_SEED, SEEDS = 300_000, 100
LENGTHS: Mapping[str, float | None] = {"exact": 0.0, "off by σ = 0.7": 0.7, "unknown": None}
LEARNED, OTHERS = "learned", ("declared", "fifo")
_ORDERS: Mapping[str, Order] = {LEARNED: "policy", "declared": "declared", "fifo": "fifo"}
_METRICS = ("avg_jct_s", "p95")
_MODULE = "placewise_training.reproduce.harmony.orders"

Runs = Mapping[str, Mapping[str, Mapping[str, float]]]


@frozen
class OrderWindow:
    """One pattern and seed; `runs` has the metrics by lengths and order."""

    pattern: str
    seed: int
    runs: Runs


def play(setting: Setting, order: str, sigma: float | None, seed: int) -> dict[str, float]:
    """One run. Raises ValueError if not all jobs have ended."""
    truth = make_truth("judge", seed)
    options = SimOptions(
        discipline=Discipline(every_s=INTERVAL_S, order=_ORDERS[order]),
        belief=make_truth("train", seed).sharing,
        reports_progress=True,
    )
    jobs = misdeclared(setting.workload.generate(truth, seed), sigma, seed)
    policy = _policy(order)
    metrics = Simulation(harmony_cluster(setting.nodes), jobs, truth, policy, options=options, seed=seed).run().metrics
    if metrics.unfinished:
        raise ValueError(f"{metrics.unfinished} jobs of {setting.pattern}, seed {seed}, did not end in order {order}")
    return {name: metrics.as_dict()[name] for name in _METRICS}


def _policy(order: str) -> PlacementPolicy:
    placing = placement_policy(CONSOLIDATE)
    return OrderedBy(placing, placement_policy(HARMONY)) if order == LEARNED else placing


def window(asked: tuple[str, int], jobs: int) -> OrderWindow:
    """All orders and lengths of one pattern and seed. First come, first served reads no lengths. The shortest declared
    first is the same order if no job declares a length. Such runs are not made again."""
    pattern, seed = asked
    setting = Setting(pattern, per_interval=PATTERNS[pattern], jobs=jobs)
    fifo = play(setting, "fifo", 0.0, seed)
    runs = {
        lengths: {
            LEARNED: play(setting, LEARNED, sigma, seed),
            "declared": fifo if sigma is None else play(setting, "declared", sigma, seed),
            "fifo": fifo,
        }
        for lengths, sigma in LENGTHS.items()
    }
    return OrderWindow(pattern, seed, runs)


def run(
    wanted: Iterable[tuple[str, int]], out: Path, made_by: Mapping[str, Any], jobs: int, workers: Workers | None = None
) -> None:
    """Appends a line for each pattern and seed that `out` lacks."""
    done = {(each.pattern, each.seed) for each in windows(out)}
    left = [each for each in wanted if each not in done]
    with out.open("a", encoding="utf-8") as file:
        for made in (workers or Here()).mapped(functools.partial(window, jobs=jobs), left):
            line = {**made_by, "pattern": made.pattern, "seed": made.seed, "jobs": jobs, "runs": made.runs}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            file.flush()


def windows(path: Path) -> list[OrderWindow]:
    """Those of a file; none if there is no file."""
    text = path.read_text("utf-8") if path.exists() else ""
    read = [json.loads(line) for line in text.splitlines()]
    return [OrderWindow(each["pattern"], each["seed"], each["runs"]) for each in read]


def change(found: Sequence[OrderWindow], lengths: str, other: str, metric: str) -> Estimate:
    """100 × the log ratio of the learned order to another one, paired by window: about per cent."""
    return estimate(
        [100.0 * math.log(each.runs[lengths][LEARNED][metric] / each.runs[lengths][other][metric]) for each in found]
    )


def better(found: Sequence[OrderWindow], lengths: str) -> str:
    """The order with the shorter JCT of the two that learn nothing; "equal" if no job declares a length."""
    means = {other: change(found, lengths, other, "avg_jct_s").mean for other in OTHERS}
    return "equal" if len(set(means.values())) == 1 else max(means, key=means.__getitem__)


def table(found: Sequence[OrderWindow]) -> str:
    """Markdown: mean JCT and its 95th percentile in intervals of 20 minutes, and the changes by the learned order."""
    written = []
    for title, metric in (("mean JCT", "avg_jct_s"), ("95th percentile of JCT", "p95")):
        written += [
            f"| {title} | lengths | n | `harmony`'s | declared | fifo | against declared | against fifo | the better |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for pattern in (*PATTERNS, "all"):
            part = [each for each in found if pattern in (each.pattern, "all")]
            written += [_row(pattern, lengths, part, metric) for lengths in LENGTHS if len(part) > 1]
        written.append("")
    return "\n".join(written[:-1])


def _row(pattern: str, lengths: str, part: Sequence[OrderWindow], metric: str) -> str:
    means = [estimate([each.runs[lengths][order][metric] for each in part]).mean / INTERVAL_S for order in _ORDERS]
    changes = [change(part, lengths, other, metric) for other in OTHERS]
    cells = [f"{mean:.2f}" for mean in means] + [_shown(value) for value in changes] + [better(part, lengths)]
    return f"| {pattern} | {lengths} | {len(part)} | " + " | ".join(cells) + " |"


def _shown(value: Estimate) -> str:
    return f"{value.mean:+.1f} ± {value.half_width:.1f}".replace("-", "−")


def main(arguments: Sequence[str]) -> None:
    """Plays the missing windows, or prints the table of a file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made = parser.add_mutually_exclusive_group(required=True)
    made.add_argument("--out", type=Path, help="file of one JSON object per pattern and seed, appended to")
    made.add_argument("--table", type=Path, help="print the table of this file")
    parser.add_argument("--patterns", nargs="+", choices=list(PATTERNS), default=list(PATTERNS))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--processes", type=int, default=1)
    add_option(parser)
    args = parser.parse_args(arguments)
    if args.table is not None:
        print(table(windows(args.table)))
        return
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    command = " ".join(["python -m", _MODULE, *arguments])
    with workers_of(args.ray, args.processes) as workers:
        wanted = [(pattern, seed) for seed in seeds for pattern in args.patterns]
        run(wanted, args.out, {"commit": origin()["commit"], "command": command}, args.jobs, workers)


if __name__ == "__main__":
    main(sys.argv[1:])
