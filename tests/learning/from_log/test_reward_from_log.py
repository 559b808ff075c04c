"""The reward model learns from the service's log: one constant of the truth is changed, and it follows."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.fakes.logs.simulated_log import simulated_log

from placewise_log.manifest import LogManifest
from placewise_log.record import Entry
from placewise_models.folder import shipped_bundle
from placewise_training.reward import from_log
from placewise_training.reward.data import Sample, collate
from placewise_training.reward.net import relative_error
from placewise_training.reward.train import Args, train
from placewise_training.sim.hardware import harmony_cluster
from placewise_training.sim.speed.composed import ComposedSpeed
from placewise_training.sim.speed.profiles import Catalogue
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import HARMONY_MODELS, HarmonyWorkload

SEED, SLOWER = 11, 0.25
# The shipped net, a few steps further. Its uncertainty and the simulated test sets are not what is tested.
FURTHER: dict[str, Any] = {
    "steps": 150, "validate_every": 50, "warm_up": 20, "peak_rate": 5e-4, "doubt_steps": 2, "practice": 1,
    "simulations": 4, "held_back": 0.25, "judged_simulations": 1, "batch": 32,
}  # fmt: skip


def truth() -> ComposedSpeed:
    """The training truth on a fabric that reaches a quarter of its bandwidth: one constant, for all networks."""
    known = make_truth("train", SEED)
    changed = {
        name: replace(known.catalogue[name], net_efficiency=SLOWER * known.catalogue[name].net_efficiency)
        for name in HARMONY_MODELS
    }
    return ComposedSpeed(Catalogue(changed), known.sharing, overlap=known.overlap, seed=SEED)


async def logged(folder: Path, changed: Callable[[Entry], Entry] = lambda entry: entry) -> Path:
    made, usual = truth(), make_truth("train", SEED)
    # Lengths and single-GPU seconds are as users declare them: by the usual truth.
    jobs = HarmonyWorkload(jobs=400, per_interval=3.0, pattern="poisson").generate(usual, SEED)
    await simulated_log(folder, harmony_cluster(6), jobs, made, seed=SEED, changed=changed)
    return folder


def learnt(out: Path, log: Path, **options: Any) -> dict[str, Any]:
    report = train(Args(out=out, log=str(log), start=str(shipped_bundle()), **{**FURTHER, **options}))
    assert report["log"]["digest"] == LogManifest.read(log).digest
    found: dict[str, Any] = report["log"]["later"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("only_log", [False, True])
async def test_the_error_on_later_decisions_falls_once_a_constant_of_the_truth_has_changed(
    tmp_path: Path, only_log: bool
) -> None:
    found = learnt(tmp_path / "out", await logged(tmp_path / "log"), only_log=only_log)
    assert found["rows"] == 80
    assert found["gain_interval"][0] > 0.0


@pytest.mark.slow
async def test_shuffled_outcomes_teach_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Learnt from, the speeds belong to other placements; judged on, to their own."""
    log = await logged(tmp_path / "log")
    whole = from_log.log_samples(str(log))

    def shuffled(samples: list[Sample], seed: int) -> list[Sample]:
        order = np.random.default_rng(seed).permutation(len(samples))
        speeds = [samples[i].speed[samples[i].job == 0][0] for i in order]
        given = []
        for sample, speed in zip(samples, speeds, strict=True):
            given.append(replace(sample, speed=np.where(sample.job == 0, speed, sample.speed).astype(np.float32)))
        return given

    mixed = whole._replace(learn=shuffled([*whole.learn], 1), choose=shuffled([*whole.choose], 2))
    monkeypatch.setattr("placewise_training.reward.train.log_samples", lambda where, before_s: mixed)
    found = learnt(tmp_path / "out", log, only_log=True)
    assert found["gain_interval"][0] <= 0.0


def test_a_speed_below_its_bound_is_no_error_and_one_above_it_is() -> None:
    true, weight = torch.tensor([2.0, 2.0, 2.0]), torch.ones(3)
    predicted, bound = torch.tensor([1.0, 3.0, 1.0]), torch.tensor([True, True, False])
    assert relative_error(predicted, true, weight, bound) == pytest.approx((0.0 + 0.5 + 0.5) / 3)
    assert relative_error(predicted, true, weight) == pytest.approx(0.5)


def test_only_the_new_job_of_a_sample_is_bounded() -> None:
    tokens = np.zeros((3, 4), dtype=np.float32)
    job, node, speed = np.array([0, 0, 1]), np.array([0, 1, 1]), np.array([0.5, 0.5, 0.9], dtype=np.float32)
    batch = collate([Sample(tokens, job, node, speed, is_bound=True), Sample(tokens[:1], job[:1], node[:1], speed[:1])])
    assert batch["bound"].tolist() == [[True, True, False], [False, False, False]]


def test_only_the_log_needs_a_log(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--only-log needs a log"):
        train(Args(out=tmp_path, only_log=True))
