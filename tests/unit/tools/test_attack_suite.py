"""The attack suite judges by figures, and every promise names a test that exists."""

import importlib
import re
from pathlib import Path

import pytest
from tests.attack.attack import Attack, Result
from tests.attack.report import markdown, renewed

ROOT = Path(__file__).parents[3]
MODULES = sorted(f"{path.parent.name}.{path.stem}" for path in (ROOT / "tests/attack").glob("*/item_*.py"))


def attack(limit: float = 1.0) -> Attack:
    return Attack("a", "It holds.", "tests/x.py::test_y", lambda source: {}, lambda figures: figures["ms"] <= limit)


@pytest.mark.parametrize("name", MODULES)
def test_every_promise_names_a_test(name: str) -> None:
    module = importlib.import_module(f"tests.attack.{name}")
    assert module.TITLE
    assert module.ATTACKS
    for one in module.ATTACKS:
        path, _, function = one.test.partition("::")
        name = function.rpartition("::")[2] or function
        assert re.search(rf"^\s*(async def|def|class) {name}\b|^{name} = ", (ROOT / path).read_text(), re.MULTILINE), (
            one
        )


def test_names_of_attacks_are_unique() -> None:
    names = [one.name for name in MODULES for one in importlib.import_module(f"tests.attack.{name}").ATTACKS]
    assert len(set(names)) == len(names)


def test_a_result_without_figures_does_not_hold() -> None:
    assert not Result(attack(), reason="failed").is_held


def test_the_report_shows_both_trees() -> None:
    held, broken = Result(attack(), {"ms": 0.5}), Result(attack(), {"ms": 2.5})
    page = markdown({"m": "Title"}, {"m": [held]}, {"m": [broken]}, {"before": "b", "now": "n", "machine": "x"})
    assert "| It holds. | `tests/x.py::test_y` | ms 2.5 | ms 0.5 | `n` | yes |" in page


def test_the_report_shows_what_broke() -> None:
    page = markdown(
        {"m": "Title"}, {"m": [Result(attack(), {"ms": 2.5})]}, {}, {"before": "b", "now": "n", "machine": "x"}
    )
    assert "| ms 2.5 | `n` | **no** |" in page


def test_a_row_is_renewed_with_its_commit_and_the_others_stay() -> None:
    other = Attack("b", "So does this.", "tests/x.py::test_z", lambda source: {}, lambda figures: True)
    results = {"m": [Result(attack(), {"ms": 2.5}), Result(other, {"ms": 1})]}
    page = markdown({"m": "Title"}, results, {}, {"before": "b", "now": "n", "machine": "x"})
    again = renewed(page, {"m": [Result(attack(), {"ms": 0.5})]}, {"m": [Result(attack(), {"ms": 3})]}, "later")
    assert "| It holds. | `tests/x.py::test_y` | ms 3 | ms 0.5 | `later` | yes |" in again
    assert again.replace("| ms 3 | ms 0.5 | `later` | yes |", "|  | ms 2.5 | `n` | **no** |") == page


def test_a_row_that_the_report_lacks_is_not_lost() -> None:
    page = markdown({"m": "Title"}, {"m": []}, {}, {"before": "b", "now": "n", "machine": "x"})
    with pytest.raises(ValueError, match="no row for"):
        renewed(page, {"m": [Result(attack(), {"ms": 0.5})]}, {}, "later")
