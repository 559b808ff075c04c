"""Harmony's deep dive: variants of the learned policy, each a bundle of its own.

`placewise reproduce harmony --ablations` runs it. A variant is a directory under `build/ablations` (`--variants` names
another) with one directory per seed of its training, which holds the policy's graphs; all are trained like the rest but
for one thing. A seed here is one of training: each outcome is the mean over the same simulations, so that intervals are
of training's draws. A missing variant shows "needs a bundle"; a directory that no figure of the paper names gets a
row in a table of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from placewise_models.bundle import Bundle
from placewise_models.policy import POLICY_GRAPHS
from placewise_training.reproduce.claims import (
    Claim,
    ClaimVerdict,
    Judge,
    Judgement,
    in_both_forms,
    number,
    percent,
)
from placewise_training.reproduce.design import Experiment, Metric, NeedsBundleError, Trial, TrialOutcome
from placewise_training.reproduce.harmony.runs import CONSOLIDATE, HARMONY, PAPER_BASELINES, SHORTEST, Scenario, run
from placewise_training.reproduce.paper import Paper
from placewise_training.reproduce.results import Results
from placewise_training.sim.policies import opened
from placewise_training.sim.statistics import Estimate, paired_change

VARIANTS = Path("build/ablations")
FULL = "all techniques"
# Directory of each row of Table II, and the paper's mean JCT in intervals.
TECHNIQUES: Mapping[str, tuple[str, float]] = {
    FULL: ("all-techniques", 4.119),
    "without value network": ("without-value-net", 5.48),
    "without exploration": ("without-exploration", 5.583),
    "without multi-head attention": ("without-multi-head", 5.246),
    "without experience replay": ("without-replay", 5.137),
}
# Fig. 15: the varied quantity, its values, the value in the policy of Table II's first row, and the paper's best value.
# The paper has two layers and twice the neurons: 64, 128 and 256. These take four times as long to train.
DESIGN: Mapping[str, tuple[Sequence[int], int, int]] = {
    "neurons": ((32, 64, 128), 64, 128),
    "layers": ((1, 2, 4), 1, 2),
    "heads": ((1, 4, 8, 32), 8, 8),
}
JUDGED_SEEDS = 5  # simulations of each trained policy
INTERVALS = (10, 20, 40, 70)  # minutes; Fig. 12 with a policy trained for each
_YARDSTICKS = ("load-balance", CONSOLIDATE, SHORTEST)
_JCT = Metric("jct", "mean JCT", "intervals")
_METRICS = (_JCT, Metric("relative", "JCT vs load-balance", "%", scale=100.0))


def directory_of(what: str, value: int) -> str:
    """The directory of a variant of Fig. 12 or 15: "heads-4", "interval-40"; the usual one is in Table II's row."""
    usual = DESIGN[what][1] if what in DESIGN else 20
    if (what, value) == ("heads", 1):
        return TECHNIQUES["without multi-head attention"][0]
    return TECHNIQUES[FULL][0] if value == usual else f"{what}-{value}"


def paper(is_quick: bool, bundle: Bundle | None = None, variants: Path = VARIANTS) -> Paper:
    """Table II, Fig. 15, Fig. 12 with a policy per interval, and all further variants in `variants`.

    `bundle` takes no part: every row is a bundle of its own.
    """
    base = Scenario(jobs=60 if is_quick else 200)
    experiments = [_techniques(base, variants), *(_design(what, base, variants) for what in DESIGN)]
    experiments.append(_intervals(base, variants, (20, 70) if is_quick else INTERVALS))
    others = _others(variants)
    if others:
        experiments.append(_found(base, variants, others))
    return Paper(
        "harmony-ablations",
        "Harmony: variants of the learned policy",
        experiments,
        _claims(),
        (
            "6 servers, uniform arrivals. Every variant is trained with the same budget, on the training truth alone, "
            "from random weights; the paper trains each until convergence, so that a variant that learns more slowly "
            "looks worse here.",
            "A seed is one of training; each figure of a seed is the mean over the same five simulations of the "
            "judging truth. The policy of the first row is built like the one that ships, one layer of 64 with 8 "
            "heads; the paper has two layers of 128.",
        ),
    )


