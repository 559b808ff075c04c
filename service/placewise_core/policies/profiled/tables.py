"""Measured numbers the placement policies stand on. Reads the packaged JSON files and nothing else.

Policies take these objects, not files: a caller with better numbers passes its own.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

import numpy as np

from placewise_core.basics.arrays import FloatArray
from placewise_core.domain.model_names import canonical, nearest
from placewise_core.speed.interference import MeasuredInterference


@dataclass(frozen=True)
class LifCoefficients:
    """Per model: slowdown − 1 = a₁U + a₂B (+ a₃U² + a₄B²); U, B = shares of a server's CPU and bandwidth others use.

    `pooled` holds the fit over all models, for a model that is like none of them.
    """

    models: Mapping[str, tuple[float, ...]]
    pooled: tuple[float, ...]

    def of(self, model: str) -> FloatArray:
        """(4,) a₁…a₄; the last two are zero in a linear fit."""
        known = nearest(model, self.models)
        row = self.pooled if known is None else self.models[known]
        return np.asarray((*row, 0.0, 0.0)[:4], dtype=np.float64)


@dataclass(frozen=True)
class GpuSpeeds:
    """Speed of a job alone on each GPU model, over that on the reference GPU; by model where measured."""

    mean: Mapping[str, float]
    models: Mapping[str, Mapping[str, float]]

    def of(self, model: str, gpu_model: str) -> float:
        """1.0 for a GPU model nobody measured (it is then neither preferred nor shunned)."""
        wanted = canonical(gpu_model)
        gpu = next((gpu for gpu in self.mean if canonical(gpu) in wanted), None)
        if gpu is None:
            return 1.0
        table = self.models.get(gpu, {})
        known = nearest(model, table)
        return self.mean[gpu] if known is None else table[known]


@dataclass(frozen=True)
class SkewTable:
    """Share of a model's parameters that its largest tensor holds, and its parameter count in millions."""

    skew: Mapping[str, float]
    params_millions: Mapping[str, float]

    def of(self, model: str, params_millions: float) -> float | None:
        """By name, then by the nearest parameter count; None if neither is known."""
        known = nearest(model, self.skew)
        if known is None and params_millions > 0:
            counts = self.params_millions
            known = min(sorted(counts), key=lambda k: abs(np.log(counts[k] / params_millions)))
        return None if known is None else self.skew[known]


@dataclass(frozen=True)
class PlacementTables:
    lif_linear: LifCoefficients
    lif_quadratic: LifCoefficients
    gpu_speeds: GpuSpeeds
    skew: SkewTable
    interference: MeasuredInterference


def tables_from(documents: Mapping[str, Mapping[str, Any]]) -> PlacementTables:
    """From parsed documents "lif", "gpu_speeds", "skew", "interference". Raises KeyError for another form."""
    lif, speeds, skew = documents["lif"], documents["gpu_speeds"], documents["skew"]
    return PlacementTables(
        lif_linear=_lif(lif["linear"]),
        lif_quadratic=_lif(lif["quadratic"]),
        gpu_speeds=GpuSpeeds(mean=speeds["mean"], models=speeds["models"]),
        skew=SkewTable(
            skew={
                name: row["largest_tensor_millions"] / row["params_millions"] for name, row in skew["models"].items()
            },
            params_millions={name: row["params_millions"] for name, row in skew["models"].items()},
        ),
        interference=MeasuredInterference.from_table(documents["interference"]),
    )


@lru_cache(maxsize=1)
def packaged_tables() -> PlacementTables:
    """The tables that ship with the package; read once."""
    folder = files("placewise_core.policies.profiled") / "data"
    names = ("lif", "gpu_speeds", "skew", "interference")
    return tables_from({name: json.loads((folder / f"{name}.json").read_text("utf-8")) for name in names})


def _lif(document: Mapping[str, Any]) -> LifCoefficients:
    return LifCoefficients(
        models={name: tuple(row["coefficients"]) for name, row in document["models"].items()},
        pooled=tuple(document["pooled"]["coefficients"]),
    )
