"""GPU indices of places that are still to come."""

from __future__ import annotations

import pytest

from placewise.v1.cluster_pb2 import Assignment
from placewise_kubernetes.gang.gpus import beside


def task(*indices: int, node: str = "n1") -> Assignment:
    return Assignment(node=node, gpu_indices=indices)


PLAN = [task(0, 1), task(2, 3), task(4, 5), task(0, 1, node="n2")]


@pytest.mark.parametrize(
    ("to_come", "claimed", "found"),
    [
        ([0, 1], [task(6, 7)], [[0, 1], [2, 3]]),
        ([0], [task(0, 1), task(4, 5)], [[2, 3]]),
        ([0, 1], [task(0, 6)], [[1, 4], [2, 3]]),
        ([0, 1, 3], [task(0, 4), task(1, 5)], [[], [2, 3], [0, 1]]),
        ([0], [task(0, node="n3")], [[0, 1]]),
    ],
)
def test_a_place_to_come_has_gpus_of_the_plan_that_no_claim_holds(
    to_come: list[int], claimed: list[Assignment], found: list[list[int]]
) -> None:
    tasks = list(beside([PLAN[index] for index in to_come], claimed, PLAN))
    assert [list(one.gpu_indices) for one in tasks] == found
