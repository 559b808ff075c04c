"""docs/callers.md, made of docs/callers.json: the abilities of each adapter, and the results of the last full run.

python -m tests.callers.page    # writes the page of the record as it stands
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.callers.features import FEATURES, FIGURES_OF, SUITES, WAYS, Cell
from tests.callers.record import FAILED, PASSED, other_commits, outcome_of, skipped_of
from tests.callers.record import PATH as RECORD
from tests.callers.suites import COMMANDS

PATH = Path(__file__).parents[2] / "docs" / "callers.md"
NOT_RUN, NO_FIGURE = "not run", "no figure"
_THREE_TIMES = "3 times"

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
        "decided, elsewhere, released, never decided.",
    ),
    "fault": (
        "Faults",
        "After each of Slurm's the service counts the GPUs, cores and memory that Slurm counts. "
        "Doubled, by the decision log: a GPU that was given to a gang while another ran on it, and a gang that started "
        "by two decisions. A gang of YARN that starts while its ResourceManager or a node dies is decided again in "
        "part, and counts as elsewhere: each of its containers ran where one of its decisions said.",
    ),
    "added time": ("Added time", "Of Placewise, beside the scheduler alone."),
    "scale": ("Scale", "Cost at 1,000 and 10,000 nodes, with 500 and 5,000 waiting jobs or gangs."),
}


def text(record: Mapping[str, Any]) -> str:
    """The page."""
    parts = [_HEAD, *_commits(record), "## Abilities\n", _table(("", *WAYS), _features(record)), *_runs(record)]
    for key, (heading, words) in _FIGURES.items():
        rows = [*_figures(record, key), *_without_figure(record, key)]
        hits = _hits(record) if key == "fault" else ""
        parts += [f"## {heading}\n", f"{hits}{words}\n", _table(("suite", "test", "figure"), rows)]
    return "\n".join(parts)


def _commits(record: Mapping[str, Any]) -> Iterator[str]:
    most, others = other_commits(record)
    if others:
        named = ", ".join(f"{name} `{commit}`" for name, commit in others.items())
        yield f"Most suites ran at commit `{most}`; these suites are of other commits: {named}.\n"


def _features(record: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for feature, cells in FEATURES.items():
        yield feature, *(_cell(record, cells[way]) for way in WAYS)


def _cell(record: Mapping[str, Any], cell: Cell) -> str:
    if not cell.tests:
        return cell.words
    outcome, skipped = outcome_of(record, cell.tests), skipped_of(record, cell.tests)
    if outcome == PASSED:
        return f"{cell.words} ({NOT_RUN} by {', '.join(skipped)})" if skipped else cell.words
    return f"**{FAILED}**: {cell.words}" if outcome == FAILED else NOT_RUN


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
    absent = [suite for suite in COMMANDS if suite not in record["suites"]]
    rows += [(suite, "", NOT_RUN, "", "", "") for suite in absent]
    head = ("suite", "version", "passed / failed / skipped", "date", "commit", "load")
    return ["## The last run\n", _table(head, rows), *_troubles(record)]


def _suites_of(record: Mapping[str, Any], way: str) -> list[str]:
    """Suites that ran the adapter with a real scheduler."""
    return [name for name, suite in record["suites"].items() if name.startswith(SUITES[way]) and suite["tests"]]


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


def _without_figure(record: Mapping[str, Any], key: str) -> Iterator[Sequence[str]]:
    tests = [entry["test"] for suite in record["suites"].values() for entry in suite["figures"] if entry["of"] == key]
    for way in WAYS:
        if not any(test.startswith(FIGURES_OF[way]) for test in tests):
            yield way, "", NO_FIGURE if _suites_of(record, way) else NOT_RUN


def _hits(record: Mapping[str, Any]) -> str:
    """The suites that recorded three hits of every fault."""
    figures = {
        name: [entry["figure"] for entry in suite["figures"] if entry["of"] == "fault"]
        for name, suite in record["suites"].items()
    }
    thrice = [name for name, of in figures.items() if of and all(_THREE_TIMES in figure for figure in of)]
    return f"Each was hit three times by {', '.join(thrice)}. " if thrice else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(json.loads(RECORD.read_text())))
