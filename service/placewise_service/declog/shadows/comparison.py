"""Two sides compared on the jobs that both decided about: agreement, forecasts by both reward models, outcomes.

One step on the incumbent's states: each job is placed once more on the cluster as the answers left it. What a cluster
would become under the shadow is not in here.

Intervals (95 %) are from resampling blocks of time, as jobs that arrive together are alike.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from placewise_core.basics.arrays import FloatArray, IntArray
from placewise_core.policies.studies.shadow import Forecasts
from placewise_service.declog.shadows.pairs import Pair, Side

BLOCKS: Final = 20  # if their length is not given
_LEAST_BLOCKS: Final = 5  # fewer say nothing about an interval
_RESAMPLES: Final = 2000
_LEVEL: Final = (2.5, 97.5)
_TASKS: Final = ((1, "1"), (4, "2 to 4"), (16, "5 to 16"), (math.inf, "over 16"))
_ALIKE: Final = 1e-6  # relative: scores closer than this prefer nothing

NOTE: Final = (
    "one step on the incumbent's states: the shadow placed each job on the cluster as the answers had left it, and "
    "none of its placements was carried out"
)


class Blocks:
    """Blocks of time, and figures with intervals over them."""

    def __init__(self, times_s: Sequence[float], block_s: float = 0.0) -> None:
        """`block_s` 0: a twentieth of the time from the first to the last."""
        times: FloatArray = np.array(times_s, dtype=np.float64)
        first_s, span_s = (times.min(), np.ptp(times)) if len(times) else (0.0, 0.0)
        self.block_s = block_s or float(span_s) / BLOCKS or 1.0
        numbers = ((times - first_s) / self.block_s).astype(np.int64)
        if not block_s:
            numbers = np.minimum(numbers, BLOCKS - 1)
        names, self._of = np.unique(numbers, return_inverse=True)
        self.count = len(names)
        rng = np.random.default_rng(0)
        self._drawn: IntArray = rng.integers(max(1, self.count), size=(_RESAMPLES, self.count))

    def ratio(self, over: FloatArray, under: FloatArray, chosen: Sequence[int]) -> dict[str, float | None]:
        """Σ over / Σ under with its interval; `chosen` are the rows that the values belong to."""
        if not len(chosen) or not under.sum():
            return {"value": None, "low": None, "high": None}
        of = self._of[list(chosen)]
        tops = np.bincount(of, over, self.count)[self._drawn].sum(axis=1)
        bottoms = np.bincount(of, under, self.count)[self._drawn].sum(axis=1)
        value = float(over.sum() / under.sum())
        if len(np.unique(of)) < _LEAST_BLOCKS:
            return {"value": value, "low": None, "high": None}
        has_any = bottoms != 0
        low, high = np.percentile(tops[has_any] / bottoms[has_any], _LEVEL)
        return {"value": value, "low": float(low), "high": float(high)}

    def mean(self, values: Sequence[float], chosen: Sequence[int]) -> dict[str, float | None]:
        """The mean with its interval."""
        array = np.array(values, dtype=np.float64)
        return self.ratio(array, np.ones(len(array)), chosen)


def compare(pairs: Sequence[Pair], block_s: float = 0.0) -> dict[str, Any]:
    """All figures, as `placewise bundle compare --json` prints them. `pairs` must not be empty."""
    blocks = Blocks([pair.time_s for pair in pairs], block_s)
    own = [i for i, pair in enumerate(pairs) if not pair.compared.explorer]
    differing = [i for i in own if not pairs[i].compared.is_same]
    return {
        "note": NOTE,
        "first_time_s": pairs[0].time_s,
        "last_time_s": pairs[-1].time_s,
        "decisions": len({pair.decision_id for pair in pairs}),
        "jobs": len(pairs),
        "explored": len(pairs) - len(own),
        "blocks": blocks.count,
        "block_s": blocks.block_s,
        "agreement": {"jobs": len(own), **_agreement(pairs, blocks, own)},
        "agreement_by_tasks": [
            {"tasks": name, "jobs": len(rows), **_agreement(pairs, blocks, rows)}
            for name, rows in _by_tasks(pairs, own).items()
        ],
        "differences": _counted(pairs, differing, _where),
        "preferences": _counted(pairs, differing, _why),
        "forecasts": {
            model: {
                "all": _gain(pairs, blocks, own, model),
                "where_they_differ": _gain(pairs, blocks, differing, model),
            }
            for model in ("a", "b")
        },
        "realised": {
            name: _realised(pairs, blocks, rows)
            for name, rows in (
                ("where_they_agree", [i for i, pair in enumerate(pairs) if pair.compared.is_same]),
                ("where_they_differ", [i for i, pair in enumerate(pairs) if not pair.compared.is_same]),
            )
        },
        "latency_ms": _latencies(pairs, blocks),
    }


def _agreement(pairs: Sequence[Pair], blocks: Blocks, rows: Sequence[int]) -> dict[str, float | None]:
    return blocks.mean([float(pairs[i].compared.is_same) for i in rows], rows)


def _by_tasks(pairs: Sequence[Pair], rows: Sequence[int]) -> Mapping[str, list[int]]:
    found: dict[str, list[int]] = {}
    for most, name in _TASKS:
        some = [i for i in rows if pairs[i].tasks <= most and all(i not in others for others in found.values())]
        if some:
            found[name] = some
    return found


def _counted(pairs: Sequence[Pair], rows: Sequence[int], of: Callable[[Pair], str]) -> list[dict[str, Any]]:
    counts = Counter(of(pairs[i]) for i in rows)
    return [{"what": what, "jobs": jobs, "share": jobs / len(rows)} for what, jobs in counts.most_common()]


def _where(pair: Pair) -> str:
    """How the two placements differ."""
    compared = pair.compared
    a, b = len(set(compared.answer_nodes)), len(set(compared.shadow_nodes))
    if not a or not b:
        return "only B places the job" if not a else "only A places the job"
    if pair.answer.is_fallback or pair.shadow.is_fallback:
        return "a fallback decided in A" if pair.answer.is_fallback else "a fallback decided in B"
    if a == b:
        return "as many nodes, but others"
    return "B on fewer nodes" if b < a else "B on more nodes"


def _why(pair: Pair) -> str:
    """Which side each reward model prefers."""
    by_a, by_b = (_preferred(found) for found in (pair.compared.by_active, pair.compared.by_shadow))
    if by_a is None or by_b is None:
        return "not scored by both reward models"
    return {
        ("a", "b"): "each reward model prefers its own side",
        ("a", "a"): "both reward models prefer A",
        ("b", "b"): "both reward models prefer B",
        ("b", "a"): "each reward model prefers the other side",
    }.get((by_a, by_b), "a reward model prefers neither")


def _preferred(found: Forecasts | None) -> str | None:
    if found is None or found.answer_per_s is None or found.shadow_per_s is None:
        return None
    if math.isclose(found.answer_per_s, found.shadow_per_s, rel_tol=_ALIKE):
        return ""
    return "a" if found.answer_per_s > found.shadow_per_s else "b"


def _forecasts(pair: Pair, model: str) -> Forecasts | None:
    return pair.compared.by_active if model == "a" else pair.compared.by_shadow


def _gain(pairs: Sequence[Pair], blocks: Blocks, rows: Sequence[int], model: str) -> dict[str, Any]:
    """How much more progress a reward model forecasts for B's placements: Σ of B over Σ of A, minus 1."""
    scored, a, b = [], [], []
    for i in rows:
        found = _forecasts(pairs[i], model)
        if found is not None and found.answer_per_s is not None and found.shadow_per_s is not None:
            scored.append(i)
            a.append(found.answer_per_s)
            b.append(found.shadow_per_s)
    of_a, of_b = np.array(a, dtype=np.float64), np.array(b, dtype=np.float64)
    prefers = [float(_preferred(_forecasts(pairs[i], model)) == "b") for i in scored]
    return {
        "jobs": len(scored),
        "gain_of_b": blocks.ratio(of_b - of_a, of_a, scored),
        "prefers_b": blocks.mean(prefers, scored),
    }


