"""Samples for the reward model: decisions met in simulations, several placements of each, and the true speeds of all.

A simulation runs under a policy that picks among the heuristics at random. At each decision every heuristic's placement
is encoded by the service's own encoder, and the truth is asked how fast the new job and its neighbours would run:
a simulator, unlike a cluster, knows the speeds of placements that were not chosen. Labels carry the truth's noise, as
measurements would. Samples of `train` and of `judge` come from different seeds by convention (docs/truths.md).
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placewise_core.domain.cluster import Assignment
from placewise_core.domain.job import GpuSharing, Job
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import PlacementPolicy, Proposal
from placewise_core.inputs.reward import WITNESSES, PartEncoder, PartTokens
from placewise_core.policies.registry import placement_policies
from placewise_core.speed.linear_speed import linear_speed
from placewise_core.view.view import ClusterView
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.gangs.engine import SimOptions, Simulation, spots_of
from placewise_training.sim.hardware import NodeSpec, harmony_cluster, make_node
from placewise_training.sim.jobs import SimJob, workers_of
from placewise_training.sim.speed.composed import ComposedSpeed
from placewise_training.sim.speed.profiles import MODEL_NAMES, Catalogue, train_catalogue
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import HARMONY_MODELS, HarmonyWorkload, Lengths

Float32 = NDArray[np.float32]
_MOST_KEPT = 4  # placements of one decision: more would make the data large and alike
# Hosts schedule in intervals or at every event. In an interval's batch most neighbours have just started too, and
# nobody has reported their speed yet.
_INTERVAL_SHARE, _INTERVAL_S = 0.5, 1200.0
_SHARING_SHARE, _SHARING_JOBS = 0.25, 0.6  # of the simulations, where GPUs may be shared; of their jobs, which allow it
# A fabric's efficiency is a property of the cluster, and of a network's gradients on it: the training truth has it
# from one cloud (Pollux, 14 % of the NIC for ResNet-50). A model that is to serve clusters nobody has measured trains
# on the whole range instead: a factor per simulation, and a smaller one per network.
_FABRIC_LOW, _FABRIC_HIGH = 0.1, 0.9
_PER_MODEL_SIGMA, _CPU_SIGMA = 0.3, 0.35
# Of wide situations: machines from PCIe between GPUs and a slow network to NVSwitch and a fast one (docs/truths.md).
_WIDE_GBPS, _WIDE_LINKS_BPS, _WIDE_PCIE_BPS, _WIDE_CORES = (10.0, 400.0), (3e9, 3e11), (1.2e10, 6e10), (4, 16)
_MOST_BURST = 6.0  # how much jobs disturb each other on a network: no inventory has it, reported speeds show it
_REPORTED_SHARE = 0.5  # of wide situations, whose inventory has the bandwidth between GPUs


@dataclass(frozen=True, slots=True)
class Sample:
    """One placement: tokens (P, F), job and node (P,), speed (P,) of each token's job in units of linear speed.

    Speed 0: a witness, which nothing is asked about. With `is_bound` that of the new job, 0, is at most this.
    """

    tokens: Float32
    job: NDArray[np.int64]
    node: NDArray[np.int64]
    speed: Float32
    is_bound: bool = False


@dataclass(slots=True)
class Recorder(PlacementPolicy):
    """A placement policy that records what every heuristic's placement would do, and takes one of them at random."""

    policies: Sequence[PlacementPolicy]
    rng: np.random.Generator
    samples: list[Sample]
    simulation: Simulation | None = None
    name: str = "recorder"
    encoder: PartEncoder = field(default_factory=lambda: PartEncoder(most_witnesses=WITNESSES))

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        first = self.policies[0].propose(job, view, context)
        if first is None:  # a full cluster is the commonest answer: the others need not find out as well
            return None
        found = [first, *(policy.propose(job, view, context) for policy in self.policies[1:])]
        proposals = distinct([proposal for proposal in found if proposal is not None], view)
        self.rng.shuffle(proposals)
        most = int(self.rng.integers(1, _MOST_KEPT + 1))  # the jobs seen are those near any of them: also few
        kept = [proposal.assignments for proposal in proposals[:most]]
        tokens = self.encoder.encode(job, kept, view)
        assert self.simulation is not None
        for k, assignments in enumerate(kept):
            self._record(tokens, k, true_speeds(self.simulation, job, assignments, tokens))
        return proposals[0]

    def _record(self, tokens: PartTokens, k: int, speeds: Float32) -> None:
        is_token = tokens.job[k] >= 0
        job = tokens.job[k][is_token]
        self.samples.append(Sample(tokens.parts[k][is_token].copy(), job, tokens.node[k][is_token], speeds[job]))


