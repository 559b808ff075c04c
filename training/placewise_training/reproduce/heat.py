"""Heat islands (Cao, Wang): seven nodes, a stream of divisible tasks, temperatures with and without the scheme."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from placewise_core.partition.policy import DivisibleTask
from placewise_core.partition.threshold import threshold_scale, unit_count
from placewise_training.reproduce.claims import Claim, Judgement, Verdict, judge_not_worse, number, percent, verdict_of
from placewise_training.reproduce.design import Experiment, Metric, Outcome, Paper
from placewise_training.reproduce.results import Results
from placewise_training.reproduce.splitters import Forced, OneAtATime, Patient, Reactive, TrueShares, served_policy
from placewise_training.sim.divisible import (
    DivisibleWorkload,
    EqualSplit,
    HeatNode,
    HeatResult,
    HeatSimulation,
    Splitter,
    WithoutHeat,
    heat_cluster,
)

EQUAL, SCHEME, THERMOSTAT, PREDICTION, ORACLE = (
    "conventional (equal shares)",
    "paper's scheme (no prediction)",
    "scheme + thermostat",
    "scheme + prediction",
    "true speeds (oracle)",
)
_METHODS: Mapping[str, Callable[[Sequence[HeatNode]], Splitter]] = {
    EQUAL: lambda nodes: EqualSplit(),
    SCHEME: lambda nodes: WithoutHeat(served_policy()),
    THERMOSTAT: lambda nodes: Reactive(served_policy()),
    PREDICTION: lambda nodes: served_policy(),
    ORACLE: TrueShares,
}
_LIMIT_CELSIUS = 62.0
_STRONG = 5
# A weak node that is as hot under lasting full load as a strong one (69 °C): 115 W · 0.38 K/W + 25 °C; R·C as it was.
_HOT_WEAK_K_PER_W, _HOT_WEAK_J_PER_K = 0.38, 395.0
_HISTORY_TASKS, _HISTORY_SCALE = 3, 220.0  # "larger, but it does not take long": some minutes of work at once
_STREAM_FROM_S = 900.0
_LOADED_FROM_S = _STREAM_FROM_S + 600.0  # temperatures have settled: four time constants and more
_OVERHEAD_S = 1.0

METRICS = (
    Metric("spread", "mean spread, hottest − coolest", "°C"),
    Metric("peak", "peak temperature", "°C"),
    Metric("over_s", "node-seconds over the limit", "s"),
    Metric("completion", "mean completion", "s"),
)
_DETAIL = (
    *METRICS,
    Metric("nodes_over", "nodes that passed the limit", is_plotted=False),
    Metric("history_spread", "spread in the first phase", "°C", is_plotted=False),
    Metric("makespan", "makespan", "min", scale=1 / 60, is_plotted=False),
)


@dataclass(frozen=True, slots=True)
class Lab:
    """One reading of what the paper leaves open: who runs hot, whether tasks overlap, how fast the stream is."""

    per_minute: float = 1.0
    is_overlapping: bool = False
    is_weak_hot: bool = True
    limit_celsius: float = _LIMIT_CELSIUS
    weak_capability: float = 0.4

    def nodes(self) -> list[HeatNode]:
        made = heat_cluster(self.limit_celsius)
        hot = replace(made[-1].spec.thermal, resistance_k_per_w=_HOT_WEAK_K_PER_W, capacity_j_per_k=_HOT_WEAK_J_PER_K)
        for i, node in enumerate(made):
            if i >= _STRONG:
                spec = replace(node.spec, thermal=hot) if self.is_weak_hot else node.spec
                made[i] = replace(node, spec=spec, capability=self.weak_capability)
        return made

    def tasks(self, count: int, seed: int) -> list[tuple[float, DivisibleTask]]:
        """The paper's data: historical records first, all there at once, then what a generator supplies without end."""
        part = (_HISTORY_SCALE * 0.95, _HISTORY_SCALE * 0.05)
        history = [(1.0 + i, DivisibleTask(f"h{i}", *part, overhead_s=_OVERHEAD_S)) for i in range(_HISTORY_TASKS)]
        stream = DivisibleWorkload(tasks=count, per_minute=self.per_minute).generate(seed)
        return history + [(_STREAM_FROM_S + time_s, task) for time_s, task in stream]

    def run(self, method: str, count: int, seed: int) -> Outcome:
        nodes = self.nodes()
        splitter = _METHODS[method](nodes)
        policy = Patient(splitter if self.is_overlapping else OneAtATime(splitter))
        result = HeatSimulation(nodes, self.tasks(count, seed), policy, seed=seed).run()
        return _outcome(result, self.limit_celsius)


