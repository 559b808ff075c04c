"""docs/fidelity.md: every file, symbol and test that it names is there, and every `-paper` policy has its row."""

import re
from pathlib import Path

import pytest
from tests.fakes.proteus_queue import bundled

from placewise_core.admit.registry import admission_policies
from placewise_core.partition.registry import partition_policies
from placewise_core.speed.throughput import ThroughputModel
from placewise_core.subtasks.iawp import subtask_schedulers
from placewise_models.learned import PRINTED_POLICIES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/fidelity.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`((?:service|training|tests)/[^`]+)`", TEXT)))


@pytest.mark.parametrize("named", NAMED)
def test_what_is_named_is_there(named: str) -> None:
    path, _, symbol = named.partition("::")
    assert (ROOT / path).is_file()
    source = (ROOT / path).read_text("utf-8")
    assert not symbol or re.search(rf"^\s*(?:class|def|async def) {symbol}\b|^{symbol}\b.* = ", source, re.MULTILINE)


def test_every_row_names_its_test_or_none() -> None:
    """A row of a paper ends in a test; only missing parts have none."""
    rows = [row for row in TEXT.splitlines() if row.startswith("| ") and row.count("|") == 5]
    rows = [row for row in rows if not row.startswith(("| item |", "| plain |")) and "-paper` | `" not in row]
    papers = TEXT[TEXT.index("## Proteus") :]
    for row in (row for row in rows if row in papers):
        assert "`tests/" in row.split("|")[4] or "missing" in row, row


EQUATIONS = {"Proteus": 15, "QoS": 18, "Heat": 6, "LDWP": 10, "Harmony": 2}
DRAWN = {  # figures and tables of each paper
    "Proteus": ("Figures 1-5", "Table I"),
    "QoS": ("Figures 1-7", "Tables 1-2"),
    "Heat": ("Figures 1-3",),
    "LDWP": ("Figures 1-13", "Tables 1-5"),
    "Harmony": ("Figures 1-15", "Tables I-II"),
}
ROMAN = {"I": 1, "II": 2}


def numbers(text: str) -> set[int]:
    """ "1, 3 and 5–7": each of them."""
    found = set[int]()
    for first, last in re.findall(r"(\d+|I+)[a-f]?(?:[–-](\d+|I+))?", text):
        begin, end = (ROMAN.get(each, 0) or int(each) for each in (first, last or first))
        found |= set(range(begin, end + 1))
    return found


@pytest.mark.parametrize("paper", EQUATIONS)
def test_every_equation_figure_and_table_of_a_paper_has_a_row(paper: str) -> None:
    section = TEXT[TEXT.index(f"## {paper}") :].split("\n## ")[0]
    items = [row.split("|")[1] for row in section.splitlines() if row.startswith("| ")]
    equations = set[int]()
    for item in items:
        for listed in re.findall(r"\(\d+\)(?:(?:–| to )\(\d+\))?", item):
            equations |= numbers(listed.replace("(", "").replace(")", "").replace(" to ", "–"))
    assert set(range(1, EQUATIONS[paper] + 1)) <= equations
    for kind, _, wanted in (each.partition(" ") for each in DRAWN[paper]):
        there = set[int]()
        for item in items:
            for listed in re.findall(rf"{kind.rstrip('s')}s? ((?:[\dI]+[a-f]?(?:[–-][\dIa-f]+)?(?:, | and )?)+)", item):
                there |= numbers(listed)
        assert numbers(wanted) <= there, kind


def test_every_policy_as_printed_stands_in_the_table() -> None:
    throughput = ThroughputModel(bundled("throughput.json"))
    names = {*admission_policies(throughput), *partition_policies(bundled("capability.json")), *subtask_schedulers()}
    papers = {name for name in names if name.endswith("-paper")}
    papers |= set(PRINTED_POLICIES)
    assert papers == {"qos-paper", "proteus-paper", "heat-island-paper", "iawp-paper", "harmony-paper", "ldwp-paper"}
    assert all(f"| `{name}` |" in TEXT for name in papers)
