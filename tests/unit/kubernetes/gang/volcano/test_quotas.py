"""The limits of Volcano's queues: guarantees of others, parents, and queues that form no tree."""

from __future__ import annotations

from typing import Any

import pytest

from placewise_kubernetes.gang.volcano.quotas import Quotas, read_quota

GPU = "nvidia.com/gpu"


def queue(most: int | None = None, guaranteed: int = 0, parent: str = "", deserved: int = 0) -> dict[str, Any]:
    """Spec of a Queue, by GPUs."""
    spec: dict[str, Any] = {"guarantee": {"resource": {GPU: guaranteed}}} if guaranteed else {}
    spec |= {"capability": {GPU: str(most)}} if most is not None else {}
    return spec | {"parent": parent, "deserved": {GPU: deserved}}


def most(name: str, total: int = 64, **specs: dict[str, Any]) -> float | None:
    """GPUs that a queue may hold; None: as many as there are."""
    return quotas(total, **specs).most(name).get(GPU)


def quotas(total: int = 64, **specs: dict[str, Any]) -> Quotas:
    return Quotas({name: read_quota(spec) for name, spec in specs.items()}, {GPU: total})


# --- without a tree -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "specs"),
    [
        (None, {"a": queue(), "b": queue()}),
        (8, {"a": queue(8), "b": queue()}),
        (0, {"a": queue(0), "b": queue()}),
        (48, {"a": queue(), "b": queue(guaranteed=16)}),
        (40, {"a": queue(), "b": queue(guaranteed=16), "c": queue(guaranteed=8)}),
        (8, {"a": queue(8), "b": queue(guaranteed=16)}),
        (48, {"a": queue(guaranteed=32), "b": queue(guaranteed=16)}),
        (None, {"a": queue(guaranteed=32), "b": queue()}),
    ],
)
def test_what_others_are_guaranteed_is_not_there_for_a_queue(
    expected: float | None, specs: dict[str, dict[str, Any]]
) -> None:
    assert most("a", **specs) == expected


def test_a_queue_always_has_what_it_is_guaranteed_itself() -> None:
    assert most("a", total=16, a=queue(guaranteed=8), b=queue(guaranteed=32)) == 8


def test_a_queue_may_hold_more_than_it_deserves() -> None:
    assert most("a", a=queue(deserved=8), b=queue(deserved=8)) is None


def test_a_queue_that_is_not_known_has_what_the_others_leave() -> None:
    assert most("a", b=queue(guaranteed=16)) == 48
    assert most("a", b=queue(8)) is None


@pytest.mark.parametrize("parent", ["", "root"])
def test_the_root_as_the_only_parent_makes_no_tree(parent: str) -> None:
    found = quotas(root=queue(), a=queue(8, parent=parent))
    assert found.lineage("a") == ("a",)
    assert not found.has_children("root")


# --- a tree ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "specs"),
    [
        (8, {"top": queue(8), "a": queue(parent="top")}),
        (8, {"top": queue(8), "a": queue(32, parent="top")}),
        (4, {"top": queue(8), "a": queue(4, parent="top")}),
        (6, {"top": queue(8), "a": queue(parent="top"), "b": queue(guaranteed=2, parent="top")}),
        (8, {"root": queue(8), "top": queue(), "a": queue(parent="top")}),
        (8, {"root": queue(), "high": queue(8), "top": queue(parent="high"), "a": queue(parent="top")}),
        (5, {"high": queue(8), "top": queue(parent="high"), "a": queue(parent="top"), "b": queue(2, 3, "high")}),
    ],
)
def test_a_queue_may_hold_no_more_than_those_above_it(expected: float, specs: dict[str, dict[str, Any]]) -> None:
    assert most("a", **specs) == expected


def test_in_a_tree_guarantees_take_nothing_from_a_root_without_a_limit() -> None:
    """So it is in capacity: with enableHierarchy the root's amounts are infinite."""
    assert most("a", a=queue(), b=queue(guaranteed=16), c=queue(parent="b")) is None


def test_a_gang_counts_in_every_queue_above_its_own() -> None:
    found = quotas(root=queue(), high=queue(), top=queue(parent="high"), a=queue(parent="top"))
    assert found.lineage("a") == ("a", "top", "high", "root")
    assert [found.has_children(name) for name in ("a", "top", "root")] == [False, True, True]


def test_queues_in_a_circle_or_without_their_parent_are_limited_by_what_is_known() -> None:
    assert most("a", a=queue(parent="b"), b=queue(8, parent="a")) == 8
    assert most("a", a=queue(8, parent="gone")) == 8


# --- reading --------------------------------------------------------------------------------------------------------


def test_no_processors_or_memory_are_no_limit() -> None:
    quota = read_quota({"capability": {"cpu": 0, "memory": "0", GPU: 0}})
    assert quota.capability == {GPU: 0.0}


@pytest.mark.parametrize("spec", [{"capability": {"cpu": "much"}}, {"capability": 3}, {"guarantee": {"resource": 3}}])
def test_a_spec_of_another_shape_is_refused(spec: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError)):
        read_quota(spec)
