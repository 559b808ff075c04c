"""The ratio of two p99s, over the requests of all turns: it finds a difference that is there, and none that is not."""

import numpy as np
import pytest

from placewise_service.bench.paced import CONTROL, OFF, ON, Stretch, Turn
from placewise_service.bench.shadow_figures import p99_ratio, p99_stretch_ratio


def turns(factor: float, seed: int) -> list[Turn]:
    """Two turns of forty stretches with exponential latencies; those with the shadow on take `factor` times as long."""
    rng = np.random.default_rng(seed)

    def stretch(scale: float) -> Stretch:
        return Stretch((scale * rng.exponential(2.0, 200)).tolist(), 0.5, 0)

    scales = {OFF: 1.0, ON: factor, CONTROL: 1.0}
    return [{side: [stretch(scale) for _ in range(40)] for side, scale in scales.items()} for _ in range(2)]


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_the_interval_has_the_true_ratio(factor: float) -> None:
    found = [p99_ratio(turns(factor, seed), ON) for seed in range(4)]
    assert sum(low <= factor <= high for _, low, high in found) >= 3
    assert all(low < ratio < high for ratio, low, high in found)
    is_seen = [low > 1.1 for _, low, _ in found]
    assert all(is_seen) if factor > 1.1 else not any(is_seen)


def test_a_control_is_another_draw_of_the_same() -> None:
    found = turns(1.5, 3)
    assert p99_ratio(found, CONTROL)[0] == pytest.approx(1.0, abs=0.25)
    assert p99_ratio(found, OFF)[:3] == (1.0, 1.0, 1.0)


def stalled(factor: float, seed: int) -> list[Turn]:
    """As `turns`, where in one stretch of ten a stall of the machine takes up to 200 ms from every second request."""
    found, rng = turns(factor, seed), np.random.default_rng((seed, 1))
    for stretch in [each for turn in found for side in turn.values() for each in side]:
        if rng.random() < 0.1:
            late_ms = rng.uniform(20.0, 200.0)
            stretch.times_ms = [time_ms + late_ms * (i % 2) for i, time_ms in enumerate(stretch.times_ms)]
    return found


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_stalls_of_the_machine_do_not_hide_the_ratio_of_the_stretches(factor: float) -> None:
    found = [p99_stretch_ratio(stalled(factor, seed), ON) for seed in range(8)]
    assert sum(low <= factor <= high for _, low, high in found) >= 7
    assert all(high / low < 1.35 for _, low, high in found)
    pooled = [p99_ratio(stalled(factor, seed), ON) for seed in range(8)]
    assert min(high / low for _, low, high in pooled) > 1.35
