"""Simulations in which Harmony's own policy class places; its states and actions are kept for training. Learns nothing.

The policy that serves (placewise_core.policies.harmony) acts here, around a net that records: a trainer sees exactly
the inputs that the service feeds. One `Chunk` is one encoding with every task that was placed on it; one
`Interval` the chunks of one scheduling interval with its reward.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from placewise_core.basics.arrays import BoolArray, Float32
from placewise_core.basics.frozen import frozen
from placewise_core.domain.job import Job
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import PlacementPolicy, Proposal
from placewise_core.inputs.cluster import Observation
from placewise_core.inputs.reward import PartEncoder
from placewise_core.policies.harmony import ClusterState, Harmony, PolicyNet, PolicyState
from placewise_core.policies.registry import placement_policies
from placewise_core.policies.search import SpeedScorer
from placewise_core.view.view import ClusterView
from placewise_training.policy.teacher import Lesson, Teacher
from placewise_training.reward.data import Situation, training_situation
from placewise_training.sim.arrivals import INTERVAL_S
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.gangs.engine import SimOptions, Simulation
from placewise_training.sim.hardware import harmony_cluster
from placewise_training.sim.jobs import SimJob
from placewise_training.sim.workloads import HarmonyWorkload, Lengths

Reward = Literal["jct", "progress"]
EXPLORERS = ("bin-packing", "load-balance")  # job-aware exploration: Harmony takes one of these at random
_EPOCH_SIGMA = 1.5  # of the log of how long an epoch is: see `situation`
_LIKE_HARMONY = 0.7  # share of the training simulations
_NO_TARGET = np.zeros(0, dtype=np.float32)


@dataclass(slots=True)
class RolloutStep:
    """One task placed. step (M, STEP_FEATURES), mask (2M,); `target` (2M,) from a teacher, else empty."""

    job: int
    step: Float32
    mask: BoolArray
    action: int
    probability: float
    target: Float32 = field(default_factory=lambda: _NO_TARGET)


@dataclass(slots=True)
class Chunk:
    """One encoding and the decisions on it. `minutes`: by job token, its run time at its best place."""

    seen: Observation
    steps: list[RolloutStep] = field(default_factory=list)
    minutes: dict[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class Interval:
    """A scheduling interval with something to decide: `passed` intervals later the next one came."""

    chunks: list[Chunk] = field(default_factory=list)
    reward: float = 0.0
    passed: float = 1.0


@dataclass(slots=True)
class Episode:
    """One simulation: its decisions, and their results."""

    intervals: list[Interval]
    avg_jct_s: float
    jobs: int

    @property
    def steps(self) -> int:
        return sum(len(chunk.steps) for interval in self.intervals for chunk in interval.chunks)


class RecordingNet:
    """A net of the core around another; keeps every encoding in `chunks`."""

    def __init__(self, net: PolicyNet) -> None:
        self._net = net
        self.chunks: list[Chunk] = []
        self.pending: tuple[Chunk, int, Float32] | None = None

    def look(self, seen: Observation) -> ClusterState:
        state = self._net.look(seen)
        return RecordedCluster(state.nodes, state.memory, seen)

    def read(self, cluster: ClusterState, jobs: Float32) -> PolicyState:
        assert isinstance(cluster, RecordedCluster)
        assert cluster.seen is not None
        state = self._net.read(cluster, jobs)
        chunk = Chunk(cluster.seen.beside(jobs))
        self.chunks.append(chunk)
        return RecordedState(state.nodes, state.jobs, state.stretch, chunk=chunk)

    def decode(self, state: PolicyState, job: int, step: Float32) -> Float32:
        assert isinstance(state, RecordedState)
        assert state.chunk is not None
        kept = step.copy()
        self.pending = (state.chunk, job, kept)
        return self._net.decode(state, job, kept)


@frozen
class RecordedCluster(ClusterState):
    """A state that records every look at it."""

    seen: Observation | None = None


@frozen
class RecordedState(PolicyState):
    """A state that knows which encoding it is of."""

    chunk: Chunk | None = None


@dataclass(frozen=True, slots=True)
class Conduct:
    """How an actor behaves. `sampled`: draws from π, else takes the likeliest. `explore`: share of gangs placed by bin
    packing or load balancing instead. `taught`: a teacher's targets are kept, and it acts for this share of gangs."""

    sampled: bool = True
    explore: float = 0.0
    taught: float = 0.0
    temperature: float = 0.02
    reward: Reward = "jct"


