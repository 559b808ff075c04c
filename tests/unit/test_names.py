"""One name, one thing: names that once stood for several things each name at most one class."""

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("service", "training", "clients", "tests")
ONCE = {"Bundle", "Capacity", "Ledger", "Oracle", "Plan", "Round", "Verdict"}
GONE = {"Office", "Desk", "Common", "Served", "Link", "Wire", "Gate"}


def classes() -> Counter[str]:
    found: Counter[str] = Counter()
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        found.update(re.findall(r"^class _?(\w+)", path.read_text("utf-8"), re.MULTILINE))
    return found


def test_one_name_is_one_thing() -> None:
    assert {name: count for name, count in classes().items() if name in ONCE and count > 1} == {}


def test_names_that_told_nothing_are_gone() -> None:
    assert GONE.isdisjoint(classes())
