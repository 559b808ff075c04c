"""An offer that follows another is the one made anew, and costs the count of one node."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.place_cases import context, gang, node, running, view_of

from placewise_core.gang import offer as offers
from placewise_core.gang.gang import Gang
from placewise_core.gang.offer import NodeLeft
from placewise_core.policies.consolidate import Consolidate
from placewise_core.view.view import ClusterView

NODES = 6


def cluster() -> ClusterView:
    nodes = [node(f"n{i}", gpus=2 + i % 3, cpu=16.0 + 8.0 * i) for i in range(NODES)]
    return view_of(nodes, [running("other", "n1", range(2))])


@given(
    st.lists(st.integers(0, NODES - 1), min_size=1, max_size=8),
    st.sampled_from([0, 1, 2]),
    st.sampled_from([0.5, 4.0, 12.0]),
    st.booleans(),
)
def test_an_offer_that_follows_is_the_one_made_anew(nodes: list[int], most: int, cpu: float, is_known: bool) -> None:
    job = gang(workers=12, cpu=cpu, group={"max_per_node": most})
    (group,) = job.groups
    one = Gang(job, cluster(), context())
    found = one.offer(group)
    assert found is not None
    for m in nodes:
        if not found.mask[m]:
            continue
        if is_known:
            assert found.slots.size == found.tightness.size
        one.take(group, m)
        found = one.offer_after(found, m)
        anew = one.offer(group)
        assert anew is not None
        assert (found.remaining, found.last) == (anew.remaining, anew.last)
        for name in ("mask", "slots", "tightness", "free", "whole_free", "free_gpus", "task_count", "load"):
            assert np.array_equal(getattr(found, name), getattr(anew, name)), name


def test_a_gang_of_many_nodes_counts_each_node_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seconds went by for 1,024 tasks, when all nodes of the gang were counted anew for each."""
    counted = []
    slots_on = offers.slots_on

    def count(view: ClusterView, left: NodeLeft, *rest: object) -> float:
        counted.append(left)
        return slots_on(view, left, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(offers, "slots_on", count)
    view = view_of([node(f"n{i}", gpus=2) for i in range(40)])
    found = Consolidate().propose(gang(workers=32, group={"max_per_node": 1}), view, context())
    assert found is not None
    assert len(found.assignments) == 32
    assert len(counted) <= 32
