"""The LDWP/IAWP paper's claims at cluster level, and their judges. Runs nothing.

Each of the paper's claims about LDWP + IAWP is judged on its own DQN and Algorithm 2 as printed; a second row judges
the shipped policies. A gain is a mean over all loads: it is reproduced if the lower end of its interval reaches the
claim, and partly if that is above 0.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from placewise_training.reproduce.claims import (
    Claim,
    ClaimVerdict,
    Judgement,
    in_both_forms,
    judged_worst,
    margins,
    number,
    percent,
    points_against_each,
    verdict_by_low,
    verdict_of,
)
from placewise_training.reproduce.ldwp.runs import (
    BASELINES,
    CONSOLIDATE,
    ECT,
    IAWP,
    LDWP,
    OMITTED,
    ORACLE,
    WRITTEN,
)
from placewise_training.reproduce.results import Results
from placewise_training.sim.statistics import Estimate, estimate

ITERATIONS: Mapping[str, float] = {"with pre-training": 700.0, "without pre-training": 1300.0}
BOUND = "perfect (bound)"
_ANEW = {
    LDWP: "One net for any number of nodes: nothing must be learned again.",
    WRITTEN: "The net is rebuilt by parameter transfer and learns on.",
}
# Shown beside each verdict: the paper's strongest baseline, consolidation, and a scheduler that knows all.
_YARDSTICKS = (ECT, CONSOLIDATE, ORACLE)

# The load hangs on the sizes of tasks, which the paper does not give.
_ONE_LOAD = "At load 1 alone: of the paper's claims only the five gains are judged over the loads 0.5 to 2."

# A judge, given the method that stands for the paper's.
_JudgeOf = Callable[[str], Callable[[Results], Judgement]]


def claims() -> list[Claim]:
    """The paper's about the method as printed, each with its counterpart as shipped, then ours."""
    made: list[Claim] = []
    for key, text, theirs, judge_of in _BOTH:
        made += in_both_forms(Claim(key, text, theirs, judge_of(WRITTEN)), judge_of(LDWP))
    made += [
        Claim(
            "pretraining",
            "As printed: Pre-training halves the iterations to converge",
            "700 instead of 1300",
            _judge_pretraining,
        ),
        Claim(
            "anywhere",
            "Over all numbers of nodes and all rates it is 26.9 % above Random, ECT and PATS",
            "–",
            _judge_anywhere,
            is_beyond=True,
        ),
        Claim(
            "plain",
            "Over all of them it is above consolidation, and above ECT with the shortest remaining first",
            "–",
            _judge_omitted,
            is_beyond=True,
        ),
        Claim("bound", "It is within a tenth of the bound for any scheduler", "–", _judge_bound, is_beyond=True),
        Claim(
            "learned",
            "The learned choice of nodes does more than each other choice, IAWP on every node",
            "–",
            _judge_learned,
            is_beyond=True,
        ),
        Claim(
            "units",
            "IAWP's choice of units raises throughput with every method of choosing nodes",
            "–",
            _judge_units,
            is_beyond=True,
        ),
    ]
    return made


def mean_change(
    results: Results, experiment: str, settings: Sequence[str], metrics: Sequence[str], ours: str, theirs: Sequence[str]
) -> Estimate:
    """Relative change against each of theirs, paired by seed; a seed's mean over theirs, settings and metrics."""
    by_seed: dict[int, list[float]] = {}
    for setting, metric, other in itertools.product(settings, metrics, theirs):
        own = results.values(experiment, setting, ours, metric)
        found = results.values(experiment, setting, other, metric)
        for seed in set(own) & set(found):
            by_seed.setdefault(seed, []).append(own[seed] / found[seed] - 1.0)
    return estimate([float(np.mean(changes)) for _, changes in sorted(by_seed.items())])


