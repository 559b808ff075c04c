"""Heat islands (Cao, Wang): seven nodes, a stream of divisible tasks, temperatures with and without the scheme."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from placewise_core.partition.policy import DivisibleTask
from placewise_core.partition.threshold import threshold_scale, unit_count
from placewise_training.reproduce.claims import Claim, Judgement, Verdict, judge_change, number, percent
from placewise_training.reproduce.design import Experiment, Metric, Outcome, Paper
from placewise_training.reproduce.results import Results
from placewise_training.reproduce.splitters import Forced, Reactive, TrueShares, served_policy
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
_HISTORY_TASKS, _HISTORY_SCALE = 4, 400.0  # "larger, but it does not take long": some minutes of work at once
_STREAM_FROM_S = 900.0
_LOADED_FROM_S = _STREAM_FROM_S + 600.0  # temperatures have settled: four time constants and more
_OVERHEAD_S = 1.0

_HEAT = (
    Metric("spread", "mean spread, hottest − coolest", "°C"),
    Metric("peak", "peak temperature", "°C"),
    Metric("over_s", "node-seconds over the limit", "s"),
    Metric("completion", "mean completion", "s"),
)
_DETAIL = (
    *_HEAT,
    Metric("nodes_over", "nodes that passed the limit", is_plotted=False),
    Metric("history_spread", "spread in the first phase", "°C", is_plotted=False),
    Metric("makespan", "makespan", "min", scale=1 / 60, is_plotted=False),
)


def _two_phases(tasks: int, per_minute: float, seed: int) -> list[tuple[float, DivisibleTask]]:
    """The paper's data: historical records first, all there at once, then what a generator supplies without end."""
    part = (_HISTORY_SCALE * 0.95, _HISTORY_SCALE * 0.05)
    history = [(1.0 + i, DivisibleTask(f"h{i}", *part, overhead_s=_OVERHEAD_S)) for i in range(_HISTORY_TASKS)]
    stream = DivisibleWorkload(tasks=tasks, per_minute=per_minute).generate(seed)
    return history + [(_STREAM_FROM_S + time_s, task) for time_s, task in stream]


def _run(nodes: list[HeatNode], tasks: list[tuple[float, DivisibleTask]], method: str, seed: int) -> HeatResult:
    return HeatSimulation(nodes, tasks, _METHODS[method](nodes), seed=seed).run()


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


def _curves(tasks: int) -> Experiment:
    def trial(setting: str, method: str, seed: int) -> Outcome:
        return _outcome(_run(heat_cluster(), _two_phases(tasks, 2.0, seed), method, seed), _LIMIT_CELSIUS)

    return Experiment(
        key="temperatures",
        title="Temperatures of the seven nodes",
        source="Fig. 2 and 3",
        settings=("two phases",),
        methods=tuple(_METHODS),
        metrics=_DETAIL,
        trial=trial,
        plot="curves",
        curve_axes=("minutes", "°C"),
        theirs={("two phases", EQUAL, "spread"): 12.0, ("two phases", SCHEME, "spread"): 9.0},
        note="First four large tasks of historical data, then, after minute 15, a stream that does not end until the "
        "run does. The spread is the mean over the stream, ten minutes after its start and on.",
    )


def _load(tasks: int, is_quick: bool) -> Experiment:
    def trial(setting: str, method: str, seed: int) -> Outcome:
        return _outcome(_run(heat_cluster(), _two_phases(tasks, float(setting), seed), method, seed), _LIMIT_CELSIUS)

    return Experiment(
        key="load",
        title="More data per minute",
        source="Fig. 2 and 3, text: “when data supply amount was increased”",
        settings=("1", "2") if is_quick else ("0.5", "1", "1.5", "2", "2.5"),
        methods=tuple(_METHODS),
        metrics=_HEAT,
        trial=trial,
        axis="tasks per minute",
        plot="lines",
        note="At 2.72 tasks per minute the work equals what all seven nodes can do together at full load.",
    )


def _limits(tasks: int, is_quick: bool) -> Experiment:
    methods = (SCHEME, THERMOSTAT, PREDICTION)

    def trial(setting: str, method: str, seed: int) -> Outcome:
        limit = float(setting)
        return _outcome(_run(heat_cluster(limit), _two_phases(tasks, 2.0, seed), method, seed), limit)

    return Experiment(
        key="limits",
        title="Thermal prediction at other limits",
        source="beyond the paper: its “next step”",
        settings=("58", "62") if is_quick else ("56", "58", "60", "62", "64", "68"),
        methods=methods,
        metrics=_HEAT,
        trial=trial,
        axis="limit (°C)",
        plot="lines",
    )


