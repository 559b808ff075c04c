"""The packaged tables: the scripts' results from the shipped measurements, as the policies read them."""

import itertools
import json
from importlib.resources import files
from typing import Any

import numpy as np
import pytest

from placewise_core.policies.profiled.tables import packaged_tables
from placewise_training.data import fit_lif, placement_tables
from placewise_training.data.fit_lif import Sample, fit, mean_relative_error, predict


def packaged(name: str) -> Any:
    return json.loads((files("placewise_core.policies.profiled") / "data" / f"{name}.json").read_text("utf-8"))


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("lif", fit_lif.document),
        ("interference", placement_tables.interference),
        ("gpu_speeds", placement_tables.gpu_speeds),
    ],
)
def test_what_ships_is_what_the_scripts_make(name: str, made: Any) -> None:
    assert packaged(name) == json.loads(json.dumps(made()))


@pytest.mark.parametrize("truth", [(1.5, 0.25), (0.0, 2.0), (0.5, 0.25, 3.0, 1.0)])
def test_a_fit_finds_the_coefficients_that_made_the_samples(truth: tuple[float, ...]) -> None:
    grid = [(u, 0.0) for u in fit_lif.SHARES] + [(0.0, b) for b in fit_lif.SHARES]
    blank = [Sample(u, b, 1.0) for u, b in grid]
    made = [Sample(s.cpu, s.bandwidth, float(y)) for s, y in zip(blank, predict(blank, truth), strict=True)]
    found = fit(made, len(truth) // 2)
    assert found == pytest.approx(truth, abs=1e-5)
    assert mean_relative_error(made, found) < 1e-5


def test_the_quadratic_fit_is_never_worse_in_squares() -> None:
    cpu = fit_lif.cpu_samples()
    for samples in cpu.values():
        truth = np.array([s.slowdown for s in samples])
        linear, quadratic = (predict(samples, fit(samples, degree)) for degree in (1, 2))
        assert ((quadratic - truth) ** 2).sum() <= ((linear - truth) ** 2).sum() + 1e-9


def test_cpu_samples_start_from_no_slowdown_and_grow() -> None:
    for model, samples in fit_lif.cpu_samples().items():
        by_use = sorted(samples, key=lambda s: s.cpu)
        assert by_use[0].slowdown == 1.0, model
        assert all(a.slowdown <= b.slowdown for a, b in itertools.pairwise(by_use)), model


def test_coefficients_by_name_by_likeness_and_pooled() -> None:
    lif = packaged_tables().lif_quadratic
    assert tuple(lif.of("ResNet-18")) == tuple(lif.models["resnet18"])
    assert tuple(lif.of("resnet101")) == tuple(lif.models["resnet50"])
    assert tuple(lif.of("mystery")) == lif.pooled
    assert tuple(packaged_tables().lif_linear.of("mystery")) == (*packaged_tables().lif_linear.pooled, 0.0, 0.0)


def test_gpu_speeds_by_gpu_and_model() -> None:
    speeds = packaged_tables().gpu_speeds
    assert speeds.of("resnet50", "Tesla-K80") == packaged("gpu_speeds")["models"]["K80"]["resnet50"]
    assert speeds.of("mystery", "K80") == speeds.mean["K80"]
    assert speeds.of("resnet50", "TPU") == 1.0