def _gain(experiment: str, prefix: str, at_least: float) -> _JudgeOf:
    """Judges "ours is at least so much above the mean of the baselines" over all loads, in the metrics that begin with
    `prefix`; a method that is no better than each single baseline has reproduced nothing."""

    def judge_of(method: str) -> Callable[[Results], Judgement]:
        def judge(results: Results) -> Judgement:
            loads = sorted({s for e, s, m in results.runs if (e, m) == (experiment, method)}, key=float)
            if not loads:
                raise KeyError(f"{experiment}: {method}")
            outcomes = results.runs[experiment, loads[0], method]
            metrics = [name for name in next(iter(outcomes.values())).values if name.startswith(prefix)]

            def against(*theirs: str, settings: Sequence[str] = loads) -> Estimate:
                return mean_change(results, experiment, settings, metrics, method, theirs)

            change = against(*BASELINES)
            verdict = verdict_by_low(change, at_least)
            if verdict is ClaimVerdict.REPRODUCED and min(against(b).low for b in BASELINES) <= 0:
                verdict = ClaimVerdict.PARTLY
            each = ", ".join(f"{percent(against(b))} vs {b}" for b in BASELINES)
            ran = [m for m in (CONSOLIDATE, ORACLE, BOUND) if (experiment, loads[0], m) in results.runs]
            beside = ", ".join(f"{percent(against(m))} vs {m}" for m in ran)
            by_load = ", ".join(f"{load}: {percent(against(*BASELINES, settings=(load,)))}" for load in loads)
            return Judgement(verdict, f"{percent(change)} ({each})", f"Beside them {beside}. By load {by_load}.")

        return judge

    return judge_of


def _beside(results: Results, experiment: str, setting: str, metric: str, show: Callable[[Estimate], str]) -> str:
    """The yardsticks' own numbers."""
    ran = [m for m in _YARDSTICKS if (experiment, setting, m) in results.runs]
    return ", ".join(f"{m} {show(results.estimate(experiment, setting, m, metric))}" for m in ran)


def _utilisation(metric: str, level: float) -> _JudgeOf:
    def judge_of(method: str) -> Callable[[Results], Judgement]:
        def judge(results: Results) -> Judgement:
            ours = results.estimate("use", "11 nodes", method, metric)
            best = results.best("use", "11 nodes", metric, BASELINES, is_lower_better=False)
            change = results.difference("use", "11 nodes", metric, method, best)
            verdict = ClaimVerdict.REPRODUCED if ours.mean >= level and change.low > 0 else ClaimVerdict.NOT
            if verdict is ClaimVerdict.NOT and change.low > 0:
                verdict = ClaimVerdict.PARTLY
            shown = f"{_share(ours)}; {points_against_each(results, ('use', '11 nodes'), metric, method, BASELINES)}"
            why = (
                f"{_beside(results, 'use', '11 nodes', metric, _share)}. More busy GPUs are not better by "
                "themselves: a GPU is busy longer with the same subtasks one after the other than if they share it. "
                f"{_ONE_LOAD}"
            )
            return Judgement(verdict, shown, why)

        return judge

    return judge_of


def _share(value: Estimate) -> str:
    return f"{100 * value.mean:.0f} ± {100 * value.half_width:.2g} %"


def _balance(method: str) -> Callable[[Results], Judgement]:
    def judge(results: Results) -> Judgement:
        counts = sorted({s for e, s, _ in results.runs if e == "tasks"}, key=float)
        most = counts[-1]
        ours = results.estimate("tasks", most, method, "balance")
        best = results.best("tasks", most, "balance", BASELINES, is_lower_better=False)
        change = results.difference("tasks", most, "balance", method, best)
        verdict = (
            ClaimVerdict.REPRODUCED if change.low > 0 else ClaimVerdict.PARTLY if change.high > 0 else ClaimVerdict.NOT
        )
        each = points_against_each(results, ("tasks", most), "balance", method, BASELINES)
        why = (
            f"At {most} tasks {_beside(results, 'tasks', most, 'balance', number)}. "
            "The degree follows the choice of nodes: PATS looks at the loads themselves, ECT at time "
            f"to completion, which loads fast nodes more. {_ONE_LOAD}"
        )
        return Judgement(verdict, f"{number(ours)}; {each}", why)

    return judge


def _speedup(method: str) -> Callable[[Results], Judgement]:
    def judge(results: Results) -> Judgement:
        sizes = sorted({s for e, s, _ in results.runs if e == "speedup"}, key=float)
        found = {s: results.estimate("speedup", s, method, "speedup") for s in sizes}
        enough = [s for s in sizes if found[s].mean >= 5.0]
        verdict = ClaimVerdict.REPRODUCED if len(enough) == len(sizes) else ClaimVerdict.NOT
        if verdict is ClaimVerdict.NOT and all(value.low > 1.0 for value in found.values()):
            verdict = ClaimVerdict.PARTLY
        beside = _beside(results, "speedup", sizes[-1], "speedup", lambda value: number(value, "×"))
        why = (
            f"At {sizes[-1]} MB {beside}. By Table 5 three of the five stages of video synopsis have no GPU version. "
            "In the ranges assumed here they are nearly half of its work on a core, so that no scheduler can make one "
            "piece more than about twice as fast as cores alone; any further gain comes from the places of the pieces. "
            f"{_ONE_LOAD}"
        )
        shown = ", ".join(f"{s} MB {number(value, '×')}" for s, value in found.items())
        return Judgement(verdict, shown, why)

    return judge


