"""Logs that contradict themselves, made by hand."""

import pytest

from placewise_core.domain.cluster import Node
from placewise_core.domain.job import NodeId, Resources
from placewise_training.gate import checks
from placewise_training.gate.agreement import Agreement, Stay, held

NODES = [Node(NodeId("n"), Resources(cpu_cores=8, gpus=2))]


def test_a_node_is_held_beyond_its_capacity_while_jobs_overlap() -> None:
    stays = [Stay("n", 2, 1, 0, 100), Stay("n", 2, 1, 0, 60), Stay("n", 2, 1, 50, 200)]
    assert held(stays, NODES) == (200, 10)  # three GPUs of two from 50 to 60


def test_cores_count_as_gpus_do() -> None:
    assert held([Stay("n", 5, 0, 0, 100), Stay("n", 4, 0, 90, 120)], NODES) == (120, 10)


def test_a_job_that_starts_as_another_ends_is_not_beside_it() -> None:
    assert held([Stay("n", 8, 2, 0, 100), Stay("n", 8, 2, 100, 150), Stay("n", 1, 0, 160, 170)], NODES) == (160, 0)


def test_nodes_that_are_not_known_are_left_out() -> None:
    assert held([Stay("m", 99, 9, 0, 100)], NODES) == (0, 0)


@pytest.mark.parametrize(
    ("found", "passes"),
    [
        (Agreement(1000.0, 0.0, 400, 0), True),
        (Agreement(1000.0, 9.0, 400, 19), True),  # a clock that is late, jobs that started at one moment
        (Agreement(1000.0, 11.0, 400, 0), False),
        (Agreement(1000.0, 0.0, 400, 21), False),
        (Agreement(1000.0, 0.0, 0, 0), False),  # no reward could be worked out again
    ],
)
def test_one_in_a_hundred_seconds_and_one_in_twenty_rewards_may_disagree(found: Agreement, passes: bool) -> None:
    assert checks.agreement(found).has_passed is passes
