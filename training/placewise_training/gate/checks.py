"""The checks of the gate, each a small pure function of numbers. One that cannot be made has not passed.

"Shown worse": the one-sided test of "worse by at most WORSE" rejects at 5 %, after Holm's correction over all slices.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from scipy import special

from placewise_training.evaluate.again import Conduct
from placewise_training.evaluate.judge import ERROR, POWER, Judgement, holm
from placewise_training.gate.agreement import Agreement
from placewise_training.gate.simulated import MOST_GAP, Change, Credible

WORSE: Final = 0.05
MOST_LOSS: Final = 0.02  # of the incumbent's mean reward, that the log must rule out
MOST_BEYOND: Final = 0.01
MOST_DIFFERING: Final = 0.05
MORE_NO_FIT: Final = 0.01
MORE_FALLBACKS: Final = 0.01
MORE_HOT: Final = 0.02
SLOWER: Final = 1.5
QUICK_S: Final = 0.02  # a 95th percentile below it is never too slow


@dataclass(frozen=True, slots=True)
class Check:
    """One condition, in words with its numbers."""

    name: str
    has_passed: bool
    text: str
    numbers: Mapping[str, float | None] = field(default_factory=dict)


def no_loss(found: Judgement, incumbent_value: float) -> Check:
    """By one-sided 95 % bounds of the gain of one decision: the upper one is not below 0, so no loss is shown, and the
    lower one not below −MOST_LOSS of the incumbent's value, so the log says enough to rule a large loss out."""
    row = found.deciding
    if row is None:
        reasons = "; ".join(f"{reason.name}: {reason.text}" for reason in found.refusals)
        return Check("no loss by the log", False, f"not estimated: {reasons}")
    most_gain, allowed = 2.0 * row.gain - row.least_gain, MOST_LOSS * incumbent_value  # the interval is symmetric
    is_met = most_gain >= 0.0 and row.least_gain >= -allowed
    text = (
        f"gain of one decision {row.gain:+.4g}, one-sided 95 % bounds {row.least_gain:+.4g} and {most_gain:+.4g}; "
        f"needed are {-allowed:+.4g} ({MOST_LOSS:.0%} of the incumbent's {incumbent_value:.4g}) and 0, or more. "
        f"This log could have shown a gain of {found.detectable_gain:.3g}"
    )
    numbers = {
        "gain": row.gain, "least_gain": row.least_gain, "most_gain": most_gain, "allowed_loss": allowed,
        "detectable": found.detectable_gain,
    }  # fmt: skip
    return Check("no loss by the log", is_met, text, numbers)


def agreement(found: Agreement) -> Check:
    """Outcomes that were mixed up among the jobs say nothing of placements, so nobody is judged by them."""
    beyond = found.beyond_s / found.held_s if found.held_s else 0.0
    differing = found.differing / found.rewards if found.rewards else math.nan
    text = (
        f"jobs hold more of a node than it has for {beyond:.1%} of the time that they hold it, {MOST_BEYOND:.0%} are "
        f"allowed; {found.differing} of {found.rewards} rewards are not those of their runs, {MOST_DIFFERING:.0%} are "
        "allowed"
    )
    is_met = beyond <= MOST_BEYOND and differing <= MOST_DIFFERING
    return Check("log agrees with itself", is_met, text, {"beyond": beyond, "differing": differing})


def credible(found: Credible) -> Check:
    text = (
        f"mean JCT of the incumbent {found.simulated_s:,.0f} s simulated, {found.logged_s:,.0f} s logged "
        f"({found.gap:+.1%} over {found.jobs} jobs; ±{MOST_GAP:.0%} are allowed)"
    )
    name = "simulation credible"
    return Check(
        name,
        found.is_credible,
        text if found.is_credible else f"simulation not credible: {text}",
        {"logged_s": found.logged_s, "simulated_s": found.simulated_s, "gap": found.gap},
    )


