"""Harmony's case study: jobs packed on servers against alone. Looks at the truth directly, without a scheduler."""

import itertools
from collections.abc import Sequence

import numpy as np

from placewise_core.domain.job import Architecture, Job, JobId, Resources
from placewise_training.reproduce.design import TrialOutcome
from placewise_training.reproduce.harmony.runs import FIRST_SEED
from placewise_training.sim.hardware import harmony_cluster
from placewise_training.sim.jobs import SimJob, gang
from placewise_training.sim.speed.base import Footprint, NodeLoad, Spot
from placewise_training.sim.speed.composed import ComposedSpeed
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import HARMONY_MODELS


def _small_job(model: str, number: int, truth: ComposedSpeed) -> SimJob:
    cores = 3 if model == "ctc" else 2
    groups = gang(1, 1, worker_demand=Resources(cpu_cores=cores, gpus=1, memory_gib=8))
    job = Job(JobId(f"{model}-{number}"), model, Architecture.PARAMETER_SERVER, groups)
    return SimJob(job, samples=1.0, submit_time_s=0.0, number=number)


def slowdowns(models: Sequence[str], truth: ComposedSpeed) -> list[float]:
    """Share of its speed alone on a server that each job loses when all are on one server, one GPU each."""
    jobs = [(model, [(0, 1, 1)]) for model in models]
    packed = _rates(jobs, truth)
    alone = [_rates([(model, where)], truth, first=i)[0] for i, (model, where) in enumerate(jobs)]
    return [1.0 - p / a for p, a in zip(packed, alone, strict=True)]


# The places of one job's tasks: (server, workers, parameter servers).
_Where = Sequence[tuple[int, int, int]]


def _rates(jobs: Sequence[tuple[str, _Where]], truth: ComposedSpeed, first: int = 0) -> list[float]:
    """Samples per second of each job, all running. `first` numbers the first job: its noise comes from its number."""
    nodes = {spec.id: NodeLoad(spec) for spec in harmony_cluster(2)}
    names = list(nodes)
    made: dict[str, Footprint] = {}
    for i, (model, where) in enumerate(jobs, start=first):
        job = _small_job(model, i, truth)
        spots = [Spot(names[m], workers, servers, (i,) if workers else ()) for m, workers, servers in where]
        made[job.id] = truth.footprint(job, spots, nodes)
    for name, footprint in made.items():
        for part in footprint.parts:
            nodes[part.node].add(name, part)
    return [truth.rate(footprint, nodes, made) for footprint in made.values()]


def packed_trial(setting: str, method: str, seed: int) -> TrialOutcome:
    """Fig. 1: the six jobs on three servers, in pairs; the mean over all fifteen ways to pair them up.

    `setting` is a model, or "mean" of the six.
    """
    truth = make_truth("judge", FIRST_SEED + seed)
    lost: dict[str, list[float]] = {model: [] for model in HARMONY_MODELS}
    for pair in itertools.combinations(HARMONY_MODELS, 2):
        for model, value in zip(pair, slowdowns(pair, truth), strict=True):
            lost[model].append(value)
    means = {model: float(np.mean(values)) for model, values in lost.items()}
    value = float(np.mean(list(means.values()))) if setting == "mean" else means[setting]
    return TrialOutcome({"slowdown": value})


def pair_trial(setting: str, method: str, seed: int) -> TrialOutcome:
    """Fig. 2: interference level of a pair, the sum of both slowdowns. `setting` and `method` are the models."""
    truth = make_truth("judge", FIRST_SEED + seed)
    return TrialOutcome({"level": sum(slowdowns((setting, method), truth))})


STANDALONE, PACKED, BALANCED = "standalone", "bin packing", "load balancing"
SCHEMES = (STANDALONE, PACKED, BALANCED)
# Fig. 3: the places of the worker and the parameter server of the first and of the second job.
_WHERE: dict[str, tuple[_Where, _Where]] = {
    STANDALONE: ([(0, 1, 1)], [(1, 1, 1)]),
    PACKED: ([(0, 1, 1)], [(0, 1, 1)]),
    BALANCED: ([(0, 1, 0), (1, 0, 1)], [(1, 1, 0), (0, 0, 1)]),
}
MOST_BESIDE = 3


def scheme_trial(setting: str, method: str, seed: int) -> TrialOutcome:
    """Fig. 4: speed of the second job (`setting` is its model) beside CTC, over its speed standalone."""
    truth = make_truth("judge", FIRST_SEED + seed)
    speeds = {
        scheme: _rates([("ctc", first), (setting, second)], truth)[1] for scheme, (first, second) in _WHERE.items()
    }
    return TrialOutcome({"speed": speeds[method] / speeds[STANDALONE]})


def beside_trial(setting: str, method: str, seed: int) -> TrialOutcome:
    """Fig. 5: speed of a job (`method` is its model) with `setting` CTC jobs on its server, over its speed alone."""
    truth = make_truth("judge", FIRST_SEED + seed)
    here: _Where = [(0, 1, 1)]
    alone = _rates([(method, here)], truth)[0]
    return TrialOutcome({"speed": _rates([(method, here)] + [("ctc", here)] * int(setting), truth)[0] / alone})
