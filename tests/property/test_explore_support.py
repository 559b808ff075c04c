"""Exploration by explorers of one's own: propensities against the enumeration of every placement."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import pytest
from scipy import stats
from tests.fakes.net_policies import FirstIsBest, Spreads
from tests.fakes.place_cases import context, gang, node, running, view_of

from placewise_core.domain.cluster import Assignment, ExplorationGuard
from placewise_core.domain.job import GpuSharing, Job, JobId, NodeId, Resources, Role, TaskGroup
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.gang import Gang
from placewise_core.gang.policy import Action, PlacementPolicy, Proposal, action_of
from placewise_core.policies import explore, random_ahead
from placewise_core.policies.explore import Exploration, Explorer
from placewise_core.policies.harmony_draw import HarmonyDraw
from placewise_core.policies.random_ahead import RandomAhead
from placewise_core.policies.random_fit import Random
from placewise_core.policies.registry import harmony_policy, placement_policies, search_policy
from placewise_core.view.view import ClusterView

POLICIES = placement_policies()
HARMONY = harmony_policy(Spreads(sharpness=0.7), POLICIES)
SEARCH = search_policy(FirstIsBest(), POLICIES, harmony=HARMONY)
AHEAD, SAMPLE = RandomAhead(), HarmonyDraw(HARMONY)
RATE = 0.3
ROOM = {"a": 1, "b": 2, "c": 3, "d": 3}
EXPLORERS = {
    "two": (Explorer(POLICIES["consolidate"], 3), Explorer(POLICIES["load-balance"], 1)),
    "drawing": (Explorer(AHEAD, 2), Explorer(POLICIES["bin-packing"], 1)),
    "learned": (Explorer(HARMONY, 2), Explorer(SEARCH, 1), Explorer(POLICIES["consolidate"], 1)),
    "sampled": (Explorer(SAMPLE, 1), Explorer(POLICIES["load-balance"], 1)),
}
# Draws that are compared with the enumeration, of the gang of two; a quarter of each other gang. The drawing ones take
# longer.
DRAWS = {"two": 100_000, "drawing": 40_000, "learned": 100_000, "sampled": 2_000}


def uneven() -> ClusterView:
    """Four nodes of unequal room."""
    return view_of(
        [node("a", gpus=1), node("b", gpus=2), node("c", gpus=3), node("d", gpus=4)], [running("r1", "d", [0])]
    )


def by_hand(job: Job) -> dict[Action, float]:
    """What random draws of single GPUs give, from the rooms alone."""
    found: dict[Action, float] = {}
    for nodes in itertools.product(ROOM, repeat=job.task_count):
        left, probability = dict(ROOM), 1.0
        for chosen in nodes:
            probability *= (left[chosen] > 0) / sum(slots > 0 for slots in left.values())
            left[chosen] -= 1
        if probability:
            found[tuple((f"worker-{i}", chosen) for i, chosen in enumerate(nodes))] = probability
    return found


@cache
def sampled(workers: int) -> dict[Action, float]:
    return everywhere(gang(workers=workers), uneven(), SAMPLE)


def distribution(policy: PlacementPolicy, job: Job, view: ClusterView) -> dict[Action, float]:
    if isinstance(policy, Random):
        return by_hand(job)
    if policy is SAMPLE:
        return sampled(job.task_count)
    proposal = policy.propose(job, view, context())
    assert proposal is not None
    return {action_of(proposal.assignments): 1.0}


def enumerated(
    policy: PlacementPolicy, explorers: Sequence[Explorer], job: Job, view: ClusterView
) -> dict[Action, float]:
    """P(a) of every action, from the definition: every policy's own distribution, weighted by its share."""
    total = sum(explorer.weight for explorer in explorers)
    parts = [(1.0 - RATE, policy), *((RATE * e.weight / total, e.policy) for e in explorers)]
    mixture: dict[Action, float] = {}
    for share, part in parts:
        for action, probability in distribution(part, job, view).items():
            mixture[action] = mixture.get(action, 0.0) + share * probability
    return mixture


