"""Fits the throughput model of every measured (model, GPU type) and writes `throughput.json`.

Two forms are fitted to the same rows and judged on placements that were held back:

* `qos`: equations (5)–(8) of the QoS-aware paper, PR = (n − Comm)·Σ kᵢ bⁱ with Comm = γ·(λ·cross + within);
* `overlap`: a step takes (t_g^p + t_s^p)^(1/p), with t_g = a + c·b for the gradients and t_s = α + β(n − 2) for the
  synchronisation, one pair (α, β) inside a node and one across nodes (the form of Pollux, OSDI 2021, §3.2).

It never decides which rows may ship: the caller passes a file of openly licensed ones.

    python -m placewise_training.data.fit_throughput scaling_throughputs.csv throughput.json
"""

import argparse
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import least_squares

from placewise_core.speed.forms import OverlapForm, QosForm, path_shares

F = TypeVar("F")
Array = NDArray[np.float64]
SOURCES = ("pollux_osdi21", "elasticflow")
FOLDS = 5
MIN_ROWS = 12
# Rows written as a lookup between measurements (ElasticFlow's T4 table) are no measurement: `measured` is False there.
# v of equation (4): none of the rows holds a start-up time, so this is a stated assumption, not a fit.
STARTUP_S = 30.0
# One name per network, whatever the source calls it. Millions of parameters: published sizes of these networks.
NAMES = {
    "bert": ("BERT", 110.0),
    "deepspeech2": ("DeepSpeech2", 38.0),
    "NeuMF": ("NeuMF", 31.8),
    "ResNet18": ("ResNet18", 11.69),
    "resnet50": ("ResNet50", 25.56),
    "resnet50_cifar10": ("ResNet50-CIFAR10", 23.5),
    "gpt2": ("GPT-2", 124.0),
    "vgg16": ("VGG16", 138.36),
    "ResNet50": ("ResNet50", 25.56),
    "BERT": ("BERT", 110.0),
    "DeepSpeech2": ("DeepSpeech2", 38.0),
}


@dataclass(frozen=True, slots=True)
class Rows:
    """Measured steps of one (model, GPU type); all arrays are (N,)."""

    placement: NDArray[np.str_]
    gpus: Array
    nodes: Array
    cross: Array
    within: Array
    local_batch: Array
    throughput: Array

    def take(self, mask: NDArray[np.bool_]) -> "Rows":
        return Rows(*(getattr(self, name)[mask] for name in self.__slots__))


def read_rows(table: pd.DataFrame) -> Rows:
    """Rows of one group; `placement` is GPUs per node as digits, cross and within the shares of (8)'s path lengths."""
    per_node = [_gpus_per_node(row) for row in table.itertuples()]
    shares = np.array([path_shares(g) for g in per_node])
    return Rows(
        placement=np.array(["+".join(str(int(n)) for n in g) for g in per_node]),
        gpus=np.array([g.sum() for g in per_node]),
        nodes=np.array([float(len(g)) for g in per_node]),
        cross=shares[:, 0],
        within=shares[:, 1],
        local_batch=table["local_batch"].to_numpy(dtype=np.float64),
        throughput=table["throughput"].to_numpy(dtype=np.float64),
    )


def _gpus_per_node(row: object) -> Array:
    digits = getattr(row, "placement", None)
    if isinstance(digits, str) and digits.isdigit():
        return np.array([float(d) for d in digits])
    nodes = int(getattr(row, "num_nodes", 1))
    return np.full(nodes, float(getattr(row, "num_gpus", 1)) / nodes)


def fit_qos(rows: Rows) -> QosForm:
    """Least relative error over k₀…k₂, γ·λ and γ; the batch is scaled to [0, 1] so that the problem is well posed."""
    scale = float(rows.local_batch.max())
    b = rows.local_batch / scale
    per_gpu = rows.throughput / rows.gpus

    def residuals(x: Array) -> Array:
        k0, k1, k2, across, inside = x
        comm = across * rows.cross + inside * rows.within
        predicted = (rows.gpus - comm) * (k0 + k1 * b + k2 * b**2)
        return np.asarray(predicted / rows.throughput - 1.0)

    middle = float(np.median(per_gpu))
    start = np.array([0.3 * middle, middle, -0.3 * middle, 0.3, 0.1])
    # Comm stays under 2, the fewest GPUs that communicate: a throughput is never negative.
    low = [-np.inf, -np.inf, -np.inf, 0.0, 1e-3]
    high = [np.inf, np.inf, np.inf, 1.95, 1.95]
    x = least_squares(residuals, start, bounds=(low, high), loss="soft_l1", f_scale=0.1, x_scale=np.abs(start)).x
    return QosForm(
        coefficients=(float(x[0]), float(x[1]), float(x[2])),
        batch_scale=scale,
        gamma=float(x[4]),
        lam=float(x[3] / x[4]),
        batch_min=float(rows.local_batch.min()),
        batch_max=scale,
    )


