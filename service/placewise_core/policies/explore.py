"""Exploration of whole gangs, with the exact propensity of the result. Off unless a rate is given.

Harmony's job-aware exploration: with probability ε one of several explorers places the gang instead of the policy. An
explorer of weight w has the share s = ε·w/Σw. For a placement a of any origin the propensity is

    P(a) = (1 − ε)·π(a) + Σ s·q(a)

where q(a) is the probability with which the explorer gives a: 0 or 1 for one that draws nothing. So P(a) ≥ s for
whatever such an explorer gives. An explorer that finds no placement leaves its share to the policy: s·π(a). Two
placements are one action if each task, by its name, is on the same node: equal tasks differ, GPU indices do not. A
guard may spare a job (gang/guard.py): it looks before anything is drawn, and P(a) is π(a) then.
"""

import hashlib
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from itertools import accumulate

from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import ClusterSettings, ExplorationGuard
from placewise_core.domain.job import Job
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.guard import verdict
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


@frozen
class Exploration:
    """How a cluster explores: ε, at least one explorer, and the guard."""

    rate: float = 0.0
    explorers: Sequence[Explorer] = USUAL
    guard: ExplorationGuard = ExplorationGuard()


NONE = Exploration()


def exploration_of(settings: ClusterSettings, explorers: Mapping[str, PlacementPolicy]) -> Exploration:
    """How a cluster explores. Explorers that are not among these are left out; if no other is named, nothing is
    explored."""
    if settings.exploration_rate <= 0:
        return NONE
    named = [(explorers.get(item.policy), item.weight) for item in settings.explorers]
    known = [Explorer(policy, weight) for policy, weight in named if policy is not None]
    if named and not known:
        return NONE
    return Exploration(settings.exploration_rate, known or USUAL, settings.exploration_guard)


def asked_once(policy: PlacementPolicy, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
    """As `policy.propose`; its first proposal again if the context keeps proposals and the policy draws nothing."""
    if context.given is None or policy.is_drawing:
        return policy.propose(job, view, context)
    if policy not in context.given:
        context.given[policy] = policy.propose(job, view, context)
    found: Proposal | None = context.given[policy]
    return found


@frozen
class Stop:
    """How the clock stopped a policy. `asked` is the number of proposers that a search had asked, None if it asked all
    or has none; `is_late`: no time was left for its net, and its heuristic answered."""

    asked: int | None = None
    is_late: bool = False


@frozen
class Drawn:
    """A proposal, with P(a) as its propensity, and how it came about.

    `own_propensity` is π(a), the probability with which the policy in force gives the same. `explorer` names the one
    that gave it, "" the policy in force. `rate` is ε for this job: 0 if the guard, whose verdict is `guard`, spared it.
    `stops` are those of the policies that the clock stopped, by name: of the one in force and of the explorers.
    """

    proposal: Proposal
    own_propensity: float = 1.0
    explorer: str = ""
    rate: float = 0.0
    guard: str = ""
    stops: Mapping[str, Stop] = field(default_factory=dict)


def propose(
    policy: PlacementPolicy, exploration: Exploration, job: Job, view: ClusterView, context: PlaceContext
) -> Drawn | None:
    """The job's placement by the policy or by an explorer; None if the one whose turn it is finds none."""
    rate, explorers = exploration.rate, exploration.explorers
    spared = verdict(exploration.guard, job, view, context) if rate > 0 else ""
    if rate <= 0 or spared:
        own = asked_once(policy, job, view, context)
        return Drawn(own, own.propensity, guard=spared, stops=_stops((policy, own))) if own is not None else None
    is_exploring = context.rng.random() < rate
    weights = [explorer.weight for explorer in explorers]
    turn = bisect_right([*accumulate(weights)], int(context.rng.integers(sum(weights))))
    given = [asked_once(explorer.policy, job, view, context) for explorer in explorers]
    chosen, explorer = (given[turn], explorers[turn].policy.name) if is_exploring else (None, "")
    asked = list(zip([each.policy for each in explorers], given, strict=True))
    own = None
    if chosen is None or not policy.is_drawing:  # also an explorer's: it is asked once, as the clock may stop it
        known = [] if policy.is_drawing else [proposal for each, proposal in asked if each is policy]
        own = known[0] if known else asked_once(policy, job, view, context)
    if chosen is None:
        if own is None:
            return None
        chosen, explorer, pi = own, "", own.propensity
    elif policy.is_drawing:
        pi = policy.probability(chosen.assignments, job, view, context)
    else:
        pi = gives(policy, own, chosen, job, view, context) or 0.0
    shares = [gives(each, proposal, chosen, job, view, context) for each, proposal in asked]
    proposal = replace(chosen, propensity=mixed(pi, rate, shares, weights))
    return Drawn(proposal, pi, explorer, rate, stops=_stops((policy, own), *asked))


def stop_of(proposal: Proposal) -> Stop | None:
    """How the clock stopped the policy that proposes this, None if it did not."""
    asked = int(proposal.info["asked"]) if proposal.info.get("cut") else None
    is_late = proposal.fallback_reason.endswith(": deadline")
    return Stop(asked, is_late) if is_late or asked is not None else None


def _stops(*asked: tuple[PlacementPolicy, Proposal | None]) -> Mapping[str, Stop]:
    """By the name of each policy that the clock stopped. None proposes by another's name."""
    return {policy.name: stop for policy, own in asked if own is not None and (stop := stop_of(own)) is not None}


def seed_in_slot(cluster: str, job: Job, now_s: float, slot_s: float) -> int:
    """The seed of the job's draws in the present slot, 53 bits: a host that asks again in the slot draws the same."""
    return _bits(f"{cluster}\n{job.id}\n{math.floor(now_s / slot_s)}")


def seed_of_question(seed: int, now_s: float, first: Job) -> int:
    """The seed of one question's draws, 53 bits; `seed` is the run's, `first` the question's first job. A host that
    asks at the same moments gets the same run."""
    return _bits(f"{seed}\n{now_s!r}\n{first.id}")


def _bits(drawn: str) -> int:
    return int.from_bytes(hashlib.blake2b(drawn.encode(), digest_size=8).digest()) >> 11


def mixed(own: float, rate: float, explorers_give: Sequence[float | None], weights: Sequence[int] = (1, 1)) -> float:
    """P(a) from π(a) and, per explorer, the probability with which it gives a (None: it finds no placement at all)."""
    shares = [weight * (own if q is None else q) for q, weight in zip(explorers_give, weights, strict=True)]
    return (1.0 - rate) * own + rate * sum(shares) / sum(weights)


def gives(
    explorer: PlacementPolicy,
    given: Proposal | None,
    chosen: Proposal,
    job: Job,
    view: ClusterView,
    context: PlaceContext,
) -> float | None:
    """The probability with which the explorer gives the placement chosen; `given` is its own proposal."""
    if given is None:
        return None
    if given is chosen:
        return given.propensity
    if given.propensity < 1.0:
        return explorer.probability(chosen.assignments, job, view, context)
    return float(action_of(given.assignments) == action_of(chosen.assignments))
