"""The plot of the demonstration: completion times before and after beside consolidate and the oracle, and each act's
estimate beside the gain that was realised."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from placewise_training.sim.statistics import estimate

mpl.use("Agg")
_BARS = (("search", "before"), ("search", "after"), ("consolidate", "before"), ("oracle", "before"))
_LABELS = ("before", "after", "consolidate", "oracle")


def draw(steps: Sequence[Mapping[str, Any]], path: Path) -> None:
    """`steps` are those of the report."""
    acts = [act for act in dict.fromkeys(step["act"] for step in steps) if _step(steps, act, "fresh jobs after")]
    figure = Figure(figsize=(5.5 * max(1, len(acts)), 6.5), layout="constrained")
    axes = figure.subplots(2, max(1, len(acts)), squeeze=False)
    for column, act in enumerate(acts):
        _times(axes[0, column], steps, act)
        _gains(axes[1, column], steps, act)
    figure.savefig(path, dpi=120)


def _times(axis: Axes, steps: Sequence[Mapping[str, Any]], act: str) -> None:
    """Mean JCT over that before, by window, with 95 % intervals."""
    jct_s = {when: _step(steps, act, f"fresh jobs {when}")["numbers"]["jct_s"] for when in ("before", "after")}
    before = np.array(jct_s["before"]["search"])
    ratios = [estimate(list(np.array(jct_s[when][name]) / before)) for name, when in _BARS]
    axis.bar(_LABELS, [each.mean for each in ratios], yerr=[each.half_width for each in ratios], capsize=4)
    axis.axhline(1.0, color="black", linewidth=0.8)
    verdict = _step(steps, act, "change of mean JCT")["verdict"]
    axis.set_title(f"{act.partition(' (')[0]}: the candidate was {verdict}")
    axis.set_ylabel("mean JCT of fresh jobs over that before")


def _gains(axis: Axes, steps: Sequence[Mapping[str, Any]], act: str) -> None:
    numbers = _step(steps, act, "estimate and what happened")["numbers"]
    for place, name in enumerate(("estimated", "realised")):
        if name in numbers:
            low, high = numbers[f"{name}_interval"]
            axis.errorbar(
                [place], [numbers[name]], yerr=[[numbers[name] - low], [high - numbers[name]]], fmt="o", capsize=5
            )
    axis.axhline(0.0, color="black", linewidth=0.8)
    axis.set_xticks([0, 1], ["estimated\nfrom the log", "realised\non later jobs"])
    axis.set_xlim(-0.5, 1.5)
    axis.set_ylabel("gain of one decision: jobs' work in 20 min")


def _step(steps: Sequence[Mapping[str, Any]], act: str, name: str) -> Mapping[str, Any]:
    return next((step for step in steps if step["act"] == act and step["name"] == name), {})