def fit_overlap(rows: Rows) -> OverlapForm:
    """Least error of the logarithm over a, c, two pairs (α, β) and p."""

    def residuals(x: Array) -> Array:
        predicted = _overlap(x).throughput(rows.local_batch, rows.gpus, rows.nodes)
        return np.asarray(np.log(predicted / rows.throughput))

    step = rows.gpus * rows.local_batch / rows.throughput
    start = np.log([step.min() / 2, np.median(step / rows.local_batch), 0.01, 1e-3, 0.05, 1e-3, 1.0])
    return _overlap(least_squares(residuals, start, loss="soft_l1", f_scale=0.1).x)


def _overlap(x: Array) -> OverlapForm:
    a, c, alpha_in, beta_in, alpha_out, beta_out, p = (float(v) for v in np.exp(np.clip(x, -30.0, 10.0)))
    return OverlapForm(a, c, alpha_in, beta_in, alpha_out, beta_out, power=min(1.0 + p, 10.0))


def qos_prediction(form: QosForm, rows: Rows) -> Array:
    return form.throughput_over_paths(rows.local_batch, rows.gpus, rows.cross, rows.within)


def overlap_prediction(form: OverlapForm, rows: Rows) -> Array:
    return form.throughput(rows.local_batch, rows.gpus, rows.nodes)


def held_out_errors(rows: Rows, fit: Callable[[Rows], F], predict: Callable[[F, Rows], Array]) -> Array:
    """(N,) relative error of every row when its placement was not in the fit (5 folds over placements)."""
    placements = np.unique(rows.placement)
    shuffled = np.random.default_rng(0).permutation(placements)
    errors = np.zeros(len(rows.gpus))
    folds = min(FOLDS, len(shuffled))
    for k in range(folds):
        test = np.isin(rows.placement, shuffled[k::folds])
        held_back = rows.take(test)
        errors[test] = np.abs(predict(fit(rows.take(~test)), held_back) / held_back.throughput - 1.0)
    return errors


def _summary(errors: Array) -> dict[str, float]:
    return {
        "held_out_mean_error": round(float(errors.mean()), 4),
        "held_out_median_error": round(float(np.median(errors)), 4),
        "held_out_within_10_percent": round(float((errors <= 0.1).mean()), 4),
    }


def fit_profile(model: str, gpu_model: str, source: str, table: pd.DataFrame) -> tuple[dict[str, object], Array, Array]:
    """One profile as it is stored, with the held-out errors of both forms."""
    rows = read_rows(table)
    qos_errors = held_out_errors(rows, fit_qos, qos_prediction)
    overlap_errors = held_out_errors(rows, fit_overlap, overlap_prediction)
    name, params = NAMES[model]
    profile: dict[str, object] = {
        "model": name,
        "gpu_model": gpu_model,
        "source": source,
        "params_millions": params,
        "rows": len(table),
        "placements": len(np.unique(rows.placement)),
        "batch_min": float(rows.local_batch.min()),
        "batch_max": float(rows.local_batch.max()),
        "batch_median": float(np.median(rows.local_batch)),
        "gpus_max": int(rows.gpus.max()),
        "qos": {**fit_qos(rows).as_dict(), **_summary(qos_errors)},
        "overlap": {**fit_overlap(rows).as_dict(), **_summary(overlap_errors)},
    }
    return profile, qos_errors, overlap_errors


def fit(csv: Path) -> dict[str, object]:
    """The whole bundle file from the measured rows of `csv`."""
    table = pd.read_csv(csv, dtype={"placement": str})
    table = table[table["source"].isin(SOURCES) & table["measured"].astype(bool) & (table["throughput"] > 0)]
    profiles, qos, overlap = [], [], []
    for (source, gpu, model), rows in table.groupby(["source", "gpu_type", "model"], sort=True):
        if len(rows) < MIN_ROWS:
            continue
        profile, qos_errors, overlap_errors = fit_profile(str(model), str(gpu), str(source), rows)
        profiles.append(profile)
        qos.append(qos_errors)
        overlap.append(overlap_errors)
    means = {"qos": np.concatenate(qos).mean(), "overlap": np.concatenate(overlap).mean()}
    return {
        "schema": "placewise.throughput/1",
        "form": min(means, key=lambda name: means[name]),
        "startup_s": STARTUP_S,
        "held_out": {"qos": _summary(np.concatenate(qos)), "overlap": _summary(np.concatenate(overlap))},
        "provenance": {
            "fitted_by": "placewise_training.data.fit_throughput",
            "data": csv.name,
            "sha256": hashlib.sha256(csv.read_bytes()).hexdigest(),
            "sources": list(SOURCES),
            "licence": "Apache-2.0",
            "split": f"{FOLDS} folds over placements within each (model, GPU type), shuffled with seed 0",
        },
        "profiles": profiles,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path, help="scaling measurements, openly licensed rows only")
    parser.add_argument("output", type=Path, help="where throughput.json goes")
    arguments = parser.parse_args()
    bundle = fit(arguments.csv)
    arguments.output.write_text(json.dumps(bundle, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(json.dumps(bundle["held_out"], indent=1))


if __name__ == "__main__":
    main()
