"""The throughput fits recover their inputs, errors are of placements never seen, and noise is separated."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from placewise_core.speed.forms import KnotForm, OverlapForm, QosForm, ThroughputForm
from placewise_core.speed.throughput import FORMS, ThroughputModel
from placewise_training.throughput import train as train_throughput
from placewise_training.throughput.card import card
from placewise_training.throughput.data import Group, Rows, measured_groups, rows_of
from placewise_training.throughput.fit import FITS
from placewise_training.throughput.judge import (
    held_out_logs,
    interval,
    noise,
    relative,
    repeats,
    with_known_level,
)

SHAPES = [str(g) * d for d in (1, 2, 3, 4, 8) for g in (1, 2, 3, 4)] + ["23", "14", "244"]
BATCHES = (16.0, 32.0, 64.0, 128.0)
TRUTHS: dict[str, ThroughputForm] = {
    "qos": QosForm((50.0, 200.0, -90.0), 128.0, gamma=0.4, lam=2.5, batch_min=16.0, batch_max=128.0),
    "overlap": OverlapForm(0.02, 0.004, 0.01, 0.002, 0.08, 0.004, power=1.8),
    "knots": KnotForm(
        *(0.02, 0.004, (16.0, 32.0, 64.0, 128.0), (1.0, 0.9, 1.1, 1.0), 0.05, 0.01, 0.4),
        *((2.0, 3.0, 4.0, 8.0), (0.08, 0.12, 0.13, 0.15), 0.2, (0.1, 0.2, 0.1), 0.0, 1.8),
    ),
}


def rows_under(form: str, sigma: float, copies: int = 1) -> Rows:
    """Every shape and batch `copies` times, under the truth of that form with noise."""
    pairs = [(shape, batch) for shape in SHAPES for batch in BATCHES] * copies
    rows = rows_of([shape for shape, _ in pairs], [batch for _, batch in pairs], [1.0] * len(pairs))
    exact = FITS[form].predict(TRUTHS[form], rows)
    rows.throughput[:] = exact * np.exp(np.random.default_rng(0).normal(0.0, sigma, len(pairs)))
    return rows


@pytest.mark.parametrize("form", sorted(FORMS))
def test_the_fit_recovers_the_form_it_is_given(form: str) -> None:
    rows = rows_under(form, 0.01)
    assert relative(held_out_logs(rows, FITS[form].fit, FITS[form].predict)).mean() < 0.03


def test_a_row_is_judged_by_a_fit_that_never_saw_its_placement() -> None:
    rows = rows_under("overlap", 0.0)
    seen: list[set[str]] = []

    def fit(known: Rows) -> set[str]:
        seen.append(set(known.placement.tolist()))
        return seen[-1]

    def predict(known: set[str], asked: Rows) -> np.ndarray:
        assert not known & set(asked.placement.tolist())
        return asked.throughput * 1.5

    for split in (0, 1):
        np.testing.assert_allclose(relative(held_out_logs(rows, fit, predict, split)), 0.5)
    assert seen[0] != seen[5]  # other splits hold other placements back


def test_the_level_of_a_placement_is_told_by_its_other_rows() -> None:
    logs = np.array([0.3, 0.3, 0.3, -0.2, -0.1, 0.5])
    left = with_known_level(logs, np.array(["2", "2", "2", "13", "13", "4"]))
    assert left == pytest.approx([0.0, 0.0, 0.0, -0.1, 0.1, 0.5])


def test_noise_is_what_a_perfect_model_errs_by() -> None:
    rows = rows_under("overlap", 0.05, copies=3)
    found = noise([Group("here", "T4", "net", 1.0, rows)])
    exact = FITS["overlap"].predict(TRUTHS["overlap"], rows)
    really = float(np.abs(exact / rows.throughput - 1.0).mean())
    assert found["rows"] == len(rows.gpus)
    assert found["perfect_model_mean_error"] == pytest.approx(really, rel=0.08)
    assert found["table_of_repeats_mean_error"] > 1.1 * really


def test_what_was_measured_once_says_nothing_of_its_noise() -> None:
    count, error = repeats(rows_of(["1", "1", "2"], [8.0, 8.0, 8.0], [1.0, 1.1, 2.0]))
    assert count.tolist() == [2, 2, 1]
    assert error[:2] == pytest.approx([1 - 1 / 1.1, 0.1])
    assert np.isnan(error[2])


def test_the_interval_knows_that_rows_of_a_placement_err_together() -> None:
    errors = np.repeat(np.random.default_rng(0).uniform(0.0, 0.2, 40), 25)
    together, apart = np.repeat(np.arange(40), 25).astype(str), np.arange(1000).astype(str)
    narrow, wide = (np.diff(interval(errors, clusters))[0] for clusters in (apart, together))
    assert wide > 3 * narrow


def test_every_network_has_a_name_and_the_table_its_source() -> None:
    groups = measured_groups()
    assert {group.source for group in groups} == {"pollux_osdi21", "elasticflow"}
    assert sum(len(group.rows.gpus) for group in groups) > 5000


def only(group: Group) -> Callable[[], list[Group]]:
    return lambda: [group]


def test_the_trainer_writes_what_the_service_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = next(g for g in measured_groups() if g.model == "ResNet50" and g.gpu_model == "A100")
    monkeypatch.setattr(train_throughput, "measured_groups", only(group))
    report = train_throughput.train(train_throughput.Args(out=tmp_path, splits=1))
    written = json.loads((tmp_path / "throughput.json").read_text("utf-8"))
    for form in FORMS:
        assert ThroughputModel(written, form).profiles[0].model == "ResNet50"
    held_out = report["held_out"]
    assert held_out[report["form"]]["held_out_mean_error"] < held_out["qos"]["held_out_mean_error"]
    assert "ResNet50" in card(written)
