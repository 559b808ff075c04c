"""Every policy and set of explorers on four nodes of unequal room, and the distribution of each by enumeration."""

import itertools
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
from scipy import special
from tests.fakes.net_policies import FirstIsBest, Spreads
from tests.fakes.place_cases import context, gang, node, running, view_of

from placewise_core.basics.arrays import Float32
from placewise_core.domain.cluster import Assignment
from placewise_core.domain.events import SubtaskProfiled
from placewise_core.domain.job import Job, NodeId, Subtask
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import Action, PlacementPolicy, Proposal, action_of
from placewise_core.inputs.ldwp import COLUMNS
from placewise_core.policies.adaptive import knows_loss
from placewise_core.policies.explore import Explorer
from placewise_core.policies.explorers.harmony_draw import HarmonyDraw
from placewise_core.policies.explorers.random_ahead import RandomAhead
from placewise_core.policies.ldwp import LearnedNodes
from placewise_core.policies.printed.harmony_paper import HarmonyPaper
from placewise_core.policies.printed.ldwp_paper import LdwpPaper
from placewise_core.policies.random_fit import Random
from placewise_core.policies.registry import adaptive_policy, harmony_policy, placement_policies, search_policy
from placewise_core.speed.learned.disturbance import Group
from placewise_core.speed.learned.sums import Sums
from placewise_core.view.view import ClusterView

ROOM = {"a": 1, "b": 2, "c": 3, "d": 3}


class FewGpusFirst:
    """A net of LDWP's that likes nodes with few GPUs."""

    def values(self, rows: Float32) -> Float32:
        return -rows[:, COLUMNS.index("gpus")]


class LastNode:
    """The two printed nets: each likes the last node best."""

    types = ("video",)

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def logits(self, rows: Float32) -> Float32:
        return np.tile(np.arange(len(self._names), dtype=np.float32), 2)

    def values(self, state: Float32) -> Float32:
        return np.arange(len(self._names), dtype=np.float32)


class PrintedHarmony(LastNode):
    @property
    def nodes(self) -> int:
        return len(self._names)


class PrintedLdwp(LastNode):
    @property
    def nodes(self) -> Sequence[str]:
        return self._names


HEURISTICS = placement_policies()
HARMONY = harmony_policy(Spreads(sharpness=0.7), HEURISTICS)
SEARCH = search_policy(FirstIsBest(), HEURISTICS, harmony=HARMONY)
ADAPTIVE = adaptive_policy(FirstIsBest(), HEURISTICS, harmony=HARMONY)
LDWP = LearnedNodes(FewGpusFirst(), HEURISTICS["load-balance"])
AHEAD, SAMPLE = RandomAhead(), HarmonyDraw(HARMONY)


class Stated(PlacementPolicy):
    """States the probability of each action as a policy does, which is asked once about each. `known`: its answers so
    far."""

    def __init__(self, policy: PlacementPolicy, known: dict[Action, float]) -> None:
        self.name, self._policy, self._known = policy.name, policy, known

    def probability(
        self, assignments: Sequence[Assignment], job: Job, view: ClusterView, context: PlaceContext
    ) -> float:
        action = action_of(assignments)
        if action not in self._known:
            self._known[action] = self._policy.probability(assignments, job, view, context)
        return self._known[action]


class SingleProposal(Stated):
    """A policy asked about one job on one view, once for its proposal."""

    def __init__(self, policy: PlacementPolicy, given: Proposal | None) -> None:
        super().__init__(policy, {})
        self._given = given

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        return self._given


POLICIES: dict[str, PlacementPolicy] = {
    **HEURISTICS,
    "harmony": HARMONY,
    "search": SEARCH,
    "adaptive": ADAPTIVE,
    "ldwp": LDWP,
    "harmony-paper": HarmonyPaper(PrintedHarmony(list(ROOM)), HEURISTICS["consolidate"]),
    "ldwp-paper": LdwpPaper(PrintedLdwp(list(ROOM)), HEURISTICS["load-balance"]),
}
EXPLORERS = {
    "two": (Explorer(POLICIES["consolidate"], 3), Explorer(POLICIES["load-balance"], 1)),
    "drawing": (Explorer(AHEAD, 2), Explorer(POLICIES["bin-packing"], 1)),
    "learned": (Explorer(HARMONY, 2), Explorer(SEARCH, 1), Explorer(POLICIES["consolidate"], 1)),
    "sampled": (Explorer(SAMPLE, 1), Explorer(LDWP, 1)),
}


def uneven() -> ClusterView:
    """Four nodes of unequal room, in a cluster whose gangs have reported that they slow each other down."""
    view = view_of(
        [node("a", gpus=1), node("b", gpus=2), node("c", gpus=3), node("d", gpus=4)], [running("r1", "d", [0])]
    )
    group = Group("resnet50", "T4", 64, 2, 2, 2)
    for is_beside in (False, True):
        row = Sums(1e3, -700.0 * is_beside, 1e3).row
        view.estimates.profile(SubtaskProfiled(group.kind(is_beside=is_beside), row))
    assert knows_loss(view)
    return view


