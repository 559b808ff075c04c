"""Exploration on four nodes by enumeration: every policy, set of explorers, guard, and gang of one to four.

The propensities that the draws state are those of the enumeration and sum to one; the draws fit them by chi².
`make draws` draws 100,000 times in each of these cases, spared and not, `make test` 200 times. Both draw as DRAWS says
in 16 more, which share no draws. `make test-fast` draws a quarter as often, in the 16 a sixteenth: of shares a draw is
but a witness, as the enumeration is exact.
"""

import itertools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from tests.fakes.explored import (
    AHEAD,
    EXPLORERS,
    POLICIES,
    SAMPLE,
    Stated,
    distribution,
    enumerated,
    first_of,
    fit,
    gang_for,
    on_nodes,
    uneven,
)
from tests.fakes.place_cases import context
from tests.fakes.quick.examples import examples

from placewise_core.domain.cluster import Assignment, ExplorationGuard
from placewise_core.domain.job import Job, Priority
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import Action, PlacementPolicy, Proposal, action_of
from placewise_core.policies import explore
from placewise_core.policies.explore import Drawn, Exploration, Explorer
from placewise_core.view.view import ClusterView

RATE = 0.3
GUARDS = {
    "none": ExplorationGuard(),
    "of larger jobs": ExplorationGuard(max_gpus=2.0),
    "of narrow choices": ExplorationGuard(min_nodes=5),
    "of urgent jobs": ExplorationGuard(is_urgent_spared=True),
}
SPARED = {
    "none": range(0),
    "of larger jobs": range(3, 5),
    "of narrow choices": range(1, 5),
    "of urgent jobs": range(2, 5, 2),
}
EVERYWHERE = int(os.environ.get("PLACEWISE_TEST_DRAWS", "0"))  # draws in each case
# Otherwise: draws of the gang of two with load-balance in force and no guard, a quarter of each other gang. The drawing
# ones take longer.
DRAWS = {"two": 100_000, "drawing": 40_000, "learned": 100_000, "sampled": 2_000}
SEEN = examples(200)

cases = pytest.mark.parametrize(
    ("name", "explorers", "workers"), [*itertools.product(POLICIES, EXPLORERS, range(1, 5))]
)


def job_of(name: str, workers: int) -> Job:
    """The policy's gang; those of two and of four workers are urgent."""
    job = gang_for(name, workers)
    return replace(job, priority=Priority.URGENT) if workers % 2 == 0 else job


class Turn(np.random.Generator):
    """Draws as given: the explorer's turn that has this weight before it; None: nobody explores."""

    def __init__(self, turn: int | None) -> None:
        super().__init__(np.random.PCG64(0))
        self._first, self._turn = (1.0 - 1e-12, 0) if turn is None else (0.0, turn)

    def random(self) -> float:  # type: ignore[override]
        return self._first

    def integers(self, high: int) -> int:  # type: ignore[override]
        assert self._turn < high
        return self._turn


@cache
def stated_by(policy: str, workers: int, is_pipeline: bool) -> dict[Action, float]:
    """The policy's own word on each action that it was asked about so far."""
    return {}


class Gives(Stated):
    """A policy that gives one action of its distribution, as if it had drawn that. States the policy's own word."""

    def __init__(self, policy: PlacementPolicy, job: Job) -> None:
        kind = f"{type(policy).__name__} {policy.name}"
        super().__init__(policy, stated_by(kind, job.task_count, bool(job.subtasks)))
        self.action = Action()
        self.distribution = distribution(policy, job)
        proposal = first_of(policy, job)
        self._tasks: Sequence[Assignment] = sorted(proposal.assignments, key=lambda a: a.task) if proposal else []

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal:
        action = self.action or next(iter(self.distribution))
        tasks = on_nodes(self._tasks, [node for _, node in action])
        return Proposal(tasks, self.probability(tasks, job, view, context))


def every_draw(
    policy: PlacementPolicy, exploration: Exploration, job: Job, view: ClusterView
) -> Iterator[tuple[Action, Drawn]]:
    """Each action of the policy and of each explorer, drawn as theirs."""
    own = Gives(policy, job)
    givers = [Gives(explorer.policy, job) for explorer in exploration.explorers]
    weights = [explorer.weight for explorer in exploration.explorers]
    exploring = Exploration(exploration.rate, [*map(Explorer, givers, weights)], exploration.guard)
    firsts = [0, *itertools.accumulate(weights[:-1])]
    for giver, first in [(own, None), *zip(givers, firsts, strict=True)]:
        turn = Turn(first)
        for action in giver.distribution:
            giver.action = action
            drawn = explore.propose(own, exploring, job, view, PlaceContext(1000.0, turn))
            assert drawn is not None
            yield action_of(drawn.proposal.assignments), drawn
            if drawn.guard and giver is not own:
                break  # nothing is drawn: whatever else the explorer would have given is not looked at
        giver.action = Action()


