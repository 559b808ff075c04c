"""The policy `adaptive`: the reports of a cluster's jobs about each other decide whether gangs spread."""

from collections.abc import Sequence

import pytest
from tests.fakes.cluster import make_node
from tests.unit.core.policies.test_place_search import PROPOSERS, FewNodes, context, declared

from placewise_core.domain.cluster import Assignment, RunningJob
from placewise_core.domain.events import ClusterRecords
from placewise_core.domain.job import Job, NodeId, Resources, Role
from placewise_core.gang.context import PlaceContext
from placewise_core.inputs.reward import PartEncoder
from placewise_core.policies.adaptive import Adaptive
from placewise_core.policies.apart import ConsolidateApart
from placewise_core.policies.consolidate import Consolidate
from placewise_core.policies.registry import adaptive_policy, placement_policies
from placewise_core.policies.search import BestOfK
from placewise_core.speed.learned.disturbance import Group
from placewise_core.speed.learned.sums import Sums
from placewise_core.view.view import ClusterView


class LastFirst(Consolidate):
    def order(self, jobs: Sequence[Job], view: ClusterView, context: PlaceContext) -> Sequence[Job]:
        return jobs[::-1]


def a_view(logarithm: float) -> ClusterView:
    """Four nodes of 4 GPUs, a gang on n0 and n1, with that logarithm learned of the loss."""
    tasks = [Assignment(f"w{i}", Role.WORKER, NodeId(f"n{i}"), (0,), Resources(gpus=1.0)) for i in range(2)]
    group = Group("resnet50", "T4", 64, 2, 2, 2)
    rows = {
        group.kind(is_beside=is_beside): Sums(1e3, -1e3 * logarithm * is_beside, 1e3).row for is_beside in (True, False)
    }
    nodes = tuple(make_node(f"n{i}", 4) for i in range(4))
    running = RunningJob(declared("there", 2), tuple(tasks))
    return ClusterView(ClusterRecords("c", 0, "e", nodes=nodes, jobs=(running,), subtask_profiles=rows))


def nodes_taken(policy: BestOfK, workers: int, view: ClusterView) -> list[str]:
    proposal = policy.propose(declared("new", workers), view, context())
    assert proposal is not None
    return sorted({task.node for task in proposal.assignments})


@pytest.mark.parametrize(
    ("logarithm", "nodes"), [(0.0, ["n0", "n1", "n2", "n3"]), (0.7, ["n2"])], ids=["no loss", "half is lost"]
)
def test_a_gang_spreads_only_where_gangs_do_not_disturb_each_other(logarithm: float, nodes: list[str]) -> None:
    assert nodes_taken(Adaptive(PROPOSERS, FewNodes(-1.0)), 4, a_view(logarithm)) == nodes


def test_search_spreads_it_whatever_jobs_report() -> None:
    assert nodes_taken(BestOfK(PROPOSERS, FewNodes(-1.0)), 4, a_view(0.7)) == ["n0", "n1", "n2", "n3"]


def test_until_gangs_beside_each_other_have_reported_the_heuristic_answers() -> None:
    view, jobs = a_view(0.0), [declared("long", 4), declared("short", 4, 1.0)]
    policy = Adaptive(PROPOSERS, FewNodes(-1.0), arranger=LastFirst())
    assert policy.order(jobs, view, context()) == jobs[::-1]
    beside = next(kind for kind in view.estimates.disturbance.kinds if kind.endswith("beside"))
    view.estimates.forget(beside)
    assert policy.order(jobs, view, context()) == jobs
    proposal = policy.propose(jobs[0], view, context())
    assert proposal is not None
    assert {task.node for task in proposal.assignments} == {"n2"}
    assert (proposal.is_fallback, proposal.info) == (False, {"k": 1.0, "asked": 1.0, "cut": 0.0})


@pytest.mark.parametrize("is_known", [True, False])
def test_a_cluster_is_encoded_ahead_only_if_the_net_will_be_asked(
    is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = list[ClusterView]()
    monkeypatch.setattr(PartEncoder, "prepare", lambda self, view: encoded.append(view))
    view = a_view(0.0)
    if not is_known:
        for kind in list(view.estimates.disturbance.kinds):
            view.estimates.forget(kind)
    Adaptive(PROPOSERS, FewNodes()).prepare(view, 0.0)
    assert encoded == [view] * is_known


def test_gangs_that_keep_apart_are_compared_too() -> None:
    policies = placement_policies()
    policy = adaptive_policy(FewNodes(), policies)
    asked = policy.stopped_after(2)._asked_on(a_view(0.7))
    assert list(asked) == [policies["consolidate"], policies["consolidate-apart"]]
    apart = Adaptive([PROPOSERS[0], ConsolidateApart()], FewNodes())
    assert nodes_taken(apart, 6, a_view(0.7)) == ["n2", "n3"]
    assert nodes_taken(apart.stopped_after(1), 6, a_view(0.7)) == ["n0", "n2"]


def test_a_fallback_names_the_policy_that_was_asked() -> None:
    """Reasons are counted by policy."""
    broken = FewNodes()
    broken.speeds = None  # type: ignore[assignment,method-assign]
    for policy in (Adaptive(PROPOSERS, broken), BestOfK(PROPOSERS, broken)):
        proposal = policy.propose(declared("new", 4), a_view(0.0), context())
        assert proposal is not None
        assert proposal.fallback_reason == f"{policy.name}: TypeError"


def test_the_forecasts_that_are_logged_are_the_nets_own() -> None:
    view, asked = a_view(0.7), context()
    asked.is_recording = True
    proposal = Adaptive(PROPOSERS, FewNodes(-1.0)).propose(declared("new", 4), view, asked)
    assert proposal is not None
    judged = proposal.judgement.judged
    assert judged.scores.speeds[judged.tokens.job == 0].max() == pytest.approx(2.4)
    assert proposal.info["disturbance"] == view.estimates.disturbance.loss == pytest.approx(0.5, abs=0.01)