class Actor(PlacementPolicy):
    """A placement policy for simulations that learn. `attach` it to the simulation before that runs."""

    name = "actor"

    def __init__(
        self,
        net: PolicyNet,
        conduct: Conduct,
        rng: np.random.Generator,
        teacher: Teacher | None = None,
        scorer: SpeedScorer | None = None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        policies = placement_policies()
        self._net = RecordingNet(net)
        self._fallback = policies["consolidate"]
        self._explorers = [policies[name] for name in EXPLORERS]
        self._harmony = Harmony(self._net, self._fallback)
        self._conduct, self._rng, self._teacher, self._scorer = conduct, rng, teacher, scorer
        self._forced: Lesson | None = None
        self._guide: list[int] = []
        self._placed: NDArray[np.int64] = np.zeros((2, 0), dtype=np.int64)
        self._now_s = -1.0
        self._waited_s = 0.0
        self._interval_s = interval_s
        self._speeds = PredictedSpeeds(scorer, interval_s) if scorer is not None else None
        self._simulation: Simulation | None = None
        self.intervals: list[Interval] = []

    def attach(self, simulation: Simulation) -> None:
        self._simulation = simulation
        if self._teacher is not None:
            self._teacher.attach(simulation)

    def order(self, jobs: Sequence[Job], view: ClusterView, context: PlaceContext) -> Sequence[Job]:
        self._tick(context.now_s, view)
        return self._harmony.order(jobs, view, context)

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        self._tick(context.now_s, view)
        lesson = None
        if self._teacher is not None:
            is_taught = self._rng.random() < self._conduct.taught
            own = None if is_taught else self._decode(job, view, context, is_kept=False)
            lesson = self._teacher.lesson(job, view, context, [own.assignments] if own else [])
            taught = self._decode(job, view, context, lesson) if lesson is not None else None
            return own or taught
        if self._rng.random() < self._conduct.explore:
            return self._explored(job, view, context)
        proposal = self._decode(job, view, context) or self._fallback.propose(job, view, context)
        if proposal is not None and self._speeds is not None:
            self._speeds.note_placed(job, proposal, view)
        return proposal

    def taught(self, job: Job, view: ClusterView, context: PlaceContext) -> Chunk | None:
        """The way of the teacher, on a view of no simulation; None if it found none."""
        assert self._teacher is not None
        lesson = self._teacher.lesson(job, view, context)
        return self.along(lesson, job, view, context) if lesson is not None else None

    def along(self, lesson: Lesson, job: Job, view: ClusterView, context: PlaceContext) -> Chunk | None:
        """The steps to the best placement of a lesson; None if the net cannot take them."""
        self._net.chunks = []
        context.notes.clear()  # an encoding of its own
        if (
            self._decode(job, view, context, lesson) is None
            or not (lesson.counts == self._placed).all(axis=(1, 2)).any()
        ):
            return None
        return self._net.chunks[-1]

    def _decode(
        self, job: Job, view: ClusterView, context: PlaceContext, lesson: Lesson | None = None, *, is_kept: bool = True
    ) -> Proposal | None:
        """By the net, by the lesson, or along `_guide`. Steps that lead nowhere are not kept."""
        self._forced, self._placed = lesson, np.zeros((2, view.nodes.size), dtype=np.int64)
        seen: list[tuple[Chunk, RolloutStep]] = []
        self._kept = seen
        proposal = self._harmony.decode(job, view, context, self._choose)
        if proposal is not None and is_kept:
            for chunk, step in seen:
                chunk.steps.append(step)
            if lesson is not None and seen:
                seen[0][0].minutes[seen[0][1].job] = lesson.run_s / 60.0
        return proposal

    def _choose(self, logits: Float32, mask: BoolArray, task: int) -> tuple[int, float]:
        assert self._net.pending is not None
        chunk, job, step = self._net.pending
        target = _NO_TARGET
        odds = _softmax(logits, mask)
        if self._forced is not None:
            target = self._forced.targets(self._placed, mask, self._conduct.temperature)
            action = int(target.argmax()) if target.any() else int(np.where(mask, logits, -np.inf).argmax())
        elif self._guide:
            action = self._guide[task] if mask[self._guide[task]] else int(np.where(mask, logits, -np.inf).argmax())
        elif self._conduct.sampled:
            action = int(self._rng.choice(len(odds), p=odds))
        else:
            action = int(np.where(mask, logits, -np.inf).argmax())
        self._placed.reshape(-1)[action] += 1
        self._kept.append((chunk, RolloutStep(job, step, mask.copy(), action, float(odds[action]), target)))
        return action, float(odds[action])

    def _explored(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        """Another policy's placement, decoded by this one's steps so that each has its probability under π."""
        other = self._explorers[int(self._rng.integers(len(self._explorers)))].propose(job, view, context)
        if other is None:
            return None
        self._guide = [
            view.nodes.index[a.node] + view.nodes.size * (a.role.value != "WORKER") for a in other.assignments
        ]
        try:
            proposal = self._decode(job, view, context)
        finally:
            self._guide = []
        if proposal is not None and self._speeds is not None:
            self._speeds.note_placed(job, proposal, view)
        return proposal

    def _tick(self, now_s: float, view: ClusterView) -> None:
        """A new interval: the last one gets its reward."""
        if now_s == self._now_s:
            return
        self.finish(now_s)
        self._net.chunks = []
        self._now_s = now_s
        if self._speeds is not None:
            self._speeds.open(view)

    def finish(self, now_s: float) -> None:
        """Closes the interval at hand; also to be called when the simulation is over."""
        waited_s = self._time_in_system(now_s)
        chunks = [chunk for chunk in self._net.chunks if chunk.steps]
        if chunks:
            passed = max(1.0, round((now_s - self._now_s) / self._interval_s))
            reward = -(waited_s - self._waited_s) / self._interval_s
            if self._conduct.reward == "progress" and self._speeds is not None:
                reward = self._speeds.progress()
            self.intervals.append(Interval(chunks, reward, passed))
        elif self.intervals and self._conduct.reward == "jct":
            self.intervals[-1].reward -= (waited_s - self._waited_s) / self._interval_s
            self.intervals[-1].passed += max(0.0, round((now_s - self._now_s) / self._interval_s))
        self._waited_s = waited_s
        self._net.chunks = []

    def _time_in_system(self, now_s: float) -> float:
        sim = self._simulation
        assert sim is not None
        inside = [live.sim.submit_time_s for live in sim.running.values()]
        inside += [job.submit_time_s for job in sim.waiting.values()]
        return sim.metrics.jct.total + sum(now_s - submitted for submitted in inside)


class PredictedSpeeds:
    """Harmony's reward (1), Σ c_n/e_n of the interval, by the reward model's predictions after each placement."""

    def __init__(self, scorer: SpeedScorer, interval_s: float) -> None:
        self._scorer = scorer
        self._interval_s = interval_s
        self._encoder = PartEncoder()
        self._rates: dict[str, tuple[float, float]] = {}  # share of the job per second, share left

    def open(self, view: ClusterView) -> None:
        """What hosts report of running jobs."""
        self._rates = {
            held.id: (held.speed / held.job.total_epochs, 1.0 - held.epochs_done / held.job.total_epochs)
            for held in view.jobs.values()
            if held.job.total_epochs > 0
        }

    def note_placed(self, job: Job, proposal: Proposal, view: ClusterView) -> None:
        tokens = self._encoder.encode(job, [proposal.assignments], view)
        speeds = self._scorer.speeds(tokens)[0]
        jobs = (job, *(held.job for held in tokens.neighbours))
        for j, speed in zip(tokens.job[0].tolist(), speeds.tolist(), strict=True):
            if j >= 0 and jobs[j].single_gpu_s > 0:
                left = self._rates.get(jobs[j].id, (0.0, 1.0))[1]
                workers = sum(group.count for group in jobs[j].groups if group.role.value == "WORKER")
                self._rates[jobs[j].id] = (speed * workers / jobs[j].single_gpu_s, left)

    def progress(self) -> float:
        return sum(min(left, rate * self._interval_s) for rate, left in self._rates.values())


def rollout(
    situation: Situation,
    net: PolicyNet,
    conduct: Conduct,
    *,
    teacher: Teacher | None = None,
    scorer: SpeedScorer | None = None,
    interval_s: float = INTERVAL_S,
) -> Episode:
    """One simulation under that conduct."""
    rng = np.random.default_rng((situation.seed, 51))
    actor = Actor(net, conduct, rng, teacher, scorer, interval_s)
    options = SimOptions(discipline=Discipline(every_s=interval_s, order="policy"), reports_progress=True)
    sim = Simulation(situation.nodes, jobs_of(situation), situation.truth, actor, options=options, seed=situation.seed)
    actor.attach(sim)
    metrics = sim.run().metrics
    actor.finish(sim.now_s)
    return Episode(actor.intervals, metrics.avg_jct_s, metrics.finished)


def situation(seed: int, jobs: int = 60, large_share: float = 0.0) -> Situation:
    """A cluster, a job mix and a member of the family of training truths, drawn by `seed`: mostly clusters like
    Harmony's of several sizes, else any that reward.data draws; `large_share` of all have 13 to 32 nodes."""
    drawn = training_situation(seed)
    if np.random.default_rng((seed, 54)).random() < large_share:
        return _large(drawn, jobs)
    rng = np.random.default_rng((seed, 53))
    if rng.random() >= _LIKE_HARMONY:
        return replace(drawn, workload=replace(drawn.workload, jobs=jobs))
    nodes = int(rng.integers(4, 13))
    workload = HarmonyWorkload(
        jobs=jobs,
        pattern=str(rng.choice(["uniform", "poisson"])),
        per_interval=float(rng.uniform(0.3, 0.6)) * nodes,
        most_tasks=int(rng.choice([3, 3, 5, 8])) if nodes >= 9 else 3,
        lengths=Lengths(median_s=float(rng.choice([720, 1200]))),
    )
    return replace(drawn, nodes=harmony_cluster(nodes), workload=workload)


def _large(drawn: Situation, jobs: int) -> Situation:
    """Harmony's cluster at the paper's second size, with larger gangs and a load in proportion to its tasks."""
    rng = np.random.default_rng((drawn.seed, 55))
    nodes = int(rng.integers(13, 33))
    most_tasks = int(rng.choice([5, 8, 10]))
    workload = HarmonyWorkload(
        jobs=jobs,
        pattern=str(rng.choice(["uniform", "poisson"])),
        per_interval=float(rng.uniform(0.3, 0.6)) * nodes * (1 + 3) / (1 + most_tasks),
        most_tasks=most_tasks,
        lengths=Lengths(median_s=float(rng.choice([720, 1200]))),
    )
    return replace(drawn, nodes=harmony_cluster(nodes), workload=workload)


def jobs_of(drawn: Situation) -> list[SimJob]:
    """The situation's jobs with epochs of any length: the workload's own are all of one minute, so that a count of
    epochs would tell how long a job is, which no real cluster promises."""
    rng = np.random.default_rng((drawn.seed, 52))
    return [_with_epochs(job, float(np.exp(_EPOCH_SIGMA * rng.standard_normal()))) for job in _generated(drawn)]


def _generated(drawn: Situation) -> list[SimJob]:
    return drawn.workload.generate(drawn.truth, drawn.seed)


def _with_epochs(sim_job: SimJob, factor: float) -> SimJob:
    """The same work counted in shorter or longer epochs."""
    job = sim_job.job
    size = max(1, round(job.dataset_size / factor))
    sim_job.job = replace(job, total_epochs=job.total_epochs * job.dataset_size / size, dataset_size=size)
    return sim_job


def _softmax(logits: Float32, mask: BoolArray) -> NDArray[np.float64]:
    shifted = np.where(mask, logits - logits[mask].max(), -np.inf).astype(np.float64)
    odds = np.exp(shifted)
    return np.asarray(odds / odds.sum())
