"""PNG plots of a reproduction, drawn from its JSON: one file per experiment, one panel per metric. Computes nothing."""

import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from placewise_training.reproduce.report import heading

_DPI = 72
_PANELS_WIDE = 2
_COLOUR_COUNT = 128
_MOST_FLAT_LABELS = 6
# Ten strong colours, then their pale versions: enough for any figure. Hatches or line styles separate them too.
_PAIRED = plt.get_cmap("tab20").colors  # type: ignore[attr-defined]
_COLOURS = (*_PAIRED[0::2], *_PAIRED[1::2])
_HATCHES = ("", "///")
_LINES = ("-", "--")
_LABEL_WIDTH = 26  # characters along the height of one axis


def draw(report: Mapping[str, Any], folder: Path) -> list[Path]:
    """Writes <paper>_<experiment>.png for every experiment that has a plot and results; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for experiment in report["experiments"]:
        has_any = any(row["metrics"] for row in experiment["rows"])
        if experiment["plot"] != "none" and has_any:
            path = folder / f"{report['paper']}_{experiment['key']}.png"
            _figure(experiment, path, note=" (partial)" if report["partial"] else "")
            written.append(path)
    return written


def _figure(experiment: Mapping[str, Any], path: Path, note: str) -> None:
    panels = _curve_panels(experiment) if experiment["plot"] == "curves" else _metric_panels(experiment)
    wide = min(_PANELS_WIDE, len(panels))
    high = -(-len(panels) // wide)
    size = (6.2 * wide if wide > 1 else 9.0, 3.6 * high)
    figure, axes = plt.subplots(high, wide, figsize=size, squeeze=False, layout="constrained")
    for axis, panel in zip(axes.ravel(), panels, strict=False):
        panel(axis)
    for axis in axes.ravel()[len(panels) :]:
        axis.set_visible(False)
    if experiment["plot"] != "curves" and len(experiment["methods"]) > 1:
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4 if wide > 1 else 2, fontsize=8)
    title = f"{experiment['title']} — {experiment['source']}{note}"
    figure.suptitle(textwrap.fill(title, int(size[0] * 11)), fontsize=11)
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    """As a PNG with a palette: a third of the size, and no colour of a plot is lost in 64."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=_DPI)
    plt.close(figure)
    drawn.seek(0)
    Image.open(drawn).convert("RGB").quantize(_COLOUR_COUNT).save(path, optimize=True)


def _metric_panels(experiment: Mapping[str, Any]) -> list[Any]:
    shown = [metric for metric in experiment["metrics"] if metric["plotted"]]
    panel = _lines if experiment["plot"] == "lines" else _bars
    return [lambda axis, m=metric: panel(axis, experiment, m) for metric in shown]


def _cells(experiment: Mapping[str, Any], method: str, metric: str) -> list[tuple[str, float, float]]:
    """(setting, mean, half width) of the rows that have a result."""
    return [
        (row["setting"], row["metrics"][metric]["ours"], row["metrics"][metric]["ci95"])
        for row in experiment["rows"]
        if row["method"] == method and metric in row["metrics"]
    ]


def _bars(axis: Axes, experiment: Mapping[str, Any], metric: Mapping[str, Any]) -> None:
    settings, methods = experiment["settings"], experiment["methods"]
    width = 0.85 / len(methods)
    for i, method in enumerate(methods):
        cells = _cells(experiment, method, metric["name"])
        if not cells:
            continue
        at = [settings.index(setting) + (i - (len(methods) - 1) / 2) * width for setting, _, _ in cells]
        axis.bar(
            at,
            [mean for _, mean, _ in cells],
            width,
            yerr=_errors([half for _, _, half in cells]),
            capsize=2,
            label=method,
            color=_COLOURS[i % len(_COLOURS)],
            hatch=_of(_HATCHES, i),
            edgecolor="white",
            linewidth=0.3,
            error_kw={"linewidth": 0.8, "ecolor": "0.3"},
        )
    axis.set_xticks(range(len(settings)), [s.replace(", ", "\n") for s in settings], fontsize=8)
    if len(settings) > _MOST_FLAT_LABELS:
        axis.tick_params(axis="x", rotation=60)
    if metric.get("log"):
        axis.set_yscale("log")
    _dress(axis, experiment["axis"], heading(metric))


def _lines(axis: Axes, experiment: Mapping[str, Any], metric: Mapping[str, Any]) -> None:
    for i, method in enumerate(experiment["methods"]):
        cells = _cells(experiment, method, metric["name"])
        if cells:
            axis.errorbar(
                [float(setting) for setting, _, _ in cells],
                [mean for _, mean, _ in cells],
                yerr=_errors([half for _, _, half in cells]),
                marker="o",
                markersize=3,
                linewidth=1.2,
                linestyle=_of(_LINES, i),
                capsize=2,
                label=method,
                color=_COLOURS[i % len(_COLOURS)],
            )
    if experiment["log_x"]:
        axis.set_xscale("log")
    if metric.get("log"):
        axis.set_yscale("log")
    _dress(axis, experiment["axis"], heading(metric))


def _of(styles: Sequence[str], i: int) -> str:
    """The style of method i: the next one each time the strong or the pale colours are through."""
    return styles[i // 10 % len(styles)]


def _errors(halves: Sequence[float]) -> Sequence[float] | None:
    return halves if any(halves) else None


def _curve_panels(experiment: Mapping[str, Any]) -> list[Any]:
    rows = [row for row in experiment["rows"] if row.get("curves")]
    bounds = _bounds(rows)
    return [lambda axis, r=row: _curves(axis, experiment, r, bounds) for row in rows]


def _bounds(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """One y range for all panels, so that they can be compared."""
    values = np.concatenate([np.asarray(y) for row in rows for _, y in row["curves"].values()])
    margin = 0.05 * float(values.max() - values.min() or 1.0)
    return float(values.min()) - margin, float(values.max()) + margin


def _curves(axis: Axes, experiment: Mapping[str, Any], row: Mapping[str, Any], bounds: tuple[float, float]) -> None:
    for i, (name, (x, y)) in enumerate(row["curves"].items()):
        is_limit = name.startswith("limit")
        style = {"linestyle": "--", "color": "black"} if is_limit else {"color": _COLOURS[i % len(_COLOURS)]}
        axis.plot(x, y, linewidth=1.1, label=name, **style)
    axis.set_ylim(*bounds)
    axis.set_title(f"{row['setting']}: {row['method']}" if row["setting"] else row["method"], fontsize=9)
    _dress(axis, experiment["curve_axes"][0], experiment["curve_axes"][1])
    if len(row["curves"]) > 1:
        axis.legend(fontsize=7, ncols=2 if len(row["curves"]) > 4 else 1)


def _dress(axis: Axes, x: str, y: str) -> None:
    axis.set_xlabel(x, fontsize=9)
    axis.set_ylabel(textwrap.fill(y, _LABEL_WIDTH), fontsize=9)
    axis.tick_params(labelsize=8)
    axis.grid(visible=True, axis="y", linewidth=0.3)
