"""The measurement of coverage in its smallest form, and the synthetic logs behind it."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placewise_training.evaluate.checks import coverage
from placewise_training.evaluate.checks.synthetic import REWARD_BOUND, WEIGHTS, synthetic_log
from placewise_training.evaluate.estimators import doubly_robust, ips
from placewise_training.evaluate.regression import cross_fitted

LOGS = 3


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, str], Any]:
    found = coverage.measured(WEIGHTS["light"], 100, range(5_000, 5_000 + LOGS))
    return {(row["estimator"], row["of"]): row for row in found}


def test_the_table_has_a_row_for_each_and_names_what_is_missed(rows: dict[tuple[str, str], Any]) -> None:
    setting = {"weights": "light", "ess": 100, "decisions": 225, "rows": copy.deepcopy(list(rows.values()))}
    report = {"least": 0.92, "settings": [setting]}
    assert len(coverage.table(report).splitlines()) == 2 + len(rows)
    narrow = next(row for row in setting["rows"] if (row["estimator"], row["of"]) == ("ips", "gain"))
    narrow["intervals"]["studentised"]["coverage"] = 0.91
    narrow["intervals"]["empirical_bernstein"]["coverage"] = 0.94
    assert "light, ESS 100, ips, gain: bootstrap-t 91.0%" in coverage.missed(report)
    assert "light, ESS 100, ips, gain: bootstrap-t 91.0%" not in coverage.missed({**report, "least": 0.9})
    assert "light, ESS 100, ips, gain: empirical Bernstein 94.0%" in coverage.missed(report)


def test_the_command_writes_what_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "ESS", (20,))
    monkeypatch.setattr(coverage, "WEIGHTS", {"light": WEIGHTS["light"]})
    monkeypatch.setattr(coverage, "origin", lambda: {"commit": "1a2b3c"})
    out = tmp_path / "made" / "coverage.json"
    coverage.main(["--logs", "3", "--first-seed", "7", "--out", str(out)])
    report = json.loads(out.read_text("utf-8"))
    assert report["command"].startswith("python -m placewise_training.evaluate.checks.coverage --logs 3 --first-seed 7")
    assert report["commit"] == "1a2b3c"
    assert (report["logs"], report["first_seed"], len(report["settings"])) == (3, 7, 1)


def test_the_span_of_each_estimator_holds_its_rounds() -> None:
    log = synthetic_log(WEIGHTS["heavy"], 300, 2)
    for found in (ips(log), doubly_robust(log, cross_fitted(log))):
        assert found.span is not None
        assert np.ptp(found.rounds) <= found.span * REWARD_BOUND


def test_equal_seeds_give_equal_logs() -> None:
    one, other = (synthetic_log(WEIGHTS["light"], 50, 9) for _ in range(2))
    assert (one.reward == other.reward).all()
    assert (synthetic_log(WEIGHTS["light"], 50, 10).reward != one.reward).any()


@pytest.mark.parametrize("measured", ["coverage", "simulated"])
def test_the_document_has_the_table_that_was_measured(measured: str) -> None:
    docs = Path(__file__).parents[4] / "docs"
    report = json.loads((docs / "evaluation" / f"{measured}.json").read_text("utf-8"))
    text = (docs / "evaluate.md").read_text("utf-8")
    assert coverage.table(report) in text
    for one in coverage.missed(report):
        assert one.rpartition(" ")[2] in text
