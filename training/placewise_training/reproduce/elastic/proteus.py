"""Proteus (Xiang, Shi): turnaround in four environments, the V trade-off, and the cost model beside measurements."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from placewise_core.domain.cluster import QueueSettings
from placewise_training.reproduce.claims import (
    Claim,
    ClaimVerdict,
    Judgement,
    in_both_forms,
    judge_change,
    number,
    percent,
    verdict_of,
)
from placewise_training.reproduce.design import Experiment, Metric, TrialOutcome
from placewise_training.reproduce.elastic.believed import BelievedSpeed
from placewise_training.reproduce.elastic.composed import SHORTEST, admission
from placewise_training.reproduce.elastic.measured_costs import (
    ALPHA_NETWORKS,
    COMM_NETWORKS,
    TABLE_1,
    alpha_figure,
    comm_counts,
    comm_s,
    computed_millions,
)
from placewise_training.reproduce.elastic.trials import Trialled, run_elastic
from placewise_training.reproduce.paper import Paper
from placewise_training.reproduce.results import Results
from placewise_training.sim.hardware import uniform_cluster
from placewise_training.sim.speed.base import SpeedModel
from placewise_training.sim.statistics import Estimate, paired_change
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import PROTEUS_MODELS, ElasticWorkload, Lengths

PRINTED, SHIPPED, SINGLE, RANDOM, FIFO = "proteus-paper", "proteus", "single-gpu", "random-gpus", "fifo-strict"
FIFO_SHORT, PRINTED_SHORT, SHIPPED_SHORT = FIFO + SHORTEST, PRINTED + SHORTEST, SHIPPED + SHORTEST
_METHODS = (PRINTED, SHIPPED, SINGLE, RANDOM, FIFO, FIFO_SHORT, PRINTED_SHORT, SHIPPED_SHORT)
_SLOT_S, _LARGE_SLOT_S = 10.0, 60.0
_EPSILON_PER_S = 6.0  # ε of 60 s in a slot of 10 s
_PLACE = "consolidate"
_SMALL = Lengths(median_s=600.0, sigma=0.5, low_s=120.0, high_s=3600.0)
_LARGE = Lengths(median_s=7200.0, sigma=0.5, low_s=1800.0, high_s=36_000.0)
_PER_HOUR = 3.0  # small jobs; large ones are twelve times as long and twelve times as rare

_METRICS = (
    Metric("turnaround", "turnaround", "min", scale=1 / 60, is_log=True),
    Metric("queueing", "queueing", "min", scale=1 / 60, is_log=True),
    Metric("service", "time running", "min", scale=1 / 60, is_log=True),
    Metric("gpus", "GPUs per job"),
    Metric("gpu_hours", "GPU hours per job", "h", is_plotted=False),
    Metric("gpu_util", "GPUs in use", "%", scale=100.0, is_lower_better=False, is_plotted=False),
)


def _workload(data: str, arrivals: str, per_hour: float, jobs: int) -> ElasticWorkload:
    rate = per_hour if data == "small" else per_hour / 12.0
    lengths = _SMALL if data == "small" else _LARGE
    return ElasticWorkload(
        jobs=jobs, pattern=arrivals, per_hour=rate, models=PROTEUS_MODELS, lengths=lengths, has_classes=False
    )


def _run(
    workload: ElasticWorkload,
    method: str,
    seed: int,
    *,
    is_believed: bool = False,
    v: float = 1.0,
) -> Trialled:
    nodes = uniform_cluster(4, 4, "2080TI")
    measured = make_truth("judge", seed)
    truth: SpeedModel = BelievedSpeed(nodes) if is_believed else measured
    slot_s = _LARGE_SLOT_S if workload.lengths is _LARGE else _SLOT_S
    settings = QueueSettings(v=v, epsilon_s=_EPSILON_PER_S * slot_s, slot_s=slot_s)
    jobs = workload.generate(measured, seed)
    return run_elastic(nodes, jobs, truth, admission(method), _PLACE, seed, slot_s=slot_s, queue_settings=settings)


def _outcome(trialled: Trialled) -> TrialOutcome:
    metrics, log = trialled.result.metrics, trialled.log
    return TrialOutcome(
        {
            "turnaround": metrics.avg_jct_s,
            "queueing": metrics.avg_queueing_s,
            "service": log.mean("service"),
            "gpus": log.mean("gpus"),
            "gpu_hours": log.mean("gpu_hours"),
            "gpu_util": metrics.gpu_util,
            "backlog": log.backlog_s(),
        }
    )


_ENVIRONMENTS = ("small, dispersed", "small, concentrated", "large, dispersed", "large, concentrated")


def _environments(jobs: int, *, is_believed: bool) -> Experiment:
    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        data, arrivals = setting.split(", ")
        return _outcome(_run(_workload(data, arrivals, _PER_HOUR, jobs), method, seed, is_believed=is_believed))

    judged_by = "jobs take as long as the policy's own cost model says" if is_believed else "judged by measured speeds"
    return Experiment(
        key="environments_model" if is_believed else "environments",
        title=f"Average turnaround in the four environments, {judged_by}",
        source="Fig. 2–5, as the paper's simulation" if is_believed else "Fig. 2–5",
        settings=_ENVIRONMENTS,
        methods=_METHODS,
        metrics=_METRICS,
        trial=trial,
        axis="data, arrivals",
        note=(
            "The truth here is C(n) of equation (6), by which `proteus-paper` decides: no contention, no noise, no "
            "unknown cost. A simulation of the paper's own formulas can show no more than this."
            if is_believed
            else ""
        ),
    )


def _load(jobs: int, is_quick: bool) -> Experiment:
    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        return _outcome(_run(_workload("small", "poisson", float(setting), jobs), method, seed))

    return Experiment(
        key="load",
        title="The end of the gain: more small jobs per hour",
        source="beyond the paper, which gives no rates",
        settings=("1.5", "12") if is_quick else ("1.5", "3", "6", "12", "18"),
        methods=_METHODS,
        metrics=_METRICS[:4],
        trial=trial,
        axis="jobs per hour (Poisson)",
        plot="lines",
    )


_MOST_GPUS = {"up to 16 GPUs, 6 jobs per hour": (16, 6.0), "up to 12 GPUs, 12 jobs per hour": (12, 12.0)}


def _v_sweep(jobs: int, is_quick: bool) -> Experiment:
    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        most, per_hour = _MOST_GPUS[method]
        workload = replace(_workload("small", "poisson", per_hour, jobs), most_gpus=most)
        return _outcome(_run(workload, PRINTED, seed, v=float(setting)))

    return Experiment(
        key="v_sweep",
        title="V: backlog against cost",
        source="section VI.C: “the larger the V, the higher the computing efficiency”",
        settings=("1", "30") if is_quick else ("0.3", "1", "3", "10", "30"),
        methods=tuple(_MOST_GPUS),
        metrics=(
            Metric("backlog", "mean backlog Q", "h of one GPU", scale=1 / 3600, is_log=True),
            Metric("service", "cost: time running", "min", scale=1 / 60),
            Metric("turnaround", "turnaround", "min", scale=1 / 60, is_log=True),
            Metric("gpus", "GPUs per job", is_lower_better=False),
        ),
        trial=trial,
        axis="V",
        plot="lines",
        is_log_x=True,
    )


def _alpha() -> Experiment:
    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        return TrialOutcome(*alpha_figure(setting))

    return Experiment(
        key="alpha",
        title="α(b): step time over that of the smallest batch",
        source="Fig. 1",
        settings=tuple(ALPHA_NETWORKS),
        methods=("line through the other batches",),
        metrics=(
            Metric("mean_error", "mean error", "%", scale=100.0),
            Metric("max_error", "largest error", "%", scale=100.0),
            Metric("batches", "batches"),
        ),
        trial=trial,
        plot="curves",
        is_seeded=False,
        curve_axes=("batch per GPU", "α(b)"),
        note="Measured on one GPU (Pollux T4, ElasticFlow A100); each batch is predicted from the others.",
    )


def _comm() -> Experiment:
    settings = tuple(f"{network}, {n}" for network in COMM_NETWORKS for n in comm_counts(network))

    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        network, count = setting.split(", ")
        return TrialOutcome({"seconds": comm_s(network, int(count))[method]})

    return Experiment(
        key="comm",
        title="Comm: synchronisation per step, one GPU on each node",
        source="equation (5)",
        settings=settings,
        methods=("measured", "equation (5)"),
        metrics=(Metric("seconds", "per step", "ms", scale=1000.0),),
        trial=trial,
        axis="network, nodes",
        is_seeded=False,
        note="Measured: Pollux, T4, 50 Gbit/s. Equation (5) sends every parameter once at full bandwidth, for every n.",
    )


def _table_1() -> Experiment:
    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        return TrialOutcome({"millions": computed_millions(setting)})

    return Experiment(
        key="table_1",
        title="Parameters by equations (2) and (3), millions",
        source="Table I",
        settings=tuple(TABLE_1),
        methods=("computed from the layers",),
        metrics=(Metric("millions", "parameters", "M"),),
        trial=trial,
        plot="none",
        is_seeded=False,
        theirs={(name, "computed from the layers", "millions"): value for name, value in TABLE_1.items()},
    )


_GAINING = _ENVIRONMENTS[:3]
_ALWAYS_ALL = (
    "By (14), S(n) depends on n through C(n) alone, and C(n) falls with every GPU. So Proteus takes every free GPU at "
    "any backlog, and jobs run one after the other on all 16 GPUs. On measured speeds 16 GPUs are 2 to 8 times as fast "
    "as one, not 16. A job on all GPUs is good while the cluster is nearly idle; when jobs come together, the queue "
    "grows."
)


_ONE_NODE = (
    "`proteus` starts each job that fits at once, inside one node, on fewer GPUs the more jobs wait. What it gains is "
    "therefore at most the speed-up of one node's GPUs."
)


def _gain(experiment: str, ours: str, theirs: str, at_most: float) -> Callable[[Results], Judgement]:
    """The verdict over the three environments the paper claims the figure for; partly if it holds in some."""

    def judge(results: Results) -> Judgement:
        changes = [results.change(experiment, [e], "turnaround", ours, theirs) for e in _GAINING]
        shown = "; ".join(f"{e}: {percent(c)}" for e, c in zip(_GAINING, changes, strict=True))
        why = _ALWAYS_ALL if ours == PRINTED else _ONE_NODE
        return Judgement(_overall([verdict_of(c, at_most) for c in changes]), shown, why)

    return judge


def _overall(verdicts: Sequence[ClaimVerdict]) -> ClaimVerdict:
    return verdicts[0] if len(set(verdicts)) == 1 else ClaimVerdict.PARTLY


def _shrinks(ours: str) -> Callable[[Results], Judgement]:
    def judge(results: Results) -> Judgement:
        others = results.change("environments", _GAINING, "turnaround", ours, SINGLE)
        together = results.change("environments", [_ENVIRONMENTS[3]], "turnaround", ours, SINGLE)
        gpus = results.estimate("environments", _ENVIRONMENTS[3], ours, "gpus")
        shown = f"large, concentrated: {percent(together)}; the other three: {percent(others)}; "
        shown += f"{number(gpus)} GPUs per job"
        if together.mean <= others.mean:
            return Judgement(ClaimVerdict.NOT, shown, "Each job has the GPUs of a node, also when they come together.")
        if together.mean < 0:
            return Judgement(ClaimVerdict.REPRODUCED, shown)
        why = (
            "It shrinks past zero. The paper expects one GPU per job under backlog; the formula as printed keeps "
            "taking all that are free, where on measured speeds fewer would do more work."
        )
        return Judgement(ClaimVerdict.PARTLY, shown, why)

    return judge


def _tradeoff(results: Results) -> Judgement:
    settings = sorted({c[1] for c in results.runs if c[0] == "v_sweep"}, key=float)
    low, high = settings[0], settings[-1]
    shown, verdicts = [], []
    for method in _MOST_GPUS:
        backlog, cost = (_between(results, metric, method, low, high) for metric in ("backlog", "service"))
        shown.append(f"{method}: V {low} → {high}: backlog {percent(backlog)}, cost {percent(cost)}")
        is_rising, is_falling = backlog.low > 0, cost.high < 0
        verdicts.append(
            ClaimVerdict.REPRODUCED
            if is_rising and is_falling
            else ClaimVerdict.PARTLY
            if is_rising
            else ClaimVerdict.NOT
        )
    why = (
        "Backlog rises with V. Cost can fall only if waiting brings more GPUs. With jobs that may take all 16, the "
        "next one finds none or all of them free, at any V; with up to 12, a job that has waited takes the "
        "GPUs free at that moment, 4 or 12, as (14) does not consider those free later."
    )
    return Judgement(_overall(verdicts), "; ".join(shown), why)


def _between(results: Results, metric: str, method: str, low: str, high: str) -> Estimate:
    """Change of the metric from the lowest to the highest V, paired by seed."""
    before, after = (results.values("v_sweep", v, method, metric) for v in (low, high))
    common = sorted(set(before) & set(after))
    return paired_change([after[s] for s in common], [before[s] for s in common])


def _alpha_holds(results: Results) -> Judgement:
    errors = {n: results.estimate("alpha", n, "line through the other batches", "mean_error") for n in ALPHA_NETWORKS}
    worst = max(errors, key=lambda n: errors[n].mean)
    shown = ", ".join(f"{n} {100 * e.mean:.1f} %" for n, e in errors.items())
    why = f"Worst is {worst}."
    return Judgement(ClaimVerdict.REPRODUCED if errors[worst].mean <= 0.1 else ClaimVerdict.PARTLY, shown, why)


def _comm_holds(results: Results) -> Judgement:
    settings = sorted({c[1] for c in results.runs if c[0] == "comm"})
    ratios = [results.change("comm", [s], "seconds", "equation (5)", "measured").mean + 1.0 for s in settings]
    shown = f"equation (5) gives {min(ratios):.2f} to {max(ratios):.2f} of the measured time"
    why = "A ring sends 2(n−1)/n of the gradients at a fraction of the link's bandwidth; (5) has neither."
    verdict = ClaimVerdict.REPRODUCED if all(0.8 <= r <= 1.25 for r in ratios) else ClaimVerdict.NOT
    return Judgement(verdict, shown, why)


def _table_holds(results: Results) -> Judgement:
    method = "computed from the layers"
    ours = {n: results.estimate("table_1", n, method, "millions").mean for n in TABLE_1}
    wrong = [n for n, value in ours.items() if abs(value / TABLE_1[n] - 1.0) > 0.02]
    shown = ", ".join(f"{n} {value:.2f} M" for n, value in ours.items())
    why = f"{' and '.join(wrong)} are swapped in the paper's table; the others agree within 2 %." if wrong else ""
    return Judgement(ClaimVerdict.PARTLY if wrong else ClaimVerdict.REPRODUCED, shown, why)


def _gains(key: str, title: str, theirs: str, baseline: str, at_most: float) -> list[Claim]:
    printed, shipped = (_gain("environments", ours, baseline, at_most) for ours in (PRINTED, SHIPPED))
    return in_both_forms(Claim(key, title, theirs, printed), shipped)


def _claims() -> list[Claim]:
    return [
        *_gains("vs_single", "turnaround against one GPU per job", "−50…60 %", SINGLE, -0.5),
        *_gains("vs_random", "turnaround against random GPU counts", "about −30 %", RANDOM, -0.3),
        Claim(
            "vs_single_model",
            "The same, judged by the policy's own cost model: one GPU per job",
            "−50…60 %",
            _gain("environments_model", PRINTED, SINGLE, -0.5),
        ),
        Claim(
            "vs_random_model",
            "The same, judged by the policy's own cost model: random GPU counts",
            "about −30 %",
            _gain("environments_model", PRINTED, RANDOM, -0.3),
        ),
        *in_both_forms(
            Claim(
                "shrinks",
                "the gain shrinks for large jobs that arrive together",
                "less obvious, still a gain",
                _shrinks(PRINTED),
            ),
            _shrinks(SHIPPED),
        ),
        Claim("v", "A larger V trades backlog for computing efficiency", "no number", _tradeoff),
        Claim("alpha", "α(b) estimates step times with a relatively small error", "no number", _alpha_holds),
        Claim("comm", "Communication time follows equation (5)", "no number", _comm_holds),
        Claim("table_1", "Parameter counts of Table I", "Table I", _table_holds),
        Claim(
            "vs_fifo",
            "Turnaround against FIFO on all free GPUs, which the paper leaves out",
            "–",
            judge_change(
                "environments",
                _ENVIRONMENTS,
                "turnaround",
                SHIPPED,
                [FIFO],
                0.0,
                "FIFO gives each job all free GPUs: jobs that come together run one after the other.",
            ),
            is_beyond=True,
        ),
    ]


def paper(is_quick: bool) -> Paper:
    """The whole evaluation; quick: 24 instead of 48 jobs a run."""
    jobs = 24 if is_quick else 48
    return Paper(
        name="proteus",
        title="Proteus: Distributed machine learning task scheduling based on Lyapunov optimization",
        experiments=(
            _environments(jobs, is_believed=False),
            _environments(jobs, is_believed=True),
            _load(jobs, is_quick),
            _v_sweep(jobs, is_quick),
            _alpha(),
            _comm(),
            _table_1(),
        ),
        claims=_claims(),
        assumptions=(
            "The paper gives neither cluster size, arrival rates nor job lengths: 4 nodes × 4 RTX 2080 Ti; small jobs "
            f"of 10 minutes on one GPU (median) at {_PER_HOUR:.0f} per hour, large ones 12 times as long and as rare; "
            "concentrated means the same jobs within a tenth of the time. That is a lightly loaded cluster when "
            "arrivals are dispersed; the load sweep shows what more jobs do.",
            "Corrections of the formulas: no Comm on one GPU, ResNet-18 and ResNet-50 the right way round, times "
            "divided by τ = 1 h; V = 1; slots of 10 s with ε = 60 s, for large jobs of 60 s with ε = 360 s; decisions "
            "at slots for every method, one in each for `proteus-paper`.",
            "Placement is `consolidate` for all, so that FIFO is plain consolidation. Shortest first tells FIFO and "
            "Proteus of the job with the least time on one GPU first; the paper knows only arrival order. Job speeds "
            "come from the judge (ElasticFlow A100, Gavel V100 and Muri rows); the policies' cost model is the shipped "
            "bundle's.",
        ),
    )