def gain(found: Change | None) -> Check:
    """`found` is of mean JCT, the candidate's over the incumbent's."""
    name = "gain in the paired simulation"
    if found is None:
        return Check(name, False, "too few windows")
    quantile = special.stdtrit(found.windows - 1, (1.0 - ERROR, POWER))
    most, shown = found.mean + float(quantile[0]) * found.error, float(quantile.sum()) * found.error
    text = (
        f"mean JCT {math.expm1(found.mean):+.2%} against the incumbent in {found.windows} windows, with 95 % "
        f"confidence at most {math.expm1(most):+.2%}; below 0 is needed. It could have shown {math.expm1(-shown):+.2%}"
    )
    numbers = {"change": math.expm1(found.mean), "most": math.expm1(most), "detectable": math.expm1(-shown)}
    return Check(name, most < 0.0, text, numbers)


def conduct_checks(conduct: Conduct) -> list[Check]:
    """How the bundle answered the logged decisions, beside the incumbent on the same ones."""
    answers = conduct.answers
    if not answers:
        return [Check("answers to the logged decisions", False, "it was asked none")]
    count = len(answers)
    no_fit = sum(not each.is_placed for each in answers) / count
    fallbacks = sum(each.is_fallback for each in answers) / count
    incumbent_fallbacks = sum(each.incumbent_is_fallback for each in answers) / count
    hot = (sum(each.is_hot for each in answers) - sum(each.incumbent_is_hot for each in answers)) / count
    mine, theirs = (
        _p95([each.seconds for each in answers]),
        _p95([each.incumbent_s for each in answers if math.isfinite(each.incumbent_s)]),
    )
    most_s = max(QUICK_S, SLOWER * theirs)
    return [
        Check(
            "NO_FIT",
            no_fit <= MORE_NO_FIT,
            f"no place for {no_fit:.1%} of {count} jobs that the log placed; {MORE_NO_FIT:.0%} are allowed",
            {"share": no_fit},
        ),
        Check(
            "fallbacks",
            fallbacks <= incumbent_fallbacks + MORE_FALLBACKS,
            f"a fallback policy gave {fallbacks:.1%} of its answers and {incumbent_fallbacks:.1%} of the incumbent's; "
            f"{MORE_FALLBACKS:.0%} of all answers more are allowed",
            {"share": fallbacks, "incumbent": incumbent_fallbacks},
        ),
        Check(
            "temperature",
            hot <= MORE_HOT,
            f"{hot:+.1%} more placements close to a node's limit; {MORE_HOT:.0%} are allowed",
            {"more": hot},
        ),
        Check(
            "latency",
            mine <= most_s,
            f"p95 {1e3 * mine:.1f} ms of CPU on the logged views, {1e3 * theirs:.1f} ms of the policy in force; "
            f"{1e3 * most_s:.1f} ms are allowed",
            {"p95_s": mine, "incumbent_p95_s": theirs},
        ),
    ]


@dataclass(frozen=True, slots=True)
class Slice:
    """Relative change of a slice, positive for worse, with its standard error; `values` windows or blocks of time."""

    name: str
    worse: float
    error: float
    values: int

    @property
    def p_value(self) -> float:
        """Of "worse by at most WORSE"."""
        if self.error <= 0.0:
            return 0.0 if self.worse > WORSE else 1.0
        return float(special.stdtr(self.values - 1, (WORSE - self.worse) / self.error))


def slice_of(name: str, found: Change | None) -> Slice | None:
    """None for too few windows."""
    if found is None:
        return None
    return Slice(name, math.expm1(found.mean), found.error * math.exp(found.mean), found.windows)


def slice_checks(slices: Sequence[Slice]) -> list[Check]:
    """One check of each slice, by Holm."""
    adjusted = holm([one.p_value for one in slices])
    return [
        Check(
            one.name,
            p >= ERROR,
            f"{one.worse:+.1%} ± {1.96 * one.error:.1%}, p of at most {WORSE:+.0%}: {p:.3g} after {len(slices)} slices",
            {"worse": one.worse, "error": one.error, "p": p},
        )
        for one, p in zip(slices, adjusted, strict=True)
    ]


def _p95(seconds: Sequence[float]) -> float:
    return float(np.quantile(seconds, 0.95)) if seconds else 0.0
