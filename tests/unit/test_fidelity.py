"""docs/fidelity.md: every file, symbol and test that it names is there, and every `-paper` policy has its row."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.proteus_queue import bundled

from placewise_core.admit.registry import admission_policies
from placewise_core.partition.registry import partition_policies
from placewise_core.speed.throughput import ThroughputModel
from placewise_core.subtasks.iawp import subtask_schedulers
from placewise_models.learned import PRINTED_POLICIES

ROOT = Path(__file__).parents[2]
REPORTS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text("utf-8")) for path in sorted((ROOT / "docs/reproduction").glob("*.json"))
}
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


def test_the_page_names_the_commits_of_each_section_and_no_others() -> None:
    table = TEXT[TEXT.index("| section | made at |") :].split("\n\n")[0]
    named: dict[str, set[str]] = {}
    for row in table.splitlines()[2:]:
        sections, commits = row.strip("| ").split(" | ")
        for section in re.findall(r"`([^`]+)`", sections):
            named[section] = set(re.findall(r"\b[0-9a-f]{12}\b", commits))
    assert named == {name: {origin["commit"] for origin in found["origins"]} for name, found in REPORTS.items()}


def least_and_most(experiment: str, method: str, others: list[str]) -> str:
    """By how much the method's JCT is below the others', mean over settings and seeds: "17 to 23"."""
    [found] = [e for e in REPORTS["harmony"]["experiments"] if e["key"] == experiment]
    jct = {(row["setting"], row["method"]): row["metrics"]["jct"]["values"] for row in found["rows"]}

    def below(other: str) -> float:
        changes = [
            own / jct[setting, other][seed] - 1.0
            for setting in found["settings"]
            for seed, own in jct[setting, method].items()
        ]
        return -100 * sum(changes) / len(changes)

    gains = sorted(below(other) for other in others)
    return f"{gains[0]:.0f} to {gains[-1]:.0f}"


def test_the_readme_says_of_harmony_what_its_json_has() -> None:
    [row] = [row for row in (ROOT / "README.md").read_text("utf-8").splitlines() if row.startswith("| `harmony` |")]
    heuristics = ["load-balance", "tetris", "tiresias", "lif-linear", "lif-quadratic", "consolidate"]
    assert f"6 servers {least_and_most('fresh', 'harmony', heuristics)} % below each of six" in row
    assert f"on 30 servers {least_and_most('fig14', 'harmony', heuristics)} %" in row
    in_one_order = least_and_most("order", "harmony, shortest first", [f"{h}, shortest first" for h in heuristics])
    assert f"{in_one_order} % below the same heuristics with the shortest job first for all" in row


def turnarounds(experiment: str, *methods: str) -> dict[str, float]:
    """How many times as long the first method's mean turnaround is as the second's, by setting."""
    [found] = [e for e in REPORTS["proteus"]["experiments"] if e["key"] == experiment]
    means = {(row["setting"], row["method"]): row["metrics"]["turnaround"]["ours"] for row in found["rows"]}
    return {setting: means[setting, methods[0]] / means[setting, methods[1]] for setting in found["settings"]}


def test_the_table_says_of_proteus_what_its_json_has() -> None:
    [cell] = [row for row in TEXT.splitlines() if row.startswith("| `proteus` |")]
    measured = turnarounds("environments", "proteus-paper", "proteus")
    together = sorted(ratio for setting, ratio in measured.items() if setting.endswith("concentrated"))
    assert f"{together[0]:.1f} to {together[-1]:.1f} times as short where jobs come together" in cell
    loads = [f"{ratio:.1f}" for ratio in turnarounds("load", "proteus-paper", "proteus").values()]
    assert f"by load {', '.join(loads[:-1])} and {loads[-1]} times as short at 1.5, 3, 6, 12 and 18" in cell
    assert f"far apart {measured['small, dispersed']:.1f} times as short for small ones" in cell
    assert f"for large ones `proteus-paper` is {1 / measured['large, dispersed']:.2f} times as short" in cell
    modelled = sorted(turnarounds("environments_model", "proteus", "proteus-paper").values())
    assert f"`proteus-paper` wins everywhere, {modelled[0]:.1f} to {modelled[-1]:.1f} times as short" in cell
