"""Every adapter has every case of the conformance suite, or a written reason why not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.callers.features import EXTENDER, GATES, OWN, SLURM, VOLCANO, WAYS, YARN
from tests.contract.adapters import (
    test_adapter_skeleton,
    test_gates_conformance,
    test_kubernetes_conformance,
    test_slurm_adapter,
    test_volcano_conformance,
)
from tests.contract.adapters.adapter_conformance import AdapterConformance
from tests.contract.adapters.suite import yarn_cases

ROOT = Path(__file__).parents[3]
CASES = frozenset(name for name in dir(AdapterConformance) if name.startswith("test_"))
# By column of docs/callers.md; that of YARN is yarn_cases.
SUITES_OF: Mapping[str, tuple[type[AdapterConformance], ...]] = {
    SLURM: (test_slurm_adapter.TestSlurm2205, test_slurm_adapter.TestSlurm2311, test_slurm_adapter.TestSlurm2605),
    EXTENDER: (test_kubernetes_conformance.TestExtender,),
    OWN: (test_kubernetes_conformance.TestOwnScheduler,),
    GATES: (test_gates_conformance.TestGates,),
    VOLCANO: (test_volcano_conformance.TestVolcano,),
}
SUITES = (test_adapter_skeleton.TestMemoryHost, *(suite for suites in SUITES_OF.values() for suite in suites))
# Folders of clients/ whose adapters the suites above or yarn_cases are of; `python` is the SDK.
FOLDERS = {"kubernetes", "python", "slurm", "yarn"}


def lacking(shown: Mapping[str, object], not_here: Mapping[str, str]) -> set[str]:
    """Cases that have neither a test nor a reason, or both."""
    reasoned = {name for name, reason in not_here.items() if reason.strip()}
    return set(CASES ^ shown.keys() ^ reasoned)


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.__name__)
def test_a_python_adapter_runs_every_case_or_says_why_not(suite: type[AdapterConformance]) -> None:
    shown = {name: suite for name in CASES - suite.not_here.keys() if callable(getattr(suite, name, None))}
    assert lacking(shown, suite.not_here) == set()


def test_every_column_of_the_table_has_its_suite() -> None:
    assert {*SUITES_OF, YARN} == set(WAYS)


def test_the_yarn_adapter_shows_every_case_or_says_why_not() -> None:
    assert lacking(yarn_cases.SHOWN, yarn_cases.NOT_HERE) == set()


@pytest.mark.parametrize("test", sorted(set(yarn_cases.SHOWN.values())))
def test_what_shows_a_case_of_yarn_exists(test: str) -> None:
    path, _, name = test.partition("::")
    assert re.search(rf"(def|void) {name}\(", (ROOT / path).read_text())


def test_a_case_without_a_test_or_a_reason_is_found() -> None:
    one, other, *_ = sorted(CASES)
    all_but_one = dict.fromkeys(CASES - {one}, "")
    assert lacking(all_but_one, {}) == {one}
    assert lacking(all_but_one, {one: " "}) == {one}
    assert lacking(all_but_one, {one: "a reason"}) == set()
    assert lacking(all_but_one, {one: "a reason", other: "and its test"}) == {other}


def test_every_folder_of_an_adapter_is_known_here() -> None:
    assert {path.name for path in (ROOT / "clients").iterdir() if path.is_dir()} == FOLDERS
