"""The reproduction harness: pairing, partial results, verdicts, JSON, plots, document, on a paper made up here."""

import json
import math
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.callers.foreground import foreground
from typer.testing import CliRunner

from placewise_training.cli import UsageError
from placewise_training.lab import origin
from placewise_training.lab.register import INTERRUPTED
from placewise_training.reproduce import document, plots, registry, report, runner
from placewise_training.reproduce.claims import (
    Claim,
    ClaimVerdict,
    Judgement,
    judge_change,
    judge_not_worse,
    judged,
    verdict_by_low,
    verdict_of,
)
from placewise_training.reproduce.command import reproduce_app
from placewise_training.reproduce.design import Experiment, Metric, NeedsBundleError, TrialOutcome
from placewise_training.reproduce.paper import Paper
from placewise_training.reproduce.results import Results
from placewise_training.sim.statistics import Estimate

PUBLISHED = Path(__file__).parents[2] / "docs" / "reproduction"
PLAIN = {"fifo-strict", "fifo-strict, consolidate", "consolidate, shortest first"}
TIMES = Metric("time", "time", "min", scale=1 / 60)


def trial(setting: str, method: str, seed: int) -> TrialOutcome:
    """Ours is half of theirs, under noise that the seed gives to both."""
    if method == "learned":
        raise NeedsBundleError("needs a bundle")
    noise = 1.0 + 0.3 * seed
    return TrialOutcome(
        {"time": 60.0 * float(setting) * noise * (0.5 if method == "ours" else 1.0)}, {"c": ([0, 1], [1, 2])}
    )


def experiment(**changes: Any) -> Experiment:
    settings: dict[str, Any] = {
        "key": "e",
        "title": "times",
        "source": "Fig. 1",
        "settings": ("1", "2"),
        "methods": ("ours", "theirs", "learned"),
        "metrics": (TIMES,),
        "trial": trial,
        "theirs": {("1", "ours", "time"): 0.4},
    }
    return Experiment(**{**settings, **changes})


def paper(*experiments: Experiment, at_most: float = -0.4) -> Paper:
    claims = (
        Claim("half", "it takes less", "−40 %", judge_change("e", ["1", "2"], "time", "ours", ["theirs"], at_most)),
        Claim("learned", "learned is better", "−50 %", judge_change("e", ["1"], "time", "learned", ["theirs"], -0.5)),
    )
    return Paper("made-up", "A paper made up", experiments or (experiment(),), claims)


def ran(made: Paper, seeds: int = 3) -> Results:
    return runner.run(made, range(seeds))


def test_changes_are_paired_so_that_common_noise_cancels() -> None:
    change = ran(paper()).change("e", ["1", "2"], "time", "ours", "theirs")
    assert change.mean == pytest.approx(-0.5)
    assert change.half_width == pytest.approx(0.0, abs=1e-12)
    assert change.count == 3


def test_a_learned_method_without_a_bundle_is_named_not_dropped() -> None:
    made = paper()
    results = ran(made)
    assert judged(made.claims[1], results).verdict is ClaimVerdict.NEEDS_BUNDLE
    rows = report.as_json(made, results, is_quick=False)["experiments"][0]["rows"]
    assert [row["missing"] for row in rows if row["method"] == "learned"] == ["needs a bundle"] * 2


def test_a_method_that_came_later_is_run_alone_and_the_rest_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[str, int]] = []

    def watched(setting: str, method: str, seed: int) -> TrialOutcome:
        asked.append((method, seed))
        return trial(setting, method, seed)

    def asks_for(*methods: str, seeds: int = 2, options: tuple[str, ...] = ()) -> dict[str, Any]:
        asked.clear()
        made = paper(experiment(methods=methods, trial=watched))
        monkeypatch.setattr(registry, "load", lambda name, **options: made)
        arguments = ["qos", "--json", "--out", str(tmp_path), "--seeds", str(seeds), *options]
        result = CliRunner().invoke(reproduce_app, arguments)
        assert result.exit_code == 0, result.output
        return dict(json.loads(result.stdout))

    asks_for("theirs")
    both = asks_for("ours", "theirs", options=("--resume",))
    assert asked == [("ours", 0), ("ours", 0), ("ours", 1), ("ours", 1)]
    assert (both["sittings"], both["claims"][0]["verdict"]) == (2, ClaimVerdict.REPRODUCED)
    assert [sorted(each) for each in both["origins"]] == [["command", "commit"]] * 2
    once = asks_for("ours", "theirs")
    assert once["sittings"] == 1
    assert both["experiments"] == once["experiments"]
    assert both["claims"] == once["claims"]
    asks_for("ours", "theirs", seeds=3, options=("--resume",))
    assert {seed for _, seed in asked} == {2}
    kept = json.loads((tmp_path / "made-up.json").read_text())
    del kept["experiments"][0]["rows"][0]["metrics"]["time"]["values"]
    (tmp_path / "made-up.json").write_text(json.dumps(kept))
    asks_for("ours", "theirs", options=("--resume",))
    assert asked == [("ours", 0), ("ours", 1)], "each seed's result is missing"
    assert CliRunner().invoke(reproduce_app, ["qos", "--resume"]).exit_code != 0