def _outcome(result: HeatResult, limit_celsius: float) -> Outcome:
    times = np.array([time_s for time_s, _ in result.curves])
    celsius = np.array([row for _, row in result.curves])
    spread = celsius.max(axis=1) - celsius.min(axis=1)
    loaded, early = times >= _LOADED_FROM_S, times < _STREAM_FROM_S
    minutes = (times / 60.0).tolist()
    names = list(result.peak_by_node)
    curves = {name: (minutes, celsius[:, i].tolist()) for i, name in enumerate(names)}
    curves["limit"] = (minutes, [limit_celsius] * len(minutes))
    return Outcome(
        {
            "spread": float(spread[loaded].mean() if loaded.any() else spread.mean()),
            "history_spread": float(spread[early].max(initial=0.0)),
            "peak": result.peak_celsius,
            "over_s": result.over_limit_s,
            "nodes_over": float(sum(peak > limit_celsius + 1e-9 for peak in result.peak_by_node.values())),
            "completion": result.avg_completion_s,
            "makespan": result.makespan_s,
        },
        curves,
    )


# -- experiments --------------------------------------------------------------------------------------------------


READINGS: Mapping[str, Lab] = {
    "A": Lab(),
    "B": Lab(is_weak_hot=False),
    "C": Lab(per_minute=2.0, is_overlapping=True),
    "D": Lab(per_minute=2.0, is_overlapping=True, is_weak_hot=False),
}


def _curves(tasks: int) -> Experiment:
    def trial(setting: str, method: str, seed: int) -> Outcome:
        return Lab().run(method, tasks, seed)

    return Experiment(
        key="temperatures",
        title="Temperatures of the seven nodes",
        source="Fig. 2 and 3",
        settings=("",),
        methods=tuple(_METHODS),
        metrics=_DETAIL,
        trial=trial,
        plot="curves",
        curve_axes=("minutes", "°C"),
        theirs={("", EQUAL, "spread"): 12.0, ("", SCHEME, "spread"): 9.0},
        note="Reading A. First three large tasks of historical data, then, after minute 15, a stream that does not end "
        "until the run does. The spread is the mean over the stream, from ten minutes after its start on.",
    )


def _readings(tasks: int) -> Experiment:
    def trial(setting: str, method: str, seed: int) -> Outcome:
        return Outcome(READINGS[setting].run(method, tasks, seed).values)

    return Experiment(
        key="readings",
        title="The same under every reading of what the paper leaves open",
        source="Fig. 2 and 3",
        settings=tuple(READINGS),
        methods=tuple(_METHODS),
        metrics=_DETAIL,
        trial=trial,
        axis="reading",
        note="A: one task at a time (Algorithm 1), every node passes the limit under lasting full load, one task a "
        "minute. B: as A, but weak nodes stay below the limit even then. C: as A, but the next task starts on what is "
        "idle, two tasks a minute. D: as C with the cool weak nodes of B.",
    )


def _load(tasks: int, is_quick: bool) -> Experiment:
    def trial(setting: str, method: str, seed: int) -> Outcome:
        return Outcome(Lab(per_minute=float(setting)).run(method, tasks, seed).values)

    return Experiment(
        key="load",
        title="More data per minute",
        source="Fig. 2 and 3, text: “when data supply amount was increased”",
        settings=("0.6", "1.2") if is_quick else ("0.4", "0.7", "1", "1.3", "1.6", "2"),
        methods=tuple(_METHODS),
        metrics=METRICS,
        trial=trial,
        axis="tasks per minute",
        plot="lines",
        note="Reading A. One task at a time, equal shares can serve 1.1 tasks per minute, true speeds 2.6.",
    )


def _limits(tasks: int, is_quick: bool) -> Experiment:
    def trial(setting: str, method: str, seed: int) -> Outcome:
        return Outcome(Lab(limit_celsius=float(setting)).run(method, tasks, seed).values)

    return Experiment(
        key="limits",
        title="Thermal prediction at other limits",
        source="beyond the paper: its “next step”",
        settings=("56", "62") if is_quick else ("55", "57", "59", "62", "65", "68"),
        methods=(SCHEME, THERMOSTAT, PREDICTION),
        metrics=METRICS,
        trial=trial,
        axis="limit (°C)",
        plot="lines",
        note="Reading A.",
    )


