"""The throughput model: its formulas, the nearest profile, calibration, and the fit recovers its inputs."""

from pathlib import Path

import numpy as np
import pytest
from tests.fakes.proteus_queue import bundled

from placewise_core.domain.job import Job, JobId
from placewise_core.speed.forms import KnotForm, OverlapForm, QosForm, path_shares
from placewise_core.speed.throughput import FORMS, ThroughputModel

DATA = bundled("throughput.json")
MODELS = {form: ThroughputModel(DATA, form) for form in FORMS}


def job(model: str = "ResNet50", **fields: float) -> Job:
    return Job(JobId("a"), model=model, **fields)  # type: ignore[arg-type]


def test_path_shares_of_symmetric_shapes_are_those_of_equation_8() -> None:
    for d, g in ((1, 1), (1, 4), (3, 1), (2, 4), (4, 3)):
        n = d * g
        expected = ((d - 1) * g / (n - 1), (g - 1) / (n - 1)) if n > 1 else (0.0, 0.0)
        assert path_shares([g] * d) == pytest.approx(expected)
    cross, within = path_shares([2, 4, 4])
    assert cross + within == pytest.approx(1.0)


def test_qos_form_is_equations_5_to_8() -> None:
    form = QosForm((10.0, 40.0, -15.0), batch_scale=100.0, gamma=0.3, lam=2.0, batch_min=10.0, batch_max=100.0)
    batch, d, g = 320.0, 2, 4
    x = batch / 8 / 100.0
    comm = 0.3 * (2.0 * (d - 1) * g + (g - 1)) / (d * g - 1)
    assert float(form.shape_throughput(batch, d, g)) == pytest.approx((8 - comm) * (10 + 40 * x - 15 * x * x))
    assert float(form.shape_throughput(50.0, 1, 1)) == pytest.approx(10 + 20 - 15 / 4)
    assert float(form.single_throughput(5.0)) == pytest.approx(float(form.single_throughput(10.0)) / 2)
    assert float(form.single_throughput(900.0)) == float(form.single_throughput(100.0))


def test_overlap_form_hides_what_it_can() -> None:
    form = OverlapForm(0.01, 0.001, 0.02, 0.001, 0.1, 0.002, power=2.0)
    compute = 0.01 + 0.001 * 64
    assert float(form.throughput(64, 1, 1)) == pytest.approx(64 / compute)
    step = (compute**2 + (0.1 + 0.002 * 6) ** 2) ** 0.5
    assert float(form.throughput(64, 8, 2)) == pytest.approx(8 * 64 / step)


@pytest.mark.parametrize("form", sorted(FORMS))
def test_every_profile_gives_positive_finite_speeds(form: str) -> None:
    model = MODELS[form]
    nodes, per_node = (a.ravel() for a in np.meshgrid(np.arange(1, 17), np.arange(1, 9)))
    for profile in model.profiles:
        for batch in (1, 64, 4096, 10**6):
            wanted = Job(JobId("a"), model=profile.model, batch_size=batch)
            speeds = model.throughput(wanted, model.match(wanted, profile.gpu_model), nodes, per_node)
            assert np.isfinite(speeds).all()
            assert (speeds > 0).all()


def knots(**fields: object) -> KnotForm:
    usual: dict[str, object] = {
        "a": 0.01,
        "c": 0.001,
        "batches": (16.0, 64.0),
        "batch_factors": (1.0, 1.1),
        "contention": 0.1,
        "alpha_node": 0.02,
        "growth_node": 0.5,
        "node_counts": (2.0, 8.0),
        "alpha_network": (0.1, 0.4),
        "growth_network": 0.25,
        "width": (0.1, 0.2, 0.3),
        "batch_growth": 0.5,
        "power": 2.0,
    }
    return KnotForm(**{**usual, **fields})  # type: ignore[arg-type]


