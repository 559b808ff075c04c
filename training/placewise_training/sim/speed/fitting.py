"""Fits the few coefficients of the speed models to the measured tables. Deterministic; runs once per process."""

import functools
from collections.abc import Iterable

import numpy as np

from placewise_training.data.measured import (
    cpu_sensitivity,
    gpu_pairs,
    isolated_steps,
    stage_times,
    step_times,
)

_GIGABIT = 1e9 / 8
_POLLUX_NIC_GBPS = 50.0  # g4dn.12xlarge, the instance of the Pollux measurements
_MURI_NIC_GBPS = 100.0  # InfiniBand EDR of Muri's testbed


def _line(points: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Non-negative (base, slope) of y ≈ base + slope·x by least squares of the relative error."""
    x, y = (np.asarray(column, dtype=np.float64) for column in zip(*points, strict=True))
    weight = 1.0 / y
    if len(set(x.tolist())) > 1:
        design = np.stack([np.ones_like(x), x], axis=1) * weight[:, None]
        base, slope = np.linalg.lstsq(design, y * weight, rcond=None)[0]
        if base >= 0 and slope > 0:
            return float(base), float(slope)
    return 0.0, float(np.median(y / x))


@functools.cache
def pollux_compute(model: str) -> tuple[float, float]:
    """(base_s, per_sample_s) on a T4: measured step less measured sync, over every placement."""
    rows = [r for r in step_times() if r.source == "pollux_osdi21" and r.model == model and r.sync_s is not None]
    return _line((r.local_batch, r.step_s - (r.sync_s or 0.0)) for r in rows)


@functools.cache
def elasticflow_compute(model: str) -> tuple[float, float]:
    """(base_s, per_sample_s) on an A100: measured step on one GPU."""
    rows = [r for r in step_times() if r.source == "elasticflow" and r.model == model and r.gpus == 1]
    return _line((r.local_batch, r.step_s) for r in rows)


@functools.cache
def gavel_compute(model: str, gpu_type: str) -> tuple[float, float]:
    """(base_s, per_sample_s) on a K80 or V100 from isolated rates; batch counts as 1 if the source has none."""
    rows = [r for r in isolated_steps() if r.model == model and r.gpu_type == gpu_type]
    return _line((max(1.0, r.local_batch), 1.0 / r.steps_per_s) for r in rows)


@functools.cache
def pollux_net_efficiency(model: str, params_millions: float) -> float:
    """Share of the NIC a ring all-reduce reaches: gradient bytes over measured sync time, one GPU on each node."""
    rows = [
        r
        for r in step_times()
        if r.source == "pollux_osdi21" and r.model == model and r.sync_s and r.nodes > 1 and max(r.placement) == 1
    ]
    return _efficiency(((r.gpus, r.sync_s or 0.0) for r in rows), params_millions, _POLLUX_NIC_GBPS)


@functools.cache
def muri_net_efficiency(model: str, params_millions: float) -> float:
    """Share of the NIC reached in Muri's network stage, over the rows with more than one 8-GPU node."""
    rows = [r for r in stage_times() if r.model == model and r.gpus > 8 and r.network_s > 0]
    return _efficiency(((r.gpus, r.network_s) for r in rows), params_millions, _MURI_NIC_GBPS)


def _efficiency(samples: Iterable[tuple[int, float]], params_millions: float, nic_gbps: float) -> float:
    shares = [ring_bytes(n, params_millions) / (seconds * nic_gbps * _GIGABIT) for n, seconds in samples]
    return float(np.clip(np.median(shares), 0.02, 1.0))


def ring_bytes(gpus: int, params_millions: float) -> float:
    """Bytes each member of a ring all-reduce sends per iteration, float32 gradients: 2(n−1)/n of the parameters."""
    return 0.0 if gpus < 2 else 2.0 * (gpus - 1) / gpus * params_millions * 4e6


@functools.cache
def synergy_core_s(model: str) -> float:
    """CPU core-seconds of input work per sample: cores × step time while more cores still help; 0 if none do."""
    rows = [r for r in cpu_sensitivity() if r.model == model and r.memory_level == 4]
    best = max(r.speed for r in rows)
    bound = [r for r in rows if r.speed < 0.999 * best]
    per_sample = [r.cores * r.reference_step_s / (r.speed * r.local_batch) for r in bound]
    return float(np.median(per_sample)) if per_sample else 0.0


@functools.cache
def muri_input_s(model: str) -> float:
    """Input-stage seconds per sample, attributed to one core (agrees with Synergy's core-seconds within a factor 2)."""
    rows = [r for r in stage_times() if r.model == model]
    return float(np.median([r.input_s / r.local_batch for r in rows]))


@functools.cache
def muri_gpu_s(model: str) -> float:
    """GPU-stage seconds per sample on Muri's V100."""
    return float(np.median([r.gpu_s / r.local_batch for r in stage_times() if r.model == model]))


@functools.cache
def muri_overlap() -> float:
    """ω of iteration ≈ max(input, gpu + network) + ω·min(input, gpu + network), least squares over Muri's rows."""
    long, short, total = [], [], []
    for r in stage_times():
        pair = sorted((r.input_s, r.gpu_s + r.network_s))
        long.append(pair[1] / r.iteration_s)
        short.append(pair[0] / r.iteration_s)
        total.append(1.0)
    x, y = np.asarray(short), np.asarray(total) - np.asarray(long)
    return float(np.clip(x @ y / (x @ x), 0.0, 1.0))


def pair_table(source: str, gpu_type: str) -> dict[tuple[str, str], float]:
    """Mean relative speed of the first model beside the second, over the batches measured."""
    sums: dict[tuple[str, str], list[float]] = {}
    for row in gpu_pairs():
        if row.source == source and row.gpu_type == gpu_type:
            sums.setdefault((row.model_a, row.model_b), []).append(row.norm_a)
            sums.setdefault((row.model_b, row.model_a), []).append(row.norm_b)
    return {pair: float(np.mean(values)) for pair, values in sums.items()}