def _weak(tasks: int, is_quick: bool) -> Experiment:
    def trial(setting: str, method: str, seed: int) -> Outcome:
        return Outcome(Lab(weak_capability=1.2 * float(setting)).run(method, tasks, seed).values)

    return Experiment(
        key="weak_nodes",
        title="How weak the weak nodes are",
        source="beyond the paper, which gives no speeds",
        settings=("0.33", "0.6") if is_quick else ("0.2", "0.33", "0.45", "0.6", "0.8"),
        methods=(EQUAL, SCHEME, PREDICTION, ORACLE),
        metrics=METRICS,
        trial=trial,
        axis="true speed of a weak node, over that of a strong one",
        plot="lines",
        note="Reading A. Equations (5) and (6), with the shipped weights, put it at about 0.5.",
    )


_OVERHEADS = {"Q = 0.25 s": 0.25, "Q = 1 s": 1.0, "Q = 4 s": 4.0}


def _threshold_curve() -> Experiment:
    def trial(setting: str, method: str, seed: int) -> Outcome:
        return Outcome({"threshold": threshold_scale(int(setting), 1.0, 0.4, _OVERHEADS[method])})

    return Experiment(
        key="threshold",
        title="Threshold T_n over the number of units",
        source="equation (3)",
        settings=tuple(str(n) for n in range(1, 8)),
        methods=tuple(_OVERHEADS),
        metrics=(Metric("threshold", "T_n", "scale"),),
        trial=trial,
        axis="units n",
        plot="lines",
        is_seeded=False,
        note="C_p = 1, C_s = 0.4, as the mean unit and the CPU parts of the seven nodes.",
    )


def _count_curve() -> Experiment:
    def trial(setting: str, method: str, seed: int) -> Outcome:
        return Outcome({"k": float(unit_count(7, float(setting), 1.0, 0.4, _OVERHEADS[method]))})

    return Experiment(
        key="units",
        title="Units k that Algorithm 3 takes",
        source="Algorithm 3",
        settings=("0.25", "0.5", "1", "2", "4", "8", "16", "32", "64"),
        methods=tuple(_OVERHEADS),
        metrics=(Metric("k", "k", is_lower_better=False),),
        trial=trial,
        axis="parallel scale T_p",
        plot="lines",
        is_log_x=True,
        is_seeded=False,
    )


_ALGORITHM, _ALONE, _ALL = "Algorithm 3", "one unit", "all units"


def _split_pays(is_quick: bool) -> Experiment:
    overhead_s = 4.0

    def trial(setting: str, method: str, seed: int) -> Outcome:
        task = DivisibleTask("t", float(setting), 0.0, overhead_s)
        blind = WithoutHeat(served_policy())
        policy: Splitter = blind if method == _ALGORITHM else Forced(blind, is_alone=method == _ALONE)
        result = HeatSimulation(heat_cluster(), [(0.0, task)], policy, seed=seed).run()
        return Outcome({"completion": result.avg_completion_s})

    return Experiment(
        key="split",
        title="Does splitting pay, and does Algorithm 3 know?",
        source="section 4.2.1; beyond the paper, which shows no figure",
        settings=("2", "8", "64") if is_quick else ("1", "2", "4", "6", "8", "12", "16", "24", "32", "64", "128"),
        methods=(_ALGORITHM, _ALONE, _ALL),
        metrics=(Metric("completion", "completion on the true speeds", "s", is_log=True),),
        trial=trial,
        axis="parallel scale T_p",
        plot="lines",
        is_log_x=True,
        note=f"One task on the idle cluster; an overhead of Q = {overhead_s:.0f} s for splitting it.",
    )


# -- claims -------------------------------------------------------------------------------------------------------

_E = "readings"


def _by_reading(results: Results, metric: str, method: str, unit: str = "") -> str:
    return ", ".join(f"{r} {number(results.estimate(_E, r, method, metric), unit)}" for r in READINGS)


