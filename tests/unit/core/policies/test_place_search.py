"""Best of K: its choices, its counters, and no failure of a scorer reaches the caller."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from tests.fakes.cluster import make_job, make_node

from placewise_core.basics.arrays import Float32, FloatArray
from placewise_core.domain.cluster import Assignment, RunningJob
from placewise_core.domain.events import ClusterRecords
from placewise_core.domain.job import Job, JobId, NodeId, Role
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.greedy import ScoredPolicy
from placewise_core.gang.offer import Offer
from placewise_core.gang.policy import PlacementPolicy, Proposal
from placewise_core.inputs.reward import PADDING, REPORTED, PartEncoder, PartTokens
from placewise_core.inputs.tables import MODEL_VOCABULARY
from placewise_core.policies.bin_packing import BinPacking
from placewise_core.policies.consolidate import Consolidate
from placewise_core.policies.load_balance import LoadBalance
from placewise_core.policies.registry import placement_policies, search_policy
from placewise_core.policies.search import BestOfK, SpeedScorer, progress
from placewise_core.view.view import ClusterView


def a_view(nodes: int = 4, gpus: int = 4) -> ClusterView:
    return ClusterView(ClusterRecords("c", 0, "e", nodes=tuple(make_node(f"n{i}", gpus) for i in range(nodes))))


def declared(name: str, workers: int, single_gpu_s: float = 1000.0) -> Job:
    job = make_job(name, workers=workers)
    return dataclasses.replace(
        job, model="resnet50", single_gpu_s=single_gpu_s, total_epochs=10.0, batch_size=64, dataset_size=6400
    )


def context(**changes: float) -> PlaceContext:
    return PlaceContext(0.0, 0, **changes)  # type: ignore[arg-type]


class FewNodes(SpeedScorer):
    """Likes gangs that use few nodes (or, negative, many)."""

    def __init__(self, sign: float = 1.0) -> None:
        self.sign = sign
        self.calls: list[PartTokens] = []

    def speeds(self, tokens: PartTokens) -> Float32:
        self.calls.append(tokens)
        nodes = (tokens.job == 0).sum(axis=1, keepdims=True)
        return np.asarray(np.ones(tokens.job.shape) * (2.0 - self.sign * nodes / 10), dtype=np.float32)


class Broken(SpeedScorer):
    def __init__(self, answer: object) -> None:
        self.answer = answer

    def speeds(self, tokens: PartTokens) -> Float32:
        if isinstance(self.answer, Exception):
            raise self.answer
        return np.full(tokens.job.shape if self.answer != "shape" else (1, 1), np.nan, dtype=np.float32)


PROPOSERS: Sequence[PlacementPolicy] = (Consolidate(), LoadBalance())


@pytest.mark.parametrize(("sign", "nodes"), [(1.0, 1), (-1.0, 4)])
def test_the_scorer_decides(sign: float, nodes: int) -> None:
    proposal = BestOfK(PROPOSERS, FewNodes(sign)).propose(declared("a", 4), a_view(), context())
    assert proposal is not None
    assert len({a.node for a in proposal.assignments}) == nodes
    assert proposal.info["k"] == 2.0
    assert proposal.propensity == 1.0
    assert not proposal.is_fallback


@pytest.mark.parametrize("answer", [RuntimeError("torn"), "nan", "shape"])
def test_a_scorer_that_fails_leaves_the_first_heuristic(answer: object) -> None:
    view, job = a_view(), declared("a", 4)
    proposal = BestOfK(PROPOSERS, Broken(answer)).propose(job, view, context())
    expected = Consolidate().propose(job, view, context())
    assert proposal is not None
    assert expected is not None
    assert proposal.assignments == expected.assignments
    assert proposal.is_fallback
    assert proposal.fallback_reason.startswith("search: ")


class Unsure(FewNodes):
    """Ever less sure the fewer nodes a gang uses; `limit` of the spread is what its report says."""

    def __init__(self, limit: float) -> None:
        super().__init__(1.0)
        self._limit = limit

    @property
    def spread_limit(self) -> float:
        return self._limit

    def speeds_and_spread(self, tokens: PartTokens) -> tuple[Float32, Float32]:
        nodes = (tokens.job == 0).sum(axis=1, keepdims=True)
        spread = np.where(tokens.job == 0, 1.0 / nodes, 9.0)  # of neighbours and padding nobody asks
        return self.speeds(tokens), spread.astype(np.float32)


@pytest.mark.parametrize(("limit", "reason"), [(0.5, "search: uncertain"), (1.0, ""), (float("inf"), "")])
def test_a_scorer_out_of_its_depth_leaves_the_first_heuristic(limit: float, reason: str) -> None:
    """Best by its score is the placement on one node, of which it is least sure."""
    view, job = a_view(), declared("a", 4)
    running(view, "b", ["n0", "n1"])
    proposal = BestOfK((LoadBalance(), Consolidate()), Unsure(limit)).propose(job, view, context())
    expected = (LoadBalance() if reason else Consolidate()).propose(job, view, context())
    assert proposal is not None
    assert expected is not None
    assert proposal.assignments == expected.assignments
    assert (proposal.is_fallback, proposal.fallback_reason) == (bool(reason), reason)
    assert proposal.info.keys() >= {"score_load-balance", "score_consolidate"}, "also of those it did not trust"


class Claiming(ScoredPolicy):
    """Load balance that has to be asked for its proposals: it cannot count them out."""

    name = "claiming"

    def scores(self, offer: Offer) -> FloatArray:
        return LoadBalance().scores(offer)

    def terms(self, offer: Offer, m: int) -> tuple[tuple[str, float], ...]:
        return LoadBalance().terms(offer, m)


class Failed(Claiming):
    """A learned proposer whose net broke: another heuristic answered for it."""

    name = "failed"

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        proposal = super().propose(job, view, context)
        return proposal and dataclasses.replace(proposal, is_fallback=True, fallback_reason="failed: MemoryError")


def test_a_proposer_that_failed_is_no_proposal_and_is_reported() -> None:
    proposal = BestOfK((Consolidate(), Failed()), FewNodes(-1.0)).propose(declared("a", 4), a_view(), context())
    assert proposal is not None
    assert proposal.info["k"] == 1.0
    assert proposal.fallback_reason == "failed: MemoryError"


class Drawn(Claiming):
    name = "drawn"

    def order(self, jobs: Sequence[Job], view: ClusterView, context: PlaceContext) -> Sequence[Job]:
        return list(reversed(jobs))

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        proposal = super().propose(job, view, context)
        return proposal and dataclasses.replace(proposal, propensity=0.1)


def test_what_a_proposer_drew_with_a_fixed_seed_is_certain() -> None:
    drawn = Drawn()
    search = BestOfK((Consolidate(), drawn), FewNodes(-1.0), arranger=drawn)
    proposal = search.propose(declared("a", 4), a_view(), context())
    assert proposal is not None
    assert len({a.node for a in proposal.assignments}) == 4
    assert proposal.propensity == 1.0
    jobs = [declared("a", 1), declared("b", 1)]
    assert [job.id for job in search.order(jobs, a_view(), context())] == ["b", "a"]
    assert list(BestOfK((drawn,), FewNodes()).order(jobs, a_view(), context())) == jobs


def test_no_time_left_means_the_first_heuristic_and_says_so() -> None:
    scorer = FewNodes()
    search = BestOfK(PROPOSERS, scorer, monotonic_s=lambda: 10.0)
    proposal = search.propose(declared("a", 4), a_view(), context(deadline_s=10.001))
    assert proposal is not None
    assert proposal.fallback_reason == "search: deadline"
    assert not scorer.calls


def test_k_shrinks_with_the_deadline() -> None:
    """Each proposal takes a second here: half of the time until the deadline is for proposing."""
    ticks = iter(range(100))
    scorer = FewNodes(-1.0)
    proposers = [Consolidate(), LoadBalance(), *(_Renamed(LoadBalance(), f"again-{i}") for i in range(5))]
    search = BestOfK(proposers, scorer, monotonic_s=lambda: float(next(ticks)))
    asked = [policy for policy in proposers if isinstance(policy, _Renamed)]
    proposal = search.propose(declared("a", 4), a_view(), context(deadline_s=6.0))
    assert proposal is not None
    assert not proposal.is_fallback
    assert sum(policy.calls for policy in asked) < len(asked)


@pytest.mark.parametrize("deadline_s", [2.0, 4.0, 30.0])
def test_the_answer_is_certain_given_how_many_were_asked(deadline_s: float) -> None:
    ticks = iter(range(100))
    proposers: list[PlacementPolicy] = [Consolidate(), LoadBalance(), BinPacking()]
    search = BestOfK(proposers, FewNodes(-1.0), monotonic_s=lambda: float(next(ticks)))
    proposal = search.propose(declared("a", 4), a_view(), context(deadline_s=deadline_s))
    assert proposal is not None
    asked = int(proposal.info["asked"])
    assert bool(proposal.info["cut"]) == (asked < len(proposers))
    again = BestOfK(proposers[:asked], FewNodes(-1.0)).propose(declared("a", 4), a_view(), context())
    assert again is not None
    assert again.assignments == proposal.assignments
    assert proposal.propensity == again.propensity == 1.0


class _Renamed(Claiming):
    def __init__(self, policy: LoadBalance, name: str) -> None:
        super().__init__()
        self.name = name
        self.calls = 0

    def propose(self, job: Job, view: ClusterView, context: PlaceContext):  # type: ignore[no-untyped-def]
        self.calls += 1
        return super().propose(job, view, context)


def test_what_does_not_fit_does_not_fit() -> None:
    assert BestOfK(PROPOSERS, FewNodes()).propose(declared("a", 17), a_view(), context()) is None


def test_the_view_is_left_alone() -> None:
    view = a_view()
    free = view.usage.free.copy()
    search_policy(FewNodes(), placement_policies()).propose(declared("a", 5), view, context())
    assert (view.usage.free == free).all()
    assert not view.jobs


def running(view: ClusterView, name: str, nodes: Sequence[str], **changes: object) -> RunningJob:
    job = declared(name, len(nodes))
    tasks = tuple(
        Assignment(
            f"worker-{i}",
            Role.WORKER,
            NodeId(node),
            view.usage.first_free_gpus(view.nodes.index[node], 1),
            group.demand,
        )
        for i, node in enumerate(nodes)
        for group in job.groups[:1]
    )
    held = RunningJob(job, tasks, **changes)  # type: ignore[arg-type]
    view.add_job(held)
    return held


def test_progress_counts_every_job_once_by_its_length() -> None:
    view = a_view()
    neighbour = running(view, "b", ["n0", "n1"])
    job = declared("a", 2, single_gpu_s=500.0)
    one = [Assignment(f"worker-{i}", Role.WORKER, NodeId("n0"), (), job.groups[0].demand) for i in range(2)]
    tokens = PartEncoder().encode(job, [one], view)
    assert [held.id for held in tokens.neighbours] == ["b"]
    speeds = np.where(tokens.job == 0, 0.5, 0.25)
    expected = 0.5 * 2 / 500.0 + 0.25 * 2 / neighbour.job.single_gpu_s
    assert progress(speeds, job, tokens) == pytest.approx([expected])


def test_tokens_say_where_everything_is() -> None:
    view = a_view()
    running(view, "b", ["n0", "n1"], speed=0.01)
    running(view, "far", ["n3"])
    job = declared("a", 2)
    demand = job.groups[0].demand
    packed = [Assignment(f"worker-{i}", Role.WORKER, NodeId("n0"), (i + 1,), demand) for i in range(2)]
    spread = [Assignment(f"worker-{i}", Role.WORKER, NodeId(f"n{i}"), (i + 1,), demand) for i in range(2)]
    tokens = PartEncoder().encode(job, [packed, spread], view)
    assert tokens.job.tolist() == [[1, 1, 0, PADDING], [1, 1, 0, 0]]
    assert tokens.node.tolist() == [[0, 1, 0, PADDING], [0, 1, 0, 1]]
    assert np.isfinite(tokens.parts).all()
    assert tokens.parts[0, :2, REPORTED].tolist() == [[1.0, pytest.approx(0.5)]] * 2  # 0.01 of 2 × 10 / 1000 epochs/s
    assert not tokens.parts[:, 2:, REPORTED].any()


def test_witnesses_follow_the_neighbours_and_count_for_nothing() -> None:
    view = a_view()
    running(view, "b", ["n0", "n1"], speed=0.01)
    running(view, "silent", ["n3"])
    for name, speed in (("other", 0.02), ("twin", 0.03)):
        running(view, name, ["n3"], speed=speed)
    job = declared("a", 2)
    packed = [Assignment(f"worker-{i}", Role.WORKER, NodeId("n0"), (i + 1,), job.groups[0].demand) for i in range(2)]
    alone, seen = (PartEncoder(most_witnesses=most).encode(job, [packed], view) for most in (0, 16))
    assert [held.id for held in seen.neighbours] == ["b"]
    assert seen.job.tolist() == [[1, 1, 2, 3, 0]]
    assert seen.parts[0, 2:4, REPORTED.start].tolist() == [1.0, 1.0]  # the silent one has nothing to say
    assert PartEncoder(most_witnesses=1).encode(job, [packed], view).job.tolist() == [[1, 1, 2, 0]]
    for tokens in (alone, seen):
        speeds = np.where(tokens.job > 1, 9.0, 0.5)
        assert progress(speeds, job, tokens) == pytest.approx(progress(np.full(alone.job.shape, 0.5), job, alone))


def test_witnesses_of_the_same_model_come_first() -> None:
    view = a_view()
    running(view, "twin", ["n3"], speed=0.02)
    other = running(view, "other", ["n2"], speed=0.02)
    view.remove_job(other.id)
    view.add_job(dataclasses.replace(other, job=dataclasses.replace(other.job, model="bert")))
    job = declared("a", 1)
    placement = [Assignment("worker-0", Role.WORKER, NodeId("n0"), (0,), job.groups[0].demand)]
    tokens = PartEncoder(most_witnesses=1).encode(job, [placement], view)
    assert tokens.job.tolist() == [[1, 0]]
    assert tokens.parts[0, 0, MODEL_VOCABULARY.index("resnet50")] == 1.0


def test_tokens_do_not_depend_on_what_was_asked_before() -> None:
    view, encoder = a_view(), PartEncoder()
    running(view, "b", ["n0", "n1"])
    job = declared("a", 2)
    proposal = Consolidate().propose(job, view, context())
    assert proposal is not None
    first = encoder.encode(job, [proposal.assignments], view)
    view.remove_job(JobId("b"))
    running(view, "b", ["n0", "n0"])
    again, fresh = (e.encode(job, [proposal.assignments], view) for e in (encoder, PartEncoder()))
    np.testing.assert_array_equal(again.parts, fresh.parts)
    assert first.job.shape != again.job.shape


def test_tokens_are_the_same_with_what_was_prepared() -> None:
    view, encoder = a_view(), PartEncoder()
    running(view, "b", ["n0", "n1"])
    job = declared("a", 2)
    proposal = Consolidate().propose(job, view, context())
    assert proposal is not None
    encoder.encode(job, [proposal.assignments], view)
    running(view, "c", ["n0", "n1"])
    encoder.prepare(view)
    prepared, fresh = (e.encode(job, [proposal.assignments], view) for e in (encoder, PartEncoder()))
    np.testing.assert_array_equal(prepared.parts, fresh.parts)
    assert [held.id for held in prepared.neighbours] == ["b", "c"]


def test_few_tokens_are_the_same_under_every_candidate() -> None:
    view = a_view()
    for i in range(3):
        running(view, f"b{i}", [f"n{i}", f"n{i + 1}"])
    job = declared("a", 2)
    proposals = [policy.propose(job, view, context()) for policy in PROPOSERS]
    tokens = PartEncoder(most_parts=3).encode(job, [p.assignments for p in proposals if p is not None], view)
    assert len(tokens.neighbours) == 1
    assert (tokens.job[:, :2] == 1).all()
