"""Stated propensities against counted frequencies, and against the sum over all placements."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from tests.fakes.explored import SingleProposal
from tests.fakes.place_cases import context, gang, node, running, view_of

from placewise_core.domain.cluster import Assignment
from placewise_core.domain.job import GpuSharing, Job
from placewise_core.gang.policy import PlacementPolicy, Proposal
from placewise_core.policies import explore
from placewise_core.policies.explore import Exploration, Explorer
from placewise_core.policies.profiled.tables import packaged_tables
from placewise_core.policies.random_fit import Random
from placewise_core.policies.registry import placement_policies
from placewise_core.view.view import ClusterView

DRAWS = 1500
POLICIES = placement_policies()


def crowded() -> ClusterView:
    """Three nodes of unequal room, so that explorers, policies and chance disagree."""
    return view_of(
        [node("a", gpus=2), node("b", gpus=3), node("c", gpus=1)],
        [running("r1", "b", [0]), running("r2", "a", [1], model="resnet50")],
    )


def sharing_view() -> ClusterView:
    """One neighbour tolerates a co-tenant and one does not: the mask alone does not show which node is open."""
    open_limit, strict = GpuSharing(True, 4.0), GpuSharing(True, 1.01)
    return view_of(
        [node("a", gpus=1, max_jobs_per_gpu=2), node("b", gpus=1, max_jobs_per_gpu=2), node("c", gpus=1)],
        [
            running("r1", "a", [0], model="lm", gpu_sharing=open_limit),
            running("r2", "b", [0], model="lm", gpu_sharing=strict),
        ],
    )


Where = tuple[tuple[str, str, tuple[int, ...]], ...]


def where(proposal: Proposal) -> Where:
    return tuple((a.task, a.node, a.gpu_indices) for a in proposal.assignments)


@pytest.mark.parametrize(
    ("view", "job"),
    [
        (crowded(), gang(workers=2, servers=1)),
        (sharing_view(), gang(workers=1, model="lm", sharing=GpuSharing(True, 4.0))),
    ],
    ids=["plain", "sharing"],
)
def test_random_states_the_frequency_it_has(view: ClusterView, job: Job) -> None:
    ctx = context(seed=7, interference=packaged_tables().interference)
    drawn = [p for p in (Random().propose(job, view, ctx) for _ in range(DRAWS)) if p]
    stated = {where(p): p for p in drawn}
    counted = Counter(where(p) for p in drawn)
    assert len(stated) > 1
    for placement, proposal in stated.items():
        propensity = proposal.propensity
        assert counted[placement] / DRAWS == pytest.approx(propensity, abs=4 * math.sqrt(propensity / DRAWS))
        assert Random().probability(proposal.assignments, job, view, ctx) == pytest.approx(propensity)
    assert sum(p.propensity for p in stated.values()) == pytest.approx(len(drawn) / DRAWS, abs=0.03)


@pytest.mark.parametrize("rate", [0.2, 1.0])
@pytest.mark.parametrize("name", ["random", "consolidate", "load-balance", "ect"])
def test_exploration_states_the_frequency_it_has(name: str, rate: float) -> None:
    view, job, ctx = crowded(), gang(workers=2, servers=1), context(seed=3)

    def once(policy: PlacementPolicy) -> PlacementPolicy:
        return policy if policy.is_drawing else SingleProposal(policy, policy.propose(job, view, context()))

    policy, explorers = once(POLICIES[name]), [Explorer(once(each.policy), each.weight) for each in explore.USUAL]
    stated: dict[Where, float] = {}
    counted: Counter[Where] = Counter()
    explored = 0
    for _ in range(DRAWS):
        drawn = explore.propose(policy, Exploration(rate, explorers), job, view, ctx)
        if drawn is None:
            continue
        proposal = drawn.proposal
        assert stated.setdefault(where(proposal), proposal.propensity) == pytest.approx(proposal.propensity)
        counted[where(proposal)] += 1
        explored += bool(drawn.explorer)
    for placement, propensity in stated.items():
        assert counted[placement] / DRAWS == pytest.approx(propensity, abs=4 * math.sqrt(propensity / DRAWS) + 1e-9)
    assert explored / DRAWS == pytest.approx(rate, abs=0.04)
    if name != "random":  # random may run into a dead end, whose share is no placement's
        assert sum(stated.values()) == pytest.approx(1.0)


def test_without_a_rate_the_policy_answers_and_nothing_is_drawn() -> None:
    view, job, ctx = crowded(), gang(workers=2), context(seed=1)
    drawn = explore.propose(POLICIES["load-balance"], explore.NONE, job, view, ctx)
    assert drawn is not None
    assert drawn.proposal == POLICIES["load-balance"].propose(job, view, ctx)
    assert not drawn.explorer
    assert ctx.rng.random() == np.random.default_rng(1).random()


def test_a_job_nobody_can_place_has_no_proposal() -> None:
    assert explore.propose(POLICIES["random"], Exploration(1.0), gang(workers=9), crowded(), context()) is None


@pytest.mark.parametrize(
    ("own", "rate", "gives", "expected"),
    [
        (1.0, 0.2, (True, True), 1.0),
        (1.0, 0.2, (False, False), 0.8),
        (0.0, 0.2, (True, False), 0.1),
        (0.25, 0.4, (False, True), 0.6 * 0.25 + 0.2),
        (0.25, 0.4, (None, True), 0.6 * 0.25 + 0.2 * 0.25 + 0.2),
    ],
)
def test_the_mixture_is_the_formula(own: float, rate: float, gives: tuple[bool | None, ...], expected: float) -> None:
    assert explore.mixed(own, rate, gives) == pytest.approx(expected)


def test_random_probabilities_sum_to_one_where_no_dead_end_exists() -> None:
    view = view_of([node("a"), node("b"), node("c")])
    job, ctx = gang(workers=2), context()
    total = 0.0
    for names in itertools.product("abc", repeat=2):
        used = {"a": 0, "b": 0, "c": 0}
        proposal = Random().propose(job, view, ctx)
        assert proposal is not None
        wanted = []
        for assignment, name in zip(proposal.assignments, names, strict=True):
            wanted.append(Assignment(assignment.task, assignment.role, name, (used[name],), assignment.demand))  # type: ignore[arg-type]
            used[name] += 1
        total += Random().probability(wanted, job, view, ctx)
    assert total == pytest.approx(1.0)
