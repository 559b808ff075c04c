"""`placewise evaluate` on exported logs."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.unit.evaluate.exported import ALTERNATIVES, alternative, decision, explored, outcome, write
from typer.testing import CliRunner

from placewise_log.manifest import NAME as MANIFEST
from placewise_log.manifest import LogManifest
from placewise_service.declog.derived import JOINED_SCHEMA
from placewise_service.declog.tables import SCHEMAS
from placewise_training.evaluate.command import NothingToEvaluateError, evaluate_app
from placewise_training.log.placed import DECISION_COLUMNS, JOINED_COLUMNS, REWARD, LogError

RUNNER = CliRunner()
COUNT = 1200  # 40 hours: 20 blocks of two hours


def run(*arguments: str) -> Any:
    """JSON and exit code."""
    done = RUNNER.invoke(evaluate_app, [*arguments, "--json"])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return json.loads(done.stdout), done.exit_code


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("log"), *explored(COUNT, gain=0.2))


def test_the_log_has_the_columns_that_are_read() -> None:
    assert set(DECISION_COLUMNS) <= set(SCHEMAS["decisions"].names)
    assert set(JOINED_COLUMNS) <= set(JOINED_SCHEMA.names)
    alternative_type = SCHEMAS["decisions"].field("alternatives").type.value_type
    assert {field.name: field.type for field in ALTERNATIVES.value_type}.items() <= {
        field.name: field.type for field in alternative_type
    }.items()


def test_a_better_policy_that_explored_is_found(log: Path) -> None:
    found, code = run("--log", str(log), "--policy", "load-balance")
    assert code == 0
    (one,) = found["candidates"]
    assert one["candidate"] == "load-balance"
    rows = {row["estimator"]: row for row in one["estimates"]}
    low, high = rows["doubly_robust"]["gain_interval"]
    assert low < 0.2 < high
    assert low > 0.1
    assert one["adjusted_p"] < 0.01
    assert (found["tried"], found["compared"]) == (1, ["load-balance"])
    assert found["log"]["decisions_judge"] == one["support"]["decisions"]
    assert 0 < found["log"]["decisions_judge"] < COUNT / 2


def test_the_best_of_several_is_chosen_before_it_is_judged(log: Path) -> None:
    found, _ = run("--log", str(log), "--policy", "tetris", "--policy", "load-balance")
    assert [one["candidate"] for one in found["candidates"]] == ["load-balance"]
    assert found["compared"] == ["tetris", "load-balance"]


def test_decisions_on_which_two_policies_agree_say_nothing_of_their_difference(log: Path) -> None:
    found, _ = run("--log", str(log), "--policy", "tetris")
    support = found["candidates"][0]["support"]
    assert support["differing"] == pytest.approx(support["decisions"] / 2, abs=1)


def test_a_log_without_exploration_is_refused_with_its_numbers(tmp_path: Path) -> None:
    decisions = [
        decision(
            i,
            [
                alternative(f"j{i}", ("n1", "n1"), True, 1.0, 1.0, consolidate=1.0),
                alternative(f"j{i}", ("n1", "n2"), False, 0.0, 0.0, **{"load-balance": 1.0}),
            ],
        )
        for i in range(600)
    ]
    write(tmp_path, decisions, [outcome(i, 1.0) for i in range(600)])
    found, code = run("--log", str(tmp_path), "--policy", "load-balance")
    assert code == 5
    names = [reason["name"] for reason in found["candidates"][0]["refusals"]]
    assert names == ["NO_EXPLORATION", "WITHOUT_SUPPORT", "LOW_ESS"]
    assert found["candidates"][0]["estimates"] == []
    done = RUNNER.invoke(evaluate_app, ["--log", str(tmp_path), "--policy", "load-balance"])
    assert "refused, WITHOUT_SUPPORT: the log could not have held 100.0% of the candidate's placements" in done.stdout


def test_candidates_of_a_log_are_counted_whatever_folder_the_reports_go_to(tmp_path: Path) -> None:
    log, out = write(tmp_path / "log", *explored(COUNT, gain=0.2)), tmp_path / "report"
    first, _ = run("--log", str(log), "--policy", "load-balance")
    assert (first["tried"], first["log"]["judged_before"]) == (1, "no")
    again, _ = run("--log", str(log), "--policy", "load-balance", "--out", str(tmp_path / "other"))
    assert again["tried"] == 1, "the same test"
    assert again["candidates"] == first["candidates"]
    assert again["log"]["judged_before"] != "no"
    found, _ = run("--log", str(log), "--policy", "tetris", "--out", str(out))
    assert (found["tried"], found["log"]["judgements_kept"]) == (2, "with the log")
    assert json.loads((out / "evaluation.json").read_text("utf-8")) == found
    assert "<svg" in (out / "evaluation.html").read_text("utf-8")
    (one,) = found["candidates"]
    p_value = {row["estimator"]: row for row in one["estimates"]}["doubly_robust"]["p_value"]
    assert one["adjusted_p"] == pytest.approx(min(1.0, 2 * p_value))
    copy = shutil.copytree(log, tmp_path / "copy")
    assert run("--log", str(copy), "--policy", "consolidate")[0]["tried"] == 3, "the record goes with the log"


def test_a_candidate_is_judged_once_on_a_stretch(tmp_path: Path) -> None:
    log = write(tmp_path / "log", *explored(COUNT, gain=0.2))
    run("--log", str(log), "--policy", "load-balance")
    for path in log.glob("joined/*/*.parquet"):
        table = pq.ParquetFile(path).read()
        pq.write_table(table.append_column("reward_60min", table.column(REWARD)), path)
    with pytest.raises(NothingToEvaluateError, match=r"JUDGED_BEFORE: load-balance was .* with reward reward_20min"):
        run("--log", str(log), "--policy", "load-balance", "--reward", "reward_60min", "--out", str(tmp_path / "b"))
    found, _ = run("--log", str(log), "--policy", "load-balance", "--block-min", "90")
    assert found["tried"] == 2, "of another stretch with much of the same time: another look"


def test_a_log_that_cannot_be_written_is_counted_in_the_reports_folder_and_the_report_says_so(
    tmp_path: Path,
) -> None:
    log, out = write(tmp_path / "log", *explored(COUNT, gain=0.2)), tmp_path / "report"
    manifest = LogManifest.of(log, {"c": "7-0"}, 1.0, LogManifest(), dropped={}, host_times_s={})
    (log / MANIFEST).write_text(manifest.text())
    (log / "judged.jsonl").mkdir()  # root writes wherever it likes, but not into a folder's place
    alone, _ = run("--log", str(log), "--policy", "tetris")
    assert alone["log"]["judgements_kept"].startswith("nowhere, as the folder of the log cannot be written")
    for policy, tried in (("load-balance", 1), ("tetris", 2)):
        found, _ = run("--log", str(log), "--policy", policy, "--out", str(out))
        assert found["tried"] == tried
        assert found["log"]["judgements_kept"].startswith("in the folder of this report alone")
    assert "in the folder of this report alone" in (out / "evaluation.html").read_text("utf-8")
    other = write(tmp_path / "second", *explored(COUNT, gain=0.2, seed=2))
    assert run("--log", str(other), "--policy", "consolidate", "--out", str(out))[0]["tried"] == 1


def test_the_report_names_its_log_by_the_digest_of_the_manifest(tmp_path: Path) -> None:
    log, out = write(tmp_path / "log", *explored(COUNT, gain=0.2)), tmp_path / "report"
    command = ["--log", str(log), "--policy", "load-balance"]
    assert run(*command)[0]["log"]["digest"] == ""
    assert f"Log: {log}, without a manifest" in RUNNER.invoke(evaluate_app, command).stdout.splitlines()
    manifest = LogManifest.of(log, {"c": "7-0"}, 1.0, LogManifest(), dropped={}, host_times_s={})
    (log / MANIFEST).write_text(manifest.text())
    found, _ = run(*command, "--out", str(out))
    assert found["log"]["digest"] == LogManifest.read(log).digest == manifest.digest
    assert json.loads((out / "evaluation.json").read_text("utf-8")) == found
    assert manifest.digest in (out / "evaluation.html").read_text("utf-8")
    assert f"Log: {log}, digest {manifest.digest}" in RUNNER.invoke(evaluate_app, command).stdout.splitlines()
    (log / MANIFEST).write_text("{")
    with pytest.raises(LogError, match="no manifest of a log"):
        run(*command)


def test_jobs_that_cannot_be_used_are_counted_by_reason(tmp_path: Path) -> None:
    decisions, outcomes = explored(COUNT, gain=0.0)
    outcomes[3] = outcome(3, None, status="OPEN")
    outcomes[5] = outcome(5, 1.0, is_overridden=True)
    decisions[7]["alternatives"][0]["propensity"] = None
    for at, propensity in ((15, 1.5), (17, -0.1), (19, float("nan"))):
        decisions[at]["alternatives"][0]["propensity"] = propensity
    for each in decisions[21]["alternatives"]:
        each["propensity"] = 0.0 if each["is_chosen"] else 1.0
    decisions[9]["is_dry_run"] = True
    decisions[11]["shadow_of"] = "d10"
    decisions[13]["alternatives"][0]["own_propensity"] = 0.5
    found, _ = run("--log", str(write(tmp_path, decisions, outcomes)), "--policy", "load-balance")
    assert found["log"]["left_out"] == {
        "without a reward (OPEN)": 1,
        "of unknown mixture": 1,
        "of a propensity outside (0, 1]": 4,
        "of a policy in force whose other placements are not known": 1,
    }
    assert found["log"]["overridden"] == 1


def test_a_policy_that_was_never_asked_is_named(log: Path) -> None:
    done = RUNNER.invoke(evaluate_app, ["--log", str(log), "--policy", "best"])
    assert str(done.exception) == (
        "best was asked about no decision of this log; asked were consolidate, load-balance, tetris"
    )


def test_another_column_than_a_reward_judges_nothing(log: Path) -> None:
    done = RUNNER.invoke(evaluate_app, ["--log", str(log), "--policy", "tetris", "--reward", "slowdown"])
    assert done.exit_code == 2
    assert "reward_20min" in done.output


def test_too_short_a_log_is_refused(tmp_path: Path) -> None:
    write(tmp_path, *explored(30, gain=0.1))
    done = RUNNER.invoke(evaluate_app, ["--log", str(tmp_path), "--policy", "load-balance"])
    assert "covers 1 blocks of time, 8 are needed" in str(done.exception)
    assert done.exception.exit_code == 5  # type: ignore[union-attr]


def test_no_log_an_older_one_and_a_damaged_one_are_named(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"decisions does not exist: `placewise log export"):
        run("--log", str(tmp_path), "--policy", "x")
    write(tmp_path, *explored(30, gain=0.1), reward="reward_7min")
    with pytest.raises(LogError, match=r"joined.*parquet: has no column reward_20min"):
        run("--log", str(tmp_path), "--policy", "x")
    damaged = next((tmp_path / "decisions").rglob("*.parquet"))
    damaged.write_bytes(damaged.read_bytes()[:-200])
    with pytest.raises(LogError) as found:
        run("--log", str(tmp_path), "--policy", "x")
    assert "decisions.parquet" in str(found.value)
    assert "\n" not in str(found.value)
