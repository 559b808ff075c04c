"""docs/callers.md is what its generator makes of the committed record, and what its words name exists."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.callers import page, record
from tests.callers.features import EXTENDER, FEATURES, FIGURES_OF, GATES, OWN, VOLCANO, WAYS
from tests.callers.suites import COMMANDS, OF_SOME_TESTS
from tests.e2e.slurm import slurm_tree

TESTS = Path(__file__).parents[1]
CELLS = [(feature, way, cell) for feature, cells in FEATURES.items() for way, cell in cells.items()]
JUNIT = """<?xml version="1.0"?><testsuites><testsuite name="pytest" timestamp="2026-11-26T10:00:00+00:00" time="12.3">
<properties><property name="version" value="Slurm 24.11.5"/></properties>
<testcase classname="tests.e2e.slurm.test_slurm_e2e" name="test_every_gang_runs_where_the_service_said">{outcome}
<properties><property name="gangs" value="160 of 160 as decided"/></properties></testcase>
<testcase classname="tests.e2e.slurm.test_slurm_e2e" name="test_of_no_cell"/>
</testsuite></testsuites>"""
MACHINE = {"commit": "abc", "command": "", "exit_code": 0, "cores": 2, "load_average": 1.0, "stolen_pct": 0.0}


def recorded(tmp_path: Path, outcome: str) -> dict[str, Any]:
    (tmp_path / "junit.xml").write_text(JUNIT.format(outcome=outcome))
    return {"suites": {"slurm-24.11": {**MACHINE, **record.read_suite(tmp_path / "junit.xml")}}}


def test_the_page_is_made_of_the_record() -> None:
    assert page.PATH.read_text() == page.text(json.loads(record.PATH.read_text()))


def test_every_way_has_every_feature() -> None:
    assert [(feature, way) for feature, way, _ in CELLS] == [(feature, way) for feature in FEATURES for way in WAYS]


@pytest.mark.parametrize("test", sorted({test for _, _, cell in CELLS for test in cell.tests}))
def test_a_test_that_is_named_exists(test: str) -> None:
    module, _, name = test.rpartition("[")[0].rpartition(".") if "[" in test else test.rpartition(".")
    folder, _, file = module.replace(".", "/").partition("/Test")[0].rpartition("/")
    sources = [path.read_text() for path in (TESTS / folder).rglob("*.py") if path.stem == file or not file]
    if ".Test" in module:  # of a suite that it inherits
        sources += [path.read_text() for path in (TESTS / folder).rglob("*.py")]
    assert any(re.search(rf"def {name}\(", source) for source in sources)


# The suites that run the tests of a folder or a file.
SUITES_OF = {
    "contract": ("contract",),
    "e2e.slurm": ("slurm-",),
    "e2e.kubernetes": ("kubernetes",),
    "e2e.volcano": ("volcano",),
    "e2e.yarn": ("yarn",),
}


def test_a_suite_that_ran_has_every_test_that_is_named() -> None:
    """Else a cell would say "not run" of a test whose parameters have other names."""
    recorded = json.loads(record.PATH.read_text())["suites"]
    suites = {name: suite for name, suite in recorded.items() if suite["tests"] and name not in OF_SOME_TESTS}
    missing = [
        (name, test)
        for test in {test for _, _, cell in CELLS for test in cell.tests}
        for folder, of in SUITES_OF.items()
        if test.startswith(f"{folder}.")
        for name, suite in suites.items()
        if name.startswith(of) and not any(record.is_of(found, test) for found in suite["tests"])
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("outcome", "shown"),
    [
        ("", "held by the submit hook, released by an update"),
        ('<skipped message="Slurm is not installed"/>', "not run"),
        ("<failure/>", "**failed**: held by the submit hook, released by an update"),
        ("<error/>", "**failed**: held by the submit hook, released by an update"),
    ],
)
def test_a_cell_stands_only_for_a_test_that_passed(tmp_path: Path, outcome: str, shown: str) -> None:
    text = page.text(recorded(tmp_path, outcome))
    (row,) = [line for line in text.splitlines() if line.startswith("| when |")]
    assert row == f"| when | {shown} {'| not run ' * (len(WAYS) - 1)}|"


def test_the_page_has_versions_counts_and_figures(tmp_path: Path) -> None:
    text = page.text(recorded(tmp_path, '<skipped message="no accounting"/>'))
    assert "| slurm-24.11 | Slurm 24.11.5 | 1 / 0 / 1 | 2026-11-26 | `abc` | 1.0 on 2 cores, 0.0 % stolen |" in text
    assert "* slurm-24.11: 1 skipped: no accounting" in text
    assert "| slurm-24.11 | every gang runs where the service said | 160 of 160 as decided |" in text


EVERY_GANG = "e2e.slurm.test_slurm_e2e.test_every_gang_runs_where_the_service_said"


def suite_of(commit: str = "abc", outcomes: Mapping[str, str] | None = None, **figures: str) -> dict[str, Any]:
    return {
        **MACHINE,
        "versions": [],
        "date": "2026-11-26",
        "commit": commit,
        "counts": {"passed": 1, "failed": 0, "skipped": 0},
        "failed": [],
        "skipped_for": {},
        "tests": dict(outcomes or {EVERY_GANG: "passed"}),
        "figures": [{"of": of.replace("_", " "), "figure": value, "test": EVERY_GANG} for of, value in figures.items()],
    }


def section(text: str, heading: str) -> str:
    return text.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def test_a_scheduler_that_was_not_run_has_its_row() -> None:
    text = page.text({"suites": {"slurm-24.11": suite_of()}})
    for name in ("kubernetes", "volcano", "yarn", "yarn-scale", "slurm-22.05"):
        assert f"| {name} |  | not run |  |  |  |" in section(text, "The last run")
    assert "| slurm-24.11 |  | not run" not in text


def test_each_release_of_slurm_has_a_suite() -> None:
    assert {f"slurm-{release}" for release in slurm_tree.SUITES} == {name for name in COMMANDS if "slurm" in name}


def test_each_figure_is_of_an_adapter() -> None:
    suites = json.loads(record.PATH.read_text())["suites"].values()
    beginnings = tuple(beginning for of in FIGURES_OF.values() for beginning in of)
    tests = {entry["test"] for suite in suites for entry in suite["figures"]}
    assert {test for test in tests if not test.startswith(beginnings)} == set()


@pytest.mark.parametrize(
    ("heading", "key"), [("Gangs", "gangs"), ("Faults", "fault"), ("Added time", "added_time"), ("Scale", "scale")]
)
def test_an_adapter_without_a_figure_is_named_in_each_section(heading: str, key: str) -> None:
    suites = {"slurm-24.11": suite_of(**{key: "a figure"}), "yarn": suite_of()}
    rows = section(page.text({"suites": suites}), heading)
    assert "| a figure |" in rows
    assert "| Slurm |" not in rows
    assert "| YARN |  | no figure |" in rows
    for way in (EXTENDER, OWN, GATES, VOLCANO):
        assert f"| {way} |  | not run |" in rows


def test_hit_three_times_is_said_only_of_suites_that_record_it() -> None:
    suites = {"slurm-24.11": suite_of(fault="killed, 3 times each"), "yarn": suite_of(fault="killed")}
    assert "Each was hit three times by slurm-24.11. " in section(page.text({"suites": suites}), "Faults")
    assert "three times" not in page.text({"suites": {"yarn": suites["yarn"]}})


@pytest.mark.parametrize(
    ("outcomes", "shown"),
    [
        ({EVERY_GANG: "skipped"}, "slurm-22.05"),
        ({f"{EVERY_GANG}[a]": "passed", f"{EVERY_GANG}[b]": "skipped"}, "slurm-22.05 [b]"),
    ],
)
def test_a_cell_names_the_release_or_parameters_that_were_skipped(outcomes: dict[str, str], shown: str) -> None:
    suites = {"slurm-24.11": suite_of(), "slurm-22.05": suite_of(outcomes=outcomes)}
    text = page.text({"suites": suites})
    assert f"| when | held by the submit hook, released by an update (not run by {shown}) |" in text


def test_a_record_of_several_commits_says_so_in_its_head() -> None:
    suites = {"slurm-24.11": suite_of(), "slurm-22.05": suite_of(), "scale": suite_of("old"), "yarn": suite_of("older")}
    head = page.text({"suites": suites}).partition("## ")[0]
    assert "Most suites ran at commit `abc`; these suites are of other commits: scale `old`, yarn `older`." in head
    assert "other commits" not in page.text({"suites": {"slurm-24.11": suite_of(), "slurm-22.05": suite_of()}})


def test_a_cell_of_some_parameters_asks_for_no_others() -> None:
    assert record.is_of("a.test_x[own-oracle]", "a.test_x[own")
    assert not record.is_of("a.test_x[extender]", "a.test_x[own")
    assert record.is_of("a.test_x[own]", "a.test_x")
    assert not record.is_of("a.test_xy", "a.test_x")


def test_a_suite_that_was_killed_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text("")
    with pytest.raises(SyntaxError):
        record.read_suite(tmp_path / "junit.xml")
