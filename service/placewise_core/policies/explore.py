"""Exploration of whole gangs, with the exact propensity of the result. Off unless a rate is given.

Harmony's job-aware exploration: with probability ε one of several explorers places the gang instead of the policy. An
explorer of weight w has the share s = ε·w/Σw. For a placement a of any origin the propensity is

    P(a) = (1 − ε)·π(a) + Σ s·q(a)

where q(a) is the probability with which the explorer gives a: 0 or 1 for one that draws nothing. So P(a) ≥ s for
whatever such an explorer gives. An explorer that finds no placement leaves its share to the policy: s·π(a). Two
placements are one action if each task, by its name, is on the same node: equal tasks are told apart, GPU indices are
not.
"""

from collections.abc import Sequence
from dataclasses import replace

from placewise_core.basics.frozen import frozen
from placewise_core.domain.job import Job
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import PlacementPolicy, Proposal, action_of
from placewise_core.policies.bin_packing import BinPacking
from placewise_core.policies.load_balance import LoadBalance
from placewise_core.view.view import ClusterView


@frozen
class Explorer:
    """A policy that explores, and its weight among the explorers (a whole number, at least 1). Whether the policy finds
    a placement may not depend on its draws: RandomAhead serves, Random does not."""

    policy: PlacementPolicy
    weight: int = 1


USUAL: tuple[Explorer, ...] = (Explorer(BinPacking()), Explorer(LoadBalance()))


def propose(
    policy: PlacementPolicy,
    rate: float,
    job: Job,
    view: ClusterView,
    context: PlaceContext,
    explorers: Sequence[Explorer] = USUAL,
) -> tuple[Proposal | None, bool]:
    """A proposal with its propensity under exploration at `rate`, and whether exploration chose it."""
    if rate <= 0:
        return policy.propose(job, view, context), False
    is_exploring = context.rng.random() < rate
    turns = [i for i, explorer in enumerate(explorers) for _ in range(explorer.weight)]
    turn = turns[int(context.rng.integers(len(turns)))]
    given = [explorer.policy.propose(job, view, context) for explorer in explorers]
    chosen = given[turn] if is_exploring else None
    is_explored = chosen is not None
    if chosen is None:
        chosen = policy.propose(job, view, context)
        if chosen is None:
            return None, False
        own = chosen.propensity
    else:
        own = policy.probability(chosen.assignments, job, view, context)
    gives = [
        _gives(explorer.policy, proposal, chosen, job, view, context)
        for explorer, proposal in zip(explorers, given, strict=True)
    ]
    weights = [explorer.weight for explorer in explorers]
    return replace(chosen, propensity=mixed(own, rate, gives, weights)), is_explored


def mixed(own: float, rate: float, explorers_give: Sequence[float | None], weights: Sequence[int] = (1, 1)) -> float:
    """P(a) from π(a) and, per explorer, the probability with which it gives a (None: it finds no placement at all)."""
    shares = [weight * (own if q is None else q) for q, weight in zip(explorers_give, weights, strict=True)]
    return (1.0 - rate) * own + rate * sum(shares) / sum(weights)


def _gives(
    explorer: PlacementPolicy,
    given: Proposal | None,
    chosen: Proposal,
    job: Job,
    view: ClusterView,
    context: PlaceContext,
) -> float | None:
    """The probability with which the explorer gives the action chosen; `given` is its own proposal."""
    if given is None:
        return None
    if given.propensity < 1.0:
        return explorer.probability(chosen.assignments, job, view, context)
    return float(action_of(given.assignments) == action_of(chosen.assignments))
