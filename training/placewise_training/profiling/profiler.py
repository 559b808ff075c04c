"""Profiles workloads alone, in pairs and in triples, and keeps the rows with their provenance. Draws no conclusions.

Every set is measured between two measurements of its members alone, so that other work on the machine at that time
changes both sides of the ratio; the median over the repeats counts, and `spread` says how far the repeats differ.
"""

import csv
import itertools
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from placewise_training.profiling.workers import Reading, Workers
from placewise_training.profiling.workloads import workload

# Header of the measured co-location table, so that a reader of that table reads this one.
PAIR_COLUMNS = [
    *("source", "sharing", "gpu_type"),
    *(f"{name}_a" for name in ("model", "dataset", "batch", "amp", "parallelism", "scale")),
    *(f"{name}_b" for name in ("model", "dataset", "batch", "amp", "parallelism", "scale")),
    *("tput_a_alone", "tput_b_alone", "tput_a_shared", "tput_b_shared", "tput_unit", "norm_a", "norm_b"),
    *("feasible", "clipped_a", "clipped_b", "gpu_util_pair", "gmem_util_pair", "gmem_used_mb_pair"),
]
SOURCE = "placewise_profiler"
_CORE_BATCH = 2  # of a network on a CPU core, where its usual batch would take minutes
_SHARING = {"cpu": "operating system time slices, one thread each", "cuda": "GPU time slices, one process each"}
STEP_COLUMNS = ("gpu_type", "model", "placement", "local_batch", "step_time_s")
SET_COLUMNS = ("models", "alone_steps_per_s", "shared_steps_per_s", "norms", "spread", "cpu_norms", "cpu_spread")


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """`cores` the loops share (empty: all the process may use); `device` "cpu" or "cuda"."""

    workloads: tuple[str, ...]
    device: str = "cpu"
    cores: tuple[int, ...] = ()
    seconds: float = 3.0
    repeats: int = 3
    has_triples: bool = True
    seed: int = 0
    has_pairs: bool = True


@dataclass(frozen=True, slots=True)
class Set:
    """Loops that ran side by side: steps per second of each alone and shared, medians; relative speeds; spreads.

    `cpu_norms` are relative speeds per CPU second: interference without the turns on the cores that members take from
    each other and lose to other work. On a GPU they mean nothing.
    """

    models: tuple[str, ...]
    alone: tuple[float, ...]
    shared: tuple[float, ...]
    norms: tuple[float, ...]
    spread: tuple[float, ...]
    cpu_norms: tuple[float, ...]
    cpu_spread: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """Everything one run measured. `alone` holds the full profile of each loop, `short` IAWP's two metrics of it."""

    alone: Mapping[str, Reading]
    short: Mapping[str, Mapping[str, float]]
    sets: tuple[Set, ...]
    batches: Mapping[str, int]
    is_partial: bool


def profile(settings: ProfileSettings, progress: Callable[[str], None] = lambda what: None) -> Profile:
    """Runs the measurements; Ctrl-C ends them early, marked partial."""
    names = settings.workloads
    sets: list[Set] = []
    alone: dict[str, Reading] = {}
    is_partial = False
    sides = groups(names, settings.has_triples) if settings.has_pairs else []
    with Workers(max([1, *map(len, sides)]), settings.device, settings.cores) as workers:
        try:
            for name in names:
                progress(name)
                alone[name] = workers.measure([name], settings.seconds)[0]
            for models in sides:
                progress(" + ".join(models))
                sets.append(_measure_set(workers, models, settings))
        except KeyboardInterrupt:
            is_partial = True
    speedups = {} if settings.device == "cpu" or is_partial else _speedups(alone, settings)
    short = short_profiles(alone, settings.seed, speedups)
    return Profile(alone, short, tuple(sets), {n: workload(n).batch for n in names}, is_partial)


def _speedups(alone: Mapping[str, Reading], settings: ProfileSettings) -> dict[str, float]:
    """Samples per second on the GPU over those on one CPU core, where a network has a small batch."""
    with Workers(1, "cpu", settings.cores) as workers:
        found = {}
        for name, reading in alone.items():
            chosen = workload(name)
            batch = min(chosen.batch, _CORE_BATCH) if chosen.is_network else chosen.batch
            on_core = workers.measure([f"{chosen.name}@{batch}"], settings.seconds)[0]
            found[name] = reading.steps_per_s * chosen.batch / (on_core.steps_per_s * batch)
        return found


def groups(names: Sequence[str], has_triples: bool) -> list[tuple[str, ...]]:
    """Every unordered pair, a loop beside itself included; and every triple of different ones."""
    found: list[tuple[str, ...]] = list(itertools.combinations_with_replacement(names, 2))
    return found + list(itertools.combinations(names, 3)) if has_triples else found


def _measure_set(workers: Workers, models: tuple[str, ...], settings: ProfileSettings) -> Set:
    """(repeats, members, 2) rates per second and per CPU second, alone and shared."""
    alone = np.zeros((settings.repeats, len(models), 2))
    shared = np.zeros_like(alone)
    for repeat in range(settings.repeats):
        before = _alone(workers, models, settings.seconds / 2)
        shared[repeat] = [_rates(r) for r in workers.measure(models, settings.seconds)]
        after = _alone(workers, models, settings.seconds / 2)
        alone[repeat] = [(before[m] + after[m]) / 2.0 for m in models]
    norms = shared / alone
    middle = np.median(norms, axis=0)
    spread = np.ptp(norms, axis=0) / middle
    return Set(
        models=models,
        alone=_listed(np.median(alone, axis=0)[:, 0]),
        shared=_listed(np.median(shared, axis=0)[:, 0]),
        norms=_listed(middle[:, 0]),
        spread=_listed(spread[:, 0]),
        cpu_norms=_listed(middle[:, 1]),
        cpu_spread=_listed(spread[:, 1]),
    )