def _trial(variant_of: Mapping[str, str], scenario: Scenario, variants: Path) -> Trial:
    """Methods are yardsticks, or rows with a directory each."""

    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        return _outcome(scenario, variant_of.get(method), method, seed, variants)

    return trial


def _outcome(scenario: Scenario, variant: str | None, method: str, seed: int, variants: Path) -> TrialOutcome:
    trained = None
    if variant is not None:
        directory = variants / variant / str(seed)
        if not (directory / POLICY_GRAPHS[0]).is_file():
            raise NeedsBundleError(f"needs a bundle: {variant} is not trained yet")
        trained = opened(directory)
    found, relative = [], []
    for judged in range(JUDGED_SEEDS):
        found.append(run(scenario, HARMONY if trained else method, judged, trained)["jct"])
        relative.append(found[-1] / run(scenario, _YARDSTICKS[0], judged)["jct"])
    return TrialOutcome({"jct": float(np.mean(found)), "relative": float(np.mean(relative))})


def _techniques(base: Scenario, variants: Path) -> Experiment:
    directories = {name: directory for name, (directory, _) in TECHNIQUES.items()}
    return Experiment(
        "table2",
        "Training techniques",
        "Table II",
        ("uniform",),
        (*_YARDSTICKS, *TECHNIQUES),
        _METRICS,
        _trial(directories, base, variants),
        theirs={("uniform", name, "jct"): jct for name, (_, jct) in TECHNIQUES.items()},
    )


def _design(what: str, base: Scenario, variants: Path) -> Experiment:
    values = DESIGN[what][0]

    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        variant = directory_of(what, int(setting)) if method == HARMONY else None
        return _outcome(base, variant, method, seed, variants)

    return Experiment(
        f"fig15_{what}",
        f"Number of {what}",
        "Fig. 15",
        tuple(str(value) for value in values),
        (*_YARDSTICKS, HARMONY),
        _METRICS,
        trial,
        axis=what,
        plot="lines",
    )


def _intervals(base: Scenario, variants: Path, minutes: Sequence[int]) -> Experiment:
    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        scenario = replace(base, every_s=60.0 * int(setting))
        variant = directory_of("interval", int(setting)) if method == HARMONY else None
        return _outcome(scenario, variant, method, seed, variants)

    return Experiment(
        "fig12",
        "Scheduling interval, a policy trained for each",
        "Fig. 12",
        tuple(str(value) for value in minutes),
        (*_YARDSTICKS, HARMONY),
        _METRICS,
        trial,
        axis="minutes",
        plot="lines",
    )


def _others(variants: Path) -> list[str]:
    """Directories with a policy that no figure of the paper names."""
    named = {directory for directory, _ in TECHNIQUES.values()}
    named |= {directory_of(what, value) for what, (values, _, _) in DESIGN.items() for value in values}
    named |= {directory_of("interval", value) for value in INTERVALS}
    found = {path.parent.parent.name for path in variants.glob(f"*/*/{POLICY_GRAPHS[0]}")}
    return sorted(found - named)


def _found(base: Scenario, variants: Path, names: Sequence[str]) -> Experiment:
    directories = {name: name for name in names}
    methods = (*_YARDSTICKS, *(m for m in PAPER_BASELINES if m not in _YARDSTICKS), *names)
    trial = _trial(directories, base, variants)
    return Experiment("others", "Other variants", "beyond the paper", ("uniform",), methods, _METRICS, trial)


def _claims() -> list[Claim]:
    """The paper's, about a net of which no variants were trained, each with ours about the net that ships."""
    theirs: list[tuple[str, str, str, Judge]] = [
        (
            "techniques",
            "Without value network, exploration, heads or replay JCT is 25 to 36 % higher",
            "+25 … +36 %",
            _judge_techniques,
        ),
        *(
            (what, f"{best} {what} are best", str(best), _judge_design(what, best))
            for what, (_, _, best) in DESIGN.items()
        ),
        ("interval", "20 minutes is the best scheduling interval", "20 min", _judge_interval),
    ]
    return [
        claim
        for key, text, printed, judge in theirs
        for claim in in_both_forms(Claim(key, text, printed, _untrained(key)), judge)
    ]


