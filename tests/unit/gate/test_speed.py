"""The speeds of a site, fitted to rows made by hand."""

import numpy as np
import pytest

from placewise_core.gang.context import PlaceContext
from placewise_core.policies.consolidate import Consolidate
from placewise_core.policies.load_balance import LoadBalance
from placewise_training.gate.simulated import Mixture
from placewise_training.gate.site import Beside, SpeedRow
from placewise_training.gate.speed import SiteFit, SiteSpeed
from placewise_training.sim.gangs.engine import Simulation
from placewise_training.sim.hardware import harmony_cluster
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import HarmonyWorkload

SPREAD, EACH = -0.4, -0.1  # ln of the speed on two nodes, and by each job beside it


def rows(count: int = 400, noise: float = 0.05, bounds: float = 0.0) -> list[SpeedRow]:
    """`a` suffers from its spread, `b` does not; both from jobs beside them."""
    rng = np.random.default_rng(3)
    found = []
    for i in range(count):
        model, nodes, beside = "ab"[i % 2], int(rng.integers(1, 3)), int(rng.integers(4))
        level = -0.2 + SPREAD * (nodes > 1) * (model == "a") + EACH * beside + float(rng.normal(0.0, noise))
        is_bound = bool(rng.random() < bounds)
        at = Beside(model, "V100", 2, 0, nodes, beside, 0, shares_gpu=False)
        found.append(SpeedRow(at, level + (0.7 if is_bound else 0.0), is_bound, float(i)))
    return found


def at(model: str, nodes: int, beside: int = 0) -> Beside:
    return Beside(model, "V100", 2, 0, nodes, beside, 0, shares_gpu=False)


def test_the_fit_finds_whom_its_spread_and_neighbours_slow() -> None:
    fit = SiteFit.of(rows())
    assert fit.level(at("a", 2)) - fit.level(at("a", 1)) == pytest.approx(SPREAD, abs=0.06)
    assert fit.level(at("b", 2)) - fit.level(at("b", 1)) == pytest.approx(0.0, abs=0.06)
    assert fit.level(at("a", 1, 3)) - fit.level(at("a", 1)) == pytest.approx(3 * EACH, abs=0.06)
    assert fit.error == pytest.approx(0.04, abs=0.01)  # that of the noise
    assert fit.residuals[""].std() == pytest.approx(0.05, abs=0.01)


def test_bounds_far_above_the_speeds_do_not_raise_the_fit() -> None:
    fit = SiteFit.of(rows(bounds=0.4))
    assert fit.level(at("b", 1)) == pytest.approx(-0.2, abs=0.06)


def test_too_few_speeds_are_refused_with_their_number() -> None:
    with pytest.raises(ValueError, match="the judging stretch shows 12 speeds, 30 are needed"):
        SiteFit.of(rows(12))


def test_a_redrawn_fit_differs_by_as_much_as_chance() -> None:
    def spread(noise: float) -> float:
        fit = SiteFit.of(rows(noise=noise))
        drawn = [fit.redrawn(np.random.default_rng(seed)).level(at("a", 2)) for seed in range(12)]
        return float(np.std(drawn))

    assert spread(0.02) < 0.01 < spread(0.4)


def test_jobs_run_by_the_fit_in_a_simulation_and_equal_seeds_give_equal_speeds() -> None:
    fit = SiteFit.of(rows(noise=0.2))
    jobs = HarmonyWorkload(jobs=20).generate(make_truth("train", 0), 0)

    def jct_s(seed: int) -> float:
        made = [job.__class__(job.job, job.ideal_s, job.submit_time_s, number=job.number) for job in jobs]
        return Simulation(harmony_cluster(6), made, SiteSpeed(fit, seed), Consolidate()).run().metrics.avg_jct_s

    assert jct_s(1) == jct_s(1) != jct_s(2)


def test_explorers_of_a_mixture_place_their_share_of_the_jobs() -> None:
    asked: list[str] = []

    class Noted(LoadBalance):
        def propose(self, job, view, context):  # type: ignore[no-untyped-def]
            asked.append(job.id)
            return super().propose(job, view, context)

    simulation = Simulation(harmony_cluster(6), [], make_truth("train", 0), None)
    mixture = Mixture(Consolidate(), {"load-balance": (0.3, Noted())})
    jobs = HarmonyWorkload(jobs=400).generate(make_truth("train", 0), 0)
    for job in jobs:
        assert mixture.propose(job.job, simulation.view, PlaceContext(0.0, 0)) is not None
    assert len(asked) / len(jobs) == pytest.approx(0.3, abs=0.07)


def test_a_slow_shape_that_is_always_spread_is_no_effect_of_spread() -> None:
    """Speeds of a shape are equal wherever it runs; two workers are slow and mostly spread, one never is."""
    rng = np.random.default_rng(5)
    made, level = [], {1: 0.0, 2: -0.6, 3: -0.1}
    for i in range(600):
        model, workers, beside = "ab"[i % 2], int(rng.integers(1, 4)), int(rng.integers(4))
        nodes = 1 if workers == 1 else 1 + int(rng.random() < {2: 0.8, 3: 0.5}[workers])
        log_speed = level[workers] + float(rng.normal(0.0, 0.1))
        place = Beside(model, "V100", workers, 0, nodes, beside, 0, shares_gpu=False)
        made.append(SpeedRow(place, log_speed, False, float(i)))
    fit = SiteFit.of(made)
    for workers in (2, 3):
        packed, spread = (Beside("a", "V100", workers, 0, nodes, 1, 0, shares_gpu=False) for nodes in (1, 2))
        assert fit.level(spread) - fit.level(packed) == pytest.approx(0.0, abs=0.04)
        assert fit.level(packed) == pytest.approx(level[workers], abs=0.05)
