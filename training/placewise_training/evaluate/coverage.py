"""How often intervals hold the truth: each estimator on many synthetic logs, light and heavy weights, three ESS.

    python -m placewise_training.evaluate.coverage --out docs/evaluation/coverage.json

Per estimator, of the value and of the gain over the incumbent: bias and spread of the estimate, coverage and mean width
of the 95 % intervals. docs/evaluate.md shows the table.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from placewise_training.evaluate.estimators import Estimated, estimates
from placewise_training.evaluate.intervals import (
    BlockSums,
    Interval,
    drawn_blocks,
    empirical_bernstein,
    percentile,
    studentised,
)
from placewise_training.evaluate.regression import cross_fitted
from placewise_training.evaluate.synthetic import REWARD_BOUND, TRUE_GAIN, TRUE_VALUE, WEIGHTS, Weights, synthetic_log
from placewise_training.lab.origin import origin

ESS = (100, 300, 1000)
LOGS = 1000
# The symmetric bootstrap-t was chosen among eleven intervals on the logs of seeds 0 to 1,999.
FIRST_SEED = 1_000_000
# Bounds of the coverage of IPS, SNIPS and DR.
LEAST, MOST = 0.92, 0.98
_RESAMPLES = 1000
_TITLES = {"studentised": "bootstrap-t", "percentile": "percentile", "empirical_bernstein": "empirical Bernstein"}


@dataclass(slots=True)
class Tally:
    """Errors of one estimator, and the intervals of each kind, less the truth."""

    errors: list[float] = field(default_factory=list)
    intervals: dict[str, list[Interval]] = field(default_factory=lambda: defaultdict(list))

    def add(self, value: float, truth: float, intervals: dict[str, Interval]) -> None:
        self.errors.append(value - truth)
        for name, (low, high) in intervals.items():
            self.intervals[name].append(Interval(low - truth, high - truth))

    def as_json(self) -> dict[str, Any]:
        found = {
            name: {
                "coverage": float(np.mean([one.holds(0.0) for one in intervals])),
                "mean_width": float(np.mean([one.width for one in intervals])),
            }
            for name, intervals in self.intervals.items()
        }
        return {"bias": float(np.mean(self.errors)), "spread": float(np.std(self.errors)), "intervals": found}


def measured(weights: Weights, ess: float, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Rows of one setting: one per estimator and quantity."""
    tallies: dict[tuple[str, str], Tally] = defaultdict(Tally)
    for seed in seeds:
        log = synthetic_log(weights, ess, seed)
        forecast = cross_fitted(log)
        counts = drawn_blocks(len(np.unique(log.block)), _RESAMPLES, seed)
        for ours, theirs in zip(estimates(log, forecast), estimates(log.of_incumbent(), forecast), strict=True):
            value = BlockSums.of(ours, log.block)
            tallies[ours.name, "value"].add(ours.value, TRUE_VALUE, _intervals(value, counts, ours))
            gain = BlockSums.of(ours, log.block, theirs)
            found = _intervals(gain, counts, ours, theirs)
            tallies[ours.name, "gain"].add(ours.value - theirs.value, TRUE_GAIN, found)
    return [{"estimator": name, "of": what, **tally.as_json()} for (name, what), tally in tallies.items()]


def _intervals(
    sums: BlockSums, counts: np.ndarray[Any, np.dtype[np.float64]], ours: Estimated, theirs: Estimated | None = None
) -> dict[str, Interval]:
    found = {"studentised": studentised(sums, counts), "percentile": percentile(sums, counts)}
    if ours.span is not None:
        rounds, span = ours.rounds, ours.span
        if theirs is not None and theirs.span is not None:
            rounds, span = rounds - theirs.rounds, span + theirs.span
        found["empirical_bernstein"] = empirical_bernstein(rounds, span * REWARD_BOUND)
    return found


def table(report: dict[str, Any]) -> str:
    """The report's rows in Markdown."""
    head = "| weights | ESS | decisions | estimator | of | bias | spread |" + "".join(
        f" {title} |" for title in _TITLES.values()
    )
    lines = [head, "|---|---|---|---|---|" + "---|" * (2 + len(_TITLES))]
    for setting in report["settings"]:
        for row in setting["rows"]:
            cells = [
                f"{cell['coverage']:.1%} ({cell['mean_width']:.3f})" if cell else "–"
                for cell in (row["intervals"].get(name) for name in _TITLES)
            ]
            start = [setting["weights"], setting["ess"], setting["decisions"], row["estimator"], row["of"]]
            numbers = [f"{row['bias']:+.4f}", f"{row['spread']:.4f}", *cells]
            lines.append("| " + " | ".join([*map(str, start), *numbers]) + " |")
    return "\n".join(lines)


def missed(report: dict[str, Any]) -> list[str]:
    """The rows that are outside the criteria: of IPS, SNIPS and DR, bootstrap-t outside 92 to 98 % or empirical
    Bernstein below 95 %."""
    found = []
    for setting in report["settings"]:
        for row in setting["rows"]:
            if row["estimator"] not in ("ips", "snips", "doubly_robust"):
                continue
            where = f"{setting['weights']}, ESS {setting['ess']}, {row['estimator']}, {row['of']}"
            held = row["intervals"]["studentised"]["coverage"]
            if not LEAST <= held <= MOST:
                found.append(f"{where}: bootstrap-t {held:.1%}")
            bernstein = row["intervals"].get("empirical_bernstein")
            if bernstein and bernstein["coverage"] < 0.95:
                found.append(f"{where}: empirical Bernstein {bernstein['coverage']:.1%}")
    return found


def main(arguments: Sequence[str]) -> None:
    """Writes the report and prints its table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--logs", type=int, default=LOGS, help="synthetic logs of each setting")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    asked = parser.parse_args(arguments)
    seeds = range(asked.first_seed, asked.first_seed + asked.logs)
    report: dict[str, Any] = {
        "commit": origin()["commit"],
        "command": " ".join(["python -m placewise_training.evaluate.coverage", *arguments]),
        "logs": asked.logs,
        "first_seed": asked.first_seed,
        "truth": {"value": TRUE_VALUE, "gain": TRUE_GAIN},
        "settings": [],
    }
    for name, weights in WEIGHTS.items():
        for ess in ESS:
            rows = measured(weights, ess, seeds)
            setting = {"weights": name, "ess": ess, "decisions": round(ess * weights.mean_square), "rows": rows}
            report["settings"].append(setting)
            print(f"{name}, ESS {ess}: done", file=sys.stderr, flush=True)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    print(table(report))
    print("\n".join(missed(report)) or "every criterion holds")


if __name__ == "__main__":
    main(sys.argv[1:])
