"""The arms of a canary, and the propensity over both arms by enumeration on four nodes."""

import itertools
from functools import cache

import pytest
from tests.fakes.explored import EXPLORERS, POLICIES, SingleProposal, enumerated, first_of, gang_for, on_nodes, uneven
from tests.fakes.place_cases import context

from placewise_core.domain.cluster import ExplorationGuard
from placewise_core.domain.job import Job
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import PlacementPolicy, Proposal, action_of
from placewise_core.policies.explore import Exploration, Explorer
from placewise_core.policies.trial.arms import Arm, Arms, Unit, UnknownMixtureError, over_both, propensity
from placewise_core.view.view import ClusterView

SHARE, RATE = 0.2, 0.3
JOBS = [f"job-{i}" for i in range(20_000)]
PAIRS = [
    ("consolidate", "two", "harmony", "two"),
    ("consolidate", "drawing", "search", "learned"),
    ("random", "sampled", "load-balance", "drawing"),
    ("search", "learned", "search", "learned"),
]


def test_a_larger_share_keeps_the_jobs_of_a_smaller_one() -> None:
    before: set[str] = set()
    for share in (0.01, 0.05, 0.2, 0.5, 0.99):
        arms = Arms("salt", share)
        now = {job for job in JOBS if arms.of(job, 0.0) is Arm.CANARY}
        assert before <= now
        assert len(now) / len(JOBS) == pytest.approx(share, abs=0.01)
        before = now


def test_another_salt_draws_anew() -> None:
    one, other = Arms("a", 0.5), Arms("b", 0.5)
    both = sum(one.of(job, 0.0) is other.of(job, 9.0) is Arm.CANARY for job in JOBS)
    assert both / len(JOBS) == pytest.approx(0.25, abs=0.01)


def test_by_time_each_arm_has_one_block_of_each_period_and_the_first_one_is_drawn() -> None:
    arms = Arms("salt", 0.5, Unit.TIME, period_s=600.0, washout_s=30.0)
    firsts = []
    for period in range(1000):
        first, second = (arms.of("any", period * 600.0 + at) for at in (0.0, 300.0))
        assert {first, second} == set(Arm)
        assert {arms.of(job, period * 600.0 + 299.0) for job in JOBS[:3]} == {first}
        firsts.append(first is Arm.CANARY)
    assert sum(firsts) / len(firsts) == pytest.approx(0.5, abs=0.06)
    washed = [arms.is_washout(at) for at in (0.0, 29.0, 30.0, 299.0, 300.0, 329.0, 330.0)]
    assert washed == [True, True, False, False, True, True, False]
    assert not Arms("salt", 0.5).is_washout(0.0)


@cache
def known(policy: PlacementPolicy, workers: int) -> SingleProposal:
    return SingleProposal(policy, first_of(policy, gang_for("", workers)))


@pytest.mark.parametrize("workers", range(1, 5))
@pytest.mark.parametrize("guard", [ExplorationGuard(), ExplorationGuard(max_gpus=2.0)], ids=["open", "guarded"])
@pytest.mark.parametrize(("incumbent", "explorers", "canary", "others"), PAIRS)
def test_the_propensity_over_both_arms_and_all_explorers_is_the_enumerated_one(
    incumbent: str, explorers: str, canary: str, others: str, guard: ExplorationGuard, workers: int
) -> None:
    view, job = uneven(), gang_for("", workers)
    rate = 0.0 if guard.max_gpus and workers > guard.max_gpus else RATE
    parts = [(incumbent, explorers), (canary, others)]
    exploring = [
        (
            known(POLICIES[name], workers),
            Exploration(RATE, [Explorer(known(e.policy, workers), e.weight) for e in EXPLORERS[each]], guard),
        )
        for name, each in parts
    ]
    enumerations = [enumerated(POLICIES[name], EXPLORERS[each], rate, job) for name, each in parts]
    expected = {
        action: over_both(SHARE, *(each.get(action, 0.0) for each in enumerations))
        for action in {*enumerations[0], *enumerations[1]}
    }
    tasks = sorted(proposed(job, view).assignments, key=lambda task: task.task)
    names, stated = [task.task for task in tasks], {}
    for nodes in itertools.product([node.id for node in view.nodes.records], repeat=workers):
        chosen = Proposal(on_nodes(tasks, nodes))
        arms = [propensity(*asked, chosen, job, view, context()) for asked in exploring]
        if total := over_both(SHARE, *arms):
            stated[action_of(chosen.assignments)] = total
    assert names == sorted(names)
    assert stated == pytest.approx({action: p for action, p in expected.items() if p}, abs=1e-9)
    assert sum(stated.values()) == pytest.approx(1.0, abs=1e-9)


def proposed(job: Job, view: ClusterView) -> Proposal:
    found = POLICIES["consolidate"].propose(job, view, context())
    assert found is not None
    return found


class Stands(PlacementPolicy):
    """Answers by a heuristic with a reason, or as if the clock had cut a search."""

    name = "stands"

    def __init__(self, reason: str = "", is_cut: bool = False) -> None:
        self._reason, self._info = reason, {"cut": float(is_cut)}

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal:
        tasks = proposed(job, view).assignments
        return Proposal(tasks, info=self._info, is_fallback=bool(self._reason), fallback_reason=self._reason)


@pytest.mark.parametrize("policy", [Stands("search: deadline"), Stands("stands: OrtError"), Stands(is_cut=True)])
@pytest.mark.parametrize("is_explorer", [False, True])
def test_a_guess_is_no_mixture(policy: Stands, is_explorer: bool) -> None:
    view, job = uneven(), gang_for("", 2)
    asked = POLICIES["consolidate"] if is_explorer else policy
    exploration = Exploration(RATE, [Explorer(policy)]) if is_explorer else Exploration()
    with pytest.raises(UnknownMixtureError, match="stands"):
        propensity(asked, exploration, proposed(job, view), job, view, context())


@pytest.mark.parametrize("reason", ["", "search: uncertain", "ldwp: no pipeline", "harmony-paper: no net for this"])
def test_a_heuristic_that_always_stands_in_there_has_a_probability(reason: str) -> None:
    view, job = uneven(), gang_for("", 2)
    chosen = proposed(job, view)
    assert propensity(Stands(reason), Exploration(), chosen, job, view, context()) == 1.0
