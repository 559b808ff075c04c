"""Solo speed: scales with the model's speedup, falls back by the job's declaration."""

from dataclasses import replace

import pytest
from tests.fakes.cluster import make_job
from tests.fakes.proteus_queue import bundled

from placewise_core.domain.cluster import Assignment
from placewise_core.domain.job import Job, NodeId, Resources, Role
from placewise_core.speed.solo import ThroughputSpeed
from placewise_core.speed.throughput import ThroughputModel

MODEL = ThroughputModel(bundled("throughput.json"))
SPEED = ThroughputSpeed(MODEL)


def on(nodes: int, gpus: float) -> tuple[Assignment, ...]:
    return tuple(
        Assignment(f"worker-{i}", Role.WORKER, NodeId(f"n{i}"), demand=Resources(gpus=gpus)) for i in range(nodes)
    )


def job(**changes: object) -> Job:
    return make_job("a", **changes)  # type: ignore[arg-type]


def test_a_declared_time_is_met_on_one_gpu() -> None:
    assert SPEED(job(single_gpu_s=100.0, total_epochs=10.0), on(1, 1.0)) == pytest.approx(0.1)


def test_more_gpus_are_faster_but_never_faster_than_linear() -> None:
    declared = job(single_gpu_s=100.0, total_epochs=10.0, batch_size=256)
    one, four = SPEED(declared, on(1, 1.0)), SPEED(declared, on(1, 4.0))
    assert one < four <= 4.0 * one + 1e-9
    assert SPEED(declared, on(4, 1.0)) <= four, "the same GPUs over more nodes pay for the network"


def test_without_epochs_it_counts_samples() -> None:
    plain = job(batch_size=128)
    expected = float(MODEL.throughput(plain, MODEL.match(plain), 1, 2))
    assert SPEED(plain, on(1, 2.0)) == pytest.approx(expected)
    assert SPEED(job(batch_size=128, dataset_size=1000), on(1, 2.0)) == pytest.approx(expected / 1000)


def test_a_fraction_of_a_gpu_runs_at_its_fraction_and_no_gpu_has_no_speed() -> None:
    declared = job(single_gpu_s=100.0, total_epochs=10.0)
    assert SPEED(declared, on(1, 0.5)) == pytest.approx(0.05)
    assert SPEED(declared, on(1, 0.0)) == 0.0


@pytest.mark.parametrize(
    ("changes", "gpus", "gpu_types", "label"),
    [
        ({}, 1.0, ["T4"], ""),
        ({}, 1.0, ["V100"], "ResNet50@T4"),
        ({}, 1.0, [], ""),
        ({"model": "LSTM"}, 1.0, ["T4"], "DeepSpeech2"),
        ({"model": "LSTM"}, 1.0, ["P100", "T4"], "DeepSpeech2@T4"),
        ({"single_gpu_s": 100.0, "total_epochs": 10.0}, 1.0, ["V100"], ""),
        ({"single_gpu_s": 100.0, "total_epochs": 10.0}, 0.5, ["V100"], ""),
        ({"single_gpu_s": 100.0, "total_epochs": 10.0}, 2.0, ["V100"], "ResNet50@T4"),
        ({}, 0.0, ["V100"], ""),
    ],
    ids=["own", "carried", "GPU unknown", "another network", "mixed", "declared", "part", "declared on two", "no GPU"],
)
def test_a_speed_names_the_profile_that_it_rests_on(
    changes: dict[str, object], gpus: float, gpu_types: list[str], label: str
) -> None:
    asked = replace(job(), **{"params_millions": 38.0 if "model" in changes else 0.0, **changes})  # type: ignore[arg-type]
    assert SPEED.profile_model(asked, on(1, gpus), gpu_types) == label
