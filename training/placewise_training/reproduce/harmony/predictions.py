"""Harmony's Fig. 13: how well models predict training speeds, under random placement of jobs that fill the cluster.

At each start every model says how fast the new job and its neighbours will run then; the truth says how fast they do.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placewise_core.domain.cluster import Assignment
from placewise_core.domain.job import Job
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import PlacementPolicy, Proposal
from placewise_core.inputs.reward import WITNESSES, PartEncoder, PartTokens
from placewise_core.policies.profiled.lif import LeastInterference
from placewise_core.policies.profiled.tables import packaged_tables
from placewise_core.policies.registry import least_interference
from placewise_core.policies.search import SpeedScorer
from placewise_core.speed.linear_speed import linear_speed
from placewise_core.view.view import ClusterView
from placewise_models.bundle import Bundle
from placewise_training.policy.printed.reward_model import Budget, Predictions, judged_as_printed
from placewise_training.reproduce.design import NeedsBundleError, TrialOutcome
from placewise_training.reproduce.harmony.runs import FIRST_SEED, Scenario
from placewise_training.sim.arrivals import INTERVAL_S
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.gangs.engine import SimOptions, Simulation, spots_of
from placewise_training.sim.hardware import harmony_cluster
from placewise_training.sim.jobs import SimJob, workers_of
from placewise_training.sim.policies import placement_policy
from placewise_training.sim.speed.base import Footprint, NodeLoad, Part
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import HARMONY_MODELS

REWARD_MODEL = "reward model"
PRINTED_REWARD = "reward model as printed"
NO_INTERFERENCE = "speed alone, no interference"
PREDICTORS = ("lif-linear", "lif-quadratic", NO_INTERFERENCE, REWARD_MODEL)
ALL, NEW, NEIGHBOURS = "all", "new jobs", "neighbours"
SETTINGS = (ALL, NEW, NEIGHBOURS, "seq2seq", "ctc")
LATER = "later jobs"
PRINTED_SETTINGS = (ALL, "seq2seq", "ctc", LATER)
WITHIN = 0.1


@dataclass(frozen=True, slots=True)
class SpeedSample:
    """Speeds of one job after a start: true, true without neighbours, predicted (0: none); and the share its neighbours
    use."""

    model: str
    is_new: bool
    speed: float
    alone: float
    use: tuple[tuple[float, float], ...]  # per node: shares of CPU and bandwidth that others use
    rewarded: float


class _Watcher(PlacementPolicy):
    """Random placement; notes at each start the true speeds and the reward model's predictions."""

    name = "watcher"

    def __init__(self, scorer: SpeedScorer | None) -> None:
        self.samples: list[SpeedSample] = []
        self.simulation: Simulation | None = None
        self._random = placement_policy("random")
        self._scorer = scorer
        self._encoder = PartEncoder(most_witnesses=WITNESSES)

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        proposal = self._random.propose(job, view, context)
        if proposal is not None:
            self._note(job, proposal.assignments, self._encoder.encode(job, [proposal.assignments], view))
        return proposal

    def _note(self, job: Job, assignments: tuple[Assignment, ...], tokens: PartTokens) -> None:
        simulation = self.simulation
        if simulation is None:
            raise RuntimeError("the watcher is not attached to a simulation")
        new = simulation.waiting[job.id]
        jobs = [new, *(simulation.running[held.id].sim for held in tokens.neighbours)]
        rewarded = self._rewarded(jobs, tokens)
        made = simulation.speed.footprint(new, spots_of(assignments), simulation.nodes)
        footprints = {**simulation.footprints, new.id: made}
        for part in made.parts:
            simulation.nodes[part.node].add(new.id, part)
        try:
            for sim_job, predicted in zip(jobs, rewarded, strict=True):
                speed = simulation.speed.rate(footprints[sim_job.id], simulation.nodes, footprints)
                self.samples.append(_sample(footprints[sim_job.id], simulation, speed, predicted, sim_job is new))
        finally:
            for part in made.parts:
                simulation.nodes[part.node].remove(new.id)

    def _rewarded(self, jobs: Sequence[SimJob], tokens: PartTokens) -> list[float]:
        """Samples per second the reward model predicts for each job; zeros without one."""
        if self._scorer is None:
            return [0.0] * len(jobs)
        relative = self._scorer.speeds(tokens)[0]
        owner = tokens.job[0].tolist()
        return [float(relative[owner.index(i)]) * _linear(job) for i, job in enumerate(jobs)]


