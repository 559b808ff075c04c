"""What exploring gives and costs: the support of one policy in the log of another, and what that cost in JCT.

    python -m placewise_training.lab.support [--seeds 5] [--jobs 200] [--rate 0.2]

Each pair of four policies: one is in force, both explore with equal weights. `without` is the share of decisions whose
log could not have held the other policy's placement, `before` the same without exploration. A weight is π(a)/P(a) of
the other policy, at most one over its share. JCT is that with exploration over that without, paired by seed: Harmony's
workload on six servers, on `site`.
"""

import argparse
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from placewise_core.domain.job import Job
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import PlacementPolicy, Proposal, action_of
from placewise_core.policies import explore
from placewise_core.policies.explore import Exploration, Explorer
from placewise_core.view.view import ClusterView
from placewise_training.sim.hardware import harmony_cluster
from placewise_training.sim.policies import placement_policy, shipped
from placewise_training.sim.runs import Contender, Setting, simulate
from placewise_training.sim.statistics import Estimate, paired_change
from placewise_training.sim.workloads import HarmonyWorkload

NAMES = ("consolidate", "load-balance", "harmony", "search")
FIRST_SEED = 10_000  # evaluation counts from here (docs/truths.md)
NODES = 6


@dataclass(frozen=True, slots=True)
class Weighed:
    """One decision in the log of a policy in force: the weight of the other policy, the probability with which the log
    gave that one's placement, and whether the two policies agree."""

    weight: float
    support: float
    is_same: bool


class Exploring(PlacementPolicy):
    """`own` in force while it and `other` explore. Keeps each decision as the other policy would weigh it."""

    name = "exploring"

    def __init__(self, own: PlacementPolicy, other: PlacementPolicy, rate: float) -> None:
        self._own, self._other = own, other
        self._exploration = Exploration(rate, (Explorer(own), Explorer(other)))
        self.seen: list[Weighed] = []

    def order(self, jobs: Sequence[Job], view: ClusterView, context: PlaceContext) -> Sequence[Job]:
        return self._own.order(jobs, view, context)

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        usual, wanted = self._own.propose(job, view, context), self._other.propose(job, view, context)
        drawn = explore.propose(self._own, self._exploration, job, view, context)
        if wanted is None:
            return drawn.proposal if drawn is not None else None
        if drawn is None:
            self.seen.append(Weighed(0.0, 0.0, is_same=False))
            return None
        theirs = action_of(wanted.assignments)
        is_same = usual is not None and action_of(usual.assignments) == theirs
        is_theirs = action_of(drawn.proposal.assignments) == theirs
        support = explore.mixed(float(is_same), self._exploration.rate, (float(is_same), 1.0))
        self.seen.append(Weighed(is_theirs / drawn.proposal.propensity, support, is_same))
        return drawn.proposal


@dataclass(slots=True)
class Pair:
    """Decisions of all seeds with exploration and without, and the average JCT of each seed."""

    own: str
    other: str
    rate: float
    seen: list[Weighed] = field(default_factory=list)
    blind: list[Weighed] = field(default_factory=list)
    jct_s: list[float] = field(default_factory=list)
    usual_jct_s: list[float] = field(default_factory=list)

    @property
    def without(self) -> float:
        """Share of decisions without support."""
        return sum(one.support == 0.0 for one in self.seen) / len(self.seen)

    @property
    def before(self) -> float:
        return sum(one.support == 0.0 for one in self.blind) / len(self.blind)

    @property
    def largest_weight(self) -> float:
        return max(one.weight for one in self.seen)

    @property
    def cost(self) -> Estimate:
        """JCT with exploration over that without, less one."""
        return paired_change(self.jct_s, self.usual_jct_s)


def explored(own: str, other: str, rate: float, seeds: Sequence[int], jobs: int) -> Pair:
    """Runs one pair. Raises ValueError for unknown policies."""
    bundle, pair = shipped(), Pair(own, other, rate)
    setting = Setting(harmony_cluster(NODES), HarmonyWorkload(jobs=jobs).generate, truth="site")
    for seed in seeds:
        for at, seen, jct_s in ((rate, pair.seen, pair.jct_s), (0.0, pair.blind, pair.usual_jct_s)):
            policy = Exploring(placement_policy(own, bundle), placement_policy(other, bundle), at)
            jct_s.append(simulate(setting, Contender(policy), seed).metrics.avg_jct_s)
            seen.extend(policy.seen)
    return pair


def ess(weights: Sequence[float]) -> float:
    """(Σw)² / Σw²: as many decisions of the other policy itself would say as much."""
    squares = math.fsum(w * w for w in weights)
    return math.fsum(weights) ** 2 / squares if squares else 0.0


def line_of(pair: Pair) -> str:
    """One row of the table."""
    differing = [one.weight for one in pair.seen if not one.is_same]
    every = [one.weight for one in pair.seen]
    return (
        f"{pair.own:12} {pair.other:12} {len(every):9} {len(differing):7} {pair.before:7.0%} {pair.without:8.0%} "
        f"{pair.largest_weight:7.3g} {ess(every):7.1f} {ess(differing):8.1f} "
        f"{pair.cost.mean:+7.1%} ± {pair.cost.half_width:.1%}"
    )


HEAD = "in force     other        decisions  differ  before  without  weight     ESS ESS diff.  JCT"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="runs of each pair")
    parser.add_argument("--jobs", type=int, default=200, help="jobs of each run")
    parser.add_argument("--rate", type=float, default=0.2, help="share of jobs that are explored")
    asked = parser.parse_args()
    seeds = range(FIRST_SEED, FIRST_SEED + asked.seeds)
    print(HEAD)
    for own, other in itertools.permutations(NAMES, 2):
        print(line_of(explored(own, other, asked.rate, seeds, asked.jobs)), flush=True)


if __name__ == "__main__":
    main()
