"""Partition's formulas: sums, caps, equal finish times, optimality (4), and k as Algorithm 3 walks to it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.proteus_queue import bundled, cluster_of

from placewise_core.domain.cluster import Gpu, Hardware, Node, NodeTelemetry
from placewise_core.domain.decision import Outcome, Reason
from placewise_core.domain.divisible import DivisibleTask
from placewise_core.domain.job import NodeId, Resources
from placewise_core.partition.policy import PartitionContext
from placewise_core.partition.registry import partition_policy
from placewise_core.partition.shares import levelled, proportional
from placewise_core.partition.threshold import threshold_scale, unit_count

POLICY = partition_policy(bundled("capability.json"))
positive = st.floats(0.01, 100.0)
capabilities = st.lists(positive, min_size=1, max_size=12)


def algorithm_3(idle: int, scale: float, c_p: float, c_s: float, q: float) -> int:
    """As printed: from N_idle down to the first that fits."""
    for i in range(idle, 1, -1):
        if i * c_p > c_s and scale >= max(i * c_p * q, i * c_p * c_s * q / (i * c_p - c_s)):
            return i
    return 1


@given(st.integers(1, 200), st.floats(0.001, 1e4), positive, positive, st.floats(0.0, 50.0))
@settings(deadline=None)
def test_k_is_the_largest_n_the_threshold_allows(idle: int, scale: float, c_p: float, c_s: float, q: float) -> None:
    assert unit_count(idle, scale, c_p, c_s, q) == algorithm_3(idle, scale, c_p, c_s, q)


@given(st.integers(2, 50), st.integers(1, 400), positive, positive)
@settings(deadline=None)
def test_k_at_the_very_border(n: int, idle: int, c_p: float, q: float) -> None:
    scale = threshold_scale(n, c_p, 0.5 * c_p, q)
    assert unit_count(idle, scale, c_p, 0.5 * c_p, q) == algorithm_3(idle, scale, c_p, 0.5 * c_p, q)


def test_a_threshold_below_one_cpu_is_never_reached() -> None:
    assert threshold_scale(2, 1.0, 2.0, 1.0) == math.inf
    assert threshold_scale(3, 1.0, 2.0, 1.0) == pytest.approx(6.0)


@given(capabilities, positive)
@settings(deadline=None)
def test_uncapped_shares_sum_up_and_finish_together(capability: list[float], scale: float) -> None:
    c = np.array(capability)
    shares = levelled(scale, c, np.zeros(len(c)), np.full(len(c), np.inf))
    assert shares.sum() == pytest.approx(scale)
    np.testing.assert_allclose(shares / c, scale / c.sum(), rtol=1e-9)
    np.testing.assert_allclose(shares, proportional(scale, c), rtol=1e-9)


@given(st.data())
@settings(deadline=None)
def test_no_other_split_is_faster(data: st.DataObject) -> None:
    """Optimality (4), with and without caps and earlier work: no random feasible split has an earlier end."""
    c = np.array(data.draw(st.lists(positive, min_size=2, max_size=8)))
    n = len(c)
    start = np.array(data.draw(st.lists(st.one_of(st.just(0.0), st.floats(0.0, 20.0)), min_size=n, max_size=n)))
    cap = np.array(data.draw(st.lists(st.one_of(st.just(np.inf), st.floats(0.1, 30.0)), min_size=n, max_size=n)))
    room = float((c * cap).sum())
    most = min(room, 1e3) * 0.999
    scale = data.draw(st.floats(min(0.01, most), most))
    shares = levelled(scale, c, start, cap)
    assert shares.sum() == pytest.approx(scale)
    assert (shares >= 0).all()
    assert (shares <= c * cap * (1 + 1e-9)).all()

    def end(split: np.ndarray) -> float:
        return float(np.max(np.where(split > 1e-9 * scale, start + split / c, 0.0)))

    rng = np.random.default_rng(data.draw(st.integers(0, 2**16)))
    for _ in range(20):
        other = np.minimum(rng.dirichlet(np.ones(n)) * scale, c * cap)
        missing = scale - other.sum()
        slack = np.where(np.isinf(cap), 1e6, c * cap - other)
        other = other + missing * slack / slack.sum()
        assert end(shares) <= end(other) * (1 + 1e-7) + 1e-9


def test_caps_without_room_are_an_error() -> None:
    with pytest.raises(ValueError, match="within their caps"):
        levelled(10.0, np.array([1.0, 1.0]), np.zeros(2), np.array([4.0, 5.0]))


celsius = st.one_of(st.just(math.nan), st.floats(20.0, 90.0))
util = st.one_of(st.just(math.nan), st.floats(0.0, 1.0))


@st.composite
def nodes(draw: st.DrawFn) -> tuple[Node, ...]:
    made = []
    for i in range(draw(st.integers(1, 8))):
        gpus = draw(st.integers(0, 4))
        telemetry = NodeTelemetry(
            cpu_util=draw(util),
            gpu_util=draw(util),
            cpu_celsius=draw(celsius),
            gpu_celsius=draw(celsius),
            limit_celsius=draw(st.one_of(st.just(math.nan), st.floats(50.0, 90.0))),
            power_watts=draw(st.one_of(st.just(math.nan), st.floats(50.0, 2000.0))),
            ambient_celsius=draw(st.one_of(st.just(math.nan), st.floats(15.0, 30.0))),
            observe_time_s=990.0,
        )
        hardware = draw(st.sampled_from([Hardware(), Hardware(2.0, 10.0, 1.0), Hardware(3.5, 30.0, 1.8)]))
        capacity = Resources(cpu_cores=16, gpus=gpus, memory_gib=64)
        gpu_list = tuple(Gpu(g, "V100", 16) for g in range(gpus))
        made.append(Node(NodeId(f"n{i}"), capacity, gpu_list, hardware=hardware, telemetry=telemetry))
    return tuple(made)


@given(nodes(), st.floats(0.01, 2000.0), st.floats(0.0, 100.0), st.floats(0.01, 20.0))
@settings(deadline=None)
def test_a_plan_is_whole_cool_and_accounts_for_every_unit(
    cluster: tuple[Node, ...], scale: float, serial: float, overhead_s: float
) -> None:
    view = cluster_of(cluster)
    task = DivisibleTask("t", scale, serial, overhead_s)
    plan = POLICY.partition(task, view, PartitionContext(1000.0, is_explaining=True))
    units = sum(1 + len(node.gpus) for node in cluster)
    used = [(s.node, s.unit) for s in plan.shares]
    assert len(set(used)) == len(used)
    assert not set(used) & {(e.node, e.unit) for e in plan.excluded}
    assert len(used) + len(plan.excluded) == units
    if plan.outcome is not Outcome.PLACED:
        assert not plan.shares
        assert plan.blockers
        return
    assert sum(s.scale for s in plan.shares) == pytest.approx(scale)
    limits = {node.id: node.telemetry.limit_celsius for node in cluster}
    for share in plan.shares:
        assert share.scale >= 0
        assert np.isfinite([share.scale, share.predicted_s, share.predicted_peak_celsius, share.capability]).all()
        if not math.isnan(limits[NodeId(share.node)]) and share.predicted_peak_celsius > 0:
            assert share.predicted_peak_celsius <= limits[NodeId(share.node)] + 1e-6
    assert np.isfinite([plan.predicted_s, plan.threshold_scale]).all()
    if len(plan.shares) > 1 and not any(b.reason is Reason.THERMAL_LIMIT for b in plan.blockers):
        longest = max(s.predicted_s for s in plan.shares)
        assert plan.predicted_s == pytest.approx(longest + overhead_s + serial / plan.shares[0].capability)