def _alone(workers: Workers, models: Sequence[str], seconds: float) -> dict[str, NDArray[np.float64]]:
    return {name: _rates(workers.measure([name], seconds)[0]) for name in dict.fromkeys(models)}


def _rates(reading: Reading) -> NDArray[np.float64]:
    """(2,) steps per second and per CPU second."""
    return np.array([reading.steps_per_s, reading.steps_per_s / max(1e-6, reading.cpu_share)])


def _listed(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def short_profiles(
    alone: Mapping[str, Reading], seed: int, speedups: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """IAWP's short profile: two metrics of each loop, drawn from those that need no hardware counters.

    CPU use (cores) and host memory (share of the machine); on a GPU also its memory ("dram") and the speedup over one
    core. The others stay unknown, as in the paper, for the completion to fill.
    """
    rng = np.random.default_rng((seed, 10))
    total_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    found = {}
    for name, reading in alone.items():
        row = {"cpu": reading.cpu_share, "host_memory": reading.resident_gib / total_gib}
        if name in speedups:
            row |= {"dram": reading.gpu_memory_share, "speedup": speedups[name]}
        chosen = rng.choice(sorted(row), size=2, replace=False)
        found[name] = {str(metric): row[str(metric)] for metric in chosen}
    return found


def write(profiled: Profile, settings: ProfileSettings, folder: Path) -> list[Path]:
    """Writes pairs (schema of the measured data), all sets, single profiles, provenance, of a GPU steps too.

    Returns the files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    hardware = hardware_name(settings.device)
    pairs, sets, single = folder / "pairs.csv", folder / "sets.csv", folder / "single.csv"
    with pairs.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, PAIR_COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(
            _pair_row(s, profiled.batches, hardware, settings.device) for s in profiled.sets if len(s.models) == 2
        )
    with sets.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["hardware", *SET_COLUMNS])
        rows.writerows([hardware, *(_joined(v) for v in asdict(s).values())] for s in profiled.sets)
    with single.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["hardware", "model", "batch", "steps_per_s", "cpu", "resident_gib", "short_profile"])
        for name, r in profiled.alone.items():
            short = json.dumps({k: round(v, 5) for k, v in profiled.short[name].items()})
            figures = (f"{r.steps_per_s:.6g}", f"{r.cpu_share:.4g}", f"{r.resident_gib:.4g}")
            rows.writerow([hardware, workload(name).name, profiled.batches[name], *figures, short])
    provenance = folder / "provenance.json"
    provenance.write_text(json.dumps(_provenance(profiled, settings, hardware), indent=1) + "\n", encoding="utf-8")
    return [pairs, sets, single, provenance, *([] if settings.device == "cpu" else [_steps(profiled, folder)])]


def _steps(profiled: Profile, folder: Path) -> Path:
    """The steps alone on one GPU, as `--measured` reads them."""
    path = folder / "steps.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(STEP_COLUMNS)
        for name, r in profiled.alone.items():
            rows.writerow(
                [hardware_name("cuda"), workload(name).name, 1, profiled.batches[name], f"{1.0 / r.steps_per_s:.6g}"]
            )
    return path


def _joined(values: Sequence[object]) -> str:
    return "+".join(v if isinstance(v, str) else f"{v:.5g}" for v in values)


def _pair_row(measured: Set, batches: Mapping[str, int], hardware: str, device: str) -> dict[str, object]:
    a, b = measured.models
    return {
        "source": SOURCE,
        "sharing": _SHARING[device],
        "gpu_type": hardware,
        "model_a": workload(a).name,
        "batch_a": batches[a],
        "scale_a": 1,
        "model_b": workload(b).name,
        "batch_b": batches[b],
        "scale_b": 1,
        "tput_a_alone": f"{measured.alone[0]:.6g}",
        "tput_b_alone": f"{measured.alone[1]:.6g}",
        "tput_a_shared": f"{measured.shared[0]:.6g}",
        "tput_b_shared": f"{measured.shared[1]:.6g}",
        "tput_unit": "steps/s",
        "norm_a": f"{measured.norms[0]:.6g}",
        "norm_b": f"{measured.norms[1]:.6g}",
        "feasible": True,
        "clipped_a": False,
        "clipped_b": False,
    }


def hardware_name(device: str) -> str:
    """The GPU's name, or the CPU's with how many cores this process may use."""
    if device != "cpu":
        return torch.cuda.get_device_name(0)
    cores = len(os.sched_getaffinity(0))
    return f"{_cpu_name()} ({cores} cores)"


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown CPU"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown CPU")


def _provenance(profiled: Profile, settings: ProfileSettings, hardware: str) -> dict[str, object]:
    return {
        "source": SOURCE,
        "hardware": hardware,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_average": os.getloadavg(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "settings": asdict(replace(settings)),
        "median_spread": _median([v for s in profiled.sets for v in s.spread]),
        "median_cpu_spread": _median([v for s in profiled.sets for v in s.cpu_spread]),
        "partial": profiled.is_partial,
    }


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None
