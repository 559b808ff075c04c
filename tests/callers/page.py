"""docs/callers.md, made of docs/callers.json: the abilities of each adapter, and the results of the last full run.

python -m tests.callers.page    # writes the page of the record as it stands
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.callers.features import FEATURES, WAYS, Cell
from tests.callers.record import FAILED, PASSED, outcome_of
from tests.callers.record import PATH as RECORD

PATH = Path(__file__).parents[2] / "docs" / "callers.md"
NOT_RUN = "not run"

_HEAD = """\
# Schedulers that call Placewise

`make e2e-all` writes this page from the results of its suites ([callers.json](callers.json)). An ability stands
here only if that test passed in the last run; without a run, "not run". The adapters' own pages:
[Slurm](../clients/slurm/README.md), [Kubernetes and Volcano](../clients/kubernetes/README.md),
[YARN](../clients/yarn/README.md).
"""
_FIGURES = {
    "gangs": (
        "Gangs",
        "All gangs that were submitted, by the scheduler's own records joined with the decision log by decision id: as "
        "decided, elsewhere, let go, never decided.",
    ),
    "fault": (
        "Faults",
        "Each was hit three times. After each the service counts the GPUs, cores and memory that the scheduler counts. "
        "Doubled, by the decision log: a GPU that was given to a gang while another ran on it, and a gang that started "
        "by two decisions.",
    ),
    "added time": ("Added time", "Of Placewise, beside the scheduler alone."),
    "scale": ("Scale", "Cost at 1,000 and 10,000 nodes, with 500 and 5,000 waiting jobs."),
}


def text(record: Mapping[str, Any]) -> str:
    """The page."""
    parts = [_HEAD, "## Abilities\n", _table(("", *WAYS), _features(record)), *_runs(record)]
    for key, (heading, words) in _FIGURES.items():
        rows = list(_figures(record, key))
        parts += [
            f"## {heading}\n",
            words + "\n",
            _table(("suite", "test", "figure"), rows or [(NOT_RUN, "", "")]),
        ]
    return "\n".join(parts)


def _features(record: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for feature, cells in FEATURES.items():
        yield feature, *(_cell(record, cells[way]) for way in WAYS)


def _cell(record: Mapping[str, Any], cell: Cell) -> str:
    if not cell.tests:
        return cell.words
    outcome = outcome_of(record, cell.tests)
    return cell.words if outcome == PASSED else f"**{FAILED}**: {cell.words}" if outcome == FAILED else NOT_RUN


def _runs(record: Mapping[str, Any]) -> list[str]:
    rows = []
    for name, suite in record["suites"].items():
        counts = suite["counts"]
        ran = (
            f"{counts[PASSED]} / {counts[FAILED]} / {counts['skipped']}"
            if counts.get(PASSED) or counts.get(FAILED)
            else NOT_RUN
        )
        priority = f", at nice {suite['nice']}" if suite.get("nice") else ""
        load = f"{suite['load_average']} on {suite['cores']} cores, {suite['stolen_pct']} % stolen{priority}"
        rows.append((name, ", ".join(suite["versions"]), ran, suite["date"], f"`{suite['commit']}`", load))
    head = ("suite", "version", "passed / failed / skipped", "date", "commit", "load")
    return ["## The last run\n", _table(head, rows), *_troubles(record)]


def _troubles(record: Mapping[str, Any]) -> Iterator[str]:
    for name, suite in record["suites"].items():
        lines = [f"* {name}: `{test}` failed." for test in suite["failed"]]
        lines += [f"* {name}: {count} skipped: {reason}" for reason, count in suite["skipped_for"].items()]
        if lines:
            yield "\n".join(lines) + "\n"


def _figures(record: Mapping[str, Any], key: str) -> Iterator[Sequence[str]]:
    for name, suite in record["suites"].items():
        for entry in suite["figures"]:
            if entry["of"] == key:
                test, bracket, case = entry["test"].partition("[")
                words = test.rpartition(".test_")[2].replace("_", " ")
                yield name, f"{words} {bracket}{case}".strip(), entry["figure"]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(json.loads(RECORD.read_text())))
