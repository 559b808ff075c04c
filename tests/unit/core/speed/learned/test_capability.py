"""Capabilities from shares that ended: the shipped ones without any, and the true ones after many."""

import math
import random

import pytest

from placewise_core.domain.events import SubtaskForgotten, SubtaskProfiled
from placewise_core.speed.learned.capability import (
    HALVING_S,
    Capabilities,
    CapabilityGroup,
    UnitType,
    group_of,
    is_capability,
)
from placewise_core.speed.learned.disturbance import is_disturbance
from placewise_core.speed.learned.durations import is_duration
from placewise_core.speed.learned.heat import is_heat
from placewise_core.speed.learned.normal import Estimate
from placewise_core.speed.learned.sums import Sums, sums_of
from placewise_core.speed.learned.throughputs import is_throughput
from placewise_core.view.estimates import Estimates

GPU, OTHER_GPU, CPU = ("1 V100, 16 cores", "gpu"), ("1 A100, 16 cores", "gpu"), ("1 V100, 16 cores", "cpu")
SHIPPED: dict[UnitType, float] = {GPU: 0.8, OTHER_GPU: 1.6, CPU: 0.4}


def add(known: Capabilities, of: UnitType, rate: float, time_s: float = 0.0, kind: str = "sort") -> None:
    row = CapabilityGroup(kind, *of).kind
    known.learn(row, sums_of(known.row(row)).added(math.log(rate), time_s, HALVING_S).row)


def found(known: Capabilities, kind: str = "sort") -> dict[UnitType, Estimate]:
    return known.estimates(kind, SHIPPED)


def test_nothing_is_learned_of_a_kind_without_a_report() -> None:
    known = Capabilities()
    assert found(known) == {}
    add(known, GPU, 1.0)
    assert found(known, "join") == {}
    assert found(known) != {}
    assert known.task_kinds == {"sort"}


def test_a_report_of_the_shipped_speed_leaves_it_and_narrows_the_interval() -> None:
    known = Capabilities()
    add(known, GPU, SHIPPED[GPU])
    one = found(known)
    assert all(each.log_factor == pytest.approx(0.0, abs=1e-12) for each in one.values())
    assert one[GPU].spread < one[OTHER_GPU].spread < one[CPU].spread
    assert [one[of].source for of in (GPU, OTHER_GPU, CPU)] == ["kind, unit and type of node", "kind and unit", "kind"]


def test_a_group_without_a_report_follows_those_like_it() -> None:
    known = Capabilities()
    for _ in range(20):
        add(known, GPU, 3.0 * SHIPPED[GPU])
    shown = found(known)
    assert shown[GPU].log_factor == pytest.approx(math.log(3.0), rel=0.02)
    assert shown[GPU].log_factor > shown[OTHER_GPU].log_factor > shown[CPU].log_factor > 0.0


def test_the_levels_are_those_of_the_joint_normal_distribution() -> None:
    """The same posterior from the full covariance matrix of the three groups."""
    import numpy as np

    from placewise_core.speed.learned import capability

    known, seen = Capabilities(), {GPU: (0.9, 1.1, 1.0), CPU: (0.2, 0.3)}
    for of, rates in seen.items():
        for rate in rates:
            add(known, of, rate)
    shown, groups = found(known), [GPU, OTHER_GPU, CPU]
    k, u, t = capability._KIND_SD**2, capability._UNIT_SD**2, capability._TYPE_SD**2
    prior = np.array([[k + u * (a[1] == b[1]) + t * (a == b) for b in groups] for a in groups])
    noise, at = shown[GPU].noise, [groups.index(of) for of in seen]
    y = np.array([np.mean(np.log(rates)) - math.log(SHIPPED[of]) for of, rates in seen.items()])
    gain = prior[:, at] @ np.linalg.inv(prior[np.ix_(at, at)] + np.diag([noise / len(r) for r in seen.values()]))
    left = prior - gain @ prior[at, :]
    for i, of in enumerate(groups):
        assert shown[of].log_factor == pytest.approx(float((gain @ y)[i]))
        assert shown[of].variance == pytest.approx(float(left[i, i]) + capability._NODE_SD**2)


def test_the_interval_holds_most_of_the_next_shares() -> None:
    draw, inside = random.Random(5), 0
    for _ in range(200):
        true, known = draw.gauss(0.0, 0.6), Capabilities()
        for _ in range(5):
            add(known, GPU, math.exp(true + draw.gauss(0.0, 0.15)))
        next_share, shown = true + draw.gauss(0.0, 0.15), found(known)[GPU]
        inside += abs(math.log(SHIPPED[GPU]) + shown.log_factor - next_share) <= shown.spread
    assert 170 <= inside <= 200


def test_old_reports_count_less() -> None:
    known = Capabilities()
    add(known, GPU, 1.0)
    add(known, CPU, 1.0, HALVING_S)
    assert found(known)[GPU].reports == pytest.approx(0.5)


def test_rows_are_those_of_capabilities_alone_and_change_the_digest_and_the_stamp() -> None:
    group = CapabilityGroup("", *GPU)
    assert group_of(group.kind) == group
    assert is_capability(group.kind)
    assert not any(belongs(group.kind) for belongs in (is_duration, is_throughput, is_disturbance, is_heat))
    estimates = Estimates({}, {})
    before, stamp = estimates.digest, estimates.capabilities.stamp
    estimates.profile(SubtaskProfiled(group.kind, Sums(1.0, 2.0, 4.0).row))
    assert estimates.digest != before
    assert estimates.capabilities.stamp > stamp
    assert estimates.capabilities.has("", GPU)
    assert group.kind in estimates.kinds
    estimates.forget(SubtaskForgotten(group.kind).kind)
    assert estimates.digest == before
    assert not estimates.row(group.kind)
    assert not estimates.capabilities.task_kinds
