"""Domains: what divides the nodes of a cluster, and what holds whole gangs."""

from collections.abc import Sequence

import pytest
from tests.fakes.place_cases import context, gang, node, view_of

from placewise_core.domain.cluster import Assignment, RunningJob
from placewise_core.domain.decision import Blocker, Outcome, Reason
from placewise_core.domain.job import GpuSharing, Job, JobId, KeepTogether, NodeId, Resources, Role, TaskGroup
from placewise_core.gang.gang import Gang
from placewise_core.gang.greedy import can_fit
from placewise_core.gang.landing import land
from placewise_core.gang.why import explain
from placewise_core.policies.registry import placement_policies
from placewise_core.view.domains import domains_of
from placewise_core.view.view import ClusterView

POLICIES = placement_policies()
RACKS = ("a", "a", "b", "", "")


def racked(gpus: int = 2, racks: Sequence[str] = RACKS) -> ClusterView:
    return view_of([node(f"n{i}", gpus, rack=rack) for i, rack in enumerate(racks)])


def on(name: str, *nodes: str, **wishes: object) -> RunningJob:
    """A job that runs with a task on each of these nodes."""
    tasks = [Assignment(f"worker-{i}", Role.WORKER, NodeId(n), (), Resources(1.0)) for i, n in enumerate(nodes)]
    return RunningJob(Job(JobId(name), **wishes), tuple(tasks))  # type: ignore[arg-type]


def parts(job: Job, view: ClusterView) -> list[list[int]] | None:
    """The nodes of each domain."""
    domains = domains_of(job, view)
    if domains is None:
        return None
    found: dict[int, list[int]] = {}
    for m, d in enumerate(domains.of.tolist()):
        assert d < domains.count
        found.setdefault(d, []).append(m)
    return sorted(found.values())


def test_nothing_divides_the_nodes_for_a_job_that_wishes_nothing() -> None:
    view = racked()
    view.add_job(on("other", "n0", "n1"))
    assert parts(gang(), view) is None
    assert parts(gang(workers=1, keep_together=KeepTogether.NODE, exclusive_network=True), view) is None
    view.add_job(on("alone", "n0", "n0", exclusive_network=True))
    assert parts(gang(), view) is None, "on one node it uses no network"


def test_nodes_and_racks_are_domains_and_a_node_without_a_rack_is_one() -> None:
    view = racked()
    assert parts(gang(keep_together=KeepTogether.NODE), view) == [[0], [1], [2], [3], [4]]
    assert parts(gang(keep_together=KeepTogether.RACK), view) == [[0, 1], [2], [3], [4]]


def test_a_network_of_its_own_divides_for_both_sides() -> None:
    view = racked()
    view.add_job(on("other", "n0", "n2"))
    assert parts(gang(exclusive_network=True), view) == [[0], [1, 3, 4], [2]]
    assert parts(gang(), view) is None
    view.add_job(on("owner", "n1", "n4", exclusive_network=True))
    assert parts(gang(), view) == [[0, 2, 3], [1], [4]]
    assert parts(gang(exclusive_network=True), view) == [[0], [1], [2], [3], [4]]
    assert parts(gang("owner", exclusive_network=True), view) == [[0], [1, 3, 4], [2]], "never divided by itself"
    assert parts(gang(keep_together=KeepTogether.RACK), view) == [[0], [1], [2], [3], [4]]


def test_a_network_is_free_again_when_its_job_ends() -> None:
    view = racked()
    view.add_job(on("owner", "n1", "n4", exclusive_network=True))
    fork, emptied = view.fork(), view.emptied()
    view.remove_job(JobId("owner"))
    assert parts(gang(), view) is None
    assert parts(gang(), emptied) is None
    assert parts(gang(), fork) is not None
    fork.remove_job(JobId("owner"))
    fork.add_job(on("owner", "n1", "n4"))
    assert parts(gang(), fork) is None


def test_a_view_that_is_built_from_records_knows_the_networks() -> None:
    view = view_of([node(f"n{i}") for i in range(3)], [on("owner", "n0", "n1", exclusive_network=True)])
    assert parts(gang(), view) == [[0], [1], [2]]


def test_the_digest_tells_whose_the_network_is() -> None:
    view, other = racked(), racked()
    view.add_job(on("a", "n0", "n1"))
    other.add_job(on("a", "n0", "n1", exclusive_network=True))
    assert view.digest() != other.digest()


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_groups_that_compete_for_a_node_are_counted_together(policy: str) -> None:
    """Each group alone fits either node, both of them only the larger one."""
    view = view_of([node("small", 4, cpu=8), node("large", 4, cpu=16)])
    job = gang(workers=2, cpu=4, servers=2, keep_together=KeepTogether.NODE)
    proposal = POLICIES[policy].propose(job, view, context())
    assert proposal is not None
    assert {task.node for task in proposal.assignments} == {"large"}


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"random"}))
def test_groups_that_compete_in_a_rack_are_tried_together(policy: str) -> None:
    view = view_of([node(f"{rack}{i}", 2, cpu=cpu, rack=rack) for rack, cpu in (("s", 4), ("l", 8)) for i in range(2)])
    job = gang(workers=4, cpu=2, servers=5, keep_together=KeepTogether.RACK)
    proposal = POLICIES[policy].propose(job, view, context())
    assert proposal is None
    fits = gang(workers=4, cpu=2, servers=4, keep_together=KeepTogether.RACK)
    proposal = POLICIES[policy].propose(fits, view, context())
    assert proposal is not None
    assert {task.node[0] for task in proposal.assignments} == {"l"}


