"""Fits the weights k₁…k₅ of current capability, and the thermal resistance, on measured runs; writes capability.json.

Every row is one run beside the best run of the same program: how much of each component it had (1 = all) and how fast
it was (1 = best). CPU and memory shares come from the CPU/DRAM sensitivity runs, GPU and GPU memory shares from MIG
slices, GPU clocks from the variability study. Non-negative least squares with Σk = 1; every program counts the same.
No run varied the cache: nothing can be learned of it, and its weight is 0 until someone measures.

    python -m placewise_training.data.fit_capability open-data-directory capability.json
"""

import argparse
import hashlib
import json
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import nnls

from placewise_core.partition.capability import COMPONENTS

Array = NDArray[np.float64]
FILES = ("cpu_dram_sensitivity.csv", "mig_partition_throughputs.csv", "gpu_variability_thermal.csv")
FOLDS = 5
_SUM_WEIGHT = 1e4  # how firmly Σk = 1 is held in the least squares
# Stated, not fitted: none of the rows is a time series, holds a CPU's watts, or times a split.
GPU_TIME_CONSTANT_S = 60.0
CPU_THERMAL = {"resistance_k_per_w": 0.25, "time_constant_s": 60.0, "load_watts": 150.0}
DEFAULT_OVERHEAD_S = 1.0


def sensitivity_rows(table: pd.DataFrame) -> pd.DataFrame:
    """CPU and DRAM shares per GPU; only cells with a positive speed (0 and blanks are runs that did not start)."""
    keys = ["model", "num_gpus", "batch"]
    table = table[table["tput_norm"] > 0].copy()
    rows = pd.DataFrame(
        {
            "program": table[keys].astype("object").fillna("").astype(str).agg("/".join, axis=1),
            "cpu": table["cpus_index"] / table["cpus_index"].max(),
            "memory": (table["dram_index"] + 1) / (table["dram_index"].max() + 1),
            "speed": table["tput_norm"],
        }
    )
    return _relative(rows)


