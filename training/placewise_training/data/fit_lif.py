"""Fits the least-interference models (Harmony's LIF-Line and LIF-Quad baselines) to measured sensitivities.

    python -m placewise_training.data.fit_lif service/placewise_core/policies/profiled/data/lif.json

For each model, slowdown − 1 is regressed on U and B, the shares of a server's CPU and bandwidth that others use:
linear a₁U + a₂B, quadratic a₁U + a₂B + a₃U² + a₄B². Coefficients are non-negative: use by others never speeds a job up.

* CPU: Synergy's measured speed by cores per GPU (1 … 9, ample memory). Others using U of nine cores leave 9(1 − U), and
  the slowdown is speed(9)/speed(cores). Models Synergy did not measure: Muri's input stage, stretched by 1/(1 − U).
* Bandwidth: Muri's network stage stretched by 1/(1 − B), the mean over its runs on two and more GPUs. Models Muri did
  not measure get the pooled bandwidth coefficients.

No U·B term: no source varies both at once, so none could be identified. Never reads anything but data/open.
"""

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from placewise_core.domain.model_names import canonical
from placewise_training.data.measured import StageTimes, cpu_sensitivity, stage_times

SHARES = tuple(i / 9 for i in range(9))  # 0, 1/9 … 8/9: the nine core counts Synergy measured
_AMPLE_MEMORY = 4  # highest memory level of the source
_SYNERGY_NAMES = {"res18": "resnet18", "res50": "resnet50"}


@dataclass(frozen=True, slots=True)
class Sample:
    cpu: float
    bandwidth: float
    slowdown: float


def cpu_samples() -> dict[str, list[Sample]]:
    """Measured slowdown by CPU share in use by others, per model."""
    speeds: dict[str, dict[int, float]] = defaultdict(dict)
    for row in cpu_sensitivity():
        if row.memory_level == _AMPLE_MEMORY:
            speeds[_SYNERGY_NAMES.get(row.model, canonical(row.model))][row.cores] = row.speed
    return {
        model: [Sample(1.0 - cores / 9, 0.0, by_cores[9] / speed) for cores, speed in sorted(by_cores.items())]
        for model, by_cores in speeds.items()
    }


def stage_samples(rows: Iterable[StageTimes]) -> tuple[dict[str, list[Sample]], dict[str, list[Sample]]]:
    """(CPU, bandwidth) samples per model, from stage times stretched by the share that other jobs leave."""
    by_model: dict[str, list[StageTimes]] = defaultdict(list)
    for row in rows:
        by_model[canonical(row.model).replace("x10", "")].append(row)
    cpu, bandwidth = {}, {}
    for model, runs in by_model.items():
        on_input = statistics.fmean(
            run.input_s / run.iteration_s for run in runs if run.gpus == min(r.gpus for r in runs)
        )
        on_network = statistics.fmean(run.network_s / run.iteration_s for run in runs if run.gpus > 1)
        cpu[model] = [Sample(u, 0.0, 1.0 + min(1.0, on_input) * u / (1 - u)) for u in SHARES]
        bandwidth[model] = [Sample(0.0, b, 1.0 + on_network * b / (1 - b)) for b in SHARES]
    return cpu, bandwidth


def fit(samples: list[Sample], degree: int) -> tuple[float, ...]:
    """(2,) or (4,) non-negative least-squares coefficients."""
    coefficients, _ = nnls(_design(samples, degree), np.array([s.slowdown - 1.0 for s in samples]))
    return tuple(round(float(c), 6) for c in coefficients)


def predict(samples: list[Sample], coefficients: tuple[float, ...]) -> NDArray[np.float64]:
    return np.asarray(1.0 + _design(samples, len(coefficients) // 2) @ np.array(coefficients))


def mean_relative_error(samples: list[Sample], coefficients: tuple[float, ...]) -> float:
    truth = np.array([s.slowdown for s in samples])
    return float(np.mean(np.abs(predict(samples, coefficients) - truth) / truth))


def _design(samples: list[Sample], degree: int) -> NDArray[np.float64]:
    return np.array(
        [[s.cpu**k if axis == 0 else s.bandwidth**k for k in range(1, degree + 1) for axis in (0, 1)] for s in samples]
    )


def document() -> dict[str, object]:
    """The packaged table: both fits, every model, with the error of each fit on its own samples."""
    measured_cpu = cpu_samples()
    stage_cpu, bandwidth = stage_samples(stage_times())
    cpu = {**stage_cpu, **measured_cpu}
    pooled_bandwidth = [sample for samples in bandwidth.values() for sample in samples]
    pooled = [sample for samples in cpu.values() for sample in samples] + pooled_bandwidth
    per_model = {model: samples + bandwidth.get(model, pooled_bandwidth) for model, samples in sorted(cpu.items())}

    def rows(degree: int) -> dict[str, object]:
        return {
            "pooled": _row(pooled, degree),
            "models": {
                model: {
                    **_row(samples, degree),
                    "cpu": "synergy" if model in measured_cpu else "muri input stage",
                    "bandwidth": "muri network stage" if model in bandwidth else "pooled",
                }
                for model, samples in per_model.items()
            },
        }

    return {
        "what": "slowdown - 1 of one task, by the shares of server CPU (U) and bandwidth (B) that others use",
        "terms": {"linear": ["U", "B"], "quadratic": ["U", "B", "U^2", "B^2"]},
        "provenance": [
            {"source": "msr-fiddle/synergy", "licence": "MIT", "table": "CPU sensitivity"},
            {"source": "Rivendile/Muri", "licence": "Apache-2.0", "table": "stage times"},
        ],
        "made_by": "placewise_training.data.fit_lif",
        "linear": rows(1),
        "quadratic": rows(2),
    }


def _row(samples: list[Sample], degree: int) -> dict[str, object]:
    coefficients = fit(samples, degree)
    return {
        "coefficients": list(coefficients),
        "mean_relative_error": round(mean_relative_error(samples, coefficients), 4),
        "samples": len(samples),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    out.write_text(json.dumps(document(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
