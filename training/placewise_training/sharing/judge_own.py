"""Judges the forecasts of a site's own models on shared GPUs as own_models.py says. Chooses nothing but the baselines'
constants, on K80.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from placewise_core.basics.arrays import FloatArray
from placewise_core.domain.job import CoRun
from placewise_core.domain.model_names import canonical, nearest
from placewise_core.speed.co_runs import KnownCoRuns, rows_of
from placewise_core.speed.completed_interference import CompletedInterference
from placewise_core.speed.sharing_row import Square, known_row
from placewise_core.speed.site_pairs import RowCompleter
from placewise_training.data.measured import GpuPair
from placewise_training.sharing.data import CPU_CORES
from placewise_training.sharing.own_models import (
    CASES,
    CHOSEN_ON,
    COUNTS,
    NEIGHBOURS,
    SHRUNK,
    Matrix,
    Question,
    by_name,
    mean_of_own,
    measured_sets,
    nearest_jobs,
    questions,
    shifted,
    table,
)

LIMITS = (1.5, 2.0)
BASELINES = ("mean", "shift", "knn")
_RESAMPLES = 2000

# Of a history and of whether the profiler's rows are part of it.
Fit = Callable[[Sequence[GpuPair], bool], RowCompleter]
Method = Callable[[Question], Matrix]


def judge_own(fit: Fit, draws: int, seed: int) -> dict[str, Any]:
    """By set, whether its GPU model is in the table, case and number of co-runs: errors, decisions of all methods."""
    fitted = cache(fit)
    found: dict[str, Any] = {}
    for is_in_table in (True, False):
        for case in CASES:
            ask = partial(questions, case, is_in_table=is_in_table, draws=draws, seed=seed)
            if not (chosen := ask(CHOSEN_ON, 1)):
                continue
            methods = _methods(chosen, fitted)
            for hardware in measured_sets():
                for count in COUNTS:
                    if asked := ask(hardware, count):
                        at = found.setdefault(hardware, {}).setdefault("in" if is_in_table else "not in", {})
                        at.setdefault(case, {})[str(count)] = _judgement(asked, methods)
    return found


def _methods(chosen: Sequence[Question], fit: Fit) -> dict[str, Method]:
    """Name → speeds (A, 2) of a question's asked pairs; and, of ours, those that are compared with limits."""
    shrunk = min(SHRUNK, key=lambda each: _error(chosen, partial(shifted, shrunk=each)))
    neighbours = min(NEIGHBOURS, key=lambda each: _error(chosen, partial(nearest_jobs, neighbours=each)))
    return {
        "mean": mean_of_own,
        "shift": partial(shifted, shrunk=shrunk),
        "knn": partial(nearest_jobs, neighbours=neighbours),
        "today": lambda question: _today(question, fit),
        "site": lambda question: _served(question, fit, is_careful=False),
        "careful": lambda question: _served(question, fit, is_careful=True),
    }


def _error(asked: Sequence[Question], method: Method) -> float:
    return float(np.abs(np.concatenate([method(question) - _true(question) for question in asked])).mean())


def _true(question: Question) -> Matrix:
    return np.array([(pair.speed, pair.other_speed) for pair in question.asked])


@dataclass(frozen=True, slots=True)
class _Completer:
    """Fitted when it is first asked: without co-runs beside models of the table nobody asks."""

    question: Question
    fit: Fit

    def complete(self, prior: Matrix, known: Matrix) -> Matrix | None:
        return self.fit(self.question.history, self.question.hardware != CPU_CORES).complete(prior, known)


def _served(question: Question, fit: Fit, *, is_careful: bool) -> Matrix:
    """The service, with these co-runs of this history."""
    co_runs = [(p.one, (CoRun(p.other, p.speed, p.other_speed),)) for p in question.known]
    found = CompletedInterference(table(question.history), KnownCoRuns(rows_of(co_runs)), _Completer(question, fit))
    ask = found.careful_speed if is_careful else found.relative_speed
    return np.array(
        [(ask(p.one, [p.other], question.hardware), ask(p.other, [p.one], question.hardware)) for p in question.asked]
    )


def _today(question: Question, fit: Fit) -> Matrix:
    """The service before: the row of the network, completed from co-runs beside models of the table; else by name."""
    knows, name = table(question.history), canonical(question.name)
    names = knows.references
    co_runs = [(p.one, (CoRun(p.other, p.speed, p.other_speed),)) for p in question.known]
    known = known_row(names, name, KnownCoRuns(rows_of(co_runs)).of(name, canonical(question.hardware)))
    if np.isnan(known[:-1]).all():
        return np.array([by_name(question, pair.other) for pair in question.asked])
    like = nearest(name, names)
    prior = Square.of(knows, knows.gpu_of(question.hardware)).row(None if like is None else names.index(like))
    row = _Completer(question, fit).complete(prior, known)
    assert row is not None
    at = [names.index(pair.other) for pair in question.asked]
    return np.stack([row[at], row[[len(names) + i for i in at]]], axis=1)


def _judgement(asked: Sequence[Question], methods: Mapping[str, Method]) -> dict[str, Any]:
    true = np.concatenate([_true(question) for question in asked])
    networks = np.array([question.network for question in asked for _ in question.asked])
    answers = {name: np.concatenate([method(question) for question in asked]) for name, method in methods.items()}
    decided = {**answers, "site": answers["careful"]}
    del answers["careful"], decided["careful"]
    errors = {name: np.abs(values - true).mean(axis=1) for name, values in answers.items()}
    wrong = {name: np.stack([_wrong(values, true, limit) for limit in LIMITS]) for name, values in decided.items()}
    best = min(BASELINES, key=lambda name: float(errors[name].mean()))
    return {
        "pairs": len(true),
        "mae": {name: float(each.mean()) for name, each in errors.items()},
        "wrong": {
            name: {f"{limit:g}": float(each[i].mean()) for i, limit in enumerate(LIMITS)}
            for name, each in wrong.items()
        },
        "best": best,
        "above_best": _interval(errors["site"] - errors[best], networks),
        "wrong_above_today": {
            f"{limit:g}": _interval((wrong["site"][i].astype(float) - wrong["today"][i]), networks)
            for i, limit in enumerate(LIMITS)
        },
    }


def _wrong(values: Matrix, true: Matrix, limit: float) -> FloatArray:
    """(A,) whether a pair would be put together although one of the two is slowed down beyond the limit of both, or be
    kept apart without need."""
    says, is_so = (each.min(axis=1) * limit >= 1.0 - 1e-9 for each in (values, true))
    return np.asarray(says != is_so, dtype=np.float64)


def _interval(gaps: FloatArray, networks: Any) -> list[float]:
    """Mean, and its 95 % interval by a bootstrap over networks."""
    rng = np.random.default_rng(91)
    parts = [gaps[networks == name] for name in sorted(set(networks))]
    sums, sizes = np.array([part.sum() for part in parts]), np.array([len(part) for part in parts])
    drawn = rng.integers(len(parts), size=(_RESAMPLES, len(parts)))
    means = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    return [float(gaps.mean()), *(float(value) for value in np.quantile(means, (0.025, 0.975)))]
