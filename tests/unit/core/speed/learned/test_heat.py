"""Thermal constants from reports: the shipped ones without any, and the true ones after many."""

import math
import random

import pytest

from placewise_core.domain.events import SubtaskForgotten, SubtaskProfiled
from placewise_core.speed.learned.disturbance import is_disturbance
from placewise_core.speed.learned.durations import is_duration
from placewise_core.speed.learned.heat import (
    HALVING_S,
    HeatConstants,
    HeatGroup,
    HeatStep,
    NodeHeat,
    is_heat,
    row_of_busy,
    rows_of_step,
)
from placewise_core.speed.learned.sums import Sums, sums_of
from placewise_core.speed.learned.throughputs import is_throughput
from placewise_core.view.estimates import Estimates

GPU = HeatGroup("1 V100, 16 cores", "gpu", is_power=True)
RISE, TIME_S = 41.0, 60.0  # shipped
LOAD_W, TRUE_RISE, TRUE_TIME_S, EVERY_S = 250.0, 55.0, 150.0, 5.0


def add(known: NodeHeat, kind: str, x: float, weight: float, time_s: float = 0.0) -> None:
    known.learn(kind, sums_of(known.row(kind)).added(x, time_s, HALVING_S, weight).row)


def warmed(steps: int, noise_k: float = 0.0, seed: int = 3) -> NodeHeat:
    """Sums of a node that works and rests by turns of a minute."""
    known, draw, theta = NodeHeat(), random.Random(seed), 15.0
    for i in range(steps):
        load = LOAD_W if (i // 12) % 2 == 0 else 70.0
        steady = TRUE_RISE * load / LOAD_W
        before, theta = theta, steady + (theta - steady) * math.exp(-EVERY_S / TRUE_TIME_S)
        seen = [value + draw.gauss(0.0, noise_k) for value in (before, theta)]
        for kind, x, weight in rows_of_step(GPU, HeatStep(EVERY_S, load, *seen)):
            add(known, kind, x, weight)
        if load == LOAD_W:
            add(known, *row_of_busy(GPU, load))
    return known


def constants(known: NodeHeat) -> HeatConstants:
    found = known.constants(GPU, RISE, TIME_S)
    assert found is not None
    return found


def test_nothing_is_learned_before_a_step_and_a_busy_report() -> None:
    known = NodeHeat()
    assert known.constants(GPU, RISE, TIME_S) is None
    add(known, *row_of_busy(GPU, LOAD_W))
    assert known.constants(GPU, RISE, TIME_S) is None
    for kind, x, weight in rows_of_step(GPU, HeatStep(EVERY_S, LOAD_W, 20.0, 21.0)):
        add(known, kind, x, weight)
    assert known.constants(GPU, RISE, TIME_S) is not None


def test_one_step_that_says_little_leaves_the_shipped_constants() -> None:
    known = NodeHeat()
    add(known, *row_of_busy(GPU, LOAD_W))
    steady = HeatStep(1.0, LOAD_W, RISE, RISE)
    for kind, x, weight in rows_of_step(GPU, steady):
        add(known, kind, x, weight)
    found = constants(known)
    assert found.rise == pytest.approx(RISE, rel=0.01)
    assert found.time_constant_s == pytest.approx(TIME_S, rel=0.1)
    assert found.low < RISE < found.high


def test_many_exact_steps_show_the_true_constants() -> None:
    found = constants(warmed(200))
    assert found.load == pytest.approx(LOAD_W)
    assert found.rise == pytest.approx(TRUE_RISE, rel=0.03)
    assert found.time_constant_s == pytest.approx(TRUE_TIME_S, rel=0.05)
    assert found.resistance == pytest.approx(found.rise / LOAD_W)
    assert found.reports == pytest.approx(200.0)


def test_the_intervals_hold_the_true_constants_and_shrink() -> None:
    few, many = constants(warmed(6, 0.5)), constants(warmed(300, 0.5))
    assert many.low < TRUE_RISE < many.high
    assert many.low_s < TRUE_TIME_S < many.high_s
    assert many.high / many.low < few.high / few.low
    assert many.high_s / many.low_s < few.high_s / few.low_s


def test_reports_that_cannot_be_true_stay_bounded() -> None:
    known = NodeHeat()
    add(known, *row_of_busy(GPU, 1e-3))
    for kind, x, weight in rows_of_step(GPU, HeatStep(0.5, 1e-3, 170.0, -70.0)):
        add(known, kind, x, weight)
    found = constants(known)
    assert 0 < found.low <= found.rise <= found.high < math.inf
    assert 0 < found.low_s <= found.time_constant_s <= found.high_s < math.inf


def test_a_load_that_varies_counts_one_standard_deviation_above_its_mean() -> None:
    known = warmed(1)
    add(known, *row_of_busy(GPU, 150.0))
    assert constants(known).load == pytest.approx(250.0)


def test_old_reports_count_less() -> None:
    known = warmed(50)
    before = constants(known).reports
    add(known, *row_of_busy(GPU, LOAD_W), time_s=HALVING_S)
    assert constants(known).reports == pytest.approx(before / 2.0)


def test_rows_are_those_of_heat_alone_and_change_the_digest_and_the_stamp() -> None:
    estimates = Estimates({}, {})
    (kind, *_) = row_of_busy(GPU, LOAD_W)
    assert is_heat(kind)
    assert not any(belongs(kind) for belongs in (is_duration, is_throughput, is_disturbance))
    before, stamp = estimates.digest, estimates.heat.stamp
    estimates.profile(SubtaskProfiled(kind, Sums(1.0, 2.0, 4.0).row))
    assert estimates.digest != before
    assert estimates.heat.stamp > stamp
    assert kind in estimates.kinds
    estimates.forget(SubtaskForgotten(kind).kind)
    assert estimates.digest == before
    assert not estimates.row(kind)
