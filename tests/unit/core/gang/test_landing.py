"""A gang decided on a fork is put onto the changed view whole, or not at all."""

from collections.abc import Callable

import numpy as np
import pytest
from tests.fakes.place_cases import arrays, context, gang, node, running, view_of

from placewise_core.domain.cluster import NodeState, RunningJob
from placewise_core.domain.events import NodesReported
from placewise_core.domain.job import GpuSharing, Job, Resources
from placewise_core.gang.landing import land
from placewise_core.policies.consolidate import Consolidate
from placewise_core.policies.profiled.tables import packaged_tables
from placewise_core.speed.interference import MeasuredInterference
from placewise_core.view.view import ClusterView

ZONE = {"node_selector": {"zone": "x"}}
Change = Callable[[ClusterView], object]


def report(*nodes: object, removed: tuple[str, ...] = ()) -> Change:
    return lambda view: view.apply_change(NodesReported(nodes, removed))  # type: ignore[arg-type]


def decided(job: Job, view: ClusterView) -> tuple[RunningJob, ClusterView]:
    fork = view.fork()
    proposal = Consolidate().propose(job, fork, context())
    assert proposal is not None
    fork.usage.claim_all(job, proposal.assignments)
    return RunningJob(job, proposal.assignments), fork


def zone(name: str, **more: object) -> object:
    return node(name, labels={"zone": "x"}, **more)


@pytest.mark.parametrize(
    ("change", "lands"),
    [
        (lambda view: None, True),
        (lambda view: view.add_job(running("r", "c", [0, 1, 2, 3])), True),  # a node that the gang does not use
        (lambda view: view.add_job(running("r", "b", [3])), True),  # a GPU that it does not use
        (lambda view: (view.add_job(running("r", "a", [0])), view.remove_job("r")), True),
        (report(zone("a"), zone("d")), True),  # all nodes move to other rows, as another comes
        (lambda view: view.add_job(running("r", "a", [0])), False),
        (lambda view: view.add_job(running("r", "b", [0])), False),  # of the second node, after the first fitted
        (lambda view: view.add_job(running("r", "a", [], Resources(30))), False),
        (report(zone("a", state=NodeState.DRAINING)), False),
        (report(node("b")), False),  # it lost its label
        (report(removed=("b",)), False),
        (report(zone("a", gpus=2)), False),
    ],
)
def test_a_gang_lands_where_every_task_still_fits(change: Change, lands: bool) -> None:
    view = view_of([zone("a"), zone("b"), zone("c")])  # type: ignore[list-item]
    job = gang(workers=6, group=ZONE)
    new, fork = decided(job, view)
    assert {task.node for task in new.assignments} == {"a", "b"}
    change(view)
    before = arrays(view)
    assert land(new, fork, view, context()) is lands
    if lands:
        assert [task.gpu_indices for task in new.assignments] == [(0,), (1,), (2,), (3,), (0,), (1,)]
        assert int(view.usage.task_count.sum()) == 6 + len(view.jobs)
    else:
        for name, value in arrays(view).items():
            np.testing.assert_array_equal(value, before[name], err_msg=name)


@pytest.mark.parametrize(("most", "lands"), [(50.0, True), (1.0, False)])
def test_a_gpu_that_is_shared_meanwhile_is_asked_about_slowdowns(most: float, lands: bool) -> None:
    """The neighbour that came meanwhile has a limit of its own."""
    view = view_of([node("a", gpus=1, max_jobs_per_gpu=2)])
    job = gang(workers=1, sharing=GpuSharing(True, 50.0), model="ResNet-50")
    new, fork = decided(job, view)
    view.add_job(running("r", "a", [0], model="ResNet-50", gpu_sharing=GpuSharing(True, most)))
    source: MeasuredInterference = packaged_tables().interference
    assert land(new, fork, view, context(interference=source)) is lands
    assert view.usage.shared_gpus == int(lands)