def _recovery(method: str) -> Callable[[Results], Judgement]:
    def judge(results: Results) -> Judgement:
        up, down = (results.estimate("changing", "8 → 11 → 9 nodes", method, m) for m in ("minutes_up", "minutes_down"))
        gain = results.estimate("changing", "8 → 11 → 9 nodes", method, "gain")
        is_met, is_visible = up.mean <= 12.0 and down.mean <= 10.0, gain.low > 1.0
        is_half = up.mean <= 12.0 or down.mean <= 10.0
        verdict = ClaimVerdict.NOT
        if is_half:
            verdict = ClaimVerdict.REPRODUCED if is_met and is_visible else ClaimVerdict.PARTLY
        flat = "" if is_visible else f"Eight nodes already keep up (plateau with 11 over 8: {number(gain, '×')}). "
        beside = ", ".join(
            f"{m} {number(results.estimate('changing', '8 → 11 → 9 nodes', m, 'minutes_up'))} and "
            f"{number(results.estimate('changing', '8 → 11 → 9 nodes', m, 'minutes_down'))} min"
            for m in (*_YARDSTICKS, IAWP)
            if ("changing", "8 → 11 → 9 nodes", m) in results.runs
        )
        why = f"{flat}{_ANEW[method]} None of these learns: {beside}. {_ONE_LOAD}"
        return Judgement(verdict, f"{number(up)} min, {number(down)} min", why)

    return judge


def _alike(method: str) -> Callable[[Results], Judgement]:
    def judge(results: Results) -> Judgement:
        means = {m: results.estimate("rates", "10", m, "throughput") for m in (*BASELINES, method)}
        spread = max(v.mean for v in means.values()) / min(v.mean for v in means.values()) - 1.0
        verdict = ClaimVerdict.REPRODUCED if spread < 0.1 else ClaimVerdict.PARTLY if spread < 0.2 else ClaimVerdict.NOT
        shown = ", ".join(f"{m} {number(v)}" for m, v in means.items())
        against = margins(results, "rates", ("10",), "throughput", method, BASELINES)
        beside = margins(results, "rates", ("10",), "throughput", method, (CONSOLIDATE, ORACLE))
        return Judgement(
            verdict,
            shown,
            f"They differ by {100 * spread:.0f} %. {method} has {against}; beside them {beside}. {_ONE_LOAD}",
        )

    return judge


_BOTH: Sequence[tuple[str, str, str, _JudgeOf]] = (
    (
        "average",
        "Cluster throughput is 26.9 % above Random, ECT and PATS on average",
        "+26.9 %",
        _gain("loads", "rate ", 0.269),
    ),
    ("nodes_10", "With 10 nodes it is 38.8 % above", "+38.8 %", _gain("loads", "nodes 10", 0.388)),
    ("rate_60", "At 60 tasks a minute it is 27.9 % above", "+27.9 %", _gain("loads", "rate 60", 0.279)),
    ("first_6", "With 6 nodes worker 1 does 31.9 % more", "+31.9 %", _gain("loads_first", "nodes 6", 0.319)),
    ("first_60", "At 60 tasks a minute worker 1 does 41.0 % more", "+41.0 %", _gain("loads_first", "rate 60", 0.41)),
    (
        "gpu",
        "83 % of the cluster's GPUs are busy, more than with any other method",
        "83 % (+14.7 %)",
        _utilisation("gpu", 0.83),
    ),
    ("gpu_first", "87 % of worker 1's GPUs are busy", "87 %", _utilisation("gpu_first", 0.87)),
    ("balance", "Load is balanced best", "highest", _balance),
    ("speedup", "Video synopsis is 5 to 10 times as fast as with Random", "5 … 10 ×", _speedup),
    (
        "recovery",
        "Throughput is back on a plateau 12 minutes after + 3 nodes and 10 after − 2",
        "12 min, 10 min",
        _recovery,
    ),
    ("similar", "At 10 tasks a minute all methods are alike", "alike", _alike),
)


def _judge_pretraining(results: Results) -> Judgement:
    with_it, without = (results.estimate("convergence", "3000 tasks", m, "iterations") for m in ITERATIONS)
    change = results.change("convergence", ("3000 tasks",), "iterations", *ITERATIONS)
    verdict = verdict_of(change, -0.45)
    return Judgement(verdict, f"{number(with_it)} instead of {number(without)}", f"Seed by seed {percent(change)}.")


