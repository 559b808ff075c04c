"""The table and the plot of judged scenarios: how much longer jobs take than under `consolidate`, by factor.

    python -m placewise_training.unseen.report --plot docs/unseen.png FILE.jsonl … > table.md

The figure of a scenario is the logarithm of a policy's mean JCT over that of `consolidate`, times 100: about a
percentage, and symmetric.
"""

import argparse
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import ttest_1samp

from placewise_core.basics.frozen import frozen
from placewise_training.sim.statistics import Estimate, estimate
from placewise_training.unseen.judge import LEARNING, ORACLES, PLAYERS, lines

BASELINE, BETTER = "consolidate", "better oracle"
_WORST, _FEWEST = 10, 3
_ROUNDED = 1e-3  # the first lines of docs/unseen.jsonl have six digits
_WANTED, _BOUND = -5.0, -3.0  # of the default: its mean, and the upper bound of the interval
_OTHERS = {"95th percentile of JCT": "p95", "slowdown": "avg_slowdown"}


@frozen
class ScenarioRow:
    """One scenario: its levels by factor, and 100 × the log ratio of mean JCT to `consolidate`, by player."""

    number: int
    levels: Mapping[str, str]
    ratios: Mapping[str, float]


def rows(paths: Sequence[Path], metric: str = "avg_jct_s") -> list[ScenarioRow]:
    """The scenarios of all files, by number; players of the same scenario in several files are brought together. The
    ratios are of the metric."""
    levels: dict[int, Mapping[str, str]] = {}
    players: dict[int, dict[str, Mapping[str, float]]] = {}
    for line in (line for path in paths for line in lines(path)):
        number = int(line["scenario"]["number"])
        levels[number] = line["levels"]
        players.setdefault(number, {}).update(line["players"])
    return [ScenarioRow(n, levels[n], _ratios(players[n], metric)) for n in sorted(players) if BASELINE in players[n]]


def _ratios(players: Mapping[str, Mapping[str, float]], metric: str) -> dict[str, float]:
    usual = players[BASELINE].get(metric, 0.0)
    return {
        name: 100.0 * math.log(metrics[metric] / usual)
        for name, metrics in players.items()
        if name != BASELINE and usual > 0 and metrics.get(metric, 0.0) > 0
    }


def summary(found: Sequence[ScenarioRow], player: str) -> Estimate | None:
    """The mean over the scenarios that the player has played; None below three."""
    values = [row.ratios[player] for row in found if player in row.ratios]
    return estimate(values) if len(values) >= _FEWEST else None


def paired(found: Sequence[ScenarioRow], player: str, other: str) -> Estimate | None:
    """The player against another one, over the scenarios that both have played; None below three."""
    values = [row.ratios[player] - row.ratios[other] for row in found if {player, other} <= row.ratios.keys()]
    return estimate(values) if len(values) >= _FEWEST else None


def alike(found: Sequence[ScenarioRow], player: str) -> tuple[int, int]:
    """In how many scenarios the jobs took as long as under `consolidate`, and how many the player has played."""
    values = [row.ratios[player] for row in found if player in row.ratios]
    return sum(abs(value) < _ROUNDED for value in values), len(values)


def with_better_oracle(found: Sequence[ScenarioRow]) -> list[ScenarioRow]:
    """The rows. Those that both oracles have played get a further player, the shorter of the two."""
    return [
        replace(row, ratios={**row.ratios, BETTER: min(row.ratios[oracle] for oracle in ORACLES)})
        if ORACLES.keys() <= row.ratios.keys()
        else row
        for row in found
    ]