def test_what_is_kept_of_a_seed_is_all_of_it() -> None:
    """Four figures would turn differences of a thousandth, of which paired changes consist, into steps."""

    def close(setting: str, method: str, seed: int) -> TrialOutcome:
        return TrialOutcome({"time": 12345.678901234567 + (0.25 if method == "ours" else 0.0) + seed / 3.0})

    made = paper(experiment(trial=close, methods=("ours", "theirs")))
    results = ran(made)
    read = report.from_json(made, json.loads(json.dumps(report.as_json(made, results, is_quick=False))))
    for cell, kept in results.runs.items():
        for seed, outcome in kept.items():
            assert read.runs[cell][seed].values["time"] == pytest.approx(outcome.values["time"], rel=1e-15)
    before, after = (found.change("e", ["1", "2"], "time", "ours", "theirs") for found in (results, read))
    assert after.mean == pytest.approx(before.mean, rel=1e-9)


def test_verdicts_follow_mean_and_interval() -> None:
    assert verdict_of(Estimate(-0.5, 0.1, 5), -0.4) is ClaimVerdict.REPRODUCED
    assert verdict_of(Estimate(-0.3, 0.1, 5), -0.4) is ClaimVerdict.PARTLY
    assert verdict_of(Estimate(-0.3, 0.4, 5), -0.4) is ClaimVerdict.NOT
    assert verdict_of(Estimate(-0.5, 0.6, 5), -0.4) is ClaimVerdict.NOT
    assert verdict_of(Estimate(0.1, 0.0, 5), -0.4) is ClaimVerdict.NOT


def test_a_claim_is_judged_by_its_target_and_direction() -> None:
    results = ran(paper())
    assert judged(paper().claims[0], results).verdict is ClaimVerdict.REPRODUCED
    assert judged(paper(at_most=-0.6).claims[0], results).verdict is ClaimVerdict.PARTLY
    higher = judge_change("e", ["1"], "time", "theirs", ["ours"], 0.9, is_lower_better=False)
    assert higher(results).verdict is ClaimVerdict.REPRODUCED
    assert judge_not_worse("e", ["1"], "time", "theirs", ["ours"], 0.05)(results).verdict is ClaimVerdict.NOT
    assert judge_not_worse("e", ["1"], "time", "ours", ["theirs"], 0.05)(results).verdict is ClaimVerdict.REPRODUCED


def test_interruption_leaves_whole_rounds_first_and_says_so() -> None:
    calls: list[tuple[str, str, int]] = []

    def stopping(setting: str, method: str, seed: int) -> TrialOutcome:
        calls.append((setting, method, seed))
        if len(calls) == 6:
            raise KeyboardInterrupt
        return TrialOutcome({"time": 1.0})

    made = paper(experiment(methods=("ours", "theirs"), trial=stopping))
    results = ran(made)
    found = report.as_json(made, results, is_quick=False)
    assert found["partial"]
    assert found["stopped"] == runner.INTERRUPTED
    assert [seed for _, _, seed in calls] == [0, 0, 0, 0, 1, 1]
    assert [row["metrics"]["time"]["seeds"] for row in found["experiments"][0]["rows"]] == [2, 1, 1, 1]


