"""How well pairs on one GPU are learned from reports of progress.

    python -m placewise_training.reproduce.learned.pairs --out docs/learning/pairs.json

The truth is measured: relative speeds of pairs on an H200 (data/open/profiled_gpu_pairs.csv), and of Gavel's on V100
and K80 (data/open/gpu_pairs.csv), of those that fit into the memory. A job of a model and batch reports its speed n
times alone and n times beside its partner, each with a normal error of its logarithm of 0.05, as steps that were
measured twice differ (data/open/step_repeats.csv). Two cases: the table lacks the GPU type, as on new hardware, or has
it. In the second the rows are in the table's fit.

After 1, 3, 10, 30 and 100 reports the pair's speed is forecast. Beside the estimate stand the ratio of the mean speeds
of the same reports without shrinkage, and the shipped table. At 0 the pair has no report, but every other pair on the
GPU type has three: the normal model of co-runs answers (site_pairs.py). Errors are of relative speeds, with 95 %
intervals over pairs, which are not independent: they share models. The 90 % interval should hold the true speed.

The H200 judges: a first run on V100 and K80 showed that one report shrank too far towards the table where pairs hardly
slow each other down (0.13 of error on V100, 0.05 by the mean). The rule of pair_effects.shrunk was changed after it.
The interval was of log-odds until a run on all three: it held 47 % after 100 reports on V100, and 81 % on the H200. It
is of the speed's logarithm since.

Criteria, written down before the first run: at each number of reports the error is below that of the table and not
above that of the mean, by the paired differences, and the interval holds 85 to 95 %. The estimator's constants are
those of throughputs.py and pair_effects.py, of which the last were chosen on K80.
"""

import argparse
import csv
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from placewise_core.domain.model_names import canonical
from placewise_core.policies.profiled.tables import packaged_tables
from placewise_core.speed.completed_interference import CompletedInterference, learned_co_runs
from placewise_core.speed.interference import MeasuredInterference
from placewise_core.speed.learned.pairs import HALVING_S, LearnedPairs, PairGroup
from placewise_core.speed.learned.sums import sums_of
from placewise_training.lab.origin import origin
from placewise_training.reproduce.learned.switched import mean

_OPEN = Path(__file__).parents[2] / "data" / "open"
FILES = {"gavel_oracle_v1": "gpu_pairs.csv", "placewise_profiler": "profiled_gpu_pairs.csv"}
GPUS = {"NVIDIA H200": "placewise_profiler", "V100": "gavel_oracle_v1", "K80": "gavel_oracle_v1"}
SEEN = ("V100", "K80")
CASES = ("GPU type unknown", "GPU type known")
REPORTS = (1, 3, 10, 30, 100)
VALUES = ("learned", "mean", "shipped")
SEED, _NOISE, _OF_OTHERS = 98_500, 0.05, 3


@dataclass(frozen=True, slots=True)
class PairTruth:
    """A model and batch beside a partner: its group, and its relative speed."""

    group: PairGroup
    speed: float


@dataclass(frozen=True, slots=True)
class PairGuess:
    """The errors |value − true speed| of three values, and whether the interval contains the true speed."""

    errors: tuple[float, float, float]
    is_inside: bool


def truths(gpu: str) -> list[PairTruth]:
    """One for each ordered pair of models, at the first batches that the file has of them."""
    found: dict[tuple[str, str], PairTruth] = {}
    with (_OPEN / FILES[GPUS[gpu]]).open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["source"] != GPUS[gpu] or row["gpu_type"] != gpu:
                continue
            sides = (("a", "b"), ("b", "a")) if row["model_a"] != row["model_b"] else (("a", "b"),)
            for mine, other in sides:
                model, partner, speed = (
                    canonical(row[f"model_{mine}"]),
                    canonical(row[f"model_{other}"]),
                    float(row[f"norm_{mine}"]),
                )
                if speed > 0:
                    group = PairGroup(model, canonical(gpu), int(row[f"batch_{mine}"] or 0), partner)
                    found.setdefault((model, partner), PairTruth(group, min(1.0, speed)))
    return list(found.values())


