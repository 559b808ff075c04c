"""`placewise reproduce PAPER --quick`, as a reader of the documents runs it: every paper, in about a minute."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from placewise_training.reproduce import registry, runner
from placewise_training.reproduce.command import reproduce_app

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("paper", registry.PAPERS)
def test_a_quick_reproduction_judges_every_claim(paper: str, tmp_path: Path) -> None:
    """Rows that the time does not suffice for are named as missing. No claim goes without a verdict."""
    result = CliRunner().invoke(reproduce_app, [paper, "--quick", "--seeds", "1", "--out", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["mode"], found["paper"]) == ("quick", paper)
    assert found["stopped"] in ("", runner.OUT_OF_TIME)
    assert found["claims"]
    assert all(claim["verdict"] for claim in found["claims"])
    rows = [row for experiment in found["experiments"] for row in experiment["rows"]]
    values = [metric["ours"] for row in rows for metric in row["metrics"].values()]
    assert values
    assert all(value is not None for value in values)
    assert found["origins"]
