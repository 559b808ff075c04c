"""Support of one policy in the log of another: each pair of explorers, with the nets of the shipped bundle.

`pytest -s` prints the table. A weight is π(a)/P(a) of the policy that did not place, in the log of the other.
"""

import itertools
import math
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from tests.fakes.place_cases import gang, node, view_of

from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import RunningJob, RunState
from placewise_core.domain.job import JobId
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import PlacementPolicy, action_of
from placewise_core.policies import explore
from placewise_core.policies.explore import Exploration, Explorer
from placewise_core.policies.registry import placement_policies
from placewise_models.bundle import load
from placewise_models.folder import shipped_bundle
from placewise_models.learned import learned_policies

RATE, WEIGHTS = 0.2, (1, 1)
SHARE = RATE * WEIGHTS[0] / sum(WEIGHTS)
DECISIONS = 80
NAMES = ("consolidate", "load-balance", "harmony", "search")


@cache
def policies() -> dict[str, PlacementPolicy]:
    heuristics = placement_policies()
    return {**heuristics, **learned_policies(load(shipped_bundle()), heuristics)}


@frozen
class Weighed:
    """One logged decision: the other policy's weight, the probability that the log gave its placement, and whether
    the two policies agree."""

    weight: float
    support: float
    is_same: bool


def decisions(own: str, other: str, rate: float) -> Iterator[Weighed]:
    """A cluster under `own` with both as explorers: gangs come, and after a while the oldest goes."""
    draws = np.random.default_rng(7)
    view = view_of([node(f"n{i}", gpus=4, model="V100") for i in range(6)])
    ours, theirs = policies()[own], policies()[other]
    explorers = [Explorer(policy, weight) for policy, weight in zip((ours, theirs), WEIGHTS, strict=True)]
    running: list[JobId] = []
    for i in range(DECISIONS):
        ctx = PlaceContext(1000.0, draws)
        job = gang(f"j{i}", workers=int(draws.integers(1, 5)))
        wanted, usual = theirs.propose(job, view, ctx), ours.propose(job, view, ctx)
        drawn = explore.propose(ours, Exploration(rate, explorers), job, view, ctx)
        if drawn is not None and wanted is not None and usual is not None:
            action, theirs_action = action_of(drawn.proposal.assignments), action_of(wanted.assignments)
            is_same = action_of(usual.assignments) == theirs_action
            gives = [float(is_same), 1.0]
            support = explore.mixed(float(is_same), rate, gives, WEIGHTS)
            if action == theirs_action:
                assert drawn.proposal.propensity == pytest.approx(support, abs=1e-9)
            yield Weighed(float(action == theirs_action) / drawn.proposal.propensity, support, is_same)
            view.add_job(RunningJob(job, drawn.proposal.assignments, RunState.RUNNING))
            running.append(job.id)
        if drawn is None or len(running) > 7:
            view.remove_job(running.pop(0))


def ess(weights: list[float]) -> float:
    """(Σw)² / Σw²: so many decisions of the other policy the log is worth."""
    squares = math.fsum(w * w for w in weights)
    return math.fsum(weights) ** 2 / squares if squares else 0.0


@pytest.mark.parametrize(("own", "other"), [*itertools.permutations(NAMES, 2)])
def test_an_explorer_has_support_in_the_log_of_another_policy(own: str, other: str) -> None:
    seen, blind = list(decisions(own, other, RATE)), list(decisions(own, other, 0.0))
    without = sum(one.support == 0.0 for one in seen) / len(seen)
    differing = [one.weight for one in seen if not one.is_same]
    before = sum(one.support == 0.0 for one in blind) / len(blind)
    largest = max(one.weight for one in seen)
    print(f"\n{other} in the log of {own}: {len(differing)} of {len(seen)} decisions differ")
    print(
        f"    without support {without:.0%}, unexplored {before:.0%}; largest weight {largest:.3g} of {1 / SHARE:.3g}"
    )
    every = [one.weight for one in seen]
    print(f"    ESS {ess(every):.1f} of {len(every)}, where they differ {ess(differing):.1f} of {len(differing)}")
    assert len(seen) > DECISIONS / 2
    assert without == 0.0
    assert largest <= 1.0 / SHARE + 1e-9
    assert min(one.support for one in seen) >= SHARE - 1e-12
    assert before > 0.0, "the two policies differ somewhere"