def _linear(job: SimJob) -> float:
    """Linear speed in samples per second: the unit of the reward model's answers."""
    return linear_speed(job.job, workers_of(job.job)) * job.samples / job.job.total_epochs


def _sample(made: Footprint, simulation: Simulation, speed: float, rewarded: float, is_new: bool) -> SpeedSample:
    return SpeedSample(
        made.job.job.model,
        is_new,
        speed,
        made.samples_per_step / made.alone_step_s,
        tuple(_used_by_others(simulation.nodes[part.node], part) for part in made.parts),
        rewarded,
    )


def _used_by_others(load: NodeLoad, part: Part) -> tuple[float, float]:
    """Of the cores, the others' requests and use. The jobs reserve no bandwidth, so LIF sees none in use.

    That is the kindest input: with all the cores others would like, or with the NIC's measured use, LIF errs more.
    """
    cores = (load.cpu_requested - min(part.cpu_requested, part.cpu_wanted)) / load.spec.node.capacity.cpu_cores
    return min(1.0, max(0.0, cores)), 0.0


@functools.cache
def speed_samples(jobs: int, seed: int, bundle: Bundle, first_seed: int = FIRST_SEED) -> tuple[SpeedSample, ...]:
    """The samples of every start of one simulation."""
    truth = make_truth("judge", first_seed + seed)
    watcher = _Watcher(bundle.reward)
    simulation = Simulation(
        harmony_cluster(),
        Scenario(per_interval=5.0, jobs=jobs).workload().generate(truth, first_seed + seed),
        truth,
        watcher,
        options=SimOptions(discipline=Discipline(every_s=INTERVAL_S), reports_progress=True),
        seed=seed,
    )
    watcher.simulation = simulation
    simulation.run()
    return tuple(watcher.samples)


@functools.cache
def _printed(drawn: int, budget: Budget) -> dict[str, Predictions]:
    return judged_as_printed(make_truth("judge", drawn), drawn, budget)


def printed_trial(setting: str, seed: int, budget: Budget, first_seed: int = FIRST_SEED) -> TrialOutcome:
    """Of the reward model as printed, trained and judged by the paper's protocol; `setting` is one of PRINTED_SETTINGS.
    LATER takes no sample of the same time as those that the net learned from."""
    found = _printed(first_seed + seed, budget)["later" if setting == LATER else "shuffled"]
    is_chosen = np.ones(len(found.model), dtype=bool)
    if setting in HARMONY_MODELS:
        is_chosen = found.model == HARMONY_MODELS.index(setting)
    error = found.error[is_chosen]
    return TrialOutcome({"error": float(error.mean()), "within": float((error <= WITHIN).mean())})


def prediction_trial(
    setting: str, method: str, seed: int, jobs: int, bundle: Bundle, first_seed: int = FIRST_SEED
) -> TrialOutcome:
    """Mean relative error, and the share of predictions within 10 %. `setting` is one of SETTINGS.

    LIF gets the neighbours' use and the speed of the placement without them: it has to find the interference. The
    reward model gets a host's reports: the past speeds of running jobs, and of a new job nothing but its request.
    """
    if method == REWARD_MODEL and bundle.reward is None:
        raise NeedsBundleError(f"needs a bundle: {bundle.name} holds no reward model")
    samples = [s for s in speed_samples(jobs, seed, bundle, first_seed) if _is_of(s, setting)]
    errors = np.array([abs(_predicted(s, method) - s.speed) / s.speed for s in samples])
    return TrialOutcome({"error": float(errors.mean()), "within": float((errors <= WITHIN).mean())})


def _is_of(sample: SpeedSample, setting: str) -> bool:
    if setting in (NEW, NEIGHBOURS):
        return sample.is_new == (setting == NEW)
    return setting in (ALL, sample.model)


def _predicted(sample: SpeedSample, method: str) -> float:
    if method == REWARD_MODEL:
        return sample.rewarded
    if method == NO_INTERFERENCE:
        return sample.alone
    policy = _lif(method)
    return sample.alone / max(policy.slowdown(sample.model, *use) for use in sample.use)


@functools.cache
def _lif(name: str) -> LeastInterference:
    return next(policy for policy in least_interference(packaged_tables()) if policy.name == name)
