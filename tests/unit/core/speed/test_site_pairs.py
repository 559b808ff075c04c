"""Pairs of a site's own models by co-runs beside each other: the normal model, and its worth to a site."""

import numpy as np
import pytest

from placewise_core.domain.job import CoRun
from placewise_core.policies.profiled.tables import packaged_tables
from placewise_core.speed import site_pairs
from placewise_core.speed.co_runs import KnownCoRuns, rows_of
from placewise_core.speed.completed_interference import CompletedInterference
from placewise_core.speed.pair_effects import (
    NOISE,
    OWN_SPREAD,
    PARTNER_SPREAD,
    CoRunCell,
    PairEffects,
    Spread,
    log_odds,
    of_odds,
)

TABLE = packaged_tables().interference
WIDE = Spread()
ReportedPair = tuple[str, str, float, float]


def site(*reported: ReportedPair, gpu: str = "") -> CompletedInterference:
    rows = rows_of((a, (CoRun(b, own, other, gpu),)) for a, b, own, other in reported)
    return CompletedInterference(TABLE, KnownCoRuns(rows), None)


def effects(*cells: CoRunCell, level: float = 0.3) -> PairEffects:
    return PairEffects(cells, {name: WIDE for cell in cells for name in (cell.model, cell.partner)}, level)


@pytest.mark.parametrize("gpu", ["V100", "K80", "H100"])
def test_a_site_whose_models_are_its_own_is_predicted_by_its_own_co_runs(gpu: str) -> None:
    """Six models that hardly disturb each other, each reported beside one other. By name nobody knows any of them: the
    careful default errs by 0.35 to 0.39."""
    rng = np.random.default_rng(3)
    names = [f"zz-{letter}" for letter in "abcdef"]
    true = {(a, b): float(np.clip(0.85 + 0.04 * rng.standard_normal(), 0.0, 1.0)) for a in names for b in names}
    pairs = [(a, names[(i + 1) % 6]) for i, a in enumerate(names)]
    found = site(*((a, b, true[a, b], true[b, a]) for a, b in pairs))
    asked = [(a, b) for a in names for b in names if a != b and (a, b) not in pairs and (b, a) not in pairs]
    by_name = np.mean([abs(TABLE.pair(a, b, gpu) - true[a, b]) for a, b in asked])
    errors = [abs(found.relative_speed(a, [b], gpu) - true[a, b]) for a, b in asked]
    own = {a: np.mean([true[pair] for pair in [*pairs, *((b, a) for a, b in pairs)] if pair[0] == a]) for a in names}
    by_mean = np.mean([abs(own[a] - true[a, b]) for a, b in asked])
    assert by_name > 0.33
    assert np.mean(errors) < by_mean + 0.02 < 0.09


def test_a_pair_informs_every_other_pair_of_both_models_on_either_side() -> None:
    base, reported = site(("x", "y", 0.5, 0.5), gpu="K80"), site(("x", "y", 0.5, 0.9), gpu="K80")
    for partner in ("zz", "resnet50"):
        assert reported.relative_speed("y", [partner], "K80") > base.relative_speed("y", [partner], "K80") + 0.02
        assert reported.relative_speed(partner, ["x"], "K80") > base.relative_speed(partner, ["x"], "K80") + 0.02
    assert reported.relative_speed("zz", ["resnet50"], "K80") == TABLE.pair("zz", "resnet50", "K80")
    assert reported.relative_speed("lm", ["resnet50"], "K80") == TABLE.pair("lm", "resnet50", "K80")
    assert reported.relative_speed("x", ["zz"], "V100") == TABLE.pair("x", "zz", "V100"), (
        "measured on another GPU model"
    )


