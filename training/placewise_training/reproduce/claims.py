"""Claims of the papers and how they are judged: on the results alone. Runs nothing."""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from placewise_training.reproduce.results import Results
from placewise_training.sim.statistics import Estimate


class ClaimVerdict(enum.StrEnum):
    REPRODUCED = "reproduced"
    PARTLY = "partly"
    NOT = "not reproduced"
    NEEDS_BUNDLE = "needs a bundle"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Judgement:
    """`ours` is our number in words (with its interval), `why` the reason of the verdict in one or two sentences: every
    verdict that is published has one."""

    verdict: ClaimVerdict
    ours: str
    why: str = ""


Judge = Callable[[Results], Judgement]


@dataclass(frozen=True, slots=True)
class Claim:
    """One sentence of the paper. `paper` is its number; `is_beyond` marks a claim that is ours alone."""

    key: str
    text: str
    paper: str
    judge: Judge
    is_beyond: bool = False


def in_both_forms(claim: Claim, shipped: Judge) -> list[Claim]:
    """Two rows: the paper's claim about the method as printed, and ours about the method as shipped."""
    return [
        replace(claim, text=f"As printed: {claim.text}"),
        Claim(f"{claim.key}_shipped", f"As shipped: {claim.text}", claim.paper, shipped, is_beyond=True),
    ]


_NOT_RUN = "the runs this rests on were not made"


def judged(claim: Claim, results: Results) -> Judgement:
    """The judgement, or "not measured" if its runs did not happen, or need a bundle."""
    try:
        return claim.judge(results)
    except KeyError as error:
        cells = [cell for cell in results.missing if str(error).find(cell[2]) >= 0]
        if cells:
            return Judgement(ClaimVerdict.NEEDS_BUNDLE, "–", results.missing[cells[0]])
        return Judgement(ClaimVerdict.NOT_MEASURED, "–", _NOT_RUN)
    except (IndexError, ValueError):
        if not results.stopped:  # of a whole run this is a defect of the judge
            raise
        return Judgement(ClaimVerdict.NOT_MEASURED, "–", _NOT_RUN)


def half_width(value: float) -> str:
    """Two figures, or whole numbers from ten on."""
    if value < 1e-9:  # what rounding leaves of paired equal runs
        return "0"
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def percent(value: Estimate) -> str:
    """A share as a percentage with its interval."""
    half = f" ± {half_width(100 * value.half_width)}" if value.count > 1 else ""
    return f"{100 * value.mean:+.1f}{half} %"


def number(value: Estimate, unit: str = "") -> str:
    """A mean with its interval."""
    half = f" ± {half_width(value.half_width)}" if value.count > 1 else ""
    mean = f"{value.mean:,.0f}" if abs(value.mean) >= 1000 else f"{value.mean:.3g}"
    return f"{mean}{half}{' ' + unit if unit else ''}"


def points_against_each(results: Results, at: tuple[str, str], metric: str, method: str, others: Sequence[str]) -> str:
    """The difference of a share to each of the others, in points. `at`: experiment and setting."""
    found = {other: results.difference(*at, metric, method, other) for other in others}
    shown = [
        f"{100 * each.mean:+.1f} ± {half_width(100 * each.half_width)} points against {other}"
        for other, each in found.items()
    ]
    return ", ".join(shown)


def margins(
    results: Results, experiment: str, settings: Sequence[str], metric: str, method: str, others: Sequence[str]
) -> str:
    """The relative change against each of the others that ran: "-3.1 ± 1 % vs ect, …"."""
    ran = [other for other in others if all(results.runs.get((experiment, s, other)) for s in settings)]
    changes = {other: results.change(experiment, settings, metric, method, other) for other in ran}
    return ", ".join(f"{percent(change)} vs {other}" for other, change in changes.items())


def verdict_of(change: Estimate, at_most: float) -> ClaimVerdict:
    """For a change that should be negative: reproduced at `at_most` or below, partly if surely below 0."""
    if change.mean <= at_most and (change.high < 0 or change.count == 1):
        return ClaimVerdict.REPRODUCED
    return ClaimVerdict.PARTLY if change.mean < 0 and (change.high < 0 or change.count == 1) else ClaimVerdict.NOT


def verdict_by_low(change: Estimate, at_least: float) -> ClaimVerdict:
    """For a gain: reproduced if the lower end of its interval reaches `at_least`, partly if it is above 0."""
    if change.low >= at_least:
        return ClaimVerdict.REPRODUCED
    return ClaimVerdict.PARTLY if change.low > 0 else ClaimVerdict.NOT


def judge_change(
    experiment: str,
    settings: Sequence[str],
    metric: str,
    ours: str,
    theirs: Sequence[str],
    at_most: float,
    why: Callable[[Results, ClaimVerdict], str] | str = "",
    *,
    is_lower_better: bool = True,
) -> Judge:
    """Judges "ours changes the metric by `at_most` or better against each of theirs", over the settings.

    `at_most` is negative where lower is better, positive otherwise. The verdict is the worst over `theirs`.
    """

    def judge(results: Results) -> Judgement:
        changes = {t: results.change(experiment, settings, metric, ours, t) for t in theirs}
        worst = judged_worst(list(changes.values()), at_most, is_lower_better=is_lower_better)
        shown = ", ".join(f"{percent(c)} vs {t}" for t, c in changes.items())
        return Judgement(worst, shown, why if isinstance(why, str) else why(results, worst))

    return judge


def judge_not_worse(
    experiment: str,
    settings: Sequence[str],
    metric: str,
    ours: str,
    theirs: Sequence[str],
    margin: float,
    why: str = "",
) -> Judge:
    """Judges "ours raises the metric (lower is better) by no more than `margin`" against each of theirs.

    Reproduced if the means say so, partly if only the lower end of an interval does.
    """

    def judge(results: Results) -> Judgement:
        changes = {t: results.change(experiment, settings, metric, ours, t) for t in theirs}
        shown = ", ".join(f"{percent(c)} vs {t}" for t, c in changes.items())
        if all(change.mean <= margin for change in changes.values()):
            return Judgement(ClaimVerdict.REPRODUCED, shown, why)
        is_possible = all(change.low <= margin for change in changes.values())
        return Judgement(ClaimVerdict.PARTLY if is_possible else ClaimVerdict.NOT, shown, why)

    return judge


def judged_worst(changes: Sequence[Estimate], target: float, *, is_lower_better: bool = True) -> ClaimVerdict:
    """The worst verdict over changes that should each reach the target (negative where lower is better)."""
    sign = 1.0 if is_lower_better else -1.0
    order = [ClaimVerdict.REPRODUCED, ClaimVerdict.PARTLY, ClaimVerdict.NOT]
    verdicts = [verdict_of(Estimate(sign * c.mean, c.half_width, c.count), sign * target) for c in changes]
    return max(verdicts, key=order.index)
