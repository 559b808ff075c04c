"""The estimate of a model's throughput: its posterior re-derived, its interval, what leans on what, rows that go."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.fakes.proteus_queue import bundled

from placewise_core.domain.job import Job, JobId
from placewise_core.speed.learned import throughputs
from placewise_core.speed.learned.sums import Sums, sums_of
from placewise_core.speed.learned.throughputs import HALVING_S, Estimate, Row, Throughputs, is_throughput, row_of
from placewise_core.speed.throughput import Match, ThroughputModel

MODEL = ThroughputModel(bundled("throughput.json"))
KNOWN = Job(JobId("k"), "BERT", batch_size=64)
UNKNOWN = Job(JobId("u"), "nobody-knows-it", batch_size=64)


def teach(
    known: Throughputs,
    job: Job,
    residual: float,
    *,
    gpu: str = "T4",
    nodes: int = 1,
    gpus: int = 1,
    time_s: float = 0.0,
) -> None:
    """A report whose throughput is e^residual times the forecast."""
    forecast = float(MODEL.throughput(job, MODEL.match(job, gpu), nodes, gpus / nodes))
    row = Row(throughputs.canonical(job.model), gpu, job.batch_size, nodes, gpus)
    sums = sums_of(known.row(row.kind)).added(math.log(forecast) + residual, time_s, HALVING_S)
    known.learn(row.kind, sums.row)


def estimate(known: Throughputs, job: Job, gpu: str = "T4", nodes: int = 1, gpus: int = 1) -> Estimate:
    found = known.estimate(MODEL, job, MODEL.match(job, gpu), gpu, (nodes, gpus))
    assert found is not None
    return found


def test_before_the_first_report_nothing_is_known() -> None:
    known, match = Throughputs(), MODEL.match(UNKNOWN, "T4")
    assert known.estimate(MODEL, UNKNOWN, match, "T4", (1, 1)) is None
    assert known.factors(MODEL, UNKNOWN, match, "T4") is None
    teach(known, UNKNOWN, 1.0, gpu="A100")
    assert known.factors(MODEL, UNKNOWN, match, "T4") is None, "another GPU type says nothing"


def test_the_posterior_is_that_of_the_joint_normal_distribution() -> None:
    """Conditioning the whole vector of observations at once, with σ² as estimated from them."""
    known, rng = Throughputs(), np.random.default_rng(3)
    other = replace(UNKNOWN, model="another-one")
    profile = MODEL.match(UNKNOWN, "T4").profile
    assert MODEL.match(other, "T4").profile is profile
    small = replace(UNKNOWN, batch_size=16)
    seen = []
    for job, nodes, gpus, count in ((UNKNOWN, 1, 1, 3), (small, 1, 4, 2), (other, 1, 1, 4), (other, 2, 8, 1)):
        for residual in rng.normal(0.5, 0.3, count):
            teach(known, job, residual, nodes=nodes, gpus=gpus)
            seen.append((job.model, (nodes, gpus), math.log(job.batch_size / gpus), residual))
    noise = {}
    for name in (UNKNOWN.model, other.model):
        of = [[y for model, at, _, y in seen if model == name and at == shape] for shape in ((1, 1), (1, 4), (2, 8))]
        within = sum(float(np.var(ys)) * len(ys) for ys in of if ys)
        freedom = throughputs._NOISE_REPORTS + sum(len(ys) - 1 for ys in of if ys)
        noise[name] = (throughputs._NOISE_REPORTS * throughputs._NOISE**2 + within) / freedom
    of_gpu, of_model = throughputs._gpu_spread("T4", profile) ** 2, throughputs._OTHER_MODEL_SPREAD**2
    alike = throughputs._OTHER_ALIKE

    def covariance(one: tuple[Any, ...], two: tuple[Any, ...]) -> float:
        if one[0] != two[0]:
            return of_gpu
        smooth = alike.batch**2 * math.exp(-0.5 * ((one[2] - two[2]) / alike.reach) ** 2)
        return of_gpu + of_model + smooth + (alike.shape**2 if one[1] == two[1] else 0.0)

    k = np.array([[covariance(a, b) for b in seen] for a in seen]) + np.diag([noise[each[0]] for each in seen])
    for target in ((1, 1), (1, 4), (4, 16)):
        at = (UNKNOWN.model, target, math.log(64 / target[1]))
        c = np.array([covariance(at, each) for each in seen])
        weights = np.linalg.solve(k, c)
        found = estimate(known, UNKNOWN, nodes=target[0], gpus=target[1])
        mean = float(weights @ [each[3] for each in seen])
        assert found.log_factor == pytest.approx(mean, abs=1e-9)
        assert found.variance == pytest.approx(covariance(at, at) - float(weights @ c), abs=1e-9)
        assert found.noise == pytest.approx(noise[UNKNOWN.model], rel=1e-9)
        factors = known.factors(MODEL, UNKNOWN, MODEL.match(UNKNOWN, "T4"), "T4")
        assert factors is not None
        assert math.log(factors.at(64, target[0], target[1] / target[0])) == pytest.approx(mean, abs=0.0101)


def test_the_source_is_the_finest_level_with_reports() -> None:
    known = Throughputs()
    teach(known, UNKNOWN, 0.4, gpus=2)
    found = [
        estimate(known, UNKNOWN, gpus=2),
        estimate(known, UNKNOWN),
        estimate(known, replace(UNKNOWN, model="other")),
    ]
    assert [each.source for each in found] == ["model, GPU type and shape", "model and GPU type", "GPU type"]
    assert [each.reports for each in found] == [1.0, 1.0, 1.0]


def test_a_known_network_leaves_its_profile_for_many_reports_and_an_unknown_one_for_one() -> None:
    after_one = {}
    for job in (KNOWN, UNKNOWN):
        known = Throughputs()
        teach(known, job, 0.5)
        after_one[job.id] = estimate(known, job).log_factor
        for _ in range(60):
            teach(known, job, 0.5)
        assert estimate(known, job).log_factor == pytest.approx(0.5, abs=0.03)
    assert after_one["k"] < 0.42 < after_one["u"]


def test_reports_of_other_models_on_a_new_gpu_type_help_a_model_without_any() -> None:
    known = Throughputs()
    others = [replace(UNKNOWN, model=f"m{i}") for i in range(6)]
    for job in others:
        teach(known, job, 1.2, gpu="H100")
    found = estimate(known, UNKNOWN, gpu="H100")
    assert (0.5 < found.log_factor < 1.2, found.source) == (True, "GPU type")


def test_a_batch_far_from_those_reported_is_known_less_well() -> None:
    known = Throughputs()
    for _ in range(20):
        teach(known, UNKNOWN, 0.5)
    spreads = [estimate(known, replace(UNKNOWN, batch_size=batch)).spread for batch in (64, 128, 4096)]
    assert spreads == sorted(spreads)
    assert spreads[-1] > 2.0 * spreads[0]


def test_of_very_many_rows_those_with_most_reports_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughputs, "_MOST_ROWS", 2)
    known = Throughputs()
    for gpus, count in ((1, 3), (2, 1), (4, 2)):
        for _ in range(count):
            teach(known, UNKNOWN, 0.5, gpus=gpus)
    assert [estimate(known, UNKNOWN, gpus=gpus).reports for gpus in (1, 2, 4)] == [3.0, 5.0, 2.0]


@pytest.mark.parametrize("spread", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("count", [1, 3, 10, 30, 100])
def test_nine_tenths_of_the_next_reports_lie_within_the_interval(spread: float, count: int) -> None:
    """Of noise whose size is unknown: after few reports it is taken for more like the usual one than it is."""
    rng, inside = np.random.default_rng((5, count)), 0
    forecast = math.log(float(MODEL.throughput(UNKNOWN, MODEL.match(UNKNOWN, "T4"), 1, 1)))
    for _ in range(300):
        known, sums = Throughputs(), Sums()
        *reports, after = rng.normal(0.0, throughputs._OTHER_MODEL_SPREAD) + rng.normal(0.0, spread, count + 1)
        for each in reports:
            sums = sums.added(forecast + each, 0.0, HALVING_S)
        known.learn(Row("nobodyknowsit", "T4", 64, 1, 1).kind, sums.row)
        found = estimate(known, UNKNOWN)
        inside += abs(after - found.log_factor) <= found.spread
    low, high = (0.84, 0.97) if count >= 30 else (0.85 if spread <= throughputs._NOISE else 0.5, 1.0)
    assert low <= inside / 300 <= high


def test_old_reports_count_half_after_the_half_life() -> None:
    known = Throughputs()
    teach(known, UNKNOWN, 0.0)
    teach(known, UNKNOWN, 0.6, time_s=HALVING_S)
    assert estimate(known, UNKNOWN).reports == 1.5


def test_rows_go_as_they_came() -> None:
    known, fresh = Throughputs(), Throughputs()
    teach(known, UNKNOWN, 0.7, gpus=4, nodes=2)
    (kind,) = known.kinds
    assert is_throughput(kind)
    assert row_of(kind).kind == kind
    assert known.row(kind)["count"] == 1.0
    assert known.factors(MODEL, UNKNOWN, MODEL.match(UNKNOWN, "T4"), "T4") is not None
    known.forget(kind)
    known.forget(kind)
    assert not list(known.kinds)
    assert known.row(kind) == {}
    assert known.factors(MODEL, UNKNOWN, MODEL.match(UNKNOWN, "T4"), "T4") is None
    teach(fresh, KNOWN, 0.2)
    assert fresh.estimate(MODEL, UNKNOWN, MODEL.match(UNKNOWN, "T4"), "T4", (1, 1)) is not None


def test_the_order_in_which_rows_come_does_not_matter() -> None:
    rows = [(UNKNOWN, 0.31, 1), (UNKNOWN, 0.17, 2), (replace(UNKNOWN, model="m"), 0.9, 4), (KNOWN, 0.05, 1)]
    found = []
    for order in (rows, rows[::-1]):
        known = Throughputs()
        for job, residual, gpus in order:
            teach(known, job, residual, gpus=gpus)
        found.append(estimate(known, UNKNOWN, gpus=2))
    assert found[0] == found[1]


def test_factors_bring_forecasts_to_what_was_reported() -> None:
    known = Throughputs()
    for _ in range(50):
        teach(known, UNKNOWN, 0.5, gpus=1)
        teach(known, UNKNOWN, -0.5, gpus=4)
    match = MODEL.match(UNKNOWN, "T4")
    factors = known.factors(MODEL, UNKNOWN, match, "T4")
    assert factors is not None
    one, four = np.log(factors.at(64, [1, 1], [1, 4]))
    assert (one, four) == (pytest.approx(0.5, abs=0.03), pytest.approx(-0.5, abs=0.03))
    assert factors.at(64, 1, 1).shape == ()
    measured = Match(match.profile, match.label, factors)
    ratio = MODEL.throughput(UNKNOWN, measured, [1, 1], [1, 4]) / MODEL.throughput(UNKNOWN, match, [1, 1], [1, 4])
    assert np.log(ratio) == pytest.approx([one, four])
    assert MODEL.step_s(measured, 64) == pytest.approx(MODEL.step_s(match, 64) / math.exp(one))
    speedup = MODEL.speedup(UNKNOWN, measured, 1, 4) / MODEL.speedup(UNKNOWN, match, 1, 4)
    assert math.log(speedup) == pytest.approx(four - one)


def test_a_gpu_named_in_more_words_is_as_well_known() -> None:
    estimates = []
    for gpu in ("T4", "Tesla T4"):
        known = Throughputs()
        teach(known, KNOWN, 0.5, gpu=gpu)
        estimates.append(estimate(known, KNOWN, gpu=gpu))
    assert estimates[0] == estimates[1]
