"""How long `placewise retrain` takes in full on the log of a simulated week.

    taskset -c 0,1 python -m tests.bench.retrain_week DIR

Makes the log in DIR/log, unless it is there, and retrains into DIR/next.
"""

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from tests.fakes.logs.simulated_log import simulated_log

from placewise_models.folder import shipped_bundle
from placewise_training.lab.origin import origin
from placewise_training.sim.hardware import harmony_cluster
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import INTERVAL_S, HarmonyWorkload

JOBS, NODES, WEEK_S = 2000, 8, 7 * 86_400.0


def make(folder: Path, seed: int) -> None:
    """`search` in force, `consolidate` for half of the jobs."""
    truth = make_truth("site", seed)
    rate = JOBS * INTERVAL_S / WEEK_S
    jobs = HarmonyWorkload(jobs=JOBS, per_interval=rate, pattern="poisson").generate(truth, seed)
    policies = ("search", "consolidate")
    asyncio.run(
        simulated_log(folder, harmony_cluster(NODES), jobs, truth, policies=policies, seed=seed, has_views=True)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=60)
    options = parser.parse_args()
    log, out = options.directory / "log", options.directory / "next"
    if not (log / "manifest.json").exists():
        make(log, options.seed)
    command = [str(Path(sys.executable).with_name("placewise")), "retrain", "--log", str(log), "--out", str(out)]
    began_s, load = time.perf_counter(), os.getloadavg()[0]
    done = subprocess.run([*command, "--start", str(shipped_bundle())], check=False)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = {
        "wall_s": round(time.perf_counter() - began_s, 1),
        "cpu_s": round(used.ru_utime + used.ru_stime, 1),
        "cores": len(os.sched_getaffinity(0)),
        "load_before": round(load, 1),
        "exit_code": done.returncode,
        "jobs": JOBS,
        "origin": origin(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
