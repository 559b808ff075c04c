"""Makes the measured tables that placement policies ship with: GPU pairs and GPU speeds.

    python -m placewise_training.data.placement_tables service/placewise_core/policies/profiled/data

Pairs: Gavel's two sets clip different values, so K80 comes from `gavel_simulation` and V100 from
`gavel_oracle_v1`; a pair's figure is the mean over the batch sizes measured, as a tenant's batch size is not known.
Never reads anything but data/open.
"""

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from placewise_core.domain.model_names import canonical
from placewise_training.data.measured import GpuPair, gpu_pairs, isolated_steps

SOURCE_OF = {"K80": "gavel_simulation", "V100": "gavel_oracle_v1"}
_REFERENCE_GPU = "V100"
_GAVEL = [{"source": "stanford-futuredata/gavel", "licence": "MIT", "copyright": "Stanford FutureData, Gavel authors"}]


def usable_pairs() -> tuple[GpuPair, ...]:
    """The pairs of the set that has no clipped values, of each GPU model."""
    return tuple(pair for pair in gpu_pairs() if pair.source == SOURCE_OF[pair.gpu_type])


def interference(measured: Iterable[GpuPair] | None = None) -> dict[str, object]:
    """Relative speed of a model beside another, per GPU model; the default is the lower quartile of them, at most ½.
    And their steps alone. From every usable pair, or from those given."""
    samples: dict[str, dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    alone: dict[str, set[tuple[str, float]]] = defaultdict(set)
    for pair in usable_pairs() if measured is None else measured:
        a, b = canonical(pair.model_a), canonical(pair.model_b)
        samples[pair.gpu_type][a, b].append(pair.norm_a)
        samples[pair.gpu_type][b, a].append(pair.norm_b)
        alone[pair.gpu_type] |= {(a, pair.batch_a), (b, pair.batch_b)}
    pairs: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for gpu, by_pair in samples.items():
        for (a, b), values in sorted(by_pair.items()):
            pairs[gpu][a][b] = round(statistics.fmean(values), 4)
    return {
        "what": "speed beside the other model on one GPU, over speed alone (time slicing, two jobs)",
        "provenance": [{**_GAVEL[0], "table": "co-location throughputs", "gpu_sets": SOURCE_OF}],
        "made_by": "placewise_training.data.placement_tables",
        "fallback_gpu": _REFERENCE_GPU if _REFERENCE_GPU in samples else next(iter(samples)),
        "default": {
            gpu: round(min(0.5, float(np.quantile([v for vs in by_pair.values() for v in vs], 0.25))), 4)
            for gpu, by_pair in samples.items()
        },
        "pairs": pairs,
        "step_s": {gpu: _step_s(gpu, jobs) for gpu, jobs in alone.items()},
    }


def _step_s(gpu: str, jobs: set[tuple[str, float]]) -> dict[str, float]:
    """Seconds per step alone, by model: the geometric mean over these jobs of it (model, batch)."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for row in isolated_steps():
        model = canonical(row.model)
        if row.gpu_type == gpu and (model, row.local_batch) in jobs:
            seconds[model].append(1.0 / row.steps_per_s)
    return {model: _geometric_mean(values) for model, values in sorted(seconds.items())}


def gpu_speeds() -> dict[str, object]:
    """Steps per second alone, over those on the reference GPU: geometric mean over batch sizes, and over models."""
    steps: dict[tuple[str, float], dict[str, float]] = defaultdict(dict)
    for row in isolated_steps():
        steps[canonical(row.model), row.local_batch][row.gpu_type] = row.steps_per_s
    ratios: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (model, _), by_gpu in steps.items():
        for gpu, value in by_gpu.items():
            if _REFERENCE_GPU in by_gpu:
                ratios[gpu][model].append(value / by_gpu[_REFERENCE_GPU])
    models = {gpu: {m: _geometric_mean(v) for m, v in sorted(rows.items())} for gpu, rows in ratios.items()}
    return {
        "what": "speed of a job alone on a GPU, over that on the reference GPU",
        "provenance": [{**_GAVEL[0], "table": "isolated throughputs"}],
        "made_by": "placewise_training.data.placement_tables",
        "reference_gpu": _REFERENCE_GPU,
        "mean": {gpu: _geometric_mean(list(rows.values())) for gpu, rows in models.items()},
        "models": models,
    }


def _geometric_mean(values: list[float]) -> float:
    return round(statistics.geometric_mean(values), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write interference.json and gpu_speeds.json.")
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    for name, document in (("interference", interference()), ("gpu_speeds", gpu_speeds())):
        (folder / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