GUARDS = {
    "none": ExplorationGuard(),
    "of larger jobs": ExplorationGuard(max_gpus=2.0),
    "of narrow choices": ExplorationGuard(min_nodes=5),
}
SPARED = {"none": range(0), "of larger jobs": range(3, 5), "of narrow choices": range(1, 5)}


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("explorers", EXPLORERS.values(), ids=EXPLORERS)
@pytest.mark.parametrize("name", [*POLICIES, "harmony", "search"])
def test_each_propensity_is_the_enumerated_one(
    name: str, explorers: tuple[Explorer, ...], guard: str, workers: int
) -> None:
    view, job, ctx = uneven(), gang(workers=workers), context(seed=workers)
    is_spared = workers in SPARED[guard]
    policy = {**POLICIES, "harmony": HARMONY, "search": SEARCH}[name]
    exploration = Exploration(RATE, explorers, GUARDS[guard])
    expected = distribution(policy, job, view) if is_spared else enumerated(policy, explorers, job, view)
    assert sum(expected.values()) == pytest.approx(1.0, abs=1e-9)
    for _ in range(8):
        drawn = explore.propose(policy, exploration, job, view, ctx)
        assert drawn is not None
        assert bool(drawn.guard) == is_spared
        own = distribution(policy, job, view).get(action_of(drawn.proposal.assignments), 0.0)
        assert drawn.own_propensity == pytest.approx(own, abs=1e-9)
        proposal = drawn.proposal
        assert proposal.propensity == pytest.approx(expected[action_of(proposal.assignments)], abs=1e-9)


class Kept(PlacementPolicy):
    """A policy whose answers are worked out once; one that draws still draws each time."""

    def __init__(self, policy: PlacementPolicy, job: Job, view: ClusterView) -> None:
        self.name, self._policy = policy.name, policy
        first = policy.propose(job, view, context())
        self._fixed = first if first is not None and first.propensity == 1.0 and policy is not SAMPLE else None
        self._probability: dict[Action, float] = {}

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        return self._fixed or self._policy.propose(job, view, context)

    def probability(
        self, assignments: Sequence[Assignment], job: Job, view: ClusterView, context: PlaceContext
    ) -> float:
        action = action_of(assignments)
        if action not in self._probability:
            self._probability[action] = self._policy.probability(assignments, job, view, context)
        return self._probability[action]


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("name", EXPLORERS)
def test_draws_fit_the_enumeration(name: str, workers: int) -> None:
    view, job, ctx = uneven(), gang(workers=workers), context(seed=5 + workers)
    policy, draws = POLICIES["load-balance"], DRAWS[name] // (1 if workers == 2 else 4)
    expected = enumerated(policy, EXPLORERS[name], job, view)
    exploration = Exploration(RATE, [Explorer(Kept(e.policy, job, view), e.weight) for e in EXPLORERS[name]])
    own = Kept(policy, job, view)
    counted: Counter[Action] = Counter()
    for _ in range(draws):
        one = explore.propose(own, exploration, job, view, ctx)
        assert one is not None
        counted[action_of(one.proposal.assignments)] += 1
    assert counted.keys() <= expected.keys()
    assert fit(counted, expected, draws) > 1e-4


def fit(counted: Mapping[Action, int], expected: Mapping[Action, float], draws: int) -> float:
    """The p-value of chi²; actions expected fewer than five times are one cell."""
    cells = [(counted.get(a, 0), draws * p) for a, p in expected.items()]
    rare = [cell for cell in cells if cell[1] < 5]
    cells = [cell for cell in cells if cell[1] >= 5]
    if rare:
        cells.append((sum(count for count, _ in rare), sum(wanted for _, wanted in rare)))
    if len(cells) == 1:
        return float(cells[0][0] == draws)
    return float(stats.chisquare(*zip(*cells, strict=True)).pvalue)


def everywhere(job: Job, view: ClusterView, policy: PlacementPolicy = AHEAD) -> dict[Action, float]:
    """The policy's own probability of every assignment of tasks to nodes."""
    proposal = policy.propose(job, view, context())
    assert proposal is not None
    found: dict[Action, float] = {}
    for nodes in itertools.product([n.id for n in view.nodes], repeat=job.task_count):
        tasks = [
            Assignment(a.task, a.role, NodeId(n), (), a.demand)
            for a, n in zip(proposal.assignments, nodes, strict=True)
        ]
        if probability := policy.probability(tasks, job, view, context()):
            found[action_of(tasks)] = probability
    return found


def tight() -> ClusterView:
    """Four nodes, where a worker on a node with much CPU takes a server's only place."""
    return view_of(
        [node("a", gpus=1, cpu=4.9), node("b", gpus=1, cpu=4.9), node("c", gpus=1, cpu=3.9), node("d", gpus=1, cpu=3.9)]
    )