def mig_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Slices of one A100: compute slices of 7, memory of 40 GB."""
    table = table[(table["throughput_samples_s"] > 0) & table["feasible"].astype(bool)]
    keys = ["source", "mode", "model", "batch", "seq_length"]
    rows = pd.DataFrame(
        {
            "program": table[keys].astype("object").fillna("").astype(str).agg("/".join, axis=1),
            "gpu": table["compute_slices"] / 7.0,
            "gpu_memory": table["memory_gb"] / 40.0,
            "speed": table["throughput_samples_s"],
        }
    )
    has_whole = rows.groupby("program")["gpu"].transform("max") == 1.0
    return _relative(rows[has_whole])


def clock_rows(table: pd.DataFrame) -> pd.DataFrame:
    """The same kernel on hundreds of GPUs: clock against the highest, speed against the best."""
    table = table[(table["app"] == "sgemm") & table["freq_mhz"].notna()]
    rows = pd.DataFrame(
        {"program": "sgemm", "gpu": table["freq_mhz"] / table["freq_mhz"].max(), "speed": 1.0 / table["perf"]}
    )
    rows["speed"] /= rows.loc[rows["gpu"] > 0.99, "speed"].median()  # not the luckiest run of all
    return _complete(rows)


def _relative(rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows.copy()
    rows["speed"] /= rows.groupby("program")["speed"].transform("max")
    return _complete(rows)


def _complete(rows: pd.DataFrame) -> pd.DataFrame:
    for name in COMPONENTS:
        if name not in rows:
            rows[name] = 1.0
    return rows[["program", *COMPONENTS, "speed"]]


def fit_weights(rows: pd.DataFrame) -> Array:
    """(5,) non-negative weights that sum to 1; the cache, never varied, is left out and gets 0."""
    free = [i for i, name in enumerate(COMPONENTS) if name != "cache"]
    x = rows[list(COMPONENTS)].to_numpy(dtype=np.float64)[:, free]
    y = rows["speed"].to_numpy(dtype=np.float64)
    each = 1.0 / np.sqrt(rows.groupby("program")["speed"].transform("size").to_numpy(dtype=np.float64))
    a = np.vstack([x * each[:, None], np.full((1, len(free)), _SUM_WEIGHT)])
    fitted, _ = nnls(a, np.append(y * each, _SUM_WEIGHT))
    weights = np.zeros(len(COMPONENTS))
    weights[free] = fitted / fitted.sum()
    return weights


def held_out_errors(rows: pd.DataFrame) -> Array:
    """(N,) |predicted − measured| relative speed, each program predicted from the others (5 folds)."""
    programs = np.random.default_rng(0).permutation(rows["program"].unique())
    errors = np.zeros(len(rows))
    for k in range(FOLDS):
        test = rows["program"].isin(programs[k::FOLDS]).to_numpy()
        predicted = rows.loc[test, list(COMPONENTS)].to_numpy() @ fit_weights(rows[~test])
        errors[test] = np.abs(predicted - rows.loc[test, "speed"].to_numpy())
    return errors


def fit_thermal(table: pd.DataFrame) -> dict[str, float]:
    """R and ambient from the line of temperature over watts through V100s at three loads; P = their median at full."""
    table = table[table["temp_c"].notna() & table["power_w"].notna() & (table["power_w"] > 0)]
    per_load = table.groupby("app")[["power_w", "temp_c"]].mean()  # each load once, however many GPUs ran it
    slope, intercept = np.polyfit(per_load["power_w"], per_load["temp_c"], 1)
    return {
        "resistance_k_per_w": round(float(slope), 4),
        "time_constant_s": GPU_TIME_CONSTANT_S,
        "load_watts": round(float(table.loc[table["app"] == "sgemm", "power_w"].median()), 1),
        "ambient_celsius": round(float(intercept), 1),
    }


def fit(directory: Path) -> dict[str, object]:
    """The whole bundle file from the openly licensed tables of `directory`."""
    sensitivity, mig, clocks = (pd.read_csv(directory / name) for name in FILES)
    rows = pd.concat([sensitivity_rows(sensitivity), mig_rows(mig), clock_rows(clocks)], ignore_index=True)
    weights = fit_weights(rows)
    errors = held_out_errors(rows)
    gpu = fit_thermal(clocks)
    spread = (rows["speed"] - rows.groupby("program")["speed"].mean().mean()).abs()
    return {
        "schema": "placewise.capability/1",
        "weights": {name: round(float(w), 6) for name, w in zip(COMPONENTS, weights, strict=True)},
        "thermal": {"gpu": gpu, "cpu": {**CPU_THERMAL, "ambient_celsius": gpu["ambient_celsius"]}},
        "default_overhead_s": DEFAULT_OVERHEAD_S,
        "held_out": {
            "rows": len(rows),
            "programs": int(rows["program"].nunique()),
            "mean_absolute_error": round(_over_programs(rows, pd.Series(errors)), 4),
            "mean_absolute_error_of_a_constant": round(_over_programs(rows, spread), 4),
        },
        "provenance": {
            "fitted_by": "placewise_training.data.fit_capability",
            "sha256": {name: hashlib.sha256((directory / name).read_bytes()).hexdigest() for name in FILES},
            "split": f"{FOLDS} folds over programs, shuffled with seed 0",
            "stated_not_fitted": [
                "weights.cache",
                "thermal.gpu.time_constant_s",
                "thermal.cpu",
                "default_overhead_s",
            ],
        },
    }


def _over_programs(rows: pd.DataFrame, values: pd.Series) -> float:
    """Mean over programs of the mean over their runs: nine thousand runs of one kernel count once."""
    return float(values.groupby(rows["program"]).mean().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="folder with the three openly licensed tables")
    parser.add_argument("output", type=Path, help="where capability.json goes")
    arguments = parser.parse_args()
    bundle = fit(arguments.directory)
    weights = bundle["weights"]
    assert isinstance(weights, dict)
    weights["gpu"] = round(1.0 - sum(w for name, w in weights.items() if name != "gpu"), 6)  # rounding kept out of Σk
    arguments.output.write_text(json.dumps(bundle, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(json.dumps({"weights": weights, "held_out": bundle["held_out"]}, indent=1))


if __name__ == "__main__":
    main()
