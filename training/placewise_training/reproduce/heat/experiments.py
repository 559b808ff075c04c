"""Heat islands (Cao, Wang): seven nodes, a stream of divisible tasks, temperatures with and without the scheme."""

from placewise_core.domain.divisible import DivisibleTask
from placewise_core.partition.threshold import threshold_scale, unit_count
from placewise_training.reproduce.design import Experiment, Metric, TrialOutcome
from placewise_training.reproduce.heat.claims import ALGORITHM, ALL, ALONE, claims
from placewise_training.reproduce.heat.lab import (
    DETAIL,
    EQUAL,
    METHODS,
    METRICS,
    ONE_NODE,
    ORACLE,
    PREDICTION,
    READINGS,
    SCHEME,
    SMALLEST,
    THERMOSTAT,
    Lab,
)
from placewise_training.reproduce.heat.splitters import Forced, served_policy
from placewise_training.reproduce.paper import Paper
from placewise_training.sim.divisible import HeatSimulation, Splitter, WithoutHeat, heat_cluster


def _curves(tasks: int) -> Experiment:
    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        return Lab().run(method, tasks, seed)

    return Experiment(
        key="temperatures",
        title="Temperatures of the seven nodes",
        source="Fig. 2 and 3",
        settings=("",),
        methods=tuple(METHODS),
        metrics=DETAIL,
        trial=trial,
        plot="curves",
        curve_axes=("minutes", "°C"),
        theirs={("", EQUAL, "spread"): 12.0, ("", SCHEME, "spread"): 9.0},
        note="Reading A. First three large tasks of historical data, then, after minute 15, a stream that does not end "
        "until the run does. The spread is the mean over the stream, from ten minutes after its start on.",
    )


def _readings(tasks: int) -> Experiment:
    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        return TrialOutcome(READINGS[setting].run(method, tasks, seed).values)

    return Experiment(
        key="readings",
        title="The same under every reading of the paper's open points",
        source="Fig. 2 and 3",
        settings=tuple(READINGS),
        methods=tuple(METHODS),
        metrics=DETAIL,
        trial=trial,
        axis="reading",
        note="A: one task at a time (Algorithm 1), every node passes the limit under lasting full load, one task a "
        "minute. B: as A, but weak nodes stay below the limit even then. C: as A, but the next task starts on the idle "
        "nodes, two tasks a minute. D: as C with the cool weak nodes of B.",
    )


def _load(tasks: int, is_quick: bool) -> Experiment:
    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        return TrialOutcome(Lab(per_minute=float(setting)).run(method, tasks, seed).values)

    return Experiment(
        key="load",
        title="More data per minute",
        source="Fig. 2 and 3, text: “when data supply amount was increased”",
        settings=("0.6", "1.2") if is_quick else ("0.4", "0.7", "1", "1.3", "1.6", "2"),
        methods=tuple(METHODS),
        metrics=METRICS,
        trial=trial,
        axis="tasks per minute",
        plot="lines",
        note="Reading A. One task at a time, equal shares can serve 1.1 tasks per minute, true speeds 2.6.",
    )


def _limits(tasks: int, is_quick: bool) -> Experiment:
    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        return TrialOutcome(Lab(limit_celsius=float(setting)).run(method, tasks, seed).values)

    return Experiment(
        key="limits",
        title="Thermal prediction at other limits",
        source="beyond the paper: its “next step”",
        settings=("56", "62") if is_quick else ("55", "57", "59", "62", "65", "68"),
        methods=(ONE_NODE, SMALLEST, SCHEME, THERMOSTAT, PREDICTION),
        metrics=METRICS,
        trial=trial,
        axis="limit (°C)",
        plot="lines",
        note="Reading A.",
    )


