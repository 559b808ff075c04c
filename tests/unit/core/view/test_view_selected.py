"""The nodes that a selector chooses are looked up once for each state of the labels."""

from collections.abc import Callable

import pytest
from tests.fakes.cluster import make_node

from placewise_core.domain.cluster import Node
from placewise_core.domain.job import Resources, Role, TaskGroup
from placewise_core.view.nodes import NodeColumns, Nodes


def in_zone(zone: str) -> TaskGroup:
    return TaskGroup(Role.WORKER, 1, Resources(), node_selector={"zone": zone})


IN_A, IN_B = in_zone("a"), in_zone("b")


def nodes() -> Nodes:
    return Nodes([make_node("n0", labels={"zone": "a"}), make_node("n1", labels={"zone": "b"})])


def columns(node: Node, known: Nodes) -> None:
    known.write_columns(NodeColumns.of([node]))


def report(node: Node, known: Nodes) -> None:
    known.report(known.index[node.id], node)


def test_an_equal_selector_is_not_looked_up_again() -> None:
    known = nodes()
    assert known.selected(IN_A) is known.selected(in_zone("a"))
    assert known.selected(IN_A).tolist() == [True, False]
    assert known.selected(IN_B).tolist() == [False, True]
    assert not known.selected(IN_A).flags.writeable


@pytest.mark.parametrize("tell", [report, columns])
def test_labels_that_a_report_changes_count_at_once_and_not_on_a_fork(tell: Callable[[Node, Nodes], None]) -> None:
    known = nodes()
    assert known.selected(IN_A).tolist() == [True, False]
    fork = known.fork()
    tell(make_node("n1", labels={"zone": "a"}), known)
    assert known.selected(IN_A).tolist() == [True, True]
    assert known.selected(IN_B).tolist() == [False, False]
    assert fork.selected(IN_A).tolist() == [True, False]
    assert fork.selected(IN_B).tolist() == [False, True]
    tell(make_node("n0", labels={}), fork)
    assert fork.selected(IN_A).tolist() == [False, False]
    assert known.selected(IN_A).tolist() == [True, True]


def test_a_report_with_the_same_labels_keeps_what_is_known() -> None:
    known = nodes()
    before = known.selected(IN_A)
    report(make_node("n0", labels={"zone": "a"}, rack="r1"), known)
    assert known.selected(IN_A) is before
