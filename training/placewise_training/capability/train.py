"""Fits the weights of capability and the heat of units to a site's own shares: log → fits → capability.json.

    python -m placewise_training.capability.train --log DIR --out var/train/capability   (placewise train capability)

Read top to bottom. The fit to published tables, which a bundle begins with, is data/fit_capability.py. Users give the
computing scale of a kind in a unit of their own: its level is fitted beside the weights, and to the incumbent's as well
when the two are compared.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from placewise_core.basics.arrays import BoolArray, FloatArray
from placewise_core.partition.capability import COMPONENTS, Weights
from placewise_core.partition.thermal import ThermalModel, peak_celsius, thermal_state
from placewise_models.bundle import CAPABILITY
from placewise_models.folder import shipped_bundle
from placewise_training.capability.from_log import log_shares
from placewise_training.log.later import gain, named
from placewise_training.log.unit_rows import UnitRow

SCHEMA, REPORT = "placewise.capability/1", CAPABILITY
_ROUNDS = 30
_HELD = 1e-6  # by so little a weight that no row determines is held where it was
_LEAST_HEAT = 20  # shares with temperatures, of GPUs or of CPUs: with fewer their constants stay
_POINTS, _ZOOMS, _WIDEST = 21, 4, 8.0  # of the search for R and R·C: a side, and how far from the start it goes
# Sets progress: (title, done, total).
Show = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Args:
    """What `placewise train capability` takes; the string beside each becomes its help."""

    out: Path = field(default=Path("var/train/capability"), metadata={"help": "Folder for capability.json."})
    log: str = field(default="", metadata={"help": "Folder or URL of an exported decision log, to learn from."})
    before_s: float = field(
        default=0.0, metadata={"help": "Learn from decisions before this time alone (seconds since 1970); 0: from all."}
    )
    only_log: bool = field(default=False, metadata={"help": "Learn from the log alone."})
    start: Path | None = field(default=None, metadata={"help": "Bundle to begin with. By default the shipped one."})
    worth: float = field(default=50.0, metadata={"help": "Shares that the weights of the start count as."})


def train(args: Args, show: Show = lambda title, done, total: None) -> dict[str, Any]:
    """Fits and judges; the document that is also written to `out`. Raises ValueError without a log and for one that
    holds too little, LogError."""
    if not args.log:
        raise ValueError("capability is fitted to a log: name one (--log)")
    start = json.loads(((args.start or shipped_bundle()) / CAPABILITY).read_text("utf-8"))
    before = Weights.from_mapping(start["weights"]).as_array()
    log = log_shares(args.log, args.before_s)

    # -- capability: weights that predict the seconds of shares, with a level for each kind --
    show("capability", 0, 2)
    after = _rounded(fit_weights(log.learn, before, _HELD if args.only_log else args.worth))
    errors = [weight_errors(log.later, weights, levels(log.learn, weights)) for weights in (before, after)]
    later = gain(errors[0], errors[1], np.array([row.time_s for row in log.later]))

    # -- heat: R and R·C of GPUs and of CPUs --
    show("capability", 1, 2)
    thermal, later_heat = {}, {}
    for name, is_on_gpu in (("gpu", True), ("cpu", False)):
        model = ThermalModel.from_mapping(start["thermal"][name])
        warm, held_back = (_warm(rows, is_on_gpu=is_on_gpu) for rows in (log.learn, log.later))
        fitted = fit_heat(warm, model) if len(warm) >= _LEAST_HEAT else model
        thermal[name] = {**start["thermal"][name], **_constants(fitted)}
        if held_back:
            time_s = np.array([row.time_s for row in held_back])
            later_heat[name] = gain(heat_errors(held_back, model), heat_errors(held_back, fitted), time_s)
    show("capability", 2, 2)

    report = {
        "schema": SCHEMA,
        "weights": dict(zip(COMPONENTS, after.tolist(), strict=True)),
        "thermal": thermal,
        "default_overhead_s": round(log.overhead_s, 4) or start["default_overhead_s"],
        "provenance": {"fitted_by": "placewise_training.capability.train", "start": start["provenance"]},
        "log": {
            **named(args.log),
            "rows": len(log.learn),
            "counts": dict(log.counts),
            "later": later,
            "later_heat": later_heat,
        },
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / REPORT).write_text(json.dumps(report, indent=1, sort_keys=True) + "\n", "utf-8")
    return report


def fit_weights(rows: Sequence[UnitRow], start: FloatArray, worth: float) -> FloatArray:
    """(5,) weights that sum to 1: least squares of predicted over true speed, with weights of at least 0, a level for
    each kind, and `worth` rows that say `start`. A row that is a bound counts while it is predicted faster."""
    parts, present, speed, is_bound = _arrays(rows)
    weights = start
    for _ in range(_ROUNDS):
        level = levels(rows, weights)
        scaled = np.array([level[row.kind] for row in rows]) / speed / (present @ weights)
        a = parts * scaled[:, None]
        ratio = a @ weights  # of predicted to true speed
        # However much too fast a row was predicted, it is wrong by no more than 1: a report may have been lost.
        counted = np.where(is_bound & (ratio <= 1.0), 0.0, 1.0 / np.maximum(ratio, 1.0))
        held = np.sqrt(worth) * np.eye(len(COMPONENTS))
        found, _ = nnls(np.vstack([a * counted[:, None], held]), np.concatenate([counted, held @ start]))
        weights = found / found.sum()
    return np.asarray(weights)


def levels(rows: Sequence[UnitRow], weights: FloatArray) -> Mapping[str, float]:
    """By kind, the middle of true speed over that by these weights. Bounds tell no level; 1 for a kind without ends."""
    parts, present, speed, is_bound = _arrays(rows)
    ratio = np.log(speed * (present @ weights) / np.maximum(parts @ weights, _HELD))
    kinds = np.array([row.kind for row in rows])
    found = {}
    for kind in set(kinds.tolist()):
        ended = ratio[(kinds == kind) & ~is_bound]
        found[kind] = float(np.exp(np.median(ended))) if len(ended) else 1.0
    return found


def weight_errors(rows: Sequence[UnitRow], weights: FloatArray, level: Mapping[str, float]) -> FloatArray:
    """(N,) |ln(predicted / true speed)|; below a bound there is none."""
    parts, present, speed, is_bound = _arrays(rows)
    by_kind = np.array([level.get(row.kind, 1.0) for row in rows])
    above = np.log(by_kind * np.maximum(parts @ weights, _HELD) / (present @ weights) / speed)
    return np.asarray(np.where(is_bound, np.maximum(above, 0.0), np.abs(above)))


def fit_heat(rows: Sequence[UnitRow], start: ThermalModel) -> ThermalModel:
    """R and R·C with the least mean error of peaks, by a search on a grid that is made finer around its best point."""
    best, width, heat = start, np.log(_WIDEST), _heat(rows)
    for _ in range(_ZOOMS):
        steps = np.exp(np.linspace(-width, width, _POINTS))
        tried = [
            replace(best, resistance_k_per_w=best.resistance_k_per_w * r, time_constant_s=best.time_constant_s * c)
            for r in steps
            for c in steps
        ]
        best = min(tried, key=lambda model: float(_heat_errors(heat, model).mean()))
        width *= 4.0 / _POINTS
    return best


def heat_errors(rows: Sequence[UnitRow], model: ThermalModel) -> FloatArray:
    """(N,) |predicted − reported| °C at the peak of a share."""
    return _heat_errors(_heat(rows), model)


def _heat(rows: Sequence[UnitRow]) -> FloatArray:
    """(5, N): °C before and at the peak, ambient °C, watts, seconds."""
    return np.array([(*row.heat, row.seconds) for row in rows if row.heat is not None]).T


def _heat_errors(heat: FloatArray, model: ThermalModel) -> FloatArray:
    before, peak, ambient, watts, seconds = heat
    state = thermal_state(model, before, np.full(len(before), np.nan), ambient, watts)
    return np.asarray(np.abs(peak_celsius(state, seconds) - peak))


def _arrays(rows: Sequence[UnitRow]) -> tuple[FloatArray, FloatArray, FloatArray, BoolArray]:
    """(N, 5) parts, (N, 5) which components there are, (N,) scale per second, (N,) whether it is a bound."""
    return (
        np.array([row.parts for row in rows]),
        np.array([row.present for row in rows]),
        np.array([row.scale / row.seconds for row in rows]),
        np.array([row.is_bound for row in rows], dtype=np.bool_),
    )


def _warm(rows: Sequence[UnitRow], *, is_on_gpu: bool) -> Sequence[UnitRow]:
    return [row for row in rows if row.heat is not None and row.is_on_gpu == is_on_gpu]


def _rounded(weights: FloatArray) -> FloatArray:
    """To six digits; the largest takes the rest, so that they sum to 1."""
    rounded = np.round(weights, 6)
    rounded[rounded.argmax()] += 1.0 - rounded.sum()
    return np.round(rounded, 6)


def _constants(model: ThermalModel) -> dict[str, float]:
    return {
        "resistance_k_per_w": round(model.resistance_k_per_w, 4),
        "time_constant_s": round(model.time_constant_s, 2),
    }
