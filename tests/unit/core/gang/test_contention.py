"""Factors on forecast speeds by gangs on several nodes: of the new one, and of those that it would disturb."""

import numpy as np
import pytest
from tests.fakes.cluster import make_job, make_node

from placewise_core.basics.arrays import FloatArray
from placewise_core.domain.cluster import Assignment, RunningJob
from placewise_core.domain.events import ClusterRecords
from placewise_core.domain.job import JobId, NodeId, Resources, Role
from placewise_core.gang.contention import contention_factors
from placewise_core.gang.policy import Proposal
from placewise_core.view.view import ClusterView

WITHIN_ERROR = 0.05  # of the reward model
LOSS, LOSERS = 0.4, 5.0  # the loss beyond that
LEARNED = 1.0 - (1.0 - LOSS) * (1.0 - WITHIN_ERROR)
ONE_OPEN, TWO_OPEN = 0.5, 0.75  # chances of another gang on one, or on two nodes with GPUs left


def tasks(*spots: tuple[str, int]) -> tuple[Assignment, ...]:
    return tuple([
        Assignment(f"w{i}", Role.WORKER, NodeId(node), (g,), Resources(gpus=1.0)) for i, (node, g) in enumerate(spots)
    ])  # fmt: skip


def running(name: str, *spots: tuple[str, int]) -> RunningJob:
    return RunningJob(make_job(name), tasks(*spots))


def factors(
    *placements: tuple[tuple[str, int], ...], jobs: tuple[RunningJob, ...] = (), loss: float = LEARNED
) -> FloatArray:
    """(K, 1 + neighbours)"""
    nodes = tuple([make_node(f"n{i}", 2) for i in range(4)])
    view = ClusterView(ClusterRecords("c", 0, "e", nodes=nodes, jobs=jobs))
    numbers = np.tile(np.arange(1 + len(jobs)), (len(placements), 1))
    names = [JobId(held.id) for held in jobs]
    return contention_factors(numbers, names, [Proposal(tasks(*spots)) for spots in placements], view, loss)


def test_one_node_is_as_forecast_and_whole_nodes_are_too() -> None:
    whole = (("n0", 0), ("n0", 1), ("n1", 0), ("n1", 1))
    assert factors((("n0", 0), ("n0", 1)), whole).tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize(
    ("spots", "chance"),
    [((("n0", 0), ("n1", 0)), TWO_OPEN), ((("n0", 0), ("n0", 1), ("n1", 0)), ONE_OPEN)],
    ids=["two nodes with a GPU left", "one of the two is full"],
)
def test_each_node_with_gpus_left_may_get_another_gang(spots: tuple[tuple[str, int], ...], chance: float) -> None:
    assert factors(spots)[0, 0] == pytest.approx((1.0 - LOSS * chance) ** LOSERS)


def test_a_gang_beside_disturbs_and_is_disturbed_unless_it_was_before() -> None:
    first, second, third = (
        running("a", ("n0", 0), ("n3", 0)),
        running("b", ("n1", 0), ("n2", 0)),
        running("c", ("n2", 1), ("n3", 1)),
    )
    got = factors((("n0", 1), ("n1", 1)), jobs=(first, second))[0]
    assert got[0] == pytest.approx((1.0 - LOSS) * (1.0 - LOSS * TWO_OPEN) ** (LOSERS - 1.0))
    assert got[1:].tolist() == [1.0 - LOSS, 1.0 - LOSS]
    assert factors((("n0", 1), ("n1", 1)), jobs=(first, second, third))[0, 1:].tolist() == [1.0, 1.0, 1.0]


def test_jobs_on_one_node_neither_disturb_nor_lose() -> None:
    lone = running("a", ("n0", 0))
    got = factors((("n0", 1), ("n1", 0)), jobs=(lone,))[0]
    assert got.tolist() == [pytest.approx((1.0 - LOSS * TWO_OPEN) ** LOSERS), 1.0]


@pytest.mark.parametrize("loss", [0.0, 0.03, WITHIN_ERROR])
def test_a_loss_that_the_error_of_the_reward_model_covers_changes_nothing(loss: float) -> None:
    beside = running("a", ("n0", 0), ("n3", 0))
    assert factors((("n0", 1), ("n1", 1)), jobs=(beside,), loss=loss).tolist() == [[1.0, 1.0]]