def criterion(found: Sequence[ScenarioRow], player: str) -> str:
    """Markdown: the criterion of the default, by the letter. The mean is −5 or less with an upper bound below −3, or at
    least half of the gap from `consolidate` to the better oracle where this gap is smaller. A row for each way to read
    "the better oracle"."""
    reached = summary(found, player)
    if reached is None:
        return ""
    is_met = reached.mean <= _WANTED and reached.high < _BOUND
    written = [
        f"`{player}`: {_shown(reached)}, upper bound {_signed(reached.high)}: "
        f"{'as wanted' if is_met else 'not as wanted'} (mean −5 or less, upper bound below −3).\n",
        f"| gap to | n | gap | half of it | `{player}` there | `{player}` less that half | where the gap is below 5 |",
        "|---|---|---|---|---|---|---|",
    ]
    both = [row for row in found if {BETTER, player} <= row.ratios.keys()]
    if len(both) < _FEWEST:
        return "\n".join([written[0], "No gap: the oracles have played too few scenarios."])
    for title, gaps in _gaps(both).items():
        own = [row.ratios[player] for row in both]
        gap, beyond = estimate(gaps), estimate([mine - each / 2.0 for mine, each in zip(own, gaps, strict=True)])
        verdict = "it is not" if gap.mean <= _WANTED else "half is reached" if beyond.mean <= 0 else "half is missed"
        cells = [_shown(gap), _signed(gap.mean / 2.0), _shown(estimate(own)), _shown(beyond), verdict]
        written.append(f"| {title} | {len(both)} | " + " | ".join(cells) + " |")
    return "\n".join(written)


def _gaps(both: Sequence[ScenarioRow]) -> Mapping[str, Sequence[float]]:
    """By title, of each scenario that both oracles have played."""
    best = min(ORACLES, key=lambda oracle: sum(row.ratios[oracle] for row in both))
    return {
        f"`{best}`, the better one in the mean": [row.ratios[best] for row in both],
        "the better oracle of each scenario": [row.ratios[BETTER] for row in both],
        f"the better oracle of each scenario, or `{BASELINE}`": [min(0.0, row.ratios[BETTER]) for row in both],
    }


def _shown(value: Estimate) -> str:
    return f"{_signed(value.mean)} ± {value.half_width:.2f}"


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def against(found: Sequence[ScenarioRow], others: Sequence[str]) -> str:
    """Markdown: the learning policy against each of the others, paired by scenario, and how often it equals the
    baseline."""
    written = [f"| `{LEARNING}` against | n | |", "|---|---|---|"]
    for other in others:
        n = sum({LEARNING, other} <= row.ratios.keys() for row in found)
        value = paired(found, LEARNING, other)
        written.append(f"| `{other}` | {n} | {'–' if value is None else _shown(value)} |")
    equal, played = alike(found, LEARNING)
    written.append(f"\nAs long as under `{BASELINE}`: {equal} of {played} scenarios.")
    return "\n".join(written)


def worst_level(found: Sequence[ScenarioRow], player: str, most: float = 1.0) -> float:
    """Largest p over the levels of all factors, each against a mean above `most` in one-sided t-tests, by Holm."""
    tested = []
    for factor in found[0].levels:
        for level in _levels(found, factor):
            values = [row.ratios[player] for row in found if row.levels[factor] == level and player in row.ratios]
            tested.append(
                float(ttest_1samp(values, most, alternative="less").pvalue) if len(values) >= _FEWEST else 1.0
            )
    return max(min(1.0, p * (len(tested) - i)) for i, p in enumerate(sorted(tested)))


def table(found: Sequence[ScenarioRow], players: Sequence[str], others: Mapping[str, Sequence[ScenarioRow]]) -> str:
    """Markdown: a line for all, one for each level of each factor, one over all of each of `others`, by title, and the
    tail of the scenarios."""
    written = ["| | n | " + " | ".join(f"`{player}`" for player in players) + " |", "|---|---|" + "---|" * len(players)]
    written.append(_line("all", found, players))
    for factor in found[0].levels:
        for level in _levels(found, factor):
            written.append(_line(f"{factor}: {level}", [row for row in found if row.levels[factor] == level], players))
    written.extend([_line(title, other, players) for title, other in others.items()])
    tails = [_tail([row.ratios[player] for row in found if player in row.ratios]) for player in players]
    written.append("| 95th percentile of the scenarios | | " + " | ".join(tails) + " |")
    return "\n".join(written)


