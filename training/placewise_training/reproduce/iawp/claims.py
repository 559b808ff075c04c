"""The paper's claims about IAWP at node level, and their judges. Runs nothing."""

from placewise_training.data.measured import accuracy, short_profiles
from placewise_training.reproduce.claims import (
    Claim,
    ClaimVerdict,
    Judge,
    Judgement,
    in_both_forms,
    judge_change,
    margins,
    number,
    percent,
    points_against_each,
    verdict_of,
)
from placewise_training.reproduce.ldwp.runs import BASELINES, CONSOLIDATE, ECT, KINDS, OMITTED, ORACLE
from placewise_training.reproduce.results import Results
from placewise_training.sim.pipelines.applications import APPLICATIONS
from placewise_training.sim.statistics import Estimate, estimate

IAWP = "iawp"
WRITTEN = "iawp, as written"
SPEEDUPS_ONLY = "iawp, speedups alone"
TWO_METRICS = "iawp, two metrics"
NO_METRICS = "iawp, nothing known"
DAMAGED = "iawp, another site's metrics"
NCF = "iawp, two metrics + NCF"
WRITTEN_NCF = "iawp, as written, two random metrics + NCF"
COMPLETED = "iawp, two metrics + completion"

_FIRST, _SERVER = "2 × K80", "4 × K80"

_PROFILE_RIGHT = 0.923  # Table 3


def claims() -> list[Claim]:
    return [*_of_speed(), *_of_two_metrics(), *_of_algorithms(), *_of_rivals(), *_of_worse_metrics()]


def _of_speed() -> list[Claim]:
    return [
        *in_both_forms(
            Claim("gpu", "87 % of a node's GPU time is used, more than with any baseline", "87 %", _gpu(WRITTEN)),
            _gpu(IAWP),
        ),
        *in_both_forms(
            Claim("speedup", "Video synopsis is 5 to 10 times as fast as with Random", "5 … 10 ×", _speedup(WRITTEN)),
            _speedup(IAWP),
        ),
        *in_both_forms(Claim("size", "The speedup grows with the data set", "grows", _growth(WRITTEN)), _growth(IAWP)),
    ]


def _of_two_metrics() -> list[Claim]:
    return in_both_forms(
        Claim(
            "two_metrics",
            "Two profiled metrics, completed, are enough: throughput stays that of full metrics",
            "as good",
            lambda results: _judge_kept(results, WRITTEN_NCF, 0.03, WRITTEN),
        ),
        lambda results: _judge_kept(results, COMPLETED, 0.03),
    )


def _of_algorithms() -> list[Claim]:
    kinds = tuple(KINDS)
    return [
        Claim(
            "written",
            "Sharing by contention does more than Algorithm 2 as written",
            "–",
            judge_change("kinds", kinds, "throughput", IAWP, (WRITTEN,), 0.0, _why_written, is_lower_better=False),
            is_beyond=True,
        ),
        Claim(
            "pretraining", "As printed: Pre-training speeds up the NCF's convergence", "lower loss", _judge_pretraining
        ),
        Claim("profiling", "Four seconds of profiling give metrics 92.3 % right", "92.3 %", _judge_profiling),
    ]


def _of_rivals() -> list[Claim]:
    kinds = tuple(KINDS)
    return [
        Claim(
            "throughput",
            "IAWP does more than each baseline on each kind of server",
            "–",
            judge_change("kinds", kinds, "throughput", IAWP, BASELINES, 0.0, _why_throughput, is_lower_better=False),
            is_beyond=True,
        ),
        Claim(
            "plain",
            "IAWP does more than consolidation, and than ECT with the shortest remaining first, on each kind of server",
            "–",
            _judge_omitted,
            is_beyond=True,
        ),
        Claim(
            "sharing",
            "Sharing GPUs is what gains: eight subtasks a GPU against one",
            "–",
            _judge_sharing,
            is_beyond=True,
        ),
    ]


def _of_worse_metrics() -> list[Claim]:
    return [
        Claim(
            "another_site",
            "Metrics of another site do nearly as well as true ones",
            "–",
            lambda results: _judge_kept(results, DAMAGED, 0.03),
            is_beyond=True,
        ),
        Claim(
            "nothing_known",
            "Without any metrics IAWP loses most of its gain",
            "–",
            _judge_nothing,
            is_beyond=True,
        ),
    ]


