"""The record of a full run, made of the JUnit files that the suites write: docs/callers.json.

Of each suite: versions, counts, what failed, why tests were skipped, the outcome of the tests that docs/callers.md
names, and the figures that tests recorded by pytest's `record_property`.
"""

from __future__ import annotations

import datetime
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.callers.features import FEATURES

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
PATH = Path(__file__).parents[2] / "docs" / "callers.json"

Json = dict[str, Any]


def is_of(name: str, test: str) -> bool:
    """Whether a test of JUnit's is meant by the name of a test, which may begin its parameters."""
    return name == test or name.startswith(test if "[" in test else f"{test}[")


def read_suite(path: Path) -> Json:
    """One JUnit file. Raises ET.ParseError, also for the empty file of a suite that was killed."""
    (suite,) = ET.parse(path).getroot().iter("testsuite")
    cases = [(_name(case), case) for case in suite.iter("testcase")]
    outcomes = {name: _outcome(case) for name, case in cases}
    named = {test for cells in FEATURES.values() for cell in cells.values() for test in cell.tests}
    return {
        "versions": [value for _, value in _properties(suite.find("properties"))],
        "date": datetime.datetime.fromisoformat(suite.attrib["timestamp"]).date().isoformat(),
        "took_s": round(float(suite.attrib["time"])),
        "counts": {word: Counter(outcomes.values())[word] for word in (PASSED, FAILED, SKIPPED)},
        "failed": sorted(name for name, outcome in outcomes.items() if outcome == FAILED),
        "skipped_for": dict(Counter(_reason(case) for _, case in cases if case.find("skipped") is not None)),
        "tests": {name: outcome for name, outcome in outcomes.items() if any(is_of(name, test) for test in named)},
        "figures": [
            {"of": key, "figure": value, "test": name}
            for name, case in cases
            for key, value in _properties(case.find("properties"))
        ],
    }


def outcome_of(record: Mapping[str, Any], tests: tuple[str, ...]) -> str:
    """The worst outcome over all suites: failed, then passed, else "" if a test ran in none."""
    worst = [
        {
            outcome
            for suite in record["suites"].values()
            for name, outcome in suite["tests"].items()
            if is_of(name, test)
        }
        for test in tests
    ]
    if any(FAILED in outcomes for outcomes in worst):
        return FAILED
    return PASSED if all(PASSED in outcomes for outcomes in worst) else ""


def skipped_of(record: Mapping[str, Any], tests: tuple[str, ...]) -> list[str]:
    """Suites, each with the case's parameters, in which one of the tests was skipped."""
    found = [
        f"{suite} {bracket}{case}".strip()
        for suite, ran in record["suites"].items()
        for name, outcome in ran["tests"].items()
        for _, bracket, case in [name.partition("[")]
        if outcome == SKIPPED and any(is_of(name, test) for test in tests)
    ]
    return sorted(set(found))


def other_commits(record: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """The commit of most suites, and the commits of the suites of another."""
    commits = {name: suite["commit"] for name, suite in record["suites"].items()}
    most = Counter(commits.values()).most_common(1)[0][0] if commits else ""
    return most, {name: commit for name, commit in commits.items() if commit != most}


def _name(case: ET.Element) -> str:
    """Without "tests."."""
    return f"{case.attrib['classname']}.{case.attrib['name']}".removeprefix("tests.")


def _outcome(case: ET.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return FAILED
    return SKIPPED if case.find("skipped") is not None else PASSED


def _reason(case: ET.Element) -> str:
    found = case.find("skipped")
    return found.attrib.get("message", "") if found is not None else ""


def _properties(parent: ET.Element | None) -> Iterator[tuple[str, str]]:
    for entry in parent if parent is not None else ():
        yield entry.attrib["name"], entry.attrib["value"]