def distinct(proposals: Sequence[Proposal], view: ClusterView) -> list[Proposal]:
    """One of those that put the same tasks on the same nodes."""
    seen: dict[tuple[tuple[str, str], ...], Proposal] = {}
    for proposal in proposals:
        seen.setdefault(tuple(sorted((a.node, a.role.value) for a in proposal.assignments)), proposal)
    return list(seen.values())


def true_speeds(sim: Simulation, job: Job, assignments: Sequence[Assignment], tokens: PartTokens) -> Float32:
    """(jobs of the tokens,) speeds over linear speeds if the job ran there, by the simulation's truth; 0 for witnesses.

    Leaves no trace.
    """
    waiting = sim.waiting[job.id]
    names = [job.id, *(held.id for held in tokens.neighbours)]
    footprint = sim.speed.footprint(waiting, spots_of(assignments), sim.nodes)
    for part in footprint.parts:
        sim.nodes[part.node].add(job.id, part)
    sim.footprints[job.id] = footprint
    try:
        rates = [sim.speed.rate(sim.footprints[name], sim.nodes, sim.footprints) for name in names]
    finally:
        del sim.footprints[job.id]
        for part in footprint.parts:
            sim.nodes[part.node].remove(job.id)
    jobs = [waiting, *(sim.running[held.id].sim for held in tokens.neighbours)]
    per_epoch = [made.samples / made.job.total_epochs for made in jobs]
    linear = [linear_speed(made.job, workers_of(made.job)) for made in jobs]
    pairs = zip(rates, per_epoch, linear, strict=True)
    speeds = np.zeros(max(len(jobs), int(tokens.job.max()) + 1), dtype=np.float32)
    speeds[: len(jobs)] = [rate / epoch / alone for rate, epoch, alone in pairs]
    return speeds


@dataclass(frozen=True, slots=True)
class Situation:
    """The settings of one simulation of the data."""

    nodes: Sequence[NodeSpec]
    workload: HarmonyWorkload
    truth: ComposedSpeed
    seed: int
    every_s: float = 0.0  # scheduling interval; 0: at every event
    sharing_share: float = 0.0  # of the jobs, which allow that their GPUs are shared