def _gpu(method: str) -> Judge:
    def judge(results: Results) -> Judgement:
        ours = results.estimate("use", _FIRST, method, "gpu")
        best = results.best("use", _FIRST, "gpu", BASELINES, is_lower_better=False)
        change = results.difference("use", _FIRST, "gpu", method, best)
        verdict = ClaimVerdict.NOT
        if change.low > 0:
            verdict = ClaimVerdict.REPRODUCED if ours.mean >= 0.87 else ClaimVerdict.PARTLY
        used, theirs = (results.estimate("use", _FIRST, m, "sm") for m in (method, best))
        more = margins(results, "kinds", (_FIRST,), "throughput", method, (*BASELINES, CONSOLIDATE, ORACLE))
        why = (
            f"Counted as monitoring tools do, {best} keeps GPUs as busy with one subtask at a time. Counted by SMs in "
            f"use, {method} has {100 * used.mean:.0f} % and {best} {100 * theirs.mean:.0f} %; throughput is "
            f"{more}."
        )
        each = points_against_each(results, ("use", _FIRST), "gpu", method, BASELINES)
        return Judgement(verdict, f"{100 * ours.mean:.0f} %; {each}", why)

    return judge


def _speedup(method: str) -> Judge:
    def judge(results: Results) -> Judgement:
        sizes = _sizes(results)
        found = [results.estimate("speedup", s, method, "speedup") for s in sizes]
        verdict = ClaimVerdict.NOT
        if min(value.mean for value in found) >= 5.0:
            verdict = ClaimVerdict.REPRODUCED
        elif min(value.low for value in found) > 1.0:
            verdict = ClaimVerdict.PARTLY
        why = (
            f"{_beside(results, method)} Table 5 gives three of the five stages no GPU version, and in the ranges "
            "assumed they are nearly half the work on a core: a ratio of five needs a Random that leaves units idle, "
            "and here it takes any that is free."
        )
        shown = ", ".join(f"{s} MB {number(value, '×')}" for s, value in zip(sizes, found, strict=True))
        return Judgement(verdict, shown, why)

    return judge


def _growth(method: str) -> Judge:
    def judge(results: Results) -> Judgement:
        sizes = _sizes(results)
        first, last = (results.estimate("speedup", s, method, "speedup") for s in (sizes[0], sizes[-1]))
        verdict = (
            ClaimVerdict.REPRODUCED
            if last.low > first.high
            else ClaimVerdict.PARTLY
            if last.mean > first.mean
            else ClaimVerdict.NOT
        )
        why = (
            "A small data set leaves most cores idle, and only the length of one task counts, which GPU versions "
            "shorten. With a large one all cores are busy under every policy, as three of the five stages have no GPU "
            "version."
        )
        shown = f"{number(first, '×')} at {sizes[0]} MB, {number(last, '×')} at {sizes[-1]} MB"
        return Judgement(verdict, shown, f"{why} {_beside(results, method)}")

    return judge


def _beside(results: Results, method: str) -> str:
    """The speedup over Random of the other methods on the largest data set, and the method's margin over each."""
    size = _sizes(results)[-1]
    ran = [m for m in (*BASELINES[1:], CONSOLIDATE, ORACLE) if results.runs.get(("speedup", size, m))]
    theirs = ", ".join(f"{m} {number(results.estimate('speedup', size, m, 'speedup'), '×')}" for m in ran)
    against = margins(results, "speedup", (size,), "speedup", method, (*BASELINES, CONSOLIDATE, ORACLE))
    return f"At {size} MB {theirs}; {method} is {against}."


def _sizes(results: Results) -> list[str]:
    return sorted({s for e, s, _ in results.runs if e == "speedup"}, key=float)


def _judge_kept(results: Results, method: str, at_most: float, full: str = IAWP) -> Judgement:
    """At most so much of the throughput is lost against full metrics."""
    settings = (_FIRST, _SERVER)
    change = results.change("metrics", settings, "throughput", method, full)
    verdict = (
        ClaimVerdict.REPRODUCED
        if change.low >= -at_most
        else ClaimVerdict.PARTLY
        if change.mean >= -at_most
        else ClaimVerdict.NOT
    )
    why = f"Throughput of “{method}” against “{full}”, full metrics; at most {100 * at_most:.0f} % may be lost."
    return Judgement(verdict, percent(change), why)


def _judge_nothing(results: Results) -> Judgement:
    settings = (_FIRST, _SERVER)
    change = results.change("metrics", settings, "throughput", NO_METRICS, IAWP)
    partial = results.change("metrics", settings, "throughput", SPEEDUPS_ONLY, IAWP)
    random = Estimate(
        sum(1 / results.estimate("metrics", s, IAWP, "speedup").mean for s in settings) / len(settings) - 1.0, 0.0, 1
    )
    lost = change.mean / random.mean if random.mean < 0 else 0.0
    verdict = ClaimVerdict.REPRODUCED if lost > 0.5 else ClaimVerdict.PARTLY if change.high < 0 else ClaimVerdict.NOT
    why = (
        f"Random is {percent(random)}, speedups alone are {percent(partial)}: of the gain over Random, a share of "
        f"{100 * lost:.0f} % needs metrics; the rest comes from filling every core and GPU."
    )
    return Judgement(verdict, percent(change), why)


