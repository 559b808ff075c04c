"""Figures of `placewise bench shadow`: what a shadow costs the answers. Starts nothing."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from placewise_service.bench.paced import PacedPlan, PacedResult, Turn

MOST: Final[Mapping[str, float]] = {"p50_ms": 1.03, "p99_ms": 1.10}
LEAST_RPS: Final = 0.97


def shadow_figures(plan: PacedPlan, result: PacedResult, counted: Mapping[str, float]) -> dict[str, Any]:
    """Ratios are those with the shadow on over off, turn by turn, and their medians. `counted` are counters of the
    service."""
    paced, saturated = _ratios(result.paced), _ratios(result.saturated)
    medians = {name: median(values) for name, values in paced.items()}
    turns = [*result.paced, *result.saturated]
    return {
        "policy": plan.workload.policy,
        "shadow": plan.shadow,
        "shadow_policy": plan.shadow_policy,
        "is_control": plan.is_control,
        "nodes": plan.workload.nodes,
        "turns": plan.turns,
        "seconds": plan.seconds,
        "saturation_rps": result.saturation_rps,
        "paced_rps": plan.share * result.saturation_rps,
        **{f"{name}_off": median(getattr(turn, name) for turn in _side(result.paced, False)) for name in paced},
        **{f"{name}_ratio": value for name, value in medians.items()},
        "is_within_limits": medians["rps"] >= LEAST_RPS and all(medians[name] <= most for name, most in MOST.items()),
        **{f"{name}_ratios": values for name, values in paced.items()},
        **{f"saturated_{name}_ratio": median(values) for name, values in saturated.items()},
        **counted,
        "calls": sum(turn.calls for turn in turns),
        "errors": sum(turn.errors for turn in turns),
        "answers_equal": result.answers_equal,
    }


def _ratios(turns: Sequence[Turn]) -> dict[str, list[float]]:
    pairs = list(zip(_side(turns, True), _side(turns, False), strict=True))
    return {name: [getattr(on, name) / getattr(off, name) for on, off in pairs] for name in ("p50_ms", "p99_ms", "rps")}


def _side(turns: Sequence[Turn], is_shadowed: bool) -> list[Turn]:
    return [turn for turn in turns if turn.is_shadowed is is_shadowed]
