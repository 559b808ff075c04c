"""Throughput on a GPU model without a profile: another one's is carried over, by relative speed."""

import csv
from importlib import resources

import numpy as np
import pytest
from tests.fakes.proteus_queue import bundled

from placewise_core.basics.gpu_names import gpu_speed, is_one_gpu
from placewise_core.domain.job import Job, JobId
from placewise_core.speed.forms import CarriedForm, OverlapForm
from placewise_core.speed.throughput import ThroughputModel
from placewise_training.throughput.data import measured_groups

DATA = bundled("throughput.json")
MODEL = ThroughputModel(DATA)
OVERLAP = OverlapForm(0.01, 0.001, 0.02, 0.001, 0.1, 0.002, power=2.0)


def job(model: str, batch: int = 128) -> Job:
    return Job(JobId("a"), model=model, batch_size=batch)


def test_a_carried_profile_is_faster_on_every_shape() -> None:
    carried = CarriedForm(OVERLAP, faster=3.0)
    assert float(carried.compute_s(64)) == pytest.approx(float(OVERLAP.compute_s(64)) / 3)
    for shape in ((64, 1, 1), (512, 2, 4)):
        assert float(carried.shape_throughput(*shape)) == pytest.approx(3 * float(OVERLAP.shape_throughput(*shape)))


@pytest.mark.parametrize(
    ("network", "gpu_model", "label"),
    [
        ("ResNet50", "NVIDIA H200", "ResNet50@T4"),
        ("VGG16", "V100", "VGG16@A100"),
        ("ResNet50", "Tesla K80", "ResNet50@T4"),
        ("ResNet50", "Tesla T4", ""),
        ("ResNet50", "A100-SXM4-80GB", ""),
        ("ResNet101", "A100", "ResNet50"),
        ("ResNet50", "a GPU of tomorrow", "ResNet50@T4"),
    ],
)
def test_a_carried_profile_is_named(network: str, gpu_model: str, label: str) -> None:
    assert MODEL.match(job(network), gpu_model).label == label


def test_each_gpu_model_has_speeds_of_its_own_in_the_caches() -> None:
    slow, fast = (MODEL.match(job("ResNet50"), name) for name in ("V100", "H200"))
    ratio = MODEL.step_s(slow, 64) / MODEL.step_s(fast, 64)
    assert ratio == pytest.approx((gpu_speed("H200") or 0) / (gpu_speed("V100") or 0))


def test_steps_of_known_networks_on_a_gpu_that_nobody_had_measured_are_within_a_factor_of_four() -> None:
    """The rows of the H200 chose nothing. Before profiles were carried over, they were 3 to 30 times too long."""
    text = resources.files("placewise_training.data").joinpath("open", "profiled_gpu_steps.csv").read_text("utf-8")
    known = [row for row in csv.DictReader(text.splitlines()) if row["model"] in ("resnet50", "vgg16", "bert")]
    logs = []
    for row in known:
        found = MODEL.match(job(row["model"]), row["gpu_type"])
        logs.append(np.log(MODEL.step_s(found, float(row["local_batch"])) / float(row["step_time_s"])))
    assert len(logs) == 8
    assert np.abs(logs).max() < np.log(4)


def without(gpu_model: str) -> ThroughputModel:
    profiles = [each for each in DATA["profiles"] if each["gpu_model"] != gpu_model]
    return ThroughputModel({**DATA, "profiles": profiles})


@pytest.mark.parametrize("gpu_model", ["T4", "A100"])
def test_leaving_a_gpu_model_out_carried_profiles_err_less_than_the_others_as_they_are(gpu_model: str) -> None:
    model = without(gpu_model)
    names = {each.model for each in model.profiles}
    carried, as_they_are = [], []
    for group in measured_groups():
        if group.gpu_model != gpu_model or group.model not in names:
            continue
        rows = group.rows
        batch, per_node = rows.local_batch * rows.gpus, rows.gpus / rows.nodes
        for gpu, errors in ((gpu_model, carried), ("", as_they_are)):
            form = model.match(job(group.model), gpu).profile.form
            forecasts = [
                float(form.shape_throughput(b, d, g)) for b, d, g in zip(batch, rows.nodes, per_node, strict=True)
            ]
            errors.append(np.abs(np.log(forecasts / rows.throughput)).mean())
    assert len(carried) == 3
    assert np.mean(carried) < 0.7 * np.mean(as_they_are)


@pytest.mark.parametrize(
    ("name", "part"), [("Tesla V100-SXM2-16GB", "V100"), ("NVIDIA A10", "a10"), ("rtx 6000", "Quadro RTX 6000")]
)
def test_a_name_in_more_words_is_the_same_gpu(name: str, part: str) -> None:
    assert is_one_gpu(name, part)
    assert is_one_gpu(part, name)


@pytest.mark.parametrize(("one", "other"), [("A100", "A10"), ("P40", "P4"), ("L40S", "L4"), ("V100", ""), ("", "")])
def test_other_names_are_other_gpus(one: str, other: str) -> None:
    assert not is_one_gpu(one, other)


def test_an_unknown_gpu_has_no_speed() -> None:
    assert gpu_speed("a GPU of tomorrow") is None
    assert gpu_speed("NVIDIA H100 80GB HBM3") == gpu_speed("h100")
