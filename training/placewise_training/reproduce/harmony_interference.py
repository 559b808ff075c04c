"""Harmony's case study: jobs packed on servers against alone. Looks at the truth directly, without a scheduler."""

import itertools
from collections.abc import Sequence

import numpy as np

from placewise_core.job import Architecture, Job, JobId, Resources
from placewise_training.reproduce.design import Outcome
from placewise_training.reproduce.harmony_runs import FIRST_SEED
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
    server = harmony_cluster(1)[0]
    nodes = {server.id: NodeLoad(server)}
    footprints: dict[str, Footprint] = {}
    alone: list[float] = []
    for i, model in enumerate(models):
        job = _small_job(model, i, truth)
        made = truth.footprint(job, [Spot(server.id, 1, 1, (i,))], nodes)
        single = {server.id: NodeLoad(server)}
        single[server.id].add(job.id, made.parts[0])
        alone.append(truth.rate(made, single, {job.id: made}))
        footprints[job.id] = made
    for name, made in footprints.items():
        nodes[server.id].add(name, made.parts[0])
    packed = [truth.rate(made, nodes, footprints) for made in footprints.values()]
    return [1.0 - p / a for p, a in zip(packed, alone, strict=True)]


def packed_trial(setting: str, method: str, seed: int) -> Outcome:
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
    return Outcome({"slowdown": value})


def pair_trial(setting: str, method: str, seed: int) -> Outcome:
    """Fig. 2: interference level of a pair, the sum of both slowdowns. `setting` and `method` are the models."""
    truth = make_truth("judge", FIRST_SEED + seed)
    return Outcome({"level": sum(slowdowns((setting, method), truth))})