def test_shared_gpus_are_counted_by_who_tolerates_whom() -> None:
    view = view_of([node("a", 1, max_jobs_per_gpu=3), node("b", 2, max_jobs_per_gpu=3)])
    job = gang(workers=2, gpus=0.5, sharing=GpuSharing(True, 3.0), keep_together=KeepTogether.NODE)
    found = Gang(job, view, context())
    assert found.usable.tolist() == [False, True], "two tasks of a job never share a GPU"
    assert found.most_together == 2


def test_reasons_name_the_best_domain() -> None:
    view = racked(gpus=3)
    job = gang(workers=8, keep_together=KeepTogether.RACK)
    message = "no rack holds the 8 tasks together; the best holds 6"
    assert explain(job, view, context()) == (Outcome.NO_FIT, (Blocker(Reason.KEEP_TOGETHER, 0, 2.0, "tasks", message),))
    view.add_job(
        RunningJob(gang("busy", 1), (Assignment("worker-0", Role.WORKER, NodeId("n0"), (0,), Resources(1, 1)),))
    )
    job = gang(workers=6, keep_together=KeepTogether.RACK)
    message = "no rack holds the 6 tasks together; the best holds 5"
    assert explain(job, view, context()) == (Outcome.WAIT, (Blocker(Reason.KEEP_TOGETHER, 0, 1.0, "tasks", message),))


def test_reasons_say_that_groups_compete() -> None:
    view = view_of([node(name, 4, cpu=8) for name in "ab"])
    job = gang(workers=2, cpu=4, servers=2, keep_together=KeepTogether.NODE)
    _, [blocker] = explain(job, view, context())
    assert blocker.message == "no node holds the 4 tasks together; each group finds room in one, but not all at once"


def test_a_gang_that_lacks_resources_is_told_so_first() -> None:
    outcome, blockers = explain(gang(workers=11, keep_together=KeepTogether.RACK), racked(), context())
    assert (outcome, [blocker.reason for blocker in blockers]) == (Outcome.NO_FIT, [Reason.INSUFFICIENT_GPU])


def test_keeping_together_comes_before_the_network() -> None:
    view = racked()
    view.add_job(on("owner", "n0", "n1", exclusive_network=True))
    _, [blocker] = explain(gang(workers=4, keep_together=KeepTogether.RACK), view, context())
    assert blocker == Blocker(
        Reason.EXCLUSIVE_NETWORK, 2, message="nodes with room have a job that wants its network for itself"
    )
    _, [blocker] = explain(gang(workers=5, keep_together=KeepTogether.RACK), view, context())
    assert blocker.reason is Reason.KEEP_TOGETHER


@pytest.mark.parametrize("meets", [False, True])
def test_a_gang_does_not_land_beside_a_network_that_was_taken_meanwhile(meets: bool) -> None:
    view = racked()
    fork, job = view.fork(), gang(workers=4, gpus=1)
    proposal = POLICIES["load-balance"].propose(job, fork, context())
    assert proposal is not None
    running = RunningJob(job, proposal.assignments)
    fork.add_job(running)
    there = [task.node for task in proposal.assignments]
    elsewhere = [f"n{i}" for i in range(5) if f"n{i}" not in there]
    view.add_job(on("owner", *(there[:2] if meets else [there[0], *elsewhere][:1] * 2), exclusive_network=True))
    assert land(running, fork, view, context()) is not meets


def test_a_gang_does_not_land_in_racks_that_were_named_anew() -> None:
    view = racked()
    fork, job = view.fork(), gang(workers=4, keep_together=KeepTogether.RACK)
    proposal = POLICIES["load-balance"].propose(job, fork, context())
    assert proposal is not None
    running = RunningJob(job, proposal.assignments)
    fork.add_job(running)
    assert can_fit(job, view, context())
    other = racked(racks=("a", "c", "b", "", ""))
    assert not land(running, fork, other, context())


def test_a_group_that_no_node_knows_fits_no_domain() -> None:
    group = TaskGroup(Role.WORKER, 2, Resources(1.0, extended={"tape": 1.0}))
    job = Job(JobId("j"), groups=(group,), keep_together=KeepTogether.NODE)
    assert not Gang(job, racked(), context()).usable.any()
    assert all(policy.propose(job, racked(), context()) is None for policy in POLICIES.values())
