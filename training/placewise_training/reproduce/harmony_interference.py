"""Harmony's interference experiments: jobs packed on servers against alone, and how well models predict speeds.

Both look at the truth directly, without a scheduler's queue (the case study) or under random placement (predictions).
"""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placewise_core.job import Architecture, Job, JobId, Resources
from placewise_core.place.lif import LeastInterference
from placewise_core.place.registry import placement_policies
from placewise_training.reproduce.design import NeedsBundleError, Outcome
from placewise_training.reproduce.harmony_runs import FIRST_SEED, Scenario
from placewise_training.sim.arrivals import INTERVAL_S
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.engine import LiveJob, SimOptions, Simulation
from placewise_training.sim.hardware import harmony_cluster
from placewise_training.sim.jobs import SimJob, gang
from placewise_training.sim.policies import placement_policy
from placewise_training.sim.speed.base import Footprint, NodeLoad, Part, Spot
from placewise_training.sim.speed.composed import ComposedSpeed
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import HARMONY_MODELS

# -- case study: one worker and one parameter server each, on one server ---------------------------------------------


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


# -- Fig. 13: predicting speeds --------------------------------------------------------------------------------------

REWARD_MODEL = "reward model"
NO_INTERFERENCE = "speed alone, no interference"
PREDICTORS = ("lif-linear", "lif-quadratic", NO_INTERFERENCE, REWARD_MODEL)
WITHIN = 0.1


@dataclass(frozen=True, slots=True)
class SpeedSample:
    """One running job: its true speed, the one its placement has without neighbours, and what others use there."""

    model: str
    speed: float
    alone: float
    use: tuple[tuple[float, float], ...]  # per node: shares of CPU and bandwidth that others use


@functools.cache
def speed_samples(jobs: int, seed: int) -> tuple[SpeedSample, ...]:
    """Speeds under random placement of saturating jobs, once an interval: how the paper collected its trace."""
    truth = make_truth("judge", FIRST_SEED + seed)
    scenario = Scenario(per_interval=5.0, jobs=jobs)
    options = SimOptions(discipline=Discipline(every_s=INTERVAL_S))
    simulation = Simulation(
        harmony_cluster(),
        scenario.workload().generate(truth, FIRST_SEED + seed),
        truth,
        placement_policy("random"),
        options=options,
        seed=seed,
    )
    found: list[SpeedSample] = []
    at_s = INTERVAL_S + 1.0
    while not simulation.is_over:
        simulation.run_until(at_s)
        found.extend(_sample(live, simulation.nodes) for live in simulation.running.values())
        at_s += INTERVAL_S
    return tuple(found)


def _sample(live: LiveJob, nodes: Mapping[str, NodeLoad]) -> SpeedSample:
    return SpeedSample(
        live.sim.job.model,
        live.rate,
        live.footprint.samples_per_step / live.footprint.alone_step_s,
        tuple(_used_by_others(nodes[part.node], part) for part in live.footprint.parts),
    )


def _used_by_others(load: NodeLoad, part: Part) -> tuple[float, float]:
    """Of the cores, what others asked for and use. The jobs reserve no bandwidth, so LIF sees none in use.

    That is the kindest input: with all the cores others would like, or with the NIC's measured use, LIF errs more.
    """
    cores = (load.cpu_requested - min(part.cpu_requested, part.cpu_wanted)) / load.spec.node.capacity.cpu_cores
    return min(1.0, max(0.0, cores)), 0.0


def prediction_trial(setting: str, method: str, seed: int, jobs: int) -> Outcome:
    """Mean relative error, and the share of predictions within 10 %. `setting` is a model or "all".

    LIF is told what others use, and how fast the placement is without them: what it must find is interference.
    """
    if method == REWARD_MODEL:
        raise NeedsBundleError("needs a bundle: the reward model is not trained yet")
    samples = [s for s in speed_samples(jobs, seed) if setting in ("all", s.model)]
    errors = np.array([abs(_predicted(s, method) - s.speed) / s.speed for s in samples])
    return Outcome({"error": float(errors.mean()), "within": float((errors <= WITHIN).mean())})


def _predicted(sample: SpeedSample, method: str) -> float:
    if method == NO_INTERFERENCE:
        return sample.alone
    policy = _lif(method)
    return sample.alone / max((policy.slowdown(sample.model, *use) for use in sample.use), default=math.inf)


@functools.cache
def _lif(name: str) -> LeastInterference:
    policy = placement_policies()[name]
    if not isinstance(policy, LeastInterference):
        raise TypeError(f"{name} is not a model of interference")
    return policy
