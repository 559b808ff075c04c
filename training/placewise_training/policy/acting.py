"""Simulations in which a net acts, each by its seed alone, so that any process can do one and do it again."""

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from placewise_core.gang.policy import PlacementPolicy
from placewise_core.policies.harmony import Harmony
from placewise_core.policies.registry import placement_policies
from placewise_models.policy import POLICY_GRAPHS, PolicyRuntime
from placewise_models.reward import RewardRuntime
from placewise_training.policy.rollouts import Conduct, Episode, jobs_of, rollout, situation
from placewise_training.policy.teacher import Teacher
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.gangs.engine import SimOptions, Simulation

Graphs = tuple[bytes, ...]  # of a net in its served form, as POLICY_GRAPHS names them


@dataclass(frozen=True, slots=True)
class Situations:
    """The simulations of training: each seed draws one."""

    jobs: int
    large_share: float
    interval_s: float

    def yardstick_s(self, seed: int) -> float:
        """Average JCT of consolidate, shortest first."""
        drawn = situation(seed, self.jobs, self.large_share)
        policy = placement_policies()["consolidate"]
        options = SimOptions(discipline=Discipline(every_s=self.interval_s, order="declared"), reports_progress=True)
        sim = Simulation(drawn.nodes, jobs_of(drawn), drawn.truth, policy, options=options, seed=drawn.seed)
        return sim.run().metrics.avg_jct_s


@dataclass(frozen=True, slots=True)
class Acting:
    """A net that acts in them. `scorer`: file of the reward model, which the teacher looks at if the net is taught, and
    the reward comes from if not; None for the truth."""

    graphs: Graphs
    conduct: Conduct
    situations: Situations
    is_taught: bool = False
    scorer: Path | None = None

    def episode(self, seed: int) -> Episode:
        of = self.situations
        drawn = situation(seed, of.jobs, of.large_share)
        scorer = _scorer(self.scorer) if self.scorer is not None else None
        teacher = Teacher(np.random.default_rng((drawn.seed, 71)), scorer=scorer) if self.is_taught else None
        return rollout(
            drawn,
            net_of(self.graphs),
            self.conduct,
            teacher=teacher,
            scorer=None if self.is_taught else scorer,
            interval_s=of.interval_s,
        )

    def avg_jct_s(self, seed: int) -> float:
        return self.episode(seed).avg_jct_s


def graphs_in(folder: Path) -> Graphs:
    """Raises OSError."""
    return tuple((folder / file).read_bytes() for file in POLICY_GRAPHS)


@functools.lru_cache(maxsize=1)
def net_of(graphs: Graphs) -> PolicyRuntime:
    return PolicyRuntime.opened(*graphs)


def harmony_of(graphs: Graphs, _: Simulation) -> PlacementPolicy:
    """As a contender of lab.compare."""
    return Harmony(net_of(graphs), placement_policies()["consolidate"])


def heuristic(name: str, _: Simulation) -> PlacementPolicy:
    return placement_policies()[name]


@functools.lru_cache(maxsize=1)
def _scorer(file: Path) -> RewardRuntime:
    return RewardRuntime.from_file(file)