def _overall(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict for all readings: partly where they differ."""
    return verdicts[0] if len(set(verdicts)) == 1 else Verdict.PARTLY


def _islands(results: Results) -> Judgement:
    nodes = [results.estimate(_E, r, EQUAL, "nodes_over") for r in READINGS]
    verdict = _overall([Verdict.REPRODUCED if n.mean >= 1 else Verdict.NOT for n in nodes])
    early = results.estimate(_E, "A", EQUAL, "history_spread")
    why = (
        f"Which nodes pass it depends on the reading. In the first, short phase of A the spread is {number(early)} °C."
    )
    return Judgement(verdict, "of 7 nodes: " + _by_reading(results, "nodes_over", EQUAL), why)


def _none_over(method: str, why: str) -> Callable[[Results], Judgement]:
    def judge(results: Results) -> Judgement:
        verdicts = []
        for reading in READINGS:
            change = results.difference(_E, reading, "over_s", method, EQUAL)
            none = results.estimate(_E, reading, method, "over_s").mean == 0
            verdicts.append(Verdict.REPRODUCED if none else Verdict.PARTLY if change.high < 0 else Verdict.NOT)
        said = f"node-seconds over: {_by_reading(results, 'over_s', method)}; "
        said += f"conventional {_by_reading(results, 'over_s', EQUAL)}"
        return Judgement(_overall(verdicts), said, why)

    return judge


def _spread(method: str, why: str) -> Callable[[Results], Judgement]:
    def judge(results: Results) -> Judgement:
        changes = {r: results.change(_E, [r], "spread", method, EQUAL) for r in READINGS}
        verdicts = [verdict_of(change, 9 / 12 - 1) for change in changes.values()]
        said = f"{_by_reading(results, 'spread', EQUAL)} → {_by_reading(results, 'spread', method)} °C ("
        said += ", ".join(percent(change) for change in changes.values()) + ")"
        return Judgement(_overall(verdicts), said, why)

    return judge


def _algorithm_is_best(results: Results) -> Judgement:
    settings = sorted({cell[1] for cell in results.runs if cell[0] == "split"}, key=float)
    excess = []
    for setting in settings:
        best = min(results.estimate("split", setting, m, "completion").mean for m in (_ALONE, _ALL))
        excess.append(results.estimate("split", setting, _ALGORITHM, "completion").mean / best - 1.0)
    worst = settings[int(np.argmax(excess))]
    said = f"{100 * float(np.mean(excess)):+.1f} % vs the better of one and all units, at worst "
    said += f"{100 * max(excess):+.0f} % (T_p = {worst})"
    why = (
        "Conditions (1) and (2) ask for efficiency as well as speed, and k comes from mean capabilities: near the "
        "threshold it takes fewer units than would be fastest, or weak ones that last longest."
    )
    return Judgement(Verdict.REPRODUCED if max(excess) <= 0.1 else Verdict.PARTLY, said, why)


_MISJUDGED = (
    "Equations (5) and (6) see clock and memory, not cores: they take a weak node for about half of a strong one where "
    "it is a third. Where tasks overlap, shares no longer decide which node is busy for how long: the queue does."
)


def _claims() -> list[Claim]:
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
            judge_not_worse(_E, tuple(READINGS), "completion", SCHEME, [EQUAL], 0.0),
        ),
        Claim("algorithm3", "Algorithm 3 picks the number of units", "no number", _algorithm_is_best),
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
                "Where the plain scheme works above the limit (C and D), keeping below it leaves less time to work.",
            ),
            is_beyond=True,
        ),
    ]


def paper(is_quick: bool) -> Paper:
    """The whole evaluation; quick: 60 instead of 200 tasks in a stream, fewer settings."""
    tasks = 60 if is_quick else 200
    return Paper(
        name="heat",
        title="A GPU Heterogeneous Cluster Scheduling Model for Preventing Temperature Heat Island",
        experiments=(
            _curves(tasks),
            _readings(tasks),
            _load(tasks, is_quick),
            _limits(tasks, is_quick),
            _weak(tasks, is_quick),
            _threshold_curve(),
            _count_curve(),
            _split_pays(is_quick),
        ),
        claims=_claims(),
        assumptions=(
            "The paper prints no watts, thermal constants, thresholds or speeds, and the text available to us has no "
            "figures. Power is that of the parts; a strong node under lasting full load passes the limit of 62 °C; for "
            "weak ones both readings are run. True speeds follow cores × clock (a weak node is 0.33 of a strong one); "
            "a sweep shows what that does.",
            "Its Algorithm 1 takes one task at a time; that is reading A, and letting tasks overlap the other one.",
            "Temperatures follow a first-order RC model, exact between changes of power; the scheduler sees them every "
            "5 s. The prediction uses the bundle's thermal constants, fitted on other hardware, not the simulator's.",
            "“Conventional” gives every idle node the same share. Late shares are not rescheduled in this simulation.",
        ),
    )