def training_situation(seed: int) -> Situation:
    """A cluster, a job mix and a member of the family of training truths, drawn by `seed`."""
    rng = np.random.default_rng((seed, 21))
    gpus, gpu_model = int(rng.choice([2, 2, 4, 8])), str(rng.choice(["1080TI", "T4", "V100", "P100", "2080TI"]))
    nodes = int(rng.integers(3, 13)) if gpus == 2 else int(rng.integers(2, 7))
    cores, network = gpus * int(rng.choice([4, 4, 6, 8])), float(rng.choice([25, 50, 50, 100]))
    second = str(rng.choice(["1080TI", "T4", "V100", "P100"])) if rng.random() < 0.2 else gpu_model
    every_s = _INTERVAL_S if rng.random() < _INTERVAL_SHARE else 0.0
    is_shared = rng.random() < _SHARING_SHARE
    specs = [
        make_node(
            f"n{i}",
            cpu_cores=cores,
            gpus=gpus,
            memory_gib=24 * gpus,
            network_gbps=network,
            gpu_model=second if i % 3 == 2 else gpu_model,
            gpu_memory_gib=16,
            max_jobs_per_gpu=2 if is_shared else 1,
        )
        for i in range(nodes)
    ]
    models = HARMONY_MODELS if rng.random() < 0.5 else MODEL_NAMES
    workload = HarmonyWorkload(
        jobs=40,
        pattern=str(rng.choice(["uniform", "poisson"])),
        per_interval=float(rng.uniform(0.3, 0.7)) * nodes * gpus / 2,
        most_tasks=int(rng.choice([3, 3, 5, 8])) if nodes * gpus >= 12 else 3,
        models=models,
        lengths=Lengths(median_s=float(rng.choice([720, 1500, 3000]))),
        gpu_model=gpu_model,
        gpus_per_node=gpus,
    )
    truth = _varied(make_truth("train", seed), rng)
    return Situation(specs, workload, truth, seed, every_s, _SHARING_JOBS if is_shared else 0.0)


def wide_situation(seed: int) -> Situation:
    """A training situation on machines of a wider range, with links between GPUs apart from PCIe."""
    drawn = training_situation(seed)
    rng = np.random.default_rng((seed, 26))
    gbps, links_bps, pcie_bps = (
        float(np.exp(rng.uniform(*np.log(span)))) for span in (_WIDE_GBPS, _WIDE_LINKS_BPS, _WIDE_PCIE_BPS)
    )
    cores_per_gpu = int(rng.integers(_WIDE_CORES[0], _WIDE_CORES[1] + 1))
    is_reported = rng.random() < _REPORTED_SHARE
    truth = drawn.truth
    burst = float(rng.uniform(0.0, _MOST_BURST))
    return replace(
        drawn,
        nodes=[
            make_node(
                spec.id,
                cpu_cores=cores_per_gpu * len(spec.node.gpus),
                gpus=len(spec.node.gpus),
                memory_gib=spec.node.capacity.memory_gib,
                network_gbps=gbps,
                gpu_model=spec.gpu_model,
                max_jobs_per_gpu=spec.node.max_jobs_per_gpu,
                interconnect_bps=links_bps,
                pcie_bps=pcie_bps,
                is_reported=is_reported,
            )
            for spec in drawn.nodes
        ],
        truth=ComposedSpeed(truth.catalogue, truth.sharing, overlap=truth.overlap, seed=truth.seed, burst=burst),
    )


def judging_situation(seed: int, truth: str = "judge", nodes: int = 6, every_s: float = 0.0) -> Situation:
    """Harmony's cluster and job mix in Google-like bursts, under a truth as it is."""
    tasks = 3 if nodes <= 6 else 10
    workload = HarmonyWorkload(jobs=60, pattern="google", per_interval=3.0 * nodes / 6, most_tasks=tasks)
    return Situation(harmony_cluster(nodes), workload, make_truth(truth, seed), seed, every_s)


def _varied(truth: ComposedSpeed, rng: np.random.Generator) -> ComposedSpeed:
    """The training truth on another fabric and with other input pipelines."""
    fabric = float(np.exp(rng.uniform(np.log(_FABRIC_LOW), np.log(_FABRIC_HIGH))))
    known = train_catalogue()
    usual = known["resnet50"].net_efficiency
    profiles = {}
    for name in MODEL_NAMES:
        profile = known[name]
        reached = fabric * profile.net_efficiency / usual * np.exp(_PER_MODEL_SIGMA * rng.standard_normal())
        cpu = np.exp(_CPU_SIGMA * rng.standard_normal())
        profiles[name] = replace(
            profile,
            net_efficiency=float(np.clip(reached, 0.02, 1.0)),
            core_s_per_sample=profile.core_s_per_sample * float(cpu),
        )
    return ComposedSpeed(Catalogue(profiles), truth.sharing, overlap=truth.overlap, seed=truth.seed)