def pair(workers: int, servers: int) -> Job:
    """Workers of one GPU and one core, and servers of four cores."""
    groups = [TaskGroup(Role.WORKER, workers, Resources(1, 1, 8, 0, 1))]
    if servers:
        groups.append(TaskGroup(Role.PARAMETER_SERVER, servers, Resources(4, 0, 8, 0, 1)))
    return Job(JobId("job"), groups=tuple(groups))


TIGHT = [pair(workers, servers) for workers, servers in ((1, 0), (1, 1), (2, 1), (1, 2), (2, 2))]


def halves(count: int) -> Job:
    """Workers of half a GPU each, beside others if need be: counting alone does not say how many fit."""
    group = TaskGroup(Role.WORKER, count, Resources(1, 0.5, 8, 0, 1))
    return Job(JobId("job"), groups=(group,), gpu_sharing=GpuSharing(True, 4.0))


def shared() -> ClusterView:
    return view_of([node(name, gpus=1, max_jobs_per_gpu=2) for name in "abcd"])


CASES = [(job, tight()) for job in TIGHT] + [(halves(count), shared()) for count in (1, 2, 3)]
IDS = ["+".join(str(group.count) for group in job.groups) for job in TIGHT] + ["half", "two halves", "three halves"]


@pytest.mark.parametrize("walked", [1024, 20, 1])
@pytest.mark.parametrize(("job", "view"), CASES, ids=IDS)
def test_looking_ahead_sums_to_one_and_never_fails(
    job: Job, view: ClusterView, walked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random_ahead, "_WALKED", walked)
    ctx = context(seed=9)
    expected = everywhere(job, view)
    assert sum(expected.values()) == pytest.approx(1.0, abs=1e-9)
    for _ in range(40):
        proposal = AHEAD.propose(job, view, ctx)
        assert proposal is not None
        assert proposal.propensity == pytest.approx(expected[action_of(proposal.assignments)], abs=1e-9)


def test_every_placement_of_two_servers_and_two_workers_is_drawn_or_left_out_for_the_plan() -> None:
    """The servers go to a and b, the only nodes with their CPU; the workers then share c and d."""
    found = everywhere(pair(2, 2), tight())
    assert {tuple(node for _, node in action) for action in found} == set(itertools.product("ab", "ab", "cd", "cd")) - {
        (p, q, v, w) for p, q, v, w in itertools.product("ab", "ab", "cd", "cd") if p == q or v == w
    }


def test_a_large_gang_of_two_groups_is_placed_twice_and_not_once_per_look(monkeypatch: pytest.MonkeyPatch) -> None:
    view = view_of([node(f"n{i}", gpus=4, cpu=16.0) for i in range(40)])
    job, taken = pair(48, 16), 0
    take = Gang.take

    def counting(gang: Gang, group: TaskGroup, m: int, count: int = 1) -> bool:
        nonlocal taken
        taken += count
        return take(gang, group, m, count)

    monkeypatch.setattr(Gang, "take", counting)
    proposal = AHEAD.propose(job, view, context(seed=4))
    assert proposal is not None
    assert len({a.node for a in proposal.assignments}) > 20
    assert taken <= 2 * job.task_count


@pytest.mark.parametrize("job", TIGHT[3:], ids=["1+2", "2+2"])
def test_random_alone_runs_into_dead_ends_there(job: Job) -> None:
    ctx = context(seed=9)
    assert any(Random().propose(job, tight(), ctx) is None for _ in range(60))


def test_nothing_is_drawn_for_a_gang_that_does_not_fit() -> None:
    ctx = context(seed=1)
    assert AHEAD.propose(gang(workers=9, servers=1), tight(), ctx) is None
    assert ctx.rng.random() == np.random.default_rng(1).random()


@pytest.mark.parametrize("explorers", EXPLORERS.values(), ids=EXPLORERS)
def test_whatever_an_explorer_gives_has_its_share(explorers: tuple[Explorer, ...]) -> None:
    view, job, ctx = uneven(), gang(workers=2), context(seed=2)
    total = sum(explorer.weight for explorer in explorers)
    for _ in range(200):
        drawn = explore.propose(POLICIES["tetris"], Exploration(RATE, explorers), job, view, ctx)
        assert drawn is not None
        proposal = drawn.proposal
        for explorer in explorers:
            given = distribution(explorer.policy, job, view).get(action_of(proposal.assignments), 0.0)
            assert proposal.propensity >= RATE * explorer.weight / total * given - 1e-12
