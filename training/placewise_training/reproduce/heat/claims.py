"""The claims of the heat-island paper, and their judges. Runs nothing."""

from collections.abc import Sequence

import numpy as np

from placewise_training.reproduce.claims import (
    Claim,
    ClaimVerdict,
    Judge,
    Judgement,
    judge_change,
    judge_not_worse,
    number,
    percent,
    verdict_of,
)
from placewise_training.reproduce.heat.lab import EQUAL, ONE_NODE, PREDICTION, READINGS, SCHEME, THERMOSTAT
from placewise_training.reproduce.results import Results

ALGORITHM, ALONE, ALL = "Algorithm 3", "one unit", "all units"
_E = "readings"


def _by_reading(results: Results, metric: str, method: str, unit: str = "") -> str:
    return ", ".join(f"{r} {number(results.estimate(_E, r, method, metric), unit)}" for r in READINGS)


def _overall(verdicts: Sequence[ClaimVerdict]) -> ClaimVerdict:
    """One verdict for all readings: partly if they differ."""
    return verdicts[0] if len(set(verdicts)) == 1 else ClaimVerdict.PARTLY


def _islands(results: Results) -> Judgement:
    nodes = [results.estimate(_E, r, EQUAL, "nodes_over") for r in READINGS]
    verdict = _overall([ClaimVerdict.REPRODUCED if n.mean >= 1 else ClaimVerdict.NOT for n in nodes])
    early = results.estimate(_E, "A", EQUAL, "history_spread")
    why = (
        f"Which nodes pass it depends on the reading. In the first, short phase of A the spread is {number(early)} °C."
    )
    return Judgement(verdict, "of 7 nodes: " + _by_reading(results, "nodes_over", EQUAL), why)


def _none_over(method: str, why: str) -> Judge:
    def judge(results: Results) -> Judgement:
        verdicts = []
        for reading in READINGS:
            change = results.difference(_E, reading, "over_s", method, EQUAL)
            none = results.estimate(_E, reading, method, "over_s").mean == 0
            verdicts.append(
                ClaimVerdict.REPRODUCED if none else ClaimVerdict.PARTLY if change.high < 0 else ClaimVerdict.NOT
            )
        shown = f"node-seconds over: {_by_reading(results, 'over_s', method)}; "
        shown += f"conventional {_by_reading(results, 'over_s', EQUAL)}"
        return Judgement(_overall(verdicts), shown, why)

    return judge


def _spread(method: str, why: str) -> Judge:
    def judge(results: Results) -> Judgement:
        changes = {r: results.change(_E, [r], "spread", method, EQUAL) for r in READINGS}
        verdicts = [verdict_of(change, 9 / 12 - 1) for change in changes.values()]
        shown = f"{_by_reading(results, 'spread', EQUAL)} → {_by_reading(results, 'spread', method)} °C ("
        shown += ", ".join(percent(change) for change in changes.values()) + ")"
        return Judgement(_overall(verdicts), shown, why)

    return judge


def _algorithm_is_best(results: Results) -> Judgement:
    settings = sorted({cell[1] for cell in results.runs if cell[0] == "split"}, key=float)
    excess = []
    for setting in settings:
        best = min(results.estimate("split", setting, m, "completion").mean for m in (ALONE, ALL))
        excess.append(results.estimate("split", setting, ALGORITHM, "completion").mean / best - 1.0)
    worst = settings[int(np.argmax(excess))]
    shown = f"{100 * float(np.mean(excess)):+.1f} % vs the better of one and all units, at worst "
    shown += f"{100 * max(excess):+.0f} % (T_p = {worst})"
    why = (
        "Conditions (1) and (2) ask for efficiency as well as speed, and k comes from mean capabilities: near the "
        "threshold it takes fewer units than would be fastest, or weak ones that last longest."
    )
    return Judgement(ClaimVerdict.REPRODUCED if max(excess) <= 0.1 else ClaimVerdict.PARTLY, shown, why)


def _why_scheme(results: Results, verdict: ClaimVerdict) -> str:
    changes = (f"{r} {percent(results.change(_E, [r], 'spread', SCHEME, ONE_NODE))}" for r in READINGS)
    completion = (f"{r} {percent(results.change(_E, [r], 'completion', SCHEME, ONE_NODE))}" for r in READINGS)
    return f"By reading: {', '.join(changes)}. Completion: {', '.join(completion)}."


_MISJUDGED = (
    "Equations (5) and (6) count clock and memory but not cores. So they rate a weak node at about half of a strong "
    "one, and its true worth is a third. If tasks overlap, the queue decides how long each node is busy, and the "
    "shares do not."
)


def claims() -> list[Claim]:
    """The paper's, then ours of each subject."""
    return [*_of_the_scheme(), *_of_prediction()]


def _of_the_scheme() -> list[Claim]:
    return [
        Claim("islands", "Conventional scheduling lets nodes pass the threshold", "some nodes over", _islands),
        Claim(
            "no_islands",
            "The scheme keeps every node below its threshold",
            "none over",
            _none_over(
                SCHEME,
                "Even shares end the waiting for slow nodes, and with it some of the heat, but nothing in the paper's "
                "formulas knows a temperature: under a load that lasts, a node reaches what its power makes it reach.",
            ),
        ),
        Claim(
            "spread",
            "Spread between hottest and coolest node, scheme against conventional",
            "12 → 9 °C (−25 %)",
            _spread(SCHEME, _MISJUDGED),
        ),
        Claim(
            "performance",
            "Computing performance is kept: completion against conventional",
            "not worse (no number)",
            judge_not_worse(
                _E,
                tuple(READINGS),
                "completion",
                SCHEME,
                [EQUAL],
                0.0,
                "Mean over the readings. With equal shares every task waits for the weak nodes' part of it.",
            ),
        ),
        Claim(
            "plain",
            "The scheme spreads heat more evenly than consolidation, one node a task",
            "–",
            judge_change(_E, tuple(READINGS), "spread", SCHEME, [ONE_NODE], 0.0, _why_scheme),
            is_beyond=True,
        ),
        Claim("algorithm3", "Algorithm 3 picks the number of units", "no number", _algorithm_is_best),
    ]


def _of_prediction() -> list[Claim]:
    """The step that the paper names as its next."""
    return [
        Claim(
            "prediction",
            "With thermal prediction no node passes its limit",
            "named as the next step",
            _none_over(PREDICTION, "The bundle's thermal constants are not those of the nodes: it predicts too low."),
            is_beyond=True,
        ),
        Claim(
            "prediction_spread",
            "Spread with thermal prediction, against conventional",
            "12 → 9 °C",
            _spread(PREDICTION, _MISJUDGED),
            is_beyond=True,
        ),
        Claim(
            "prediction_cost",
            "Prediction costs at most 5 % completion time, against a thermostat and against the plain scheme",
            "–",
            judge_not_worse(
                _E,
                tuple(READINGS),
                "completion",
                PREDICTION,
                [THERMOSTAT, SCHEME],
                0.05,
                "As the plain scheme works above the limit (C and D), keeping below it leaves less time to work.",
            ),
            is_beyond=True,
        ),
    ]