def add_reports(known: LearnedPairs, truth: PairTruth, reports: int, rng: np.random.Generator) -> None:
    """So many reports alone, and as many beside the partner."""
    alone = replace(truth.group, partner="")
    for _ in range(reports):
        for group, at in ((alone, 0.0), (truth.group, math.log(truth.speed))):
            row = sums_of(known.row(group.kind)).added(at + _NOISE * float(rng.standard_normal()), 0.0, HALVING_S)
            known.learn(group.kind, row.row)


def guesses(gpu: str, table: MeasuredInterference, reports: int, seed: int) -> Iterator[PairGuess]:
    """Of every pair, each of a cluster of its own."""
    for i, truth in enumerate(truths(gpu)):
        known = LearnedPairs()
        add_reports(known, truth, reports, np.random.default_rng((seed, i)))
        (cell,) = known.cells()
        (shown,) = learned_co_runs([cell], table)
        values = (shown.relative_speed, cell.speed, shown.shipped)
        off = [abs(value - truth.speed) for value in values]
        yield PairGuess((off[0], off[1], off[2]), shown.low <= truth.speed <= shown.high)


def of_others(gpu: str, table: MeasuredInterference, seed: int) -> Iterator[tuple[float, float]]:
    """|forecast − true speed| of every pair without a report, by the reports of all others, and by the table."""
    every = truths(gpu)
    for i, truth in enumerate(every):
        known, rng = LearnedPairs(), np.random.default_rng((seed, 1, i))
        models = {truth.group.model, truth.group.partner}
        for other in every:
            if {other.group.model, other.group.partner} != models:
                add_reports(known, other, _OF_OTHERS, rng)
        asked = (truth.group.model, [truth.group.partner], gpu)
        forecast = CompletedInterference(table, known.known, None).relative_speed(*asked)
        yield abs(forecast - truth.speed), abs(table.relative_speed(*asked) - truth.speed)


def table_for(case: str, gpu: str) -> MeasuredInterference:
    """The shipped table, without the GPU type if the case says so."""
    table = packaged_tables().interference
    if case == CASES[1]:
        return table
    left = {name: pairs for name, pairs in table.pairs.items() if name != gpu}
    default = {name: table.default[name] for name in left}
    fallback = table.fallback_gpu if table.fallback_gpu in left else next(iter(left))
    return MeasuredInterference(left, default, fallback, {name: table.step_s[name] for name in left})


def errors(case: str, gpu: str) -> list[dict[str, Any]]:
    """A row for each number of reports."""
    table = table_for(case, gpu)
    others = list(of_others(gpu, table, SEED))
    head: Mapping[str, Any] = {"case": case, "gpu": gpu, "pairs": len(others)}
    zero = {"reports": 0, "learned": mean([a for a, _ in others]), "shipped": mean([b for _, b in others])}
    rows = [{**head, **zero, "learned_less_shipped": mean([a - b for a, b in others])}]
    for reports in REPORTS:
        found = list(guesses(gpu, table, reports, SEED))
        row: dict[str, Any] = {**head, "reports": reports}
        for i, name in enumerate(VALUES):
            row[name] = mean([each.errors[i] for each in found])
            if i:
                row[f"learned_less_{name}"] = mean([each.errors[0] - each.errors[i] for each in found])
        row["inside"] = round(float(np.mean([each.is_inside for each in found])), 3)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    report = {
        "commit": origin()["commit"],
        "errors": [row for case in CASES for gpu in (GPUS if case == CASES[0] else SEEN) for row in errors(case, gpu)],
    }
    arguments.out.write_text(json.dumps(report, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=1, sort_keys=True))


if __name__ == "__main__":
    main()