def test_knot_form_is_its_formula() -> None:
    form = knots()
    assert float(form.throughput(64, 1, 1, 1)) == pytest.approx(64 / ((0.01 + 0.064) * 1.1))
    compute = (0.01 + 0.032) * 1.1**0.5 * 4**0.1  # 32 is half way between the knots 16 and 64, on a log scale
    sync = (0.1 * 0.4) ** 0.5 * 8**0.25 * 4 ** (0.1 + 0.2 / 4 + 0.3 / 16) * 2**0.5  # 4 nodes: half way from 2 to 8
    assert float(form.throughput(32, 16, 4, 4)) == pytest.approx(16 * 32 / (compute**2 + sync**2) ** 0.5)
    inside = 0.02 * 2**0.5
    compute = (0.01 + 0.016) * 4**0.1
    assert float(form.throughput(16, 4, 1, 4)) == pytest.approx(4 * 16 / (compute**2 + inside**2) ** 0.5)
    np.testing.assert_allclose(form.shape_throughput(512.0, 4, 4), form.throughput(32, 16, 4, 4))


def test_knots_without_their_values_are_refused() -> None:
    assert KnotForm.from_dict(knots().as_dict()) == knots()
    for broken in (
        {"batches": (1.0,)},
        {"node_counts": ()},
        {"width": (1.0, 2.0)},
        {"batches": (), "batch_factors": ()},
    ):
        with pytest.raises(ValueError, match="knots"):
            KnotForm.from_dict(knots(**broken).as_dict())


def test_the_nearest_profile_is_used_and_said() -> None:
    model = MODELS["overlap"]
    assert model.match(job("resnet_50"), "T4").label == ""
    assert model.match(job("ResNet-50")).label == ""
    assert model.match(job("ResNet-50"), "H100").label.startswith("ResNet50@")
    assert model.match(job("VGG19"), "A100").label == "VGG16"
    assert model.match(job("something new", params_millions=130.0)).label in {"VGG16", "GPT-2"}
    assert model.match(job("")).label == "ResNet50"


@pytest.mark.parametrize("form", sorted(FORMS))
def test_latency_on_one_gpu_is_what_the_job_says(form: str) -> None:
    model = MODELS[form]
    for work in (5.0, 100.0, 86_400.0):
        wanted = job(single_gpu_s=work, batch_size=128)
        assert float(model.latency_s(wanted, model.match(wanted), 1, 1, 0.0)) == pytest.approx(work)


def test_work_is_batch_times_iterations_where_no_time_is_given() -> None:
    model = MODELS["overlap"]
    wanted = job(batch_size=128, iterations=1000.0)
    match = model.match(wanted, "T4")
    alone = float(model.throughput(wanted, match, 1, 1))
    assert model.single_gpu_s(wanted, match, 0.0) == pytest.approx(128_000 / alone + model.startup_s)
    by_epochs = job(batch_size=128, total_epochs=2.0, dataset_size=64_000)
    assert model.single_gpu_s(by_epochs, match, 0.0) == pytest.approx(model.single_gpu_s(wanted, match, 0.0))
    assert model.single_gpu_s(job(), match, 77.0) == 77.0


def test_another_schema_is_refused() -> None:
    with pytest.raises(ValueError, match=r"placewise\.throughput/1"):
        ThroughputModel({"schema": "else"})


def test_the_bundle_says_where_it_comes_from_and_how_wrong_it_is() -> None:
    assert DATA["provenance"]["licence"] == "Apache-2.0"
    assert set(DATA["held_out"]) == set(FORMS)
    assert DATA["form"] == min(FORMS, key=lambda form: float(DATA["held_out"][form]["held_out_mean_error"]))
    readme = Path(__file__).parents[4] / "service/placewise_models/bundles/2026.11/README.md"
    text = readme.read_text("utf-8")
    for form in FORMS:
        assert f"{100 * DATA['held_out'][form]['held_out_mean_error']:.1f} %" in text
