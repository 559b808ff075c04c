"""Subtask metrics: NCF as written, its transfer, the completion, and the plain methods they have to beat."""

from pathlib import Path

import numpy as np
import pytest
import torch

from placewise_core.subtasks.metrics import GPU_METRICS, METRICS
from placewise_training.stdm.card import card
from placewise_training.stdm.completion import chosen_neighbours, column_means, factorised, holes
from placewise_training.stdm.data import Table, profile_rows, subtask_matrix
from placewise_training.stdm.export import GRAPH, export_stdm
from placewise_training.stdm.net import MetricCompletion, Ncf, loss, with_gpus, with_subtasks
from placewise_training.stdm.train import Args, complete, complete_by_ncf, floors, load_net, train, train_completion

QUICK = Args(draws=8, pretrain_steps=150, sgd_steps=300, completion_steps=200)


def toy(rows: int, seed: int) -> np.ndarray:
    """Rows of two characters: all high, or all low, with a little noise: two values tell the others."""
    rng = np.random.default_rng(seed)
    level = np.where(rng.random((rows, 1)) < 0.5, 0.2, 0.8)
    return np.asarray(np.clip(level + rng.normal(0.0, 0.03, (rows, 6)), 0.0, 1.0))


def error(found: np.ndarray, true: np.ndarray, partial: np.ndarray) -> float:
    return float(np.abs(found - true)[holes(true, partial)].mean())


def test_every_method_beats_the_mean_on_a_toy_problem() -> None:
    history, true = toy(60, 1), toy(20, 2)
    partial = profile_rows(true, 2, np.random.default_rng(3))
    mean = error(column_means(history, partial), true, partial)
    net, losses = train_completion(history, QUICK)
    found = {
        "completion": complete(net, partial),
        "mf": factorised(1, 0.01)(history, partial),
        "knn": chosen_neighbours(Table(("a", "b") * 30, ("",) * 6, history), 2)(history, partial),
    }
    assert np.mean(losses[-20:]) < 0.5 * np.mean(losses[:20])
    assert {name: error(values, true, partial) < 0.5 * mean for name, values in found.items()} == dict.fromkeys(
        found, True
    )


def test_ncf_learns_the_matrix_and_its_loss_falls() -> None:
    torch.manual_seed(0)
    history, true = toy(40, 1), toy(10, 2)
    partial = profile_rows(true, 2, np.random.default_rng(3))
    steps = Args(pretrain_steps=200, sgd_steps=3000)
    found, losses = complete_by_ncf(history, partial, steps)
    assert np.mean(losses[-50:]) < 0.7 * np.mean(losses[:50])
    assert error(found, true, partial) < error(column_means(history, partial), true, partial)


def test_equation_5() -> None:
    value = loss(torch.tensor([0.5, 1.0]), torch.tensor([0.0, 1.0]), torch.tensor(8.0), decay=0.1, cells=4)
    assert float(value) == pytest.approx(0.5 * (0.25 / 2 + 0.1 * 8.0 / 4))


def test_transfer_copies_what_was_learnt() -> None:
    torch.manual_seed(0)
    net = Ncf(5, len(METRICS))
    gpu_columns = [METRICS.index(name) for name in GPU_METRICS]
    two = with_gpus(net, gpu_columns, gpus=2).table()
    assert two.shape == (5, len(METRICS) + len(GPU_METRICS))
    torch.testing.assert_close(two[:, : len(METRICS)], net.table())
    torch.testing.assert_close(two[:, len(METRICS) :], net.table()[:, gpu_columns])
    torch.testing.assert_close(with_subtasks(net, 3).table()[:5], net.table())


def test_the_completion_keeps_known_values() -> None:
    partial = profile_rows(toy(4, 0), 2, np.random.default_rng(0))
    found = complete(MetricCompletion(6), partial)
    known = ~np.isnan(partial)
    np.testing.assert_allclose(found[known], partial[known], rtol=1e-6)
    assert not np.isnan(found).any()


def test_the_matrix_holds_shares() -> None:
    drawn = subtask_matrix(2).values
    assert not np.isnan(drawn).any()
    assert (drawn.min() >= 0.0, drawn.max() <= 1.0) == (True, True)
    assert all(np.isfinite(value) for value in floors().values())


def test_a_run_writes_a_model_a_report_and_a_card(tmp_path: Path) -> None:
    quick = Args(out=tmp_path, draws=3, pretrain_steps=10, sgd_steps=10, completion_steps=10, processes=1)
    report = train(quick)
    assert set(report["metrics"]["subtasks_unseen_kinds"]["methods"]) == {"mean", "knn", "mf", "ncf", "completion"}
    model = export_stdm(tmp_path, tmp_path)
    assert GRAPH.parity(load_net(tmp_path / "stdm.pt"), model) <= 1e-5
    assert "drawn" in card(report)


@pytest.mark.slow
def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path) -> None:
    options = {"draws": 3, "pretrain_steps": 5, "sgd_steps": 5, "completion_steps": 40, "processes": 1}
    two = {**options, "processes": 2}  # which changes no figure
    whole = train(Args(out=tmp_path / "whole", **two))  # type: ignore[arg-type]

    def stop(title: str, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(Args(out=tmp_path / "cut", **options), stop)  # type: ignore[arg-type]
    resumed = train(Args(out=tmp_path / "cut", resume=True, **options))
    assert (resumed["metrics"], resumed["loss"]) == (whole["metrics"], whole["loss"])
    assert train(Args(out=tmp_path / "cut", resume=True, **options))["loss"] == whole["loss"]
