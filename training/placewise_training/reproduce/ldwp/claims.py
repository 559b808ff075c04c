"""The LDWP/IAWP paper's claims at cluster level, and their judges. Runs nothing.

Every claim about LDWP + IAWP is judged on the shipped policies, then on the paper's own DQN and Algorithm 2 as they
are written, then without learning: IAWP on nodes chosen by ECT.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from placewise_training.reproduce.claims import (
    Claim,
    ClaimVerdict,
    Judgement,
    judged_worst,
    number,
    percent,
    verdict_of,
)
from placewise_training.reproduce.ldwp.runs import BASELINES, ECT, IAWP, LDWP, OMITTED, WRITTEN
from placewise_training.reproduce.results import Results
from placewise_training.sim.statistics import Estimate, estimate

ITERATIONS: Mapping[str, float] = {"with pre-training": 700.0, "without pre-training": 1300.0}
BOUND = "perfect (bound)"
_ANEW = {
    LDWP: "One net for any number of nodes: nothing must be learned again.",
    WRITTEN: "The net is rebuilt by parameter transfer and learns on.",
    IAWP: "This method learns nothing, so nothing has to be learned again: only the queues have to settle.",
}

# A judge, given the method that stands for the paper's.
_JudgeOf = Callable[[str], Callable[[Results], Judgement]]


def claims() -> list[Claim]:
    """The paper's, each with its counterpart without learning, then ours."""
    made: list[Claim] = []
    for key, text, theirs, judge_of in _BOTH:
        made.append(Claim(key, text, theirs, judge_of(LDWP)))
        for suffix, title, method in (("written", "As written", WRITTEN), ("iawp", f"Without learning ({IAWP})", IAWP)):
            made.append(Claim(f"{key}_{suffix}", f"{title}: {_lower(text)}", "–", judge_of(method), is_beyond=True))
    made += [
        Claim("similar", "At 10 tasks a minute all methods are alike", "alike", _judge_alike),
        Claim(
            "pretraining", "Pre-training halves the iterations to converge", "700 instead of 1300", _judge_pretraining
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
            "IAWP's choice of units is worth something under every choice of nodes",
            "–",
            _judge_units,
            is_beyond=True,
        ),
    ]
    return made


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]


def mean_change(
    results: Results,
    experiment: str,
    settings: Sequence[str],
    metric: str,
    ours: str,
    theirs: Sequence[str] = BASELINES,
) -> Estimate:
    """Relative change against each of theirs, paired by seed; a seed's mean over theirs and settings."""
    by_seed: dict[int, list[float]] = {}
    for setting in settings:
        own = results.values(experiment, setting, ours, metric)
        for other in theirs:
            found = results.values(experiment, setting, other, metric)
            for seed in set(own) & set(found):
                by_seed.setdefault(seed, []).append(own[seed] / found[seed] - 1.0)
    return estimate([float(np.mean(changes)) for _, changes in sorted(by_seed.items())])


def _gain(experiment: str, settings: Sequence[str] | None, metric: str, at_least: float) -> _JudgeOf:
    """Judges "ours is at least so much above the mean of the baselines". No settings: all there are."""

    def judge_of(method: str) -> Callable[[Results], Judgement]:
        def judge(results: Results) -> Judgement:
            used = settings or sorted({s for e, s, _ in results.runs if e == experiment}, key=float)
            change = mean_change(results, experiment, used, metric, method)
            against = {b: mean_change(results, experiment, used, metric, method, (b,)) for b in BASELINES}
            inverse = Estimate(-change.mean, change.half_width, change.count)
            verdict = verdict_of(inverse, -at_least)
            if verdict is ClaimVerdict.REPRODUCED and min(c.low for c in against.values()) <= 0:
                verdict = ClaimVerdict.PARTLY
            each = ", ".join(f"{percent(c)} vs {b}" for b, c in against.items())
            is_close = against[ECT].low <= 0
            why = "ECT, told true times and queues, is about as good or better" if is_close else "Better than each"
            return Judgement(verdict, percent(change), f"{why}: {each}.")

        return judge

    return judge_of


def _utilisation(metric: str, level: float) -> _JudgeOf:
    def judge_of(method: str) -> Callable[[Results], Judgement]:
        def judge(results: Results) -> Judgement:
            ours = results.estimate("use", "11 nodes", method, metric)
            best = results.best("use", "11 nodes", metric, BASELINES, is_lower_better=False)
            change = results.difference("use", "11 nodes", metric, method, best)
            verdict = ClaimVerdict.REPRODUCED if ours.mean >= level and change.low > 0 else ClaimVerdict.NOT
            if verdict is ClaimVerdict.NOT and change.low > 0:
                verdict = ClaimVerdict.PARTLY
            shown = f"{_share(ours)}; {100 * change.mean:+.1f} points against {best}, the best baseline"
            busy = ", ".join(f"{m} {_share(results.estimate('use', '11 nodes', m, metric))}" for m in BASELINES)
            why = (
                f"Baselines: {busy}. Busy GPUs are no merit by themselves: the same work keeps them busy longer "
                "one subtask at a time than shared."
            )
            return Judgement(verdict, shown, "" if verdict is ClaimVerdict.REPRODUCED else why)

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
        theirs = results.estimate("tasks", most, best, "balance")
        why = (
            f"At {most} tasks. The degree follows the choice of nodes: PATS looks at the loads themselves, ECT at time "
            "to completion, which loads fast nodes more."
        )
        return Judgement(verdict, f"{number(ours)}; {best} {number(theirs)}", why)

    return judge


