"""Reads the measured tables that ship in data/open. Never fits anything and never reads outside the package.

Each table is a cut of a public data set; data/open/README.md names the source, the licence and the cut.
"""

import csv
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources


@dataclass(frozen=True, slots=True)
class StepTime:
    """One configuration of a data-parallel job: `placement` lists GPUs per node, `sync_s` the exposed sync part."""

    source: str
    gpu_type: str
    model: str
    placement: tuple[int, ...]
    local_batch: float
    step_s: float
    sync_s: float | None

    @property
    def gpus(self) -> int:
        return sum(self.placement)

    @property
    def nodes(self) -> int:
        return len(self.placement)


@dataclass(frozen=True, slots=True)
class IsolatedSteps:
    """Steps per second of one job alone on one GPU. `local_batch` is 0 if the source has none."""

    source: str
    gpu_type: str
    model: str
    local_batch: float
    steps_per_s: float


@dataclass(frozen=True, slots=True)
class GpuPair:
    """Two jobs on one GPU: relative speeds (shared over alone). The batch is 0 if the source has none. With
    `is_bound_a` all that is known is that `norm_a` is at most this, as of a job of a log that had not ended.
    """

    source: str
    gpu_type: str
    model_a: str
    batch_a: float
    model_b: str
    batch_b: float
    norm_a: float
    norm_b: float
    is_bound_a: bool = field(default=False, repr=False)  # what hashes of measured pairs are made from stays as it was
    is_bound_b: bool = field(default=False, repr=False)


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds per iteration on input, GPU and network, and of the whole iteration."""

    model: str
    local_batch: float
    gpus: int
    iteration_s: float
    input_s: float
    gpu_s: float
    network_s: float


@dataclass(frozen=True, slots=True)
class CpuSensitivity:
    """Relative speed (1 = three cores per GPU and ample memory) with `cores` per GPU and a memory level 0…4."""

    model: str
    local_batch: float
    cores: int
    memory_level: int
    speed: float
    reference_step_s: float


@dataclass(frozen=True, slots=True)
class ProfiledSet:
    """Training loops side by side on shared CPU cores: speed per CPU second of each, relative to alone; its spread."""

    models: tuple[str, ...]
    cpu_norms: tuple[float, ...]
    cpu_spread: tuple[float, ...]


def _rows(name: str) -> Iterator[dict[str, str]]:
    with resources.files("placewise_training.data").joinpath("open", name).open(encoding="utf-8") as file:
        yield from csv.DictReader(file)


def _number(text: str) -> float:
    return float(text) if text else 0.0


@functools.cache
def step_times() -> tuple[StepTime, ...]:
    """Pollux (T4, sync measured) and ElasticFlow (A100, no sync column)."""
    return tuple(
        StepTime(
            source=row["source"],
            gpu_type=row["gpu_type"],
            model=row["model"],
            placement=tuple(int(digit) for digit in row["placement"]),
            local_batch=float(row["local_batch"]),
            step_s=float(row["step_time_s"]),
            sync_s=float(row["sync_time_s"]) if row["sync_time_s"] else None,
        )
        for row in _rows("step_times.csv")
    )


@functools.cache
def isolated_steps() -> tuple[IsolatedSteps, ...]:
    """Gavel's single-GPU rates on K80 and V100."""
    return tuple(
        IsolatedSteps(
            row["source"], row["gpu_type"], row["model"], _number(row["local_batch"]), float(row["steps_per_s"])
        )
        for row in _rows("isolated_steps.csv")
    )


@functools.cache
def gpu_pairs() -> tuple[GpuPair, ...]:
    """Gavel's pairs that fit into memory; values the source clipped at 1 are left out."""
    return _pairs("gpu_pairs.csv")


@functools.cache
def profiled_gpu_pairs() -> tuple[GpuPair, ...]:
    """Pairs of six networks on an H200, measured by `placewise profile`. Judges; nothing is fitted to them."""
    return _pairs("profiled_gpu_pairs.csv")


def _pairs(file: str) -> tuple[GpuPair, ...]:
    return tuple(
        GpuPair(
            source=row["source"],
            gpu_type=row["gpu_type"],
            model_a=row["model_a"],
            batch_a=_number(row["batch_a"]),
            model_b=row["model_b"],
            batch_b=_number(row["batch_b"]),
            norm_a=float(row["norm_a"]),
            norm_b=float(row["norm_b"]),
        )
        for row in _rows(file)
        if row["clipped_a"] != "True" and row["clipped_b"] != "True"
    )


@functools.cache
def stage_times() -> tuple[StageTimes, ...]:
    """Muri's stage times of eight models on 1 to 32 GPUs."""
    return tuple(
        StageTimes(
            model=row["model"],
            local_batch=float(row["batch_per_gpu"]),
            gpus=int(row["num_gpus"]),
            iteration_s=float(row["iteration_ms"]) / 1e3,
            input_s=float(row["stage_cpu_or_env_ms"]) / 1e3,
            gpu_s=float(row["stage_gpu_ms"]) / 1e3,
            network_s=float(row["stage_network_ms"]) / 1e3,
        )
        for row in _rows("stage_times.csv")
    )


@functools.cache
def cpu_sensitivity() -> tuple[CpuSensitivity, ...]:
    """Synergy's speeds on one GPU by cores and memory (rounded upstream)."""
    return tuple(
        CpuSensitivity(
            model=row["model"],
            local_batch=float(row["batch"]),
            cores=int(row["cpus_index"]),
            memory_level=int(row["dram_index"]),
            speed=float(row["tput_norm"]),
            reference_step_s=float(row["iter_time_s"]),
        )
        for row in _rows("cpu_sensitivity.csv")
    )


@functools.cache
def short_profiles() -> dict[tuple[str, str], tuple[tuple[float, float], ...]]:
    """(model, metric) → (by four seconds of profiling, by a long run) of every repeat: this project's, on CPU cores."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in _rows("profiled_cpu_short.csv"):
        found.setdefault((row["model"], row["metric"]), []).append((float(row["short"]), float(row["long"])))
    return {key: tuple(pairs) for key, pairs in found.items()}


def accuracy(pairs: Sequence[tuple[float, float]]) -> float:
    """1 − the mean of |short − long| / long: the accuracy of LDWP's Table 3."""
    return 1.0 - sum(abs(short - long) / long for short, long in pairs) / max(1, len(pairs))


@functools.cache
def profiled_sets() -> tuple[ProfiledSet, ...]:
    """This project's own measurements on two CPU cores: nothing is fitted to them, they are a test set."""
    return tuple(
        ProfiledSet(
            models=tuple(row["models"].split("+")),
            cpu_norms=tuple(float(v) for v in row["cpu_norms"].split("+")),
            cpu_spread=tuple(float(v) for v in row["cpu_spread"].split("+")),
        )
        for row in _rows("profiled_cpu_sets.csv")
    )