def test_the_posterior_is_that_of_the_joint_normal_distribution() -> None:
    """Against the covariance of the speeds themselves, written out: N cells by N; the code has effects."""
    cells = [CoRunCell("a", "b", 0.4, -0.3), CoRunCell("c", "a", 0.7, None), CoRunCell("b", "b", -0.2, None)]
    seen = [("a", "b", 0.4), ("b", "a", -0.3), ("c", "a", 0.7), ("b", "b", -0.2)]
    level, own, partner, effect, noise = 0.3, OWN_SPREAD, PARTNER_SPREAD, -0.6, -0.4

    def covariance(p: tuple[str, str], q: tuple[str, str]) -> float:
        same = level**2 + own**2 * (p[0] == q[0]) + partner**2 * (p[1] == q[1])
        return same + effect * own * partner * ((p[0] == q[1]) + (p[1] == q[0]))

    n = len(seen)
    k = np.array([[covariance(p[:2], q[:2]) for q in seen] for p in seen]) + NOISE**2 * np.eye(n)
    k[0, 1] += noise * NOISE**2
    k[1, 0] += noise * NOISE**2
    for asked in (("a", "c"), ("c", "b"), ("a", "new"), ("new", "b"), ("new", "new")):
        near = np.array([covariance(asked, q[:2]) for q in seen])
        weights = np.linalg.solve(k, near)
        found = effects(*cells).of(*asked, WIDE, WIDE)
        assert found.mean == pytest.approx(weights @ [value for *_, value in seen], abs=1e-6)
        assert found.variance == pytest.approx(covariance(asked, asked) - weights @ near + NOISE**2, abs=1e-6)


def test_no_order_of_the_co_runs_changes_an_answer() -> None:
    rng = np.random.default_rng(5)
    names = [f"zz{i}" for i in range(7)]
    reported = [
        (a, b, *rng.uniform(0.2, 0.95, 2)) for i, a in enumerate(names) for b in names[i:] if rng.random() < 0.5
    ]
    asked = [(a, b) for a in (*names, "lm") for b in (*names, "lm")]

    def answers(order: list[ReportedPair]) -> list[float]:
        found = site(*order)
        return [
            ask(a, [b], gpu)
            for ask in (found.relative_speed, found.careful_speed)
            for gpu in ("K80", "")
            for a, b in asked
        ]

    first = answers(reported)  # type: ignore[arg-type]
    for _ in range(3):
        assert answers([reported[i] for i in rng.permutation(len(reported))]) == first  # type: ignore[misc]
    assert all(0.0 < speed <= 1.0 for speed in first)


def test_more_co_runs_narrow_an_estimate_and_the_careful_speed_comes_nearer() -> None:
    one = site(("x", "y", 0.6, 0.6))
    more = site(("x", "y", 0.6, 0.6), ("x", "z", 0.6, 0.6), ("x", "u", 0.6, 0.6), ("x", "v", 0.6, 0.6))
    gaps = [each.relative_speed("x", ["w"], "H100") - each.careful_speed("x", ["w"], "H100") for each in (one, more)]
    assert gaps[0] > gaps[1] > 0.0
    assert one.careful_speed("x", ["y"], "H100") == 0.6, "measured"
    assert one.careful_speed("lm", ["resnet50"], "V100") == TABLE.pair("lm", "resnet50", "V100"), "of the table"


def test_of_very_many_models_the_nearest_to_a_pair_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = [(f"zz{i}", f"zz{i + 1}", 0.9, 0.9) for i in range(30)]
    whole = site(*chain).relative_speed("zz0", ["zz5"], "H100")
    monkeypatch.setattr(site_pairs, "_MOST_MODELS", 12)
    near = site(*chain)
    assert near.relative_speed("zz0", ["zz5"], "H100") == pytest.approx(whole, abs=0.03)
    assert near.relative_speed("zz0", ["new"], "H100") > 0.6


def test_log_odds_are_finite_for_any_speed() -> None:
    for speed in (0.0, 1e-9, 0.5, 1.0, 3.0):
        assert np.isfinite(log_odds(speed))
    assert of_odds(log_odds(0.3)) == pytest.approx(0.3)