def printed_variants(key: str) -> int:
    """How many nets of one claim differ from the net as printed: the variants that were trained of ours alone. One head
    counts with Table II's."""
    if key == "techniques":
        return len(TECHNIQUES) - 1
    if key == "interval":
        return len(INTERVALS) - 1
    return sum(directory_of(key, value) not in _OF_TABLE_2 for value in DESIGN[key][0])


_OF_TABLE_2 = {directory for directory, _ in TECHNIQUES.values()}


def _untrained(key: str) -> Judge:
    """As printed, a claim about variants is not measured: the row says which nets are missing, and why."""

    def judge(results: Results) -> Judgement:
        why = (
            f"{printed_variants(key)} variants of the net as printed are missing: only those of our net were trained. "
            "The net as printed has not learned at its whole budget (docs/policy.md), so that variants would compare "
            "nets that have not learned; all of them would take about 34 core-hours (docs/fidelity.md)."
        )
        if key != "interval":
            return Judgement(ClaimVerdict.NOT_MEASURED, "–", why)
        measured = "with one net for all intervals: in section harmony"
        return Judgement(
            ClaimVerdict.NOT_MEASURED,
            measured,
            "Section harmony judges this claim as printed with one net for all intervals, over the same four. Missing "
            f"is a net for each interval, as the rows here have of ours. {why}",
        )

    return judge


def _judge_techniques(results: Results) -> Judgement:
    changes: dict[str, Estimate] = {
        name: results.change("table2", ("uniform",), "jct", name, FULL) for name in TECHNIQUES if name != FULL
    }
    shown = ", ".join(f"{name} {percent(change)}" for name, change in changes.items())
    if all(change.mean >= 0.25 and change.low > 0 for change in changes.values()):
        return Judgement(ClaimVerdict.REPRODUCED, shown, "Each is more than draws of training differ.")
    is_any = any(change.low > 0 for change in changes.values())
    why = (
        "Training is short: it does not show the gain of a technique at convergence, and draws of training differ more."
    )
    return Judgement(ClaimVerdict.PARTLY if is_any else ClaimVerdict.NOT, shown, why)


_DRAWS = "Draws of the same training differ by as much."
_ONE_DRAW = "Of one of them there is one draw of training alone, which says little."


def _judge_design(what: str, usual: int) -> Callable[[Results], Judgement]:
    key = f"fig15_{what}"

    def judge(results: Results) -> Judgement:
        means = {value: results.estimate(key, str(value), HARMONY, "jct") for value in DESIGN[what][0]}
        shown = ", ".join(f"{value}: {number(mean)}" for value, mean in means.items())
        best = min(means, key=lambda value: means[value].mean)
        others = [_change(results, key, usual, value) for value in means if value != usual]
        if best == usual:
            is_certain = all(change.high < 0 for change in others)
            verdict = ClaimVerdict.REPRODUCED if is_certain else ClaimVerdict.PARTLY
            return Judgement(verdict, shown, "More than draws of training differ." if is_certain else _DRAWS)
        change = _change(results, key, usual, best)
        why = f"Trained alike, {usual} {what} instead of {best}: JCT {percent(change)}."
        caution = _ONE_DRAW if change.count < 2 else _DRAWS if change.low <= 0 else ""
        return Judgement(ClaimVerdict.NOT, shown, f"{why} {caution}".strip())

    return judge


def _change(results: Results, key: str, usual: int, value: int) -> Estimate:
    """Relative change of the usual value's JCT against another's, paired by seed."""
    ours, theirs = (results.values(key, str(v), HARMONY, "jct") for v in (usual, value))
    common = sorted(set(ours) & set(theirs))
    return paired_change([ours[s] for s in common], [theirs[s] for s in common])


def _judge_interval(results: Results) -> Judgement:
    minutes = sorted({int(setting) for key, setting, method in results.runs if (key, method) == ("fig12", HARMONY)})
    if len(minutes) < 2:
        raise KeyError(("fig12", "70", HARMONY))
    means = {m: results.estimate("fig12", str(m), HARMONY, "jct") for m in minutes}
    best = min(means, key=lambda m: means[m].mean)
    shown = ", ".join(f"{m} min: {number(mean)}" for m, mean in means.items())
    why = "Half an interval of every JCT is the wait for the next decision: deciding more often pays."
    return Judgement(ClaimVerdict.REPRODUCED if best == 20 and len(means) > 2 else ClaimVerdict.NOT, shown, why)
