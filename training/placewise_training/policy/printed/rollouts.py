"""Simulations in which `harmony-paper` itself places; its states and actions are kept for training. Learns nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from placewise_core.basics.arrays import BoolArray, Float32
from placewise_core.domain.job import Job
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import PlacementPolicy, Proposal
from placewise_core.policies.printed.harmony_paper import HarmonyPaper
from placewise_core.policies.registry import placement_policies
from placewise_core.policies.search import SpeedScorer
from placewise_core.view.view import ClusterView
from placewise_training.policy.printed.net import PaperPolicy
from placewise_training.policy.rollouts import EXPLORERS, PredictedSpeeds, jobs_of
from placewise_training.reward.data import Situation, training_situation
from placewise_training.sim.arrivals import INTERVAL_S
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.gangs.engine import SimOptions, Simulation
from placewise_training.sim.hardware import harmony_cluster
from placewise_training.sim.workloads import HarmonyWorkload, Lengths


@dataclass(slots=True)
class PaperStep:
    """One task placed: rows (J, columns), of which the first is the job's, mask (2M,), and π of the action then."""

    rows: Float32
    mask: BoolArray
    action: int
    probability: float


@dataclass(slots=True)
class Interval:
    """The tasks of a scheduling interval and its reward (1); `passed` intervals later the next one came."""

    steps: list[PaperStep] = field(default_factory=list)
    reward: float = 0.0
    passed: float = 1.0


class ActingNet:
    """The net on torch, as the policy asks it; keeps the rows of the last question."""

    def __init__(self, net: PaperPolicy) -> None:
        self._net = net.eval()
        self.nodes: int = net.shape["nodes"]
        self.asked: Float32

    def logits(self, rows: Float32) -> Float32:
        self.asked = rows.copy()
        with torch.no_grad():
            found = self._net(torch.from_numpy(self.asked)[None], torch.ones(1, len(rows)))
        logits: Float32 = found[0, 0].numpy()
        return logits


class PaperActor(PlacementPolicy):
    """A placement policy for simulations that learn. With probability `explore`, a gang goes where bin packing or load
    balancing puts it: job-aware exploration. Without `is_sampled` it takes the likeliest action."""

    name = "paper-actor"

    def __init__(
        self,
        net: PaperPolicy,
        rng: np.random.Generator,
        scorer: SpeedScorer | None,
        explore: float = 0.0,
        *,
        is_sampled: bool = True,
    ) -> None:
        policies = placement_policies()
        self._net = ActingNet(net)
        self._fallback = policies["consolidate"]
        self._explorers = [policies[name] for name in EXPLORERS]
        self._policy = HarmonyPaper(self._net, self._fallback)
        self._rng, self._explore, self._is_sampled = rng, explore, is_sampled
        self._speeds = PredictedSpeeds(scorer, INTERVAL_S) if scorer is not None else None
        self._guide: list[int] = []
        self._steps: list[PaperStep] = []
        self._now_s = -1.0
        self.intervals: list[Interval] = []

    def order(self, jobs: Sequence[Job], view: ClusterView, context: PlaceContext) -> Sequence[Job]:
        self._tick(context.now_s, view)
        return self._policy.order(jobs, view, context)

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        self._tick(context.now_s, view)
        self._guide = []
        if self._rng.random() < self._explore:
            other = self._explorers[int(self._rng.integers(len(self._explorers)))].propose(job, view, context)
            if other is None:
                return None
            self._guide = [
                view.nodes.index[a.node] + view.nodes.size * (a.role.value != "WORKER") for a in other.assignments
            ]
        kept = len(self._steps)
        proposal = self._policy.decode(job, view, context, self._choose)
        if proposal is None:
            del self._steps[kept:]  # they lead nowhere
            proposal = self._fallback.propose(job, view, context)
        if proposal is not None and self._speeds is not None:
            self._speeds.note_placed(job, proposal, view)
        return proposal

    def finish(self) -> None:
        """Closes the interval at hand; also to be called when the simulation is over."""
        if self._steps and self._speeds is not None:
            self.intervals.append(Interval(self._steps, self._speeds.progress()))
        self._steps = []

    def _choose(self, logits: Float32, mask: BoolArray, task: int) -> tuple[int, float]:
        shifted = np.where(mask, logits - logits[mask].max(), -np.inf).astype(np.float64)
        odds = np.exp(shifted) / np.exp(shifted).sum()
        if task < len(self._guide) and mask[self._guide[task]]:
            action = self._guide[task]
        elif self._is_sampled:
            action = int(self._rng.choice(len(odds), p=odds))
        else:
            action = int(odds.argmax())
        self._steps.append(PaperStep(self._net.asked, mask.copy(), action, float(odds[action])))
        return action, float(odds[action])

    def _tick(self, now_s: float, view: ClusterView) -> None:
        """A new interval: the last one gets its reward."""
        if now_s == self._now_s:
            return
        before, passed = len(self.intervals), max(0.0, round((now_s - self._now_s) / INTERVAL_S))
        self.finish()
        if len(self.intervals) > before:
            self.intervals[-1].passed = max(1.0, passed)
        elif self.intervals:
            self.intervals[-1].passed += passed
        self._now_s = now_s
        if self._speeds is not None:
            self._speeds.open(view)


def situation(seed: int, nodes: int, jobs: int) -> Situation:
    """The paper's cluster of that many servers under a training truth, drawn by `seed`; at ten servers and more, gangs
    of up to ten tasks."""
    rng = np.random.default_rng((seed, 57))
    most_tasks = 10 if nodes >= 10 else 3
    workload = HarmonyWorkload(
        jobs=jobs,
        pattern=str(rng.choice(["uniform", "poisson"])),
        per_interval=float(rng.uniform(0.3, 0.6)) * nodes * 4 / (1 + most_tasks),
        most_tasks=most_tasks,
        lengths=Lengths(median_s=float(rng.choice([720, 1200]))),
    )
    return replace(training_situation(seed), nodes=harmony_cluster(nodes), workload=workload)


def simulate(drawn: Situation, policy: PlacementPolicy) -> float:
    """Average JCT of one simulation, in seconds; jobs are asked about in order of their arrival."""
    options = SimOptions(discipline=Discipline(every_s=INTERVAL_S, order="policy"), reports_progress=True)
    sim = Simulation(drawn.nodes, jobs_of(drawn), drawn.truth, policy, options=options, seed=drawn.seed)
    return sim.run().metrics.avg_jct_s
