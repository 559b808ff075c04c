"""The cluster of the demonstration: machines of one member of the truth `site`, and drawn jobs. Asks no service."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from placewise_core.domain.traces import read_trace
from placewise_core.domain.truth import TruthSetting
from placewise_training.sim.gangs.hosted import HostedSimulation
from placewise_training.sim.gangs.oracle import Oracle
from placewise_training.sim.policies import policies_of, shipped
from placewise_training.sim.speed.profiles import SITE_MEMBERS
from placewise_training.sim.workloads import Lengths

NODES: Final = 8
GPUS: Final = 4
GPU_MODEL: Final = "V100"
_JOBS_PER_HOUR: Final = 27.0  # seven tenths of the GPUs, if every job ran alone
_SIZES: Final = ((1, 0.5), (2, 0.2), (4, 0.2), (8, 0.1))  # GPUs of a job, and the share of such jobs
_HEADER: Final = ("trace", "job_id", "submit_time_s", "duration_s", "num_gpus", "vc")


@dataclass(frozen=True, slots=True)
class Window:
    """Jobs that nobody has seen before: their trace, and the seed of the truth that runs them."""

    trace: Path
    seed: int

    @property
    def options(self) -> Sequence[object]:
        """Of `placewise replay`."""
        cluster = ("--nodes", NODES, "--gpus-per-node", GPUS, "--gpu-model", GPU_MODEL)
        return ("--truth", "site", "--trace", self.trace, "--seed", self.seed, *cluster)

    def oracle_jct_s(self) -> float:
        """Mean JCT of the best of 200 placements by true speeds, one job ahead."""
        jobs = read_trace(self.trace, default_queue="default")
        simulation = HostedSimulation("site", TruthSetting(jobs, NODES, GPUS, GPU_MODEL, self.seed)).simulation
        known = policies_of(shipped())
        simulation.policy = Oracle(simulation, more=[known["search"], known["harmony"]])
        found: float = simulation.run().metrics.as_dict()["avg_jct_s"]
        return found


@dataclass(frozen=True, slots=True)
class Site:
    """One member of the truth; windows of it differ in jobs and noise."""

    member: int
    folder: Path

    def window(self, number: int, jobs: int) -> Window:
        """The window of this number, the same whenever it is asked for."""
        seed = self.member % SITE_MEMBERS + SITE_MEMBERS * (number + 1)
        path = self.folder / f"jobs-{number}.csv"
        if not path.exists():
            _write(path, jobs, np.random.default_rng((seed, 20)))
        return Window(path, seed)


def _write(path: Path, jobs: int, rng: np.random.Generator) -> None:
    submit_s = np.cumsum(rng.exponential(3600.0 / _JOBS_PER_HOUR, jobs))
    sizes, shares = zip(*_SIZES, strict=True)
    gpus = rng.choice(sizes, size=jobs, p=shares)
    lengths = Lengths()
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(_HEADER)
        for i, (at_s, count) in enumerate(zip(submit_s, gpus, strict=True)):
            rows.writerow(("demo", f"job{i:05d}", f"{at_s:.1f}", f"{lengths.draw(rng):.1f}", count, "default"))