def _weak(tasks: int, is_quick: bool) -> Experiment:
    def nodes(capability: float) -> list[HeatNode]:
        return [n if i < 5 else replace(n, capability=capability) for i, n in enumerate(heat_cluster())]

    def trial(setting: str, method: str, seed: int) -> Outcome:
        cluster = nodes(float(setting) * 1.2)
        return _outcome(_run(cluster, _two_phases(tasks, 1.5, seed), method, seed), _LIMIT_CELSIUS)

    return Experiment(
        key="weak_nodes",
        title="How weak the weak nodes are",
        source="beyond the paper: the paper gives no speeds",
        settings=("0.33", "0.6") if is_quick else ("0.2", "0.33", "0.45", "0.6", "0.8"),
        methods=(EQUAL, SCHEME, PREDICTION, ORACLE),
        metrics=_HEAT,
        trial=trial,
        axis="true speed of a weak node, over that of a strong one",
        plot="lines",
        note="Equations (5) and (6), with the shipped weights, put a weak node at about 0.6 of a strong one.",
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
        metrics=(Metric("completion", "completion on the true speeds", "s"),),
        trial=trial,
        axis="parallel scale T_p",
        plot="lines",
        is_log_x=True,
        note=f"One task on the idle cluster; an overhead of Q = {overhead_s:.0f} s for splitting it.",
    )


# -- claims -------------------------------------------------------------------------------------------------------

_KEY = ("temperatures", "two phases")


def _islands(results: Results) -> Judgement:
    nodes, over = (results.estimate(*_KEY, EQUAL, m) for m in ("nodes_over", "over_s"))
    early = results.estimate(*_KEY, EQUAL, "history_spread")
    said = f"{number(nodes)} of 7 nodes pass the limit, for {number(over, 'node-seconds')}"
    verdict = Verdict.REPRODUCED if nodes.low > 0 or (nodes.count == 1 and nodes.mean > 0) else Verdict.NOT
    return Judgement(verdict, said, f"In the first, short phase the spread reaches {number(early, '°C')}.")


def _none_over(method: str, why: str) -> Callable[[Results], Judgement]:
    def judge(results: Results) -> Judgement:
        nodes, over, peak = (results.estimate(*_KEY, method, m) for m in ("nodes_over", "over_s", "peak"))
        base = results.estimate(*_KEY, EQUAL, "over_s")
        said = f"{number(nodes)} nodes over, {number(over, 'node-seconds')} (conventional {number(base)}); "
        said += f"peak {number(peak, '°C')} at a limit of {_LIMIT_CELSIUS:.0f}"
        if nodes.mean == 0:
            return Judgement(Verdict.REPRODUCED, said)
        fewer = results.difference(*_KEY, "over_s", method, EQUAL)
        return Judgement(Verdict.PARTLY if fewer.high < 0 else Verdict.NOT, said, why)

    return judge


def _spread(method: str, why: str) -> Callable[[Results], Judgement]:
    def judge(results: Results) -> Judgement:
        before, after = (results.estimate(*_KEY, m, "spread") for m in (EQUAL, method))
        change = results.change("temperatures", ["two phases"], "spread", method, EQUAL)
        said = f"{number(before)} → {number(after, '°C')} ({percent(change)})"
        if change.mean <= 9 / 12 - 1 and change.high < 0:
            return Judgement(Verdict.REPRODUCED, said)
        return Judgement(Verdict.PARTLY if change.high < 0 else Verdict.NOT, said, why)

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
    "The capability of equations (5) and (6) sees clock and memory, not cores: it takes a weak node for 0.6 of a strong "
    "one where it is 0.33. Shares follow that, so weak nodes still work longest; with true speeds the rest closes."
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
            judge_change("temperatures", ["two phases"], "completion", SCHEME, [EQUAL], 0.0),
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
            "Prediction costs no completion time against a thermostat that leaves out nodes at their limit",
            "–",
            judge_change("temperatures", ["two phases"], "completion", PREDICTION, [THERMOSTAT, SCHEME], 0.0),
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
            _load(tasks, is_quick),
            _limits(tasks, is_quick),
            _weak(tasks, is_quick),
            _threshold_curve(),
            _count_curve(),
            _split_pays(is_quick),
        ),
        claims=_claims(),
        assumptions=(
            "The paper prints no watts, thermal constants, thresholds or speeds. Power is that of the parts; a strong "
            "node under lasting full load passes the limit of 62 °C, a weak one does not, as its Figure 2 shows. True "
            "speeds follow cores × clock (a weak node is 0.33 of a strong one); the sweep over it shows what that does.",
            "Temperatures follow a first-order RC model, exact between changes of power; the scheduler sees them every "
            "5 s. The prediction uses the bundle's thermal constants, fitted on other hardware, not the simulator's.",
            "“Conventional” gives every idle node the same share. Late shares are not rescheduled in this simulation.",
        ),
    )