def _realised(pairs: Sequence[Pair], blocks: Blocks, rows: Sequence[int]) -> dict[str, Any]:
    """The reward models' forecasts of c/e of the jobs as they were placed, against 1 / (end − start)."""
    known = [i for i in rows if pairs[i].has_length and pairs[i].realised_per_s is not None]
    result: dict[str, Any] = {"jobs": len(known)}
    for model in ("a", "b"):
        scored, errors = [], []
        for i in known:
            found, realised = _forecasts(pairs[i], model), pairs[i].realised_per_s
            if found is not None and found.own_answer_per_s and realised:
                scored.append(i)
                errors.append(math.log(found.own_answer_per_s / realised))
        result[f"by_{model}"] = {
            "jobs": len(scored),
            "mean_log_ratio": blocks.mean(errors, scored),
            "mean_abs_log_ratio": blocks.mean([abs(error) for error in errors], scored),
        }
    realised_s = [1.0 / pair.realised_per_s for pair in (pairs[i] for i in known) if pair.realised_per_s]
    result["run_time_s"] = blocks.mean(realised_s, known)
    return result


def _latencies(pairs: Sequence[Pair], blocks: Blocks) -> dict[str, Any]:
    """Of whole decisions."""
    first = list({pair.decision_id: i for i, pair in reversed(list(enumerate(pairs)))}.values())

    def figures(side: Callable[[Pair], Side]) -> dict[str, Any]:
        values = [side(pairs[i]).latency_ms for i in first]
        p50, p99 = np.percentile(values, (50, 99))
        return {"p50": float(p50), "p99": float(p99), "mean": blocks.mean(values, first)}

    return {"a": figures(lambda pair: pair.answer), "b": figures(lambda pair: pair.shadow)}