@cases
def test_stated_propensities_are_the_enumerated_ones_and_sum_to_one(name: str, explorers: str, workers: int) -> None:
    view, job, policy = uneven(), job_of(name, workers), POLICIES[name]
    own, mixture = distribution(policy, job), enumerated(policy, EXPLORERS[explorers], RATE, job)
    for guard, spared in SPARED.items():
        is_spared, stated = workers in spared, dict[Action, float]()
        expected = own if is_spared else mixture
        exploration = Exploration(RATE, EXPLORERS[explorers], GUARDS[guard])
        for action, drawn in every_draw(policy, exploration, job, view):
            assert bool(drawn.guard) == is_spared, guard
            assert drawn.rate == (0.0 if is_spared else RATE), guard
            assert abs(drawn.own_propensity - own.get(action, 0.0)) < 1e-9, guard
            assert abs(drawn.proposal.propensity - expected[action]) < 1e-9, guard
            stated[action] = drawn.proposal.propensity
        assert stated.keys() == expected.keys(), guard
        assert sum(stated.values()) == pytest.approx(1.0, abs=1e-9), guard


@cache
def drawn_before(kind: type[PlacementPolicy], workers: int, is_pipeline: bool) -> Sequence[Proposal]:
    """Draws of a policy, which take up to a thousand times as long as the rest: every case has the same ones."""
    policy = next(each for each in (SAMPLE, AHEAD, POLICIES["random"]) if type(each) is kind)
    job, view, ctx = gang_for("ldwp" if is_pipeline else "", workers), uneven(), context(seed=11)
    found = [policy.propose(job, view, ctx) for _ in range(EVERYWHERE or SEEN)]
    return [proposal for proposal in found if proposal is not None]


class CachedPolicy(PlacementPolicy):
    """A policy whose answers are worked out once; one that draws still draws each time, or has drawn before."""

    def __init__(self, policy: PlacementPolicy, job: Job, has_drawn: bool = False) -> None:
        self.name, self._policy = policy.name, policy
        self._fixed = None if policy.is_drawing else first_of(policy, job)
        is_pooled = has_drawn and policy.is_drawing
        pool = drawn_before(type(policy), job.task_count, bool(job.subtasks)) if is_pooled else ()
        self._pool = itertools.cycle(pool) if pool else None
        self._probability: dict[Action, float] = {}

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        if self._pool is not None:
            return next(self._pool)
        return self._fixed or self._policy.propose(job, view, context)

    def probability(
        self, assignments: Sequence[Assignment], job: Job, view: ClusterView, context: PlaceContext
    ) -> float:
        action = action_of(assignments)
        if action not in self._probability:
            self._probability[action] = self._policy.probability(assignments, job, view, context)
        return self._probability[action]


def counted(
    policy: PlacementPolicy, exploration: Exploration, job: Job, view: ClusterView, draws: int, seed: int
) -> Counter[Action]:
    ctx, found = context(seed=seed), Counter[Action]()
    for _ in range(draws):
        drawn = explore.propose(policy, exploration, job, view, ctx)
        assert drawn is not None
        found[action_of(drawn.proposal.assignments)] += 1
    return found


@cases
def test_draws_fit_the_enumeration(name: str, explorers: str, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards of one verdict draw alike: that is all that a guard says, before anything is drawn."""
    view, job, policy = uneven(), job_of(name, workers), POLICIES[name]
    own, mixture = distribution(policy, job), enumerated(policy, EXPLORERS[explorers], RATE, job)
    each = [Explorer(CachedPolicy(e.policy, job, has_drawn=True), e.weight) for e in EXPLORERS[explorers]]
    exploration, draws = Exploration(RATE, each), EVERYWHERE or SEEN
    for spared in ("", "SPARED"):
        with monkeypatch.context() as patched:
            patched.setattr(explore, "verdict", lambda *_, spared=spared: spared)  # which takes longer than a draw
            found = counted(CachedPolicy(policy, job, has_drawn=True), exploration, job, view, draws, seed=5 + workers)
        expected = own if spared else mixture
        assert found.keys() <= expected.keys(), spared
        assert fit(found, expected, draws) > 1e-4, spared


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("explorers", EXPLORERS)
def test_many_draws_fit_the_enumeration(explorers: str, workers: int) -> None:
    """With one generator for all that is drawn."""
    view, job, policy = uneven(), gang_for("", workers), POLICIES["load-balance"]
    draws = examples(DRAWS[explorers], 16) // (1 if workers == 2 else 4)
    exploration = Exploration(RATE, [Explorer(CachedPolicy(e.policy, job), e.weight) for e in EXPLORERS[explorers]])
    expected = enumerated(policy, EXPLORERS[explorers], RATE, job)
    found = counted(CachedPolicy(policy, job), exploration, job, view, draws, seed=5 + workers)
    assert found.keys() <= expected.keys()
    assert fit(found, expected, draws) > 1e-4


@pytest.mark.parametrize("explorers", EXPLORERS.values(), ids=EXPLORERS)
def test_whatever_an_explorer_gives_has_its_share(explorers: tuple[Explorer, ...]) -> None:
    view, job, ctx = uneven(), gang_for("", 2), context(seed=2)
    total = sum(explorer.weight for explorer in explorers)
    for _ in range(200):
        drawn = explore.propose(POLICIES["tetris"], Exploration(RATE, explorers), job, view, ctx)
        assert drawn is not None
        proposal = drawn.proposal
        for explorer in explorers:
            given = distribution(explorer.policy, job).get(action_of(proposal.assignments), 0.0)
            assert proposal.propensity >= RATE * explorer.weight / total * given - 1e-12