def test_results_are_kept_after_each_experiment_of_a_round() -> None:
    kept: list[int] = []
    made = paper(experiment(), experiment(key="f", methods=("ours",)))
    runner.run(made, range(2), keep=lambda results: kept.append(sum(map(len, results.runs.values()))))
    assert kept == [4, 6, 10]  # not after the last, which is the caller's


def test_ctrl_c_leaves_a_partial_file_that_replaces_no_whole_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A real SIGINT in the middle of the command."""
    calls: list[str] = []

    def stopping(setting: str, method: str, seed: int) -> TrialOutcome:
        calls.append(method)
        if len(calls) == 4:
            signal.raise_signal(signal.SIGINT)
        return TrialOutcome({"time": 60.0 + 60.0 * seed})

    made = paper(experiment(methods=("ours", "theirs"), trial=stopping))
    monkeypatch.setattr(registry, "load", lambda name, **options: made)
    (tmp_path / "made-up.json").write_text("{}")
    with foreground():
        result = CliRunner().invoke(reproduce_app, ["qos", "--out", str(tmp_path), "--json"])
    assert result.exit_code == INTERRUPTED
    printed = json.loads(result.stdout)
    assert printed == json.loads((tmp_path / "made-up.partial.json").read_text())
    assert (printed["partial"], printed["stopped"]) == (True, runner.INTERRUPTED)
    cells = [row["metrics"].get("time", {}).get("values") for row in printed["experiments"][0]["rows"]]
    assert cells == [{"0": 1.0}, {"0": 1.0}, {"0": 1.0}, None]
    assert (tmp_path / "made-up.json").read_text() == "{}"


def test_what_is_done_is_kept_on_the_way_and_gone_when_all_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A process that is killed leaves its whole rounds."""
    kept: list[Any] = []

    def looking(setting: str, method: str, seed: int) -> TrialOutcome:
        path = tmp_path / "made-up.partial.json"
        kept.append(json.loads(path.read_text()) if path.exists() else None)
        return TrialOutcome({"time": 60.0})

    made = paper(experiment(settings=("1",), methods=("ours", "theirs"), trial=looking))
    monkeypatch.setattr(registry, "load", lambda name, **options: made)
    result = CliRunner().invoke(reproduce_app, ["qos", "--out", str(tmp_path), "--seeds", "2", "--json"])
    assert result.exit_code == 0, result.output
    assert [found and found["stopped"] for found in kept] == [None, None, runner.UNFINISHED, runner.UNFINISHED]
    assert kept[2]["experiments"][0]["rows"][1]["metrics"]["time"]["seeds"] == 1
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".png"]
    assert not json.loads((tmp_path / "made-up.json").read_text())["partial"]


def test_an_interrupted_resume_keeps_the_rows_of_every_seed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A method that came later is run from the first seed on, before the other seeds' rows are met again."""

    def stopping(setting: str, method: str, seed: int) -> TrialOutcome:
        if method == "ours" and seed == 1:
            raise KeyboardInterrupt
        return trial(setting, method, seed)

    def asks_for(*methods: str) -> dict[str, Any]:
        made = paper(experiment(settings=("1",), methods=methods, trial=stopping))
        monkeypatch.setattr(registry, "load", lambda name, **options: made)
        arguments = ["qos", "--json", "--out", str(tmp_path), "--seeds", "3", "--resume"]
        return dict(json.loads(CliRunner().invoke(reproduce_app, arguments).stdout))

    asks_for("theirs")
    interrupted = asks_for("ours", "theirs")
    assert interrupted["stopped"] == runner.INTERRUPTED
    rows = {row["method"]: row["metrics"]["time"]["values"] for row in interrupted["experiments"][0]["rows"]}
    assert {method: list(values) for method, values in rows.items()} == {"ours": ["0"], "theirs": ["0", "1", "2"]}


@pytest.mark.parametrize("option", ["--bundle", "--variants"])
def test_nothing_that_learnt_from_a_log_is_compared(tmp_path: Path, option: str) -> None:
    """The log might be one of the judge's."""
    report_of_net = tmp_path / "all-techniques" / "0" / "policy.json"
    report_of_net.parent.mkdir(parents=True)
    report_of_net.write_text('{"log": {"where": "build/log"}}')
    result = CliRunner().invoke(reproduce_app, ["harmony", "--quick", option, str(tmp_path)])
    assert isinstance(result.exception, UsageError)
    assert str(result.exception).startswith(f"{report_of_net}: learnt from a log")
    report_of_net.write_text("{")
    result = CliRunner().invoke(reproduce_app, ["harmony", "--quick", option, str(tmp_path)])
    assert str(result.exception).startswith(f"{report_of_net}: ")


