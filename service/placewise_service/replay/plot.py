"""The picture of a replay: four panels, one line per policy. Draws to a file, never to a screen."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
from matplotlib import pyplot as plt

from placewise_service.replay.summary import ReplayFigures, Series

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # distinct for colour-blind readers too
_LINES = ("-", "--", "-.", ":")
_HOUR_S = 3600.0
_DAY_S = 86400.0


def draw(runs: Sequence[ReplayFigures], path: Path, title: str) -> None:
    """Writes a PNG. Raises OSError if the path cannot be written."""
    figure, ((jct, queueing), (utilisation, latency)) = plt.subplots(2, 2, figsize=(11, 7.5), layout="constrained")
    figure.suptitle(title)
    for index, run in enumerate(runs):
        style = {
            "label": run.run.plan.place_policy,
            "color": _COLOURS[index % len(_COLOURS)],
            "linestyle": _LINES[index % len(_LINES)],
        }
        _cumulative(jct, run.jct_s / _HOUR_S, style)
        _cumulative(queueing, run.queue_s / _HOUR_S, style)
        _cumulative(latency, np.asarray(run.run.place_ms), style)
        _share_over_time(utilisation, run, style)
    _label(jct, "Job completion time", "hours (log)", "share of jobs", log=True)
    _label(queueing, "Queueing delay", "hours (symlog)", "share of jobs")
    queueing.set_xscale("symlog", linthresh=1 / 60)
    _label(utilisation, "GPUs in use (hourly mean)", "days of the trace", "share of all GPUs")
    utilisation.set_ylim(0, 1.02)
    _label(latency, "Place, as the client sees it", "milliseconds (log)", "share of calls", log=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _cumulative(axes: Any, values: Series, style: dict[str, str]) -> None:
    if len(values):
        ordered = np.sort(values)
        axes.plot(ordered, np.arange(1, len(ordered) + 1) / len(ordered), **style)


def _share_over_time(axes: Any, run: ReplayFigures, style: dict[str, str]) -> None:
    """Hourly means from first to last submission: the raw steps would be a black bar."""
    times, share = run.utilisation
    if len(times) < 2:
        return
    edges = np.arange(min(run.run.submit_s), max(run.run.submit_s) + _HOUR_S, _HOUR_S)
    area = np.concatenate(([0.0], np.cumsum(np.diff(times) * share[:-1])))
    means = np.diff(np.interp(edges, times, area)) / _HOUR_S
    axes.plot((edges[:-1] + _HOUR_S / 2) / _DAY_S, means, linewidth=1.0, **style)


def _label(axes: Any, title: str, x: str, y: str, *, log: bool = False) -> None:
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(visible=True, alpha=0.3)
    if axes.lines:
        axes.legend(fontsize=9)
    if log:
        axes.set_xscale("log")