def _weak(tasks: int, is_quick: bool) -> Experiment:
    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        return TrialOutcome(Lab(weak_capability=1.2 * float(setting)).run(method, tasks, seed).values)

    return Experiment(
        key="weak_nodes",
        title="How weak the weak nodes are",
        source="beyond the paper, which gives no speeds",
        settings=("0.33", "0.6") if is_quick else ("0.2", "0.33", "0.45", "0.6", "0.8"),
        methods=(EQUAL, ONE_NODE, SMALLEST, SCHEME, PREDICTION, ORACLE),
        metrics=METRICS,
        trial=trial,
        axis="true speed of a weak node, over that of a strong one",
        plot="lines",
        note="Reading A. Equations (5) and (6), with the shipped weights, put it at about 0.5.",
    )


_OVERHEADS = {"Q = 0.25 s": 0.25, "Q = 1 s": 1.0, "Q = 4 s": 4.0}


def _threshold_curve() -> Experiment:
    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        return TrialOutcome({"threshold": threshold_scale(int(setting), 0.5, 0.4, _OVERHEADS[method])})

    return Experiment(
        key="threshold",
        title="Threshold T_n over the number of units",
        source="equation (3)",
        settings=tuple(str(n) for n in range(1, 15)),
        methods=tuple(_OVERHEADS),
        metrics=(Metric("threshold", "T_n", "scale"),),
        trial=trial,
        axis="units n",
        plot="lines",
        is_seeded=False,
        note="C_p = 0.5, C_s = 0.4, as the mean unit and the mean CPU of the seven nodes.",
    )


def _count_curve() -> Experiment:
    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        return TrialOutcome({"k": float(unit_count(14, float(setting), 0.5, 0.4, _OVERHEADS[method]))})

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


def _split_pays(is_quick: bool) -> Experiment:
    overhead_s = 4.0

    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        task = DivisibleTask("t", float(setting), 0.0, overhead_s)
        blind = WithoutHeat(served_policy())
        policy: Splitter = blind if method == ALGORITHM else Forced(blind, is_alone=method == ALONE)
        result = HeatSimulation(heat_cluster(), [(0.0, task)], policy, seed=seed).run()
        return TrialOutcome({"completion": result.avg_completion_s})

    return Experiment(
        key="split",
        title="Does splitting pay, and does Algorithm 3 know?",
        source="section 4.2.1; beyond the paper, which shows no figure",
        settings=("2", "8", "64") if is_quick else ("1", "2", "4", "6", "8", "12", "16", "24", "32", "64", "128"),
        methods=(ALGORITHM, ALONE, ALL),
        metrics=(Metric("completion", "completion on the true speeds", "s", is_log=True),),
        trial=trial,
        axis="parallel scale T_p",
        plot="lines",
        is_log_x=True,
        note=f"One task on the idle cluster; an overhead of Q = {overhead_s:.0f} s for splitting it.",
    )


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
        claims=claims(),
        assumptions=(
            "The paper prints no watts, thermal constants, thresholds or speeds, and the text available to us has no "
            "figures. Power is that of the parts; a strong node under lasting full load passes the limit of 62 °C; for "
            "weak ones both readings are run. True speeds follow cores × clock (a weak node is 0.33 of a strong one); "
            "a sweep shows what that does. Of a node's speed its CPU has 40 % and its GPU 60 %, about as the shipped "
            "coefficients (5) say; both are units, and each takes half of the node's power.",
            "Its Algorithm 1 takes one task at a time; that is reading A, and letting tasks overlap the other one.",
            "Temperatures follow a first-order RC model, exact between changes of power; the scheduler sees them every "
            "5 s. The prediction uses the bundle's thermal constants, fitted on other hardware, not the simulator's.",
            "“Conventional” gives every idle unit the same share, “paper's scheme” is `heat-island-paper`. "
            "Late shares are not rescheduled in this simulation.",
            f"“{ONE_NODE}” and “{SMALLEST}” are not in the paper: a divisible task on as few nodes as can be, "
            "one, that of the fastest idle unit as the scheme sees it, others running beside it under every reading; "
            "and the scheme with the smallest of the waiting tasks first.",
        ),
    )
