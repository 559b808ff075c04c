"""Figures of `placewise bench shadow`: the cost of a shadow for the answers. Starts nothing."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from placewise_service.bench.paced import CONTROL, OFF, ON, PacedPlan, PacedResult, Stretch, Turn

MOST: Final[Mapping[str, float]] = {"p50_ms": 1.03, "p99_ms": 1.10}
LEAST_RPS: Final = 0.97
_DRAWS: Final = 1000
_INTERVAL: Final = (2.5, 97.5)


def shadow_figures(plan: PacedPlan, result: PacedResult, counted: Mapping[str, float]) -> dict[str, Any]:
    """Ratios to the side without shadow: of p50 and answers per second the median of the turns, of p99 that of the
    stretches and that of all requests, with 95 % intervals. Those named `control` are of the same without shadow.
    `counted` are counters of the service. A p99 is within its limit if the whole interval of both ratios is."""
    ratios, saturated = _ratios(result.paced, ON), _ratios(result.saturated, ON)
    medians = {name: median(values) for name, values in ratios.items()}
    noise = {f"control_{name}_ratio": median(values) for name, values in _ratios(result.paced, CONTROL).items()}
    tails = {"": ON, "control_": CONTROL}
    p99s = {f"{name}p99_ms_ratio": p99_ratio(result.paced, side) for name, side in tails.items()}
    p99s |= {f"{name}p99_ms_stretch_ratio": p99_stretch_ratio(result.paced, side) for name, side in tails.items()}
    stretches = list(_stretches(result.paced, *result.paced[0])) + list(_stretches(result.saturated, *result.paced[0]))
    return {
        "policy": plan.workload.policy,
        "shadow": plan.shadow,
        "shadow_policy": plan.shadow_policy,
        "nodes": plan.workload.nodes,
        "turns": plan.turns,
        "seconds": plan.seconds,
        "saturation_rps": result.saturation_rps,
        "paced_rps": plan.share * result.saturation_rps,
        "requests_off": sum(len(each.times_ms) for each in _stretches(result.paced, OFF)),
        "p50_ms_off": _percentile(_stretches(result.paced, OFF), 50),
        "p99_ms_off": _percentile(_stretches(result.paced, OFF), 99),
        **{f"{name}_ratio": value for name, value in medians.items()},
        **noise,
        **{name: ratio for name, (ratio, _, _) in p99s.items()},
        **{f"{name}_interval": interval for name, (_, *interval) in p99s.items()},
        "is_within_limits": medians["rps"] >= LEAST_RPS
        and medians["p50_ms"] <= MOST["p50_ms"]
        and all(p99s[name][2] <= MOST["p99_ms"] for name in ("p99_ms_ratio", "p99_ms_stretch_ratio")),
        **{f"{name}_ratios": values for name, values in ratios.items()},
        **{f"saturated_{name}_ratio": median(values) for name, values in saturated.items()},
        **counted,
        "calls": sum(len(each.times_ms) for each in stretches),
        "errors": sum(each.errors for each in stretches),
        "answers_equal": result.answers_equal,
    }


def p99_ratio(turns: Sequence[Turn], side: str, seed: int = 0) -> tuple[float, float, float]:
    """p99 of all requests of a side over that of the side without shadow, and its 95 % interval: a bootstrap over the
    stretches, those that came beside each other together. A stall of the machine is in one stretch, and moves the
    p99 of a turn as it likes."""
    on, off = [[np.asarray(each.times_ms) for each in _stretches(turns, name)] for name in (side, OFF)]
    rng, everything = np.random.default_rng(seed), np.arange(len(off))
    drawn = [_p99_ratio(on, off, rng.choice(everything, len(everything))) for _ in range(_DRAWS)]
    low, high = np.percentile(drawn, _INTERVAL)
    return _p99_ratio(on, off, everything), float(low), float(high)


def p99_stretch_ratio(turns: Sequence[Turn], side: str, seed: int = 0) -> tuple[float, float, float]:
    """p99 of a stretch of a side over that of the stretch beside it without shadow: the median, and its 95 % interval
    by a bootstrap over the stretches. A cost in every stretch moves it; a stall of the machine, which is in few of
    them, does not."""
    on, off = [[np.percentile(each.times_ms, 99) for each in _stretches(turns, name)] for name in (side, OFF)]
    ratios = np.divide(on, off)
    drawn = np.median(np.random.default_rng(seed).choice(ratios, (_DRAWS, len(ratios))), axis=1)
    low, high = np.percentile(drawn, _INTERVAL)
    return float(np.median(ratios)), float(low), float(high)


def _p99_ratio(
    on: Sequence[NDArray[np.float64]], off: Sequence[NDArray[np.float64]], chosen: NDArray[np.int64]
) -> float:
    both = [np.percentile(np.concatenate([side[i] for i in chosen]), 99) for side in (on, off)]
    return float(both[0] / both[1])


def _ratios(turns: Sequence[Turn], side: str) -> dict[str, list[float]]:
    """Turn by turn."""
    pairs = [(turn[side], turn[OFF]) for turn in turns]
    return {
        "p50_ms": [_percentile(on, 50) / _percentile(off, 50) for on, off in pairs],
        "rps": [_rps(on) / _rps(off) for on, off in pairs],
    }


def _percentile(stretches: Iterator[Stretch] | Sequence[Stretch], which: float) -> float:
    return float(np.percentile([time_ms for each in stretches for time_ms in each.times_ms], which))


def _rps(stretches: Sequence[Stretch]) -> float:
    return sum(len(each.times_ms) for each in stretches) / sum(each.busy_s for each in stretches)


def _stretches(turns: Sequence[Turn], *sides: str) -> Iterator[Stretch]:
    return (each for turn in turns for side in sides for each in turn[side])