def _speedup(method: str) -> Callable[[Results], Judgement]:
    def judge(results: Results) -> Judgement:
        sizes = sorted({s for e, s, _ in results.runs if e == "speedup"}, key=float)
        found = {s: results.estimate("speedup", s, method, "speedup") for s in sizes}
        enough = [s for s in sizes if found[s].mean >= 5.0]
        verdict = ClaimVerdict.REPRODUCED if len(enough) == len(sizes) else ClaimVerdict.NOT
        if verdict is ClaimVerdict.NOT and all(value.low > 1.0 for value in found.values()):
            verdict = ClaimVerdict.PARTLY
        why = (
            "By Table 5 three of the five stages of video synopsis have no GPU version. In the ranges assumed here "
            "they are nearly half of its work on a core, so that no scheduler can make one piece more than about twice "
            "as fast as cores alone; any further gain comes from the places of the pieces."
        )
        shown = ", ".join(f"{s} MB {number(value, '×')}" for s, value in found.items())
        return Judgement(verdict, shown, "" if verdict is ClaimVerdict.REPRODUCED else why)

    return judge


def _recovery(method: str) -> Callable[[Results], Judgement]:
    def judge(results: Results) -> Judgement:
        up, down = (results.estimate("changing", "8 → 11 → 9 nodes", method, m) for m in ("up", "down"))
        gain = results.estimate("changing", "8 → 11 → 9 nodes", method, "gain")
        is_met, is_visible = up.mean <= 12.0 and down.mean <= 10.0, gain.low > 1.0
        is_half = up.mean <= 12.0 or down.mean <= 10.0
        verdict = ClaimVerdict.NOT
        if is_half:
            verdict = ClaimVerdict.REPRODUCED if is_met and is_visible else ClaimVerdict.PARTLY
        flat = "" if is_visible else f"Eight nodes already keep up (plateau with 11 over 8: {number(gain, '×')}). "
        learned = _ANEW[method]
        return Judgement(verdict, f"{number(up)} min, {number(down)} min", f"{flat}{learned}")

    return judge


_BOTH: Sequence[tuple[str, str, str, _JudgeOf]] = (
    (
        "average",
        "Cluster throughput is 26.9 % above Random, ECT and PATS on average",
        "+26.9 %",
        _gain("rates", None, "throughput", 0.269),
    ),
    ("nodes_10", "With 10 nodes it is 38.8 % above", "+38.8 %", _gain("nodes", ("10",), "throughput", 0.388)),
    ("rate_60", "At 60 tasks a minute it is 27.9 % above", "+27.9 %", _gain("rates", ("60",), "throughput", 0.279)),
    ("first_6", "With 6 nodes worker 1 does 31.9 % more", "+31.9 %", _gain("nodes", ("6",), "throughput_first", 0.319)),
    (
        "first_60",
        "At 60 tasks a minute worker 1 does 41.0 % more",
        "+41.0 %",
        _gain("rates", ("60",), "throughput_first", 0.41),
    ),
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
)


def _judge_alike(results: Results) -> Judgement:
    means = {m: results.estimate("rates", "10", m, "throughput") for m in (*BASELINES, IAWP)}
    spread = max(v.mean for v in means.values()) / min(v.mean for v in means.values()) - 1.0
    verdict = ClaimVerdict.REPRODUCED if spread < 0.1 else ClaimVerdict.PARTLY if spread < 0.2 else ClaimVerdict.NOT
    return Judgement(
        verdict, ", ".join(f"{m} {number(v)}" for m, v in means.items()), f"They differ by {100 * spread:.0f} %."
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
    return Judgement(verdict, shown, f"Throughput. Without learning ({IAWP}): {iawp}.")


def _judge_anywhere(results: Results) -> Judgement:
    change = _anywhere(results, LDWP, BASELINES)
    verdict = verdict_of(Estimate(-change.mean, change.half_width, change.count), -0.269)
    return Judgement(verdict, percent(change), "The paper does not say what its average is over.")


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
    return Judgement(verdict, shown, "More than what lies between is not to be had by any choice of nodes and units.")


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
        "Throughput at 50 tasks a minute on nine nodes. ECT and drain know true times and every queue; the net "
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
    return Judgement(verdict, shown, "Throughput at 50 tasks a minute on nine nodes, nodes chosen by the same method.")
