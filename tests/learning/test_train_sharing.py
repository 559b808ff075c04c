"""Completed co-runs: the rows of measured pairs, what four numbers learn from them, and the run as a whole."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from placewise_core.domain.model_names import canonical
from placewise_core.speed.sharing_row import columns_of
from placewise_models.session import ModelError
from placewise_models.sharing import SharingRuntime
from placewise_training.data.measured import GpuPair
from placewise_training.data.placement_tables import usable_pairs
from placewise_training.sharing import judge_own, own_models
from placewise_training.sharing import train as train_sharing
from placewise_training.sharing.card import card
from placewise_training.sharing.data import (
    CPU_CORES,
    as_row,
    as_speeds,
    examples,
    profiled_jobs,
    shared_jobs,
    table_of,
    without_jobs,
    without_networks,
)
from placewise_training.sharing.export import export_sharing, graph_of
from placewise_training.sharing.net import CoRunCompletion
from placewise_training.sharing.train import Args, complete, fit, folds, load_net, train
from placewise_training.stdm.completion import holes

QUICK = Args(steps=150, draws=2)


def mean_error(found: np.ndarray, asked: train_sharing.Questions) -> float:
    return float(np.abs(found - asked.true)[holes(asked.true, asked.known)].mean())


def pair(a: str, batch_a: float, b: str, batch_b: float, own: float, other: float) -> GpuPair:
    return GpuPair("gavel_oracle_v1", "V100", a, batch_a, b, batch_b, own, other)


def test_a_job_is_seen_from_both_sides_and_beside_itself() -> None:
    pairs = [pair("LM", 5, "ResNet-18", 16, 0.6, 0.7), pair("LM", 10, "LM", 5, 0.5, 0.4)]
    jobs = {(job.network, job.batch): job for job in shared_jobs(pairs, ("lm", "resnet18"))}
    small, large = jobs["lm", 5.0], jobs["lm", 10.0]
    np.testing.assert_array_equal(small.pairs[:, 0], [[0.4, 0.5], [0.6, 0.7], [0.4, 0.5]])
    np.testing.assert_array_equal(large.pairs[:, 0], [[0.5, 0.4], [np.nan, np.nan], [0.5, 0.4]])
    np.testing.assert_array_equal(jobs["resnet18", 16.0].pairs[:, 0], [[0.7, 0.6], [np.nan, np.nan], [np.nan, np.nan]])
    np.testing.assert_array_equal(small.batches, [1, 1, 1])
    assert (small.step_s < large.step_s, small.hardware) == (True, "V100")


def test_rows_and_speeds_are_inverse() -> None:
    job = shared_jobs(usable_pairs(), table_of(usable_pairs()).references)[3]
    row = as_row(job.pairs[:, 0], np.array(2.0))
    again = as_speeds(row)
    np.testing.assert_array_equal(again[:, 0], job.pairs[:, 0, 0])
    np.testing.assert_array_equal(again[:-1, 1], job.pairs[:-1, 0, 1])
    assert row[-1] == 2.0


def test_what_is_held_back_is_in_no_history() -> None:
    pairs = usable_pairs()
    kept = without_networks(pairs, {"lm"})
    assert "lm" in table_of(pairs).references
    assert "lm" not in {canonical(name) for p in kept for name in (p.model_a, p.model_b)}
    job = ("resnet18", 64.0)
    rest = without_jobs(pairs, {job})
    assert job not in {(j.network, j.batch) for j in shared_jobs(rest, ("lm",))}
    assert len(kept) < len(pairs) > len(rest)


def test_the_profilers_loops_are_rows_too() -> None:
    loops = {job.network: job for job in profiled_jobs(("lm", "resnet18"))}
    assert set(loops) == {"resnet18", "lm", "transformer", "recommendation", "input_bound"}
    beside = loops["input_bound"].pairs[:2, 0]
    assert ((beside > 0.4) & (beside < 0.55)).all(), "about half, as both have half of the cores"
    learnt = examples(usable_pairs())
    assert len(learnt.speeds) == len(examples(usable_pairs(), has_profiled=False).speeds) + len(loops)


def test_a_co_run_moves_the_row_and_longer_steps_do() -> None:
    net = CoRunCompletion(2).eval()
    with torch.no_grad():
        net.steps.copy_(torch.tensor([0.5, -0.5]))
    prior = np.array([[0.5, 0.6, 0.5, 0.6, 0.5, 1.0]])
    nothing = np.full((1, 6), np.nan)
    np.testing.assert_allclose(complete(net, prior, nothing), prior, atol=1e-6)
    known = nothing.copy()
    known[0, 0], known[0, 2] = 0.8, 0.5  # faster than assumed beside the first; its partner as fast
    found = complete(net, prior, known)[0]
    assert (found[0], found[2]) == pytest.approx((0.8, 0.5))
    assert found[1] == pytest.approx(1 / (1 + (1 / 0.6 - 1) * 0.5)), "a quarter of the extra time, half believed"
    assert found[3] == pytest.approx(0.6)
    longer = nothing.copy()
    longer[0, -1] = np.e**2
    found = complete(net, prior, longer)[0]
    assert found[:5] == pytest.approx([0.731, 0.803, 0.269, 0.356, 0.731], abs=1e-3)


def test_questions_about_own_models_hold_back_what_they_ask_for() -> None:
    """No name of the question is in the history, nor a pair that is asked for among the known ones."""
    for case in own_models.CASES:
        for is_in_table in (True, False):
            asked = own_models.questions(case, "V100", 2, is_in_table=is_in_table, draws=1, seed=0)
            assert bool(asked) == (case != "together" or not is_in_table)
            for question in asked:
                hidden = {name for pair in question.known for name in (pair.one, pair.other) if name.startswith("x")}
                there = {canonical(name) for p in question.history for name in (p.model_a, p.model_b)}
                assert question.network not in there
                assert any(p.gpu_type == "V100" for p in question.history) == is_in_table
                known = {frozenset((pair.one, pair.other)) for pair in question.known}
                assert not known & {frozenset((pair.one, pair.other)) for pair in question.asked}
                assert len(own_models.own_known(question)) == 2
                if case in ("alone", "mixed"):
                    assert not {name[:0:-1] for name in hidden} & there
    again = own_models.questions("mixed", "K80", 1, is_in_table=True, draws=1, seed=0)
    assert again == own_models.questions("mixed", "K80", 1, is_in_table=True, draws=1, seed=0)


def test_training_finds_what_is_in_the_pairs_and_beats_what_was_served() -> None:
    net, _ = fit(usable_pairs(), QUICK)
    assert net.steps[0] > 0 > net.steps[1], "the job with the longer steps gets more"
    for fold in folds(QUICK)["networks"][1:3]:
        learnt, _ = fit(fold.history, QUICK)
        untaught = CoRunCompletion(len(table_of(fold.history).references)).eval()
        reported = fold.questions["1_with_steps"]
        taught = mean_error(complete(learnt, reported.prior, reported.known), reported)
        assert taught < 0.95 * mean_error(complete(untaught, reported.prior, reported.known), reported)
        errors = {}
        for known, asked in fold.questions.items():
            errors[known] = mean_error(complete(learnt, asked.prior, asked.known), asked)
            by_name = train_sharing._by_name(table_of(fold.history), asked)
            assert errors[known] < 0.75 * mean_error(by_name, asked)
            assert errors[known] < mean_error(asked.prior, asked)
        assert errors["2_with_steps"] < errors["1"]


@pytest.mark.slow
def test_a_run_writes_a_model_a_report_and_a_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"pairs": train_sharing.folds(QUICK)["pairs"][:1]}
    settings |= dict.fromkeys(("networks", "gpu_k80", "gpu_v100", "gpu_h200"), settings["pairs"])
    monkeypatch.setattr(train_sharing, "folds", lambda args: settings)
    loops = {CPU_CORES: own_models.measured_sets()[CPU_CORES]}
    monkeypatch.setattr(judge_own, "measured_sets", lambda: loops)
    quick = Args(out=tmp_path, steps=5, draws=2, ncf_steps=6, processes=1)
    report = train(quick)
    methods = report["judged"]["networks"]["2"]["methods"]
    assert set(methods) >= {"rule", "default", "mean", "knn", "mf", "ncf", "completion", "completion_with_nets"}
    assert all(0.0 <= methods[name]["wrongly_together_2"] <= 1.0 for name in methods)
    model = export_sharing(tmp_path, tmp_path)
    assert graph_of(len(report["columns"])).parity(load_net(tmp_path / "sharing.pt"), model) <= 1e-5
    assert report["own_models"][CPU_CORES]["not in"]["together"]["1"]["mae"]["site"] < 0.1
    assert "## A site's own models" in card(report)
    assert train(replace(quick, resume=True))["judged"] == report["judged"]


def exported(tmp_path: Path, columns: tuple[str, ...] | None = None) -> tuple[bytes, dict[str, object]]:
    named = columns_of(table_of(usable_pairs()).references)
    path = tmp_path / "sharing.onnx"
    graph = graph_of(len(named))
    graph.trace(CoRunCompletion(6, members=2), path, columns or named)
    return path.read_bytes(), {"schema": "placewise.sharing/1", "sample": graph.sample(path)}


def test_the_service_runs_it_and_refuses_what_is_not_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content, report = exported(tmp_path)
    runtime = SharingRuntime.load(content, report)
    prior, known = np.full(14, 0.5), np.full(14, np.nan)
    known[2] = 0.7
    found = runtime.complete(prior, known)
    assert found is not None
    assert (found[2], found.shape, np.isfinite(found).all()) == (0.7, (14,), True)
    with pytest.raises(ModelError, match="other columns"):
        SharingRuntime.load(*exported(tmp_path, tuple("abcdefghijklmn")))
    with pytest.raises(ModelError, match="document"):
        SharingRuntime.load(content, {**report, "schema": "placewise.stdm/1"})
    with pytest.raises(ModelError, match="can load"):
        SharingRuntime.load(content[:100], report)
    wrong = {**report["sample"], "completed": np.zeros((3, 14)).tolist()}  # type: ignore[dict-item]
    with pytest.raises(ModelError, match="does not answer"):
        SharingRuntime.load(content, {**report, "sample": wrong})
    for answer in (np.full((1, 14), np.nan), RuntimeError("out of memory")):

        def broken(feeds: object, answer: object = answer) -> object:
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(runtime, "_run", broken)
        assert runtime.complete(prior, known) is None
    assert runtime.failures == 2
