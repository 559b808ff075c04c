"""Statistics and heat against their definitions; NaN is refused everywhere."""

import math

import numpy as np
import pytest

from placewise_training.sim.arrivals import PATTERNS, arrival_times
from placewise_training.sim.statistics import Distribution, TimeAverage, estimate, jain, paired_change
from placewise_training.sim.thermal import ThermalSpec, ThermalState
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import ElasticWorkload, HarmonyWorkload


def test_quantiles_are_right_to_a_quarter_percent_in_flat_memory() -> None:
    rng = np.random.default_rng(0)
    values = rng.lognormal(5, 2, 20_000)
    spread = Distribution()
    for value in values:
        spread.add(float(value))
    assert spread.mean == pytest.approx(values.mean())
    for q in (0.5, 0.95, 0.99):
        assert spread.quantile(q) == pytest.approx(np.quantile(values, q, method="lower"), rel=0.0025)
    bins = len(spread._bins)
    for value in values:
        spread.add(float(value))
    assert len(spread._bins) == bins


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_what_is_no_metric_value_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not a metric value"):
        Distribution().add(value)
    if value != -1.0:
        with pytest.raises(ValueError, match="not a metric value"):
            TimeAverage().set(0.0, value)
        with pytest.raises(ValueError, match="not metric values"):
            estimate([1.0, value])


def test_zeros_and_nothing() -> None:
    spread = Distribution()
    assert (spread.mean, spread.quantile(0.5)) == (0.0, 0.0)
    spread.add(0.0)
    assert spread.quantile(0.99) == 0.0
    with pytest.raises(ValueError, match="not metric values"):
        estimate([])


def test_time_averages_weigh_by_time() -> None:
    average = TimeAverage()
    average.set(0.0, 1.0)
    average.set(2.0, 4.0)
    assert average.mean(3.0) == pytest.approx((2 * 1 + 1 * 4) / 3)


def test_confidence_interval_is_students() -> None:
    result = estimate([1.0, 2.0, 3.0, 4.0, 5.0])
    assert result.mean == 3.0
    assert result.half_width == pytest.approx(2.776 * math.sqrt(2.5) / math.sqrt(5), rel=1e-3)
    assert estimate([7.0]).half_width == 0.0


def test_confidence_interval_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    covered = sum(abs(e.mean - 10.0) <= e.half_width for e in (estimate(rng.normal(10, 3, 5)) for _ in range(2000)))
    assert covered / 2000 == pytest.approx(0.95, abs=0.015)


def test_paired_change_uses_the_pairs() -> None:
    change = paired_change([8.0, 80.0], [10.0, 100.0])
    assert change.mean == pytest.approx(-0.2)
    assert change.half_width == pytest.approx(0.0, abs=1e-12)
    with pytest.raises(ValueError, match="paired"):
        paired_change([1.0], [1.0, 2.0])


def test_jain_is_one_for_equals_and_one_over_n_for_one_winner() -> None:
    assert jain([2.0, 2.0, 2.0]) == pytest.approx(1.0)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)


def test_heat_follows_the_first_order_law() -> None:
    spec = ThermalSpec(ambient_celsius=20, resistance_k_per_w=0.2, capacity_j_per_k=1000, idle_w=0, busy_w=200)
    state = ThermalState(spec)
    state.set_util(0.0, 1.0)
    tau = 200.0
    assert state.advance(tau) == pytest.approx(20 + 40 * (1 - math.exp(-1)))
    halves = ThermalState(spec)
    halves.set_util(0.0, 1.0)
    halves.advance(tau / 3)
    assert halves.advance(tau) == pytest.approx(state.celsius)  # exact however often it is asked
    state.set_util(tau, 0.0)
    assert state.advance(tau + 10 * tau) == pytest.approx(20, abs=0.01)
    assert state.peak_celsius == pytest.approx(20 + 40 * (1 - math.exp(-1)))


@pytest.mark.parametrize("pattern", sorted(PATTERNS))
def test_arrival_patterns_keep_their_rate_and_order(pattern: str) -> None:
    times = arrival_times(pattern, np.random.default_rng(0), 4000, 3.0, 1200.0)
    assert len(times) == 4000
    assert times == sorted(times)
    expected_s = 4000 / 3.0 * 1200.0 * (0.1 if pattern == "concentrated" else 1.0)
    assert times[-1] == pytest.approx(expected_s, rel=0.12)


def test_google_like_arrivals_are_burstier_than_poisson() -> None:
    def dispersion(pattern: str) -> float:
        times = np.asarray(arrival_times(pattern, np.random.default_rng(0), 6000, 3.0, 1200.0))
        counts = np.bincount((times // 1200).astype(int))
        return float(counts.var() / counts.mean())

    assert dispersion("google") > 2 * dispersion("poisson")


def test_unknown_patterns_and_rates_are_refused() -> None:
    with pytest.raises(ValueError, match="no arrival pattern"):
        arrival_times("tidal", np.random.default_rng(0), 3, 1.0)
    with pytest.raises(ValueError, match="positive"):
        arrival_times("poisson", np.random.default_rng(0), 3, 0.0)


def test_classes_come_at_five_thirtyfive_sixty() -> None:
    jobs = ElasticWorkload(jobs=4000).generate(make_truth("train", 0), 0)
    shares = {p: sum(j.job.priority == p for j in jobs) / 4000 for p in ("URGENT", "PRIOR", "NORMAL")}
    assert shares == {
        "URGENT": pytest.approx(0.05, abs=0.01),
        "PRIOR": pytest.approx(0.35, abs=0.02),
        "NORMAL": pytest.approx(0.60, abs=0.02),
    }
    prior = next(j for j in jobs if j.job.priority == "PRIOR")
    assert prior.deadline_s == pytest.approx(prior.submit_time_s + prior.job.single_gpu_s)


def test_harmony_jobs_have_the_papers_shape() -> None:
    jobs = HarmonyWorkload(jobs=2000).generate(make_truth("judge", 0), 0)
    with_servers = [j for j in jobs if len(j.job.groups) == 2]
    assert len(with_servers) / 2000 == pytest.approx(0.5, abs=0.04)
    assert {g.count for j in jobs for g in j.job.groups} == {1, 2, 3}
    assert len({j.job.model for j in jobs}) == 6
    lengths = np.array([j.ideal_s for j in jobs])
    assert lengths.mean() > 1.3 * np.median(lengths)  # skewed: many short, few long
    assert all(j.job.total_epochs * j.job.dataset_size == pytest.approx(j.samples, rel=1e-9) for j in jobs)
