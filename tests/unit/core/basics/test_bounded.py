"""The bounded cache: it holds its entries, never more than its bound, and a copy is its own."""

from placewise_core.basics.bounded import Bounded, Latest


def test_it_forgets_all_before_it_would_hold_too_much() -> None:
    cache: Bounded[int, str] = Bounded(2)
    cache[1], cache[2] = "a", "b"
    cache[2] = "c"
    assert cache == {1: "a", 2: "c"}
    cache[3] = "d"
    assert cache == {3: "d"}


def test_a_copy_keeps_the_items_and_the_bound() -> None:
    cache: Bounded[int, str] = Bounded(2)
    cache[1] = "a"
    other = cache.copy()
    other[2], other[3] = "b", "c"
    assert cache == {1: "a"}
    assert other == {3: "c"}


def test_the_oldest_key_makes_room() -> None:
    latest: Latest[str, int] = Latest(2)
    latest["a"], latest["b"] = 1, 2
    latest["a"] = 3  # no new key
    latest["c"] = 4
    assert latest == {"b": 2, "c": 4}
    del latest["b"]
    latest["d"] = 5
    assert list(latest) == ["c", "d"]