def _levels(found: Sequence[ScenarioRow], factor: str) -> list[str]:
    """Ascending: those that begin with a number by that number."""
    return sorted({row.levels[factor] for row in found}, key=lambda level: (_number(level), level))


def _number(level: str) -> int:
    digits = re.search(r"\d+", level)
    return int(digits[0]) if digits else -1


def _line(title: str, found: Sequence[ScenarioRow], players: Sequence[str]) -> str:
    cells = [_cell(found, player) for player in players]
    return f"| {title} | {len(found)} | " + " | ".join(cells) + " |"


def _cell(found: Sequence[ScenarioRow], player: str) -> str:
    """The number of scenarios follows if the player has not played all."""
    value, played = summary(found, player), sum(player in row.ratios for row in found)
    few = f" ({played})" if played < len(found) else ""
    return "–" if value is None else f"{value.mean:+.1f} ± {value.half_width:.1f}{few}".replace("-", "−")


def _tail(values: Sequence[float]) -> str:
    return f"{float(np.quantile(values, 0.95)):+.1f}" if len(values) >= 20 else "–"


def worst(found: Sequence[ScenarioRow], player: str) -> list[ScenarioRow]:
    """The scenarios in which the player loses most."""
    return sorted((row for row in found if player in row.ratios), key=lambda row: -row.ratios[player])[:_WORST]


def plot(found: Sequence[ScenarioRow], players: Sequence[str], factor: str, path: Path) -> None:
    """Means with their intervals by level of one factor, a colour for each player."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    levels = _levels(found, factor)
    width = 0.8 / len(players)
    for i, player in enumerate(players):
        means = [summary([row for row in found if row.levels[factor] == level], player) for level in levels]
        at = [k + (i - (len(players) - 1) / 2) * width for k, mean in enumerate(means) if mean is not None]
        shown: Sequence[Any] = [mean for mean in means if mean is not None]
        axes.bar(at, [m.mean for m in shown], width, yerr=[m.half_width for m in shown], capsize=3, label=player)
    axes.axhline(0.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(levels)), levels)
    axes.set_xlabel(factor)
    axes.set_ylabel(f"JCT against {BASELINE}, 100 × log ratio")
    figure.legend(loc="outside right upper")
    figure.savefig(path, dpi=110, metadata={"Software": None})


def main(arguments: Sequence[str]) -> None:
    """Prints the table, and the worst scenarios of each learned policy."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+", help="what placewise_training.unseen.judge wrote")
    parser.add_argument("--plot", type=Path, default=None, help="file of the plot, by contention")
    args = parser.parse_args(arguments)
    found = with_better_oracle(rows(args.files))
    if not found:
        raise SystemExit(f"no scenario with {BASELINE} in these files")
    players = [player for player in (*PLAYERS, BETTER) if any(player in row.ratios for row in found)]
    print(table(found, players, {title: rows(args.files, metric) for title, metric in _OTHERS.items()}))
    if BETTER in players:
        players.remove(BETTER)
    print("\nLargest p of any level, by Holm, that its mean is above +1:")
    print("\n".join([f"`{player}`: {worst_level(found, player):.2g}" for player in players]))
    if LEARNING in players:
        print("\n" + against(found, [player for player in players if player != LEARNING]))
        print("\n" + criterion(found, LEARNING))
    for player in players:
        named = ", ".join(f"{row.number} ({row.ratios[player]:+.0f})" for row in worst(found, player))
        print(f"\nWorst of `{player}`: {named}")
    if args.plot is not None:
        plot(found, players, "contention", args.plot)


if __name__ == "__main__":
    main(sys.argv[1:])
