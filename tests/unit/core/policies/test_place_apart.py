"""consolidate-apart: gangs on several nodes keep off each other; all else is as consolidate has it."""

import pytest
from tests.fakes.cluster import make_job, make_node

from placewise_core.domain.cluster import Assignment, RunningJob
from placewise_core.domain.events import ClusterRecords, JobsEnded
from placewise_core.domain.job import JobId, NodeId, Resources, Role
from placewise_core.gang.context import PlaceContext
from placewise_core.policies.apart import ConsolidateApart
from placewise_core.policies.consolidate import Consolidate
from placewise_core.view.view import ClusterView


def view_of(*jobs: RunningJob, nodes: int = 6, gpus: int = 4) -> ClusterView:
    return ClusterView(ClusterRecords("c", 0, "e", tuple([make_node(f"n{i}", gpus) for i in range(nodes)]), jobs))


def running(name: str, *spots: tuple[str, int]) -> RunningJob:
    demand = Resources(gpus=1.0)
    tasks = [Assignment(f"w{i}", Role.WORKER, NodeId(node), (g,), demand) for i, (node, g) in enumerate(spots)]
    return RunningJob(make_job(name), tuple(tasks))


GANG = running("gang", ("n0", 0), ("n1", 0))


def nodes_of(policy: Consolidate, workers: int, view: ClusterView) -> list[str] | None:
    proposal = policy.propose(make_job("new", workers=workers), view, PlaceContext(0.0, 0))
    return None if proposal is None else sorted({task.node for task in proposal.assignments})


def test_a_gang_on_several_nodes_keeps_off_another() -> None:
    view = view_of(GANG)
    assert nodes_of(Consolidate(), 6, view) == ["n0", "n2"], "consolidate fills the rest of a taken node"
    assert nodes_of(ConsolidateApart(), 6, view) == ["n2", "n3"]


@pytest.mark.parametrize("workers", [1, 3, 4])
def test_a_gang_that_one_node_takes_goes_where_consolidate_puts_it(workers: int) -> None:
    view = view_of(GANG)
    assert nodes_of(ConsolidateApart(), workers, view) == nodes_of(Consolidate(), workers, view)


@pytest.mark.parametrize("workers", [17, 22])
def test_if_the_quiet_nodes_do_not_take_it_all_it_goes_where_consolidate_puts_it(workers: int) -> None:
    view = view_of(GANG)
    found = nodes_of(ConsolidateApart(), workers, view)
    assert found == nodes_of(Consolidate(), workers, view)
    assert found is not None


def test_a_job_on_one_node_disturbs_nobody() -> None:
    view = view_of(running("lone", ("n0", 0), ("n0", 1)))
    assert nodes_of(ConsolidateApart(), 6, view) == nodes_of(Consolidate(), 6, view) == ["n0", "n1"]


def test_a_gang_that_has_ended_is_no_reason_any_more() -> None:
    view, context, policy = view_of(GANG), PlaceContext(0.0, 0), ConsolidateApart()
    job = make_job("new", workers=23)
    assert policy.propose(job, view, context) is None
    view.apply_change(JobsEnded((JobId("gang"),)))
    assert policy.propose(job, view, context) is not None
    assert nodes_of(policy, 6, view) == nodes_of(Consolidate(), 6, view)


def test_what_is_explained_says_which_nodes_are_quiet() -> None:
    context = PlaceContext(0.0, 0, is_explaining=True)
    proposal = ConsolidateApart().propose(make_job("new", workers=6), view_of(GANG), context)
    assert proposal is not None
    first = {candidate.node: dict(candidate.terms) for candidate in proposal.candidates if candidate.task == "worker-0"}
    assert first["n2"]["quiet"] == 1.0
    assert all(terms["quiet"] == float(node not in ("n0", "n1")) for node, terms in first.items())
