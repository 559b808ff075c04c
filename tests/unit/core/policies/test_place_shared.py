"""Work that a decision, or one policy, has done already: it is used again, and only where nothing has changed."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from tests.unit.core.policies.test_place_search import FewNodes, a_view, declared, running

from placewise_core.domain.cluster import Assignment
from placewise_core.domain.job import Job, JobId, NodeId, Role
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import PlacementPolicy, Proposal
from placewise_core.inputs.reward import PADDING, PartEncoder
from placewise_core.policies.consolidate import Consolidate
from placewise_core.policies.explore import NONE, Exploration, Explorer, propose
from placewise_core.policies.load_balance import LoadBalance
from placewise_core.policies.random_fit import Random
from placewise_core.policies.search import BestOfK
from placewise_core.policies.studies.alternatives import Study
from placewise_core.speed.interference import NoInterference
from placewise_core.view.view import ClusterView


class Counted(PlacementPolicy):
    """Counts how often a policy is asked."""

    def __init__(self, whole: PlacementPolicy, asked: Counter[str]) -> None:
        self.name, self.is_drawing = whole.name, whole.is_drawing
        self._whole, self._asked = whole, asked

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        self._asked[self.name] += 1
        return self._whole.propose(job, view, context)

    def probability(
        self, assignments: Sequence[Assignment], job: Job, view: ClusterView, context: PlaceContext
    ) -> float:
        return self._whole.probability(assignments, job, view, context)


def on_nodes(job: Job, *nodes: str) -> list[Assignment]:
    demand = job.groups[0].demand
    return [Assignment(f"worker-{i}", Role.WORKER, NodeId(node), (3,), demand) for i, node in enumerate(nodes)]


@pytest.mark.parametrize("keeps", [False, True])
def test_a_context_that_keeps_proposals_asks_a_policy_once_unless_it_draws(keeps: bool) -> None:
    view, asked = a_view(), Counter[str]()
    consolidate, spread, random = (Counted(each, asked) for each in (Consolidate(), LoadBalance(), Random()))
    search = BestOfK([consolidate, spread], FewNodes())
    explorers = [Explorer(consolidate), Explorer(search), Explorer(random), Explorer(random)]
    answers = []
    for seed in range(8):
        context = PlaceContext(0.0, seed, given={} if keeps else None)
        answers.append(propose(spread, Exploration(0.9, explorers), declared("a", 2), view, context))
    assert asked["consolidate"] == asked["load-balance"] == (8 if keeps else 16)
    assert asked["random"] == 16
    if keeps:
        again = [
            propose(spread, Exploration(0.9, explorers), declared("a", 2), view, PlaceContext(0.0, seed))
            for seed in range(8)
        ]
        assert answers == again


def test_a_search_tells_what_it_compared_if_the_context_asks() -> None:
    view, job, scorer = a_view(), declared("a", 2), FewNodes()
    running(view, "b", ["n0", "n1"])
    search = BestOfK([Consolidate(), LoadBalance()], scorer)
    silent = search.propose(job, view, PlaceContext(0.0, 0))
    reported = search.propose(job, view, PlaceContext(0.0, 0, is_recording=True))
    assert silent == reported
    assert silent is not None
    assert reported is not None
    assert silent.judgement is None
    both = [policy.propose(job, view, PlaceContext(0.0, 0)) for policy in (LoadBalance(), Consolidate())]
    proposals = [each for each in both if each is not None]
    judged = reported.judgement.of(proposals, view)
    assert judged.scores.progress.tolist() == [reported.info["score_load-balance"], reported.info["score_consolidate"]]
    elsewhere = Proposal(tuple(on_nodes(job, "n1", "n2")))
    assert reported.judgement.of([*proposals, elsewhere], view) is None, "one that it did not compare"
    assert len(scorer.calls) == 2


def test_tokens_under_some_candidates_are_those_of_these_alone() -> None:
    """The running jobs that are near the others alone count as witnesses then."""
    view, job = a_view(6), declared("a", 2)
    for i in range(5):
        running(view, f"b{i}", [f"n{i}", f"n{i + 1}"], speed=0.01 * (i % 2))
    candidates = [on_nodes(job, "n0", "n0"), on_nodes(job, "n5", "n4"), on_nodes(job, "n2", "n3")]
    whole = PartEncoder(most_witnesses=16).encode(job, candidates, view)
    for rows in ([0], [2, 1], [1, 2, 0], [0, 0]):
        part = whole.under(rows)
        alone = PartEncoder(most_witnesses=16).encode(job, [candidates[k] for k in rows], view)
        assert {held.id for held in part.neighbours} == {held.id for held in alone.neighbours}
        names = [["a", *[held.id for held in each.neighbours]] for each in (part, alone)]
        for k in range(len(rows)):
            found, wanted = (
                {
                    (own[of], [*each.places][m]): row.tolist()
                    for of, m, row in zip(each.job[k].tolist(), each.node[k].tolist(), each.parts[k], strict=True)
                    if 0 <= of < len(own)
                }
                for each, own in zip((part, alone), names, strict=True)
            )
            assert found == wanted
        assert ((part.job == PADDING) == (whole.job[rows] == PADDING)).all()
        for k, k_whole in enumerate(rows):  # the same grouping of tokens into jobs
            pairs = set(zip(part.job[k].tolist(), whole.job[k_whole].tolist(), strict=True))
            assert len(pairs) == len({of for of, _ in pairs}) == len({of for _, of in pairs})


def test_views_of_one_lineage_share_what_is_known_of_jobs_and_have_node_sums_of_their_own() -> None:
    view, encoder, job = a_view(), PartEncoder(), declared("a", 2)
    running(view, "b", ["n0", "n1"])
    candidates = [on_nodes(job, "n0", "n1"), on_nodes(job, "n2", "n3")]
    encoder.encode(job, candidates, view)
    fork = view.fork()
    running(view, "c", ["n1", "n2"])
    view.remove_job(JobId("b"))
    running(fork, "d", ["n0", "n3"])
    for seen in (fork, view, fork.fork(), view):
        given, fresh = (each.encode(job, candidates, seen) for each in (encoder, PartEncoder()))
        np.testing.assert_array_equal(given.parts, fresh.parts)
        assert given.neighbours == fresh.neighbours


def test_proposals_that_the_clock_or_an_error_shaped_are_asked_for_again() -> None:
    view, job = a_view(), declared("a", 1)
    tasks = tuple(on_nodes(job, "n0"))
    usual, cut = Proposal(tasks, info={"cut": 0.0, "asked": 8.0}), Proposal(tasks, info={"cut": 1.0, "asked": 2.0})
    flagged = Proposal(tasks, is_fallback=True, fallback_reason="harmony: dead end")
    given = dict(zip("abcd", (usual, cut, flagged, None), strict=True))
    study = Study(job, view, Consolidate(), NONE, None, 0.0, 0, NoInterference(), given=given)
    assert study.lasting() == {"a": usual, "d": None}
