"""Runs with a learning setting off and on, beside each other, and the report that has them. Plays nothing."""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from placewise_training.lab.origin import origin
from placewise_training.sim.divisible import HeatResult
from placewise_training.sim.statistics import Estimate, estimate, paired_change

Part = Callable[[Sequence[int]], Any]


def mean(values: Sequence[float]) -> list[float]:
    """Mean, and half of its 95 % interval."""
    return shown(estimate(values))


def shown(value: Estimate) -> list[float]:
    return [round(value.mean, 4), round(value.half_width, 4)]


def off_and_on(off: Sequence[HeatResult], on: Sequence[HeatResult]) -> dict[str, list[float]]:
    """Of equal seeds: mean completion, and the share of node-time above the limit."""
    change = paired_change([each.avg_completion_s for each in on], [each.avg_completion_s for each in off])
    over = [[each.over_limit_s / (each.makespan_s * len(each.peak_by_node)) for each in some] for some in (off, on)]
    return {
        "completion_off_s": mean([each.avg_completion_s for each in off]),
        "completion_on_s": mean([each.avg_completion_s for each in on]),
        "completion_change": shown(change),
        "over_limit_off": mean(over[0]),
        "over_limit_on": mean(over[1]),
        "over_limit_difference": mean([b - a for a, b in zip(*over, strict=True)]),
    }


def report(
    doc: str | None, errors: Part, tasks: Part, seeds: Sequence[Sequence[int]], choice: Sequence[Sequence[int]]
) -> None:
    """The command of a reproduction. `seeds` are of errors and of tasks, `choice` for choosing constants."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", choices=("errors", "tasks"), help="one of the two; both if it is left out")
    parser.add_argument("--choose", action="store_true", help="on the seeds for choosing constants")
    arguments = parser.parse_args()
    of_errors, of_tasks = choice if arguments.choose else seeds
    found: dict[str, Any] = {"commit": origin()["commit"]}
    if arguments.part != "tasks":
        found["errors"] = errors(of_errors)
    if arguments.part != "errors":
        found["tasks"] = tasks(of_tasks)
    text = json.dumps(found, indent=1, sort_keys=True)
    arguments.out.write_text(text + "\n", encoding="utf-8")
    print(text)