def gang_for(name: str, workers: int) -> Job:
    """A gang that the policy places itself: a pipeline for LDWP's."""
    if name.startswith("ldwp"):
        return gang(workers=workers, model="video", subtasks=(Subtask("s", "kind", size=100.0),))
    return gang(workers=workers)


def by_hand(job: Job) -> dict[Action, float]:
    """What random draws of single GPUs give, from the slots alone."""
    found: dict[Action, float] = {}
    for nodes in itertools.product(ROOM, repeat=job.task_count):
        left, probability = dict(ROOM), 1.0
        for chosen in nodes:
            probability *= (left[chosen] > 0) / sum(slots > 0 for slots in left.values())
            left[chosen] -= 1
        if probability:
            found[tuple((f"worker-{i}", chosen) for i, chosen in enumerate(nodes))] = probability
    return found


def everywhere(job: Job, view: ClusterView, policy: PlacementPolicy = AHEAD) -> dict[Action, float]:
    """The policy's own probability of every assignment of tasks to nodes."""
    proposal = policy.propose(job, view, context())
    assert proposal is not None
    found: dict[Action, float] = {}
    for nodes in itertools.product([n.id for n in view.nodes.records], repeat=job.task_count):
        tasks = on_nodes(proposal.assignments, nodes)
        if probability := policy.probability(tasks, job, view, context()):
            found[action_of(tasks)] = probability
    return found


def on_nodes(tasks: Sequence[Assignment], nodes: Sequence[str]) -> tuple[Assignment, ...]:
    """The same tasks on other nodes, without GPUs."""
    return tuple(
        Assignment(task.task, task.role, NodeId(node), (), task.demand) for task, node in zip(tasks, nodes, strict=True)
    )


def distribution(policy: PlacementPolicy, job: Job) -> Mapping[Action, float]:
    """The policy's own distribution on `uneven`, for a gang of `gang_for`."""
    return _distribution(policy, job.task_count, bool(job.subtasks))


@cache
def _distribution(policy: PlacementPolicy, workers: int, is_pipeline: bool) -> Mapping[Action, float]:
    job, view = gang_for("ldwp" if is_pipeline else "", workers), uneven()
    if isinstance(policy, Random):
        return by_hand(job)
    if policy is SAMPLE:
        return everywhere(job, view, SAMPLE)
    proposal = first_of(policy, job)
    assert proposal is not None
    assert not proposal.is_fallback or not job.subtasks, proposal.fallback_reason
    return {action_of(proposal.assignments): 1.0}


def first_of(policy: PlacementPolicy, job: Job) -> Proposal | None:
    """The policy's first proposal on `uneven` for a gang of `gang_for`, worked out once."""
    return _first_of(policy, job.task_count, bool(job.subtasks))


@cache
def _first_of(policy: PlacementPolicy, workers: int, is_pipeline: bool) -> Proposal | None:
    return policy.propose(gang_for("ldwp" if is_pipeline else "", workers), uneven(), context())


def enumerated(policy: PlacementPolicy, explorers: Sequence[Explorer], rate: float, job: Job) -> dict[Action, float]:
    """P(a) of every action, from the definition: every policy's own distribution, weighted by its share."""
    total = sum(explorer.weight for explorer in explorers)
    parts = [(1.0 - rate, policy), *((rate * e.weight / total, e.policy) for e in explorers)]
    mixture: dict[Action, float] = {}
    for share, part in parts:
        for action, probability in distribution(part, job).items():
            mixture[action] = mixture.get(action, 0.0) + share * probability
    return mixture


def fit(counted: Mapping[Action, int], expected: Mapping[Action, float], draws: int) -> float:
    """The p-value of chi²; actions expected fewer than five times are one cell."""
    cells = [(counted.get(a, 0), draws * p) for a, p in expected.items()]
    rare = [cell for cell in cells if cell[1] < 5]
    cells = [cell for cell in cells if cell[1] >= 5]
    if rare:
        cells.append((sum(count for count, _ in rare), sum(wanted for _, wanted in rare)))
    if len(cells) == 1:
        return float(cells[0][0] == draws)
    return p_value(*zip(*cells, strict=True))


def p_value(counted: Sequence[float], expected: Sequence[float]) -> float:
    """As scipy.stats.chisquare, which takes a second to import. Raises AssertionError if the sums differ."""
    seen, wanted = np.array(counted), np.array(expected)
    assert np.isclose(seen.sum(), wanted.sum(), rtol=1e-8)
    return float(special.chdtrc(len(seen) - 1, ((seen - wanted) ** 2 / wanted).sum()))