def _anywhere(results: Results, ours: str, theirs: Sequence[str]) -> Estimate:
    """Relative change of throughput over all numbers of nodes and all rates, paired by seed; a seed's mean."""
    settings = sorted({(e, s) for e, s, _ in results.runs if e in ("nodes", "rates")})
    by_seed: dict[int, list[float]] = {}
    for experiment, setting in settings:
        own = results.values(experiment, setting, ours, "throughput")
        for other in theirs:
            found = results.values(experiment, setting, other, "throughput")
            for seed in set(own) & set(found):
                by_seed.setdefault(seed, []).append(own[seed] / found[seed] - 1.0)
    return estimate([float(np.mean(changes)) for _, changes in sorted(by_seed.items())])


def _judge_omitted(results: Results) -> Judgement:
    changes = {other: _anywhere(results, LDWP, (other,)) for other in OMITTED}
    verdict = judged_worst(list(changes.values()), 0.0, is_lower_better=False)
    shown = ", ".join(f"{percent(change)} vs {other}" for other, change in changes.items())
    iawp = ", ".join(f"{percent(_anywhere(results, IAWP, (other,)))} vs {other}" for other in OMITTED)
    return Judgement(verdict, shown, f"Throughput at load 1. Without learning ({IAWP}): {iawp}.")


def _judge_anywhere(results: Results) -> Judgement:
    change = _anywhere(results, LDWP, BASELINES)
    why = "At load 1. The paper does not say what its average is over."
    return Judgement(verdict_by_low(change, 0.269), percent(change), why)


def _judge_bound(results: Results) -> Judgement:
    counts = sorted({s for e, s, _ in results.runs if e == "bound"}, key=int)
    changes = {count: results.change("bound", (count,), "throughput", LDWP, BOUND) for count in counts}
    verdict = (
        ClaimVerdict.REPRODUCED
        if all(c.mean >= -0.1 for c in changes.values())
        else ClaimVerdict.PARTLY
        if any(c.mean >= -0.1 for c in changes.values())
        else ClaimVerdict.NOT
    )
    shown = ", ".join(f"{count} nodes {percent(change)}" for count, change in changes.items())
    return Judgement(verdict, shown, "At load 1. No choice of nodes and units can do more than the bound.")


def _judge_learned(results: Results) -> Judgement:
    choosers = sorted({s for e, s, m in results.runs if e == "grid" and m == "iawp"} - {"ldwp"})
    ours = results.values("grid", "ldwp", "iawp", "throughput")
    changes: dict[str, Estimate] = {}
    for chooser in choosers:
        theirs = results.values("grid", chooser, "iawp", "throughput")
        changes[chooser] = estimate([ours[seed] / theirs[seed] - 1.0 for seed in sorted(set(ours) & set(theirs))])
    others = [change for name, change in changes.items() if not name.startswith("ldwp")]
    verdict = (
        ClaimVerdict.REPRODUCED
        if all(c.low > 0 for c in others)
        else ClaimVerdict.PARTLY
        if all(c.high > 0 for c in others)
        else ClaimVerdict.NOT
    )
    shown = ", ".join(f"{percent(change)} vs {name}" for name, change in changes.items())
    why = (
        "Throughput at load 1, 50 tasks a minute on nine nodes. ECT and drain know true times and every queue; the net "
        "sees utilisations, reported waiting work, and the measured time of kinds on a core."
    )
    return Judgement(verdict, shown, why)


def _judge_units(results: Results) -> Judgement:
    changes = {
        nodes: {
            units: estimate(
                [
                    a / b - 1.0
                    for a, b in zip(
                        results.values("grid", nodes, "iawp", "throughput").values(),
                        results.values("grid", nodes, units, "throughput").values(),
                        strict=True,
                    )
                ]
            )
            for units in (ECT, "algorithm 2")
        }
        for nodes in (*BASELINES, "ldwp")
    }
    gains = [change for row in changes.values() for change in row.values()]
    verdict = (
        ClaimVerdict.REPRODUCED
        if all(g.low > 0 for g in gains)
        else ClaimVerdict.PARTLY
        if any(g.low > 0 for g in gains)
        else ClaimVerdict.NOT
    )
    shown = "; ".join(
        f"nodes by {nodes}: " + ", ".join(f"{percent(c)} vs {units}" for units, c in row.items())
        for nodes, row in changes.items()
    )
    return Judgement(
        verdict, shown, "Throughput at load 1, 50 tasks a minute on nine nodes. Both sides choose nodes alike."
    )
