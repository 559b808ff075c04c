"""The order in which a session begins its tests."""

from types import SimpleNamespace

from tests.fakes.quick.order import quick_reproductions_first


def test_the_quick_reproductions_begin_before_the_limit_on_slow_tests_can_skip_them() -> None:
    quick = "tests/reproduce/test_reproduce_quick.py::test_a_quick_reproduction_judges_every_claim"
    names = [
        "tests/bench/a.py::test",
        f"{quick}[heat]",
        "tests/e2e/b.py::test",
        f"{quick}[ldwp]",
        "tests/sim/c.py::test",
    ]
    items = [SimpleNamespace(nodeid=name) for name in names]
    quick_reproductions_first(items)
    assert [item.nodeid for item in items] == [names[1], names[3], names[0], names[2], names[4]]