def _judge_sharing(results: Results) -> Judgement:
    counts = sorted({s for e, s, _ in results.runs if e == "width"}, key=int)
    alone, shared = (results.values("width", s, IAWP, "throughput") for s in (counts[0], counts[-1]))
    changes = [shared[seed] / alone[seed] - 1.0 for seed in shared]
    change = estimate(changes)
    inverse = Estimate(-change.mean, change.half_width, change.count)
    verdict = verdict_of(inverse, -0.05)
    alone_w, shared_w = (results.estimate("width", counts[i], WRITTEN, "throughput") for i in (0, -1))
    why = f"As written: {number(alone_w)} alone, {number(shared_w)} shared, tasks a minute."
    return Judgement(verdict, percent(change), why)


def _why_throughput(results: Results, verdict: ClaimVerdict) -> str:
    by_kind = ", ".join(
        f"{kind} {percent(results.change('kinds', (kind,), 'throughput', IAWP, ECT))}" for kind in KINDS
    )
    by_application = ", ".join(
        f"{name} {percent(results.change('applications', (name,), 'throughput', IAWP, ECT))}" for name in APPLICATIONS
    )
    beside = margins(results, "kinds", tuple(KINDS), "throughput", IAWP, (CONSOLIDATE, ORACLE))
    return f"Beside them {beside}. Against {ECT}: {by_kind}; on {_SERVER} by application: {by_application}."


def _judge_omitted(results: Results) -> Judgement:
    """On each kind of server: over all of them it may do more and on some not."""
    every = {m: results.change("kinds", tuple(KINDS), "throughput", IAWP, m) for m in OMITTED}
    by_kind = {kind: [results.change("kinds", (kind,), "throughput", IAWP, m) for m in OMITTED] for kind in KINDS}
    verdict = ClaimVerdict.PARTLY if all(change.low > 0 for change in every.values()) else ClaimVerdict.NOT
    if all(change.low > 0 for changes in by_kind.values() for change in changes):
        verdict = ClaimVerdict.REPRODUCED
    shown = ", ".join(f"{percent(change)} vs {m}" for m, change in every.items())
    each = ", ".join(f"{kind} {percent(changes[0])}" for kind, changes in by_kind.items())
    return Judgement(verdict, shown, f"Against {OMITTED[0]}, which fills GPUs by the same metrics: {each}.")


def _why_written(results: Results, verdict: ClaimVerdict) -> str:
    by_kind = (f"{kind} {percent(results.change('kinds', (kind,), 'throughput', IAWP, WRITTEN))}" for kind in KINDS)
    return f"{', '.join(by_kind)}."


def _judge_pretraining(results: Results) -> Judgement:
    with_it, without = (
        results.estimate("convergence", "3000 tasks", m, "loss") for m in ("with pre-training", "without pre-training")
    )
    verdict = ClaimVerdict.REPRODUCED if with_it.high < without.low else ClaimVerdict.NOT
    why = "Loss (5) after a hundred iterations on rows of kinds the history does not have."
    return Judgement(verdict, f"{number(with_it)} against {number(without)}", why)


def _judge_profiling(results: Results) -> Judgement:
    """On the shipped measurements: the claim is about profiling, and a simulator that knows every metric does none."""
    measured = short_profiles()
    by_metric: dict[str, list[tuple[float, float]]] = {}
    for (_, metric), pairs in measured.items():
        by_metric.setdefault(metric, []).extend(pairs)
    right = accuracy([pair for pairs in by_metric.values() for pair in pairs])
    each = ", ".join(f"{metric} {100 * accuracy(pairs):.1f} %" for metric, pairs in by_metric.items())
    why = (
        f"{each}. Real training loops on CPU cores, four seconds beside a long run of the same loop "
        f"({len({model for model, _ in measured})} loops). The paper's are hardware counters of kernels on a GPU, "
        "which were not measured. This shows that so short a profile can be right, not that those counters are."
    )
    verdict = ClaimVerdict.PARTLY if right >= _PROFILE_RIGHT else ClaimVerdict.NOT
    return Judgement(verdict, f"{100 * right:.1f} % (CPU metrics)", why)
