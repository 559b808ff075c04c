"""Exploration of whole gangs, with the exact propensity of the result. Off unless a rate is given.

Harmony's job-aware exploration: with probability ε the gang is placed by bin packing or by load balance, each equally
likely, instead of by the policy. For a placement a of any origin the propensity is

    P(a) = (1 − ε)·π(a) + ε/2·[bin packing gives a] + ε/2·[load balance gives a]

and if one of the two finds no placement, its share goes to the policy: ε/2·π(a).
"""

from collections.abc import Sequence
from dataclasses import replace

from placewise_core.job import Job
from placewise_core.place.bin_packing import BinPacking
from placewise_core.place.context import PlaceContext
from placewise_core.place.load_balance import LoadBalance
from placewise_core.place.policy import PlacementPolicy, Proposal
from placewise_core.view import ClusterView

_EXPLORERS: tuple[PlacementPolicy, ...] = (BinPacking(), LoadBalance())


def propose(
    policy: PlacementPolicy, rate: float, job: Job, view: ClusterView, context: PlaceContext
) -> tuple[Proposal | None, bool]:
    """A proposal with its propensity under exploration at `rate`, and whether exploration chose it."""
    if rate <= 0:
        return policy.propose(job, view, context), False
    is_exploring = context.rng.random() < rate
    turn = int(context.rng.integers(len(_EXPLORERS)))
    explored = [explorer.propose(job, view, context) for explorer in _EXPLORERS]
    chosen = explored[turn] if is_exploring else None
    is_explored = chosen is not None
    if chosen is None:
        chosen = policy.propose(job, view, context)
        if chosen is None:
            return None, False
        own = chosen.propensity
    else:
        own = policy.probability(chosen.assignments, job, view, context)
    return replace(chosen, propensity=mixed(own, rate, [_gives(e, chosen) for e in explored])), is_explored


def mixed(own: float, rate: float, explorers_give: Sequence[bool | None]) -> float:
    """P(a) from π(a) and, per explorer, whether it gives a (None: it finds no placement at all)."""
    shares = [own if gives is None else float(gives) for gives in explorers_give]
    return (1.0 - rate) * own + rate * sum(shares) / len(shares)


def _gives(explored: Proposal | None, chosen: Proposal) -> bool | None:
    return None if explored is None else explored.assignments == chosen.assignments