def test_the_time_limit_ends_a_run_as_partial_and_its_claims_as_not_measured() -> None:
    made = paper()
    results = runner.run(made, range(2), limit_s=-1.0)
    found = report.as_json(made, results, is_quick=True)
    assert found["stopped"] == runner.OUT_OF_TIME
    assert {claim["verdict"] for claim in found["claims"]} == {ClaimVerdict.NOT_MEASURED.value}


def test_what_has_no_seed_runs_once() -> None:
    results = ran(paper(experiment(is_seeded=False)))
    assert results.estimate("e", "1", "ours", "time").count == 1
    assert runner.trial_count(paper(experiment(is_seeded=False)), 3) == 6


def test_an_experiment_may_ask_for_more_seeds_than_the_others() -> None:
    made = paper(experiment(methods=("ours", "theirs")), experiment(key="fresh", methods=("ours",), least_seeds=4))
    results = ran(made, 2)
    assert results.estimate("e", "1", "ours", "time").count == 2
    assert results.estimate("fresh", "1", "ours", "time").count == 4
    assert runner.trial_count(made, 2) == 2 * 2 * 2 + 4 * 2
    assert runner.trial_count(made, 5) == 5 * 2 * 2 + 5 * 2


def test_results_are_judged_again_by_the_criteria_of_today(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A stricter criterion changes the verdict of results that are there, and nothing else."""
    old, new = paper(), paper(at_most=-0.6)
    found = {**report.as_json(old, ran(old), is_quick=False), "paper": "heat"}
    (tmp_path / "heat.json").write_text(json.dumps(found), encoding="utf-8")
    monkeypatch.setattr(document, "load", lambda name, **options: new)
    made = CliRunner().invoke(reproduce_app, ["docs", "--out", str(tmp_path)])
    assert isinstance(made.exception, UsageError)
    assert "--rejudge" in str(made.exception)
    made = CliRunner().invoke(reproduce_app, ["docs", "--out", str(tmp_path), "--rejudge"])
    assert made.exit_code == 0, made.output
    kept = json.loads((tmp_path / "heat.json").read_text())
    assert [claim["verdict"] for claim in kept["claims"]] == [ClaimVerdict.PARTLY, ClaimVerdict.NEEDS_BUNDLE]
    assert kept["experiments"] == found["experiments"]
    assert kept["origins"] == found["origins"]
    assert f"by the criteria of commit {kept['criteria']}" in tmp_path.with_suffix(".md").read_text()
    settled = {**kept, "criteria": "0123456789ab"}
    assert document.rejudged(settled, "another") == settled, "nothing to judge"


def test_results_on_other_seeds_keep_their_verdict_say_so_and_are_run_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They are never taken for those of today's seeds."""
    old, new = (paper(experiment(first_seed=first), experiment(key="as before")) for first in (0, 90_000))
    found = {**report.as_json(old, ran(old), is_quick=False), "paper": "heat"}
    assert {key for key, _, _ in report.from_json(old, found).runs} == {"e", "as before"}
    assert {key for key, _, _ in report.from_json(new, found).runs} == {"as before"}
    monkeypatch.setattr(document, "load", lambda name, **options: new)
    assert document.rejudged(found, "another") == found
    before, shown = found["claims"][0], document.worded(found)["claims"][0]
    assert (shown["verdict"], shown["ours"]) == (before["verdict"], before["ours"])
    assert shown["why"].endswith("**Judged on the seeds of that run.** Today's seeds were not run yet.")
    again = {**report.as_json(new, ran(new), is_quick=False), "paper": "heat"}
    assert "seeds of that run" not in document.worded(again)["claims"][0]["why"]


def test_criteria_of_changed_code_are_named_by_their_commit_once_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made = paper()
    found = {**report.as_json(made, ran(made), is_quick=False), "paper": "heat", "criteria": "0123456789ab+"}
    monkeypatch.setattr(document, "load", lambda name, **options: made)
    assert document.rejudged(found, "another")["criteria"] == "another"


def test_a_gain_is_judged_by_the_lower_end_of_its_interval() -> None:
    assert verdict_by_low(Estimate(0.5, 0.1, 5), 0.4) is ClaimVerdict.REPRODUCED
    assert verdict_by_low(Estimate(0.5, 0.2, 5), 0.4) is ClaimVerdict.PARTLY
    assert verdict_by_low(Estimate(0.5, 0.6, 5), 0.4) is ClaimVerdict.NOT


def test_nothing_that_is_not_finite_gets_into_a_table() -> None:
    with pytest.raises(ValueError, match="e/1/ours, seed 0: not finite: time"):
        ran(paper(experiment(trial=lambda *_: TrialOutcome({"time": math.nan}))))


def test_a_broken_judge_of_a_whole_run_is_a_defect_and_not_a_verdict() -> None:
    def broken(results: Results) -> Judgement:
        raise IndexError("judge")

    claim = Claim("k", "t", "p", broken)
    with pytest.raises(IndexError):
        judged(claim, Results())
    assert judged(claim, Results(stopped=runner.INTERRUPTED)).verdict is ClaimVerdict.NOT_MEASURED


def test_json_holds_ours_in_the_unit_shown_and_theirs_beside_it() -> None:
    made = paper()
    found = json.loads(json.dumps(report.as_json(made, ran(made), is_quick=False), allow_nan=False))
    row = found["experiments"][0]["rows"][0]
    assert row["metrics"]["time"]["ours"] == pytest.approx(0.65)  # half of a minute, times 1, 1.3 and 1.6
    assert row["metrics"]["time"]["theirs"] == 0.4
    assert row["curves"] == {"c": [[0.0, 1.0], [1.0, 2.0]]}


@pytest.mark.parametrize("kind", ["bars", "lines", "curves"])
def test_plots_are_pictures(tmp_path: Path, kind: str) -> None:
    made = paper(experiment(plot=kind))
    (path,) = plots.draw(report.as_json(made, ran(made), is_quick=False), tmp_path)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_the_document_is_made_of_the_json_alone(tmp_path: Path) -> None:
    made = paper()
    found = report.as_json(made, ran(made), is_quick=False)
    (tmp_path / "heat.json").write_text(json.dumps({**found, "paper": "heat"}), encoding="utf-8")
    text = document.markdown(document.read_reports(tmp_path), tmp_path, "reproduction")
    assert "| heat | it takes less | −40 % | -50.0" in text
    assert "**needs a bundle**" in text
    assert "0.65 ± 0.37 [0.4]" in text
    assert "Quick mode" not in text


def test_the_document_names_the_command_and_the_commit(tmp_path: Path) -> None:
    made = paper()
    found = {**report.as_json(made, ran(made), is_quick=False), "paper": "heat"}
    (tmp_path / "heat.json").write_text(json.dumps(found), encoding="utf-8")
    unrecorded = document.markdown(document.read_reports(tmp_path), tmp_path, "reproduction")
    assert "The commit that made these figures was not recorded." in unrecorded
    found["origins"] = [{"command": "placewise reproduce heat", "commit": "0123456789ab"}]
    (tmp_path / "heat.json").write_text(json.dumps(found), encoding="utf-8")
    text = document.markdown(document.read_reports(tmp_path), tmp_path, "reproduction")
    assert "Made by `placewise reproduce heat` at commit 0123456789ab." in text


def test_code_that_was_changed_is_no_commit(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        subprocess.run(command, check=True, capture_output=True)

    assert origin._commit(tmp_path / "none") == origin.UNKNOWN
    (tmp_path / "service").mkdir()
    for name in ("service/a.py", "notes.md"):
        (tmp_path / name).write_text("1\n")
    git("init")
    git("add", ".")
    git("commit", "-m", "one")
    clean = origin._commit(tmp_path)
    (tmp_path / "notes.md").write_text("2\n")
    assert origin._commit(tmp_path) == clean
    (tmp_path / "service/a.py").write_text("2\n")
    assert origin._commit(tmp_path) == f"{clean}+"


def test_the_document_refuses_other_json(tmp_path: Path) -> None:
    (tmp_path / "heat.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match=r"heat\.json: not a placewise\.reproduction/1 file"):
        document.read_reports(tmp_path)


@pytest.mark.parametrize("name", ["proteus", "qos", "heat", "combined"])
def test_every_paper_names_distinct_experiments_and_quick_is_smaller(name: str) -> None:
    quick, full = registry.load(name, is_quick=True), registry.load(name, is_quick=False)
    keys = [e.key for e in full.experiments]
    assert len(set(keys)) == len(keys)
    assert [e.key for e in quick.experiments] == keys
    assert runner.trial_count(quick, 2) < runner.trial_count(full, 5)
    assert all(set(q.methods) == set(f.methods) for q, f in zip(quick.experiments, full.experiments, strict=True))


def test_an_unknown_paper_is_named_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"no paper is called 'nobody'; there are: .*proteus"):
        registry.load("nobody", is_quick=True)


def test_the_published_document_has_the_figures_of_its_json_and_the_words_of_the_code() -> None:
    reports = [document.worded(found) for found in document.read_reports(PUBLISHED)]
    text = PUBLISHED.with_suffix(".md").read_text(encoding="utf-8")
    assert document.markdown(reports, PUBLISHED, PUBLISHED.name) == text, "run `placewise reproduce docs`"


@pytest.mark.parametrize("name", ["verdict", "ours"])
def test_words_of_the_code_change_no_verdict_and_no_figure(name: str) -> None:
    [found] = [found for found in document.read_reports(PUBLISHED) if found["paper"] == "iawp"]
    other = {**found["claims"][0], name: "97 %", "why": "old words"}
    words = document.worded({**found, "claims": [{**found["claims"][0], "why": "old words"}]})
    made = registry.load("iawp", is_quick=False)
    assert words["claims"] == [report.claim_as_json(made.claims[0], report.from_json(made, found))]
    with pytest.raises(ValueError, match=r"as .*, the JSON holds '97 %'"):
        document.worded({**found, "claims": [other]})


def test_every_published_verdict_says_why() -> None:
    for found in document.read_reports(PUBLISHED):
        assert found["claims"]
        for claim in found["claims"]:
            assert len(claim["why"]) > 10, (found["paper"], claim["key"])


def test_consolidation_and_shortest_first_are_in_every_table_of_methods() -> None:
    """Wherever schedulers are compared, that is; elsewhere rows are models, counts of units or forms of one method."""
    unlike = {
        "harmony": {"fig13", "fig13-printed", "fig1", "fig2", "fig4", "fig5"},
        "ldwp": {"convergence"},
        "iawp": {"metrics", "convergence", "width"},
        "proteus": {"v_sweep", "alpha", "comm", "table_1"},
        "qos": {"completions", "model_error"},
        "heat": {"threshold", "units", "split"},
    }
    for found in document.read_reports(PUBLISHED):
        for compared in found["experiments"]:
            if compared["key"] in unlike.get(found["paper"], ()):
                continue
            methods = {row["method"] for row in compared["rows"]}
            name = (found["paper"], compared["key"], methods)
            # The elastic papers place everything by consolidation: their plain one is FIFO.
            assert any(m.startswith("consolidate") or m in PLAIN for m in methods), name
            assert any("shortest first" in m for m in methods), name


@pytest.mark.parametrize("name", registry.PAPERS)
def test_every_claim_has_a_verdict_wherever_a_run_ends(name: str, tmp_path: Path) -> None:
    """`--quick` and Ctrl-C end a run after any experiment: the rows that exist are judged, the rest is not measured."""
    options = {"variants": tmp_path} if name == registry.ABLATIONS else {}
    real = registry.load(name, is_quick=True, **options)

    def trial_of(each: Experiment) -> Experiment:
        return replace(each, trial=lambda setting, method, seed: TrialOutcome({m.name: 1.0 for m in each.metrics}))

    made = replace(real, experiments=tuple(trial_of(each) for each in real.experiments))
    ends = 0

    def keep(results: Results) -> None:
        nonlocal ends
        ends += 1
        assert all(judged(claim, results).verdict for claim in made.claims)

    keep(Results(stopped=runner.OUT_OF_TIME))
    keep(runner.run(made, range(1), keep=keep))
    assert ends == len(made.experiments) + 1