def record(situation: Situation) -> list[Sample]:
    """Runs one simulation and returns its samples."""
    rng = np.random.default_rng((situation.seed, 22))
    recorder = Recorder(list(placement_policies().values()), rng, [])
    jobs = situation.workload.generate(situation.truth, situation.seed)
    if situation.sharing_share:
        jobs = [_sharing(job, rng) if rng.random() < situation.sharing_share else job for job in jobs]
    options = SimOptions(
        discipline=Discipline(every_s=situation.every_s), belief=situation.truth.sharing, reports_progress=True
    )
    sim = Simulation(situation.nodes, jobs, situation.truth, recorder, options=options, seed=situation.seed)
    recorder.simulation = sim
    sim.run()
    return recorder.samples


def _sharing(job: SimJob, rng: np.random.Generator) -> SimJob:
    """The job, allowing others on its GPUs up to a slowdown of its own."""
    return replace(
        job,
        job=replace(job.job, gpu_sharing=GpuSharing(allowed=True, max_slowdown=float(rng.uniform(1.5, 3.0)))),
    )


def records(
    make: Callable[[int], Situation], seeds: Sequence[int], show: Callable[[int], None] = lambda done: None
) -> Iterator[Sample]:
    """The samples of one simulation per seed."""
    for done, seed in enumerate(seeds, start=1):
        yield from record(make(seed))
        show(done)


def collate(samples: Sequence[Sample]) -> Mapping[str, NDArray[np.generic]]:
    """Padded: tokens (B, P, F), job, node, speed (B, P), weight (B, P) that counts every job but witnesses once, and
    bound (B, P): the speed is at most this."""
    count, longest = len(samples), max(len(sample.job) for sample in samples)
    tokens = np.zeros((count, longest, samples[0].tokens.shape[1]), dtype=np.float32)
    job, node = (np.full((count, longest), -1, dtype=np.int64) for _ in range(2))
    speed, weight = np.ones((count, longest), dtype=np.float32), np.zeros((count, longest), dtype=np.float32)
    bound = np.zeros((count, longest), dtype=np.bool_)
    for b, sample in enumerate(samples):
        p = len(sample.job)
        tokens[b, :p], job[b, :p], node[b, :p] = sample.tokens, sample.job, sample.node
        is_asked = sample.speed > 0
        speed[b, :p] = np.where(is_asked, sample.speed, 1.0)
        weight[b, :p] = is_asked / np.bincount(sample.job)[sample.job]
        bound[b, :p] = sample.is_bound & (sample.job == 0)
    return {"tokens": tokens, "job": job, "node": node, "speed": speed, "weight": weight, "bound": bound}


def fingerprint(samples: Sequence[Sample]) -> str:
    """SHA-256 over all samples: identifies the training data of a model."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(sample.tokens.tobytes() + sample.job.tobytes() + sample.speed.tobytes())
        digest.update(b"bound" if sample.is_bound else b"")
    return digest.hexdigest()


def save(path: Path, samples: Sequence[Sample]) -> None:
    """Writes samples as one .npz of flat arrays."""
    np.savez(
        path,
        lengths=np.array([len(sample.job) for sample in samples]),
        tokens=np.concatenate([sample.tokens for sample in samples]),
        job=np.concatenate([sample.job for sample in samples]),
        node=np.concatenate([sample.node for sample in samples]),
        speed=np.concatenate([sample.speed for sample in samples]),
    )


def read(path: Path) -> list[Sample]:
    """What `save` wrote."""
    with np.load(path) as stored:
        ends = np.cumsum(stored["lengths"])[:-1]
        columns = [np.split(stored[name], ends) for name in ("tokens", "job", "node", "speed")]
    return [Sample(*row) for row in zip(*columns, strict=True)]
