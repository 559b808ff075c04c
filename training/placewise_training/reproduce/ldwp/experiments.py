"""LDWP with IAWP (Zhang, Geng, Ma), cluster level: which node a pipeline task goes to, on eleven hybrid servers.

Twice: as the paper prints it (its DQN, which learns while it chooses, and Algorithm 2), and as the service has it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from placewise_training.reproduce.design import Curve, Experiment, Metric, TrialOutcome
from placewise_training.reproduce.harmony.runs import FIRST_SEED
from placewise_training.reproduce.ldwp.bound import most_per_min
from placewise_training.reproduce.ldwp.claims import BOUND, ITERATIONS, claims
from placewise_training.reproduce.ldwp.convergence import iterations
from placewise_training.reproduce.ldwp.runs import (
    BASELINES,
    CONSOLIDATE,
    ECT,
    IAWP,
    LDWP,
    METHODS,
    OMITTED,
    ORACLE,
    RANDOM,
    SHORTEST,
    WRITTEN,
    Load,
    Played,
    run,
)
from placewise_training.reproduce.paper import Paper
from placewise_training.sim.hardware import ldwp_cluster

_COMPARED = (*BASELINES, *OMITTED, ORACLE, IAWP, WRITTEN, LDWP)
_THROUGHPUT = (
    Metric("throughput", "cluster throughput", "tasks/min", is_lower_better=False),
    Metric("throughput_first", "throughput of worker 1", "tasks/min", is_lower_better=False),
    Metric("turnaround", "mean turnaround", "min", is_plotted=False),
)
_GPU = Metric("gpu", "GPUs busy, cluster", "%", scale=100.0, is_lower_better=False)
_BALANCE = Metric("balance", "degree of load balance (10)", is_lower_better=False)
_USE = (
    _GPU,
    Metric("gpu_first", "GPUs busy, worker 1", "%", scale=100.0, is_lower_better=False),
    _BALANCE,
    Metric("cpu", "cores busy", "%", scale=100.0, is_lower_better=False, is_plotted=False),
)
_AVERAGE_MIN, _BAND = 6, 0.1  # the plateau is the mean of six minutes; within a tenth of it is on it


def paper(is_quick: bool) -> Paper:
    """The evaluation; quick has a twentieth of the tasks, fewer points, and one seed of what takes longest."""
    base = Load(tasks=75 if is_quick else 1500)
    title = "LDWP + IAWP: pipelines on a hybrid cluster"
    return Paper("ldwp", title, _experiments(base, is_quick), claims(), _ASSUMPTIONS)


_ASSUMPTIONS = (
    "Nobody has published times, speedups or metrics of these subtasks: sim/pipelines draws them from stated "
    "ranges. Absolute throughput therefore means nothing; comparisons between methods do, under those ranges.",
    "Task sizes follow the paper's description of its load: at 50 tasks a minute worker 1 is busy with up to nine "
    "nodes and less with ten (Fig. 6), and throughput grows up to ten (Fig. 5). On the training truth that holds for "
    "three to nine minutes of video a task, at 25 frames a second: load 1. The gains hang on the load, which the paper "
    "does not give: each is judged on its mean over the loads 0.5, 0.67, 1, 1.5 and 2, which multiply the sizes.",
    "Throughput is finished tasks over the time from the first arrival to the last finish. GPU utilisation is the "
    "share of GPUs that run something, from the fifth minute until the last arrival.",
    "ECT knows true times and queues, PATS true speedups and loads: the strongest form of both. They put one "
    "subtask on a GPU at a time; the paper does not say how many.",
    f"“{CONSOLIDATE}” and “{SHORTEST}” are ours, as a pipeline task always runs on one node: the fullest node that has "
    "fewer tasks than GPUs, and on it the fullest GPU that takes the subtask, metrics known; ECT with the tasks of a "
    "node in the order of their remaining work, true times known. Both see the first 24 tasks of a node, as all do.",
    f"“{LDWP}” is the shipped policy: the size-agnostic Q net of its bundle, trained on other truths, and IAWP by "
    "contention. It knows how long kinds take on a core, as ECT does; “choice of nodes” has it without.",
    f"“{WRITTEN}” is the paper's DQN of fixed size (256-128, SGD 0.1, γ 0.8, batches of 20), pre-trained on 600 "
    "choices of ECT on eleven nodes of the training truth, moved to other nodes by parameter transfer, learning on "
    "while it chooses; and Algorithm 2 to the letter. Its state is that of `ldwp-paper`.",
    f"“{IAWP}” is IAWP as the service runs it behind ECT's choice of nodes: nothing learned.",
    f"“{ORACLE}” knows the true times and every queue, and sends a task to the node that would be empty first; its "
    "units go by IAWP. It looks at one task at a time, so that a plan for all could do more; “perfect (bound)” is what "
    "no schedule exceeds.",
    "All metrics of subtasks are given; the section on IAWP shows the loss without them.",
    "A data set of X MB is X/10 tasks of video synopsis, 2000 frames each, all there at the start.",
)


def _experiments(base: Load, is_quick: bool) -> list[Experiment]:
    node_counts = (6, 10) if is_quick else (6, 9, 10, 11)
    rates = (10, 60) if is_quick else (10, 20, 30, 40, 50, 60)
    task_counts = (40, 75) if is_quick else (500, 1500)
    datasets = (20, 400) if is_quick else (10, 20, 60, 120, 200, 400)
    return [
        _sweep(
            "nodes",
            "Throughput by number of nodes, 50 tasks/min",
            "Fig. 5, 6",
            "nodes",
            node_counts,
            _THROUGHPUT,
            base,
            _nodes,
        ),
        _sweep(
            "rates",
            "Throughput by arrival rate, 11 nodes",
            "Fig. 7, 8",
            "tasks per minute",
            rates,
            _THROUGHPUT,
            base,
            _rate,
        ),
        _use(base),
        _sweep(
            "tasks", "Load balance by number of tasks", "Fig. 11", "tasks", task_counts, (_BALANCE, _GPU), base, _tasks
        ),
        _speedup(datasets),
        _changing(is_quick),
        _convergence(is_quick),
        _grid(base, is_quick),
        *_loads(base, rates, is_quick),
        _bound(base, node_counts),
    ]


def _played(load: Load, method: str, seed: int) -> Played:
    return run(load, *METHODS[method], seed)


def _sweep(
    key: str,
    title: str,
    source: str,
    axis: str,
    values: Sequence[float],
    metrics: Sequence[Metric],
    base: Load,
    changed: Callable[[Load, float], Load],
) -> Experiment:
    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        return TrialOutcome(_played(changed(base, float(setting)), method, seed).values)

    settings = tuple(f"{value:g}" for value in values)
    return Experiment(key, title, source, settings, _COMPARED, metrics, trial, axis=axis, plot="lines")


def _nodes(base: Load, nodes: float) -> Load:
    return replace(base, nodes=int(nodes))


def _rate(base: Load, per_minute: float) -> Load:
    return replace(base, per_minute=per_minute)


def _tasks(base: Load, tasks: float) -> Load:
    return replace(base, tasks=int(tasks))


def _use(base: Load) -> Experiment:
    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        played = _played(base, method, seed)
        return TrialOutcome(played.values, {name: played.curves[name] for name in ("cluster", "worker 1")})

    return Experiment(
        "use",
        "GPU utilisation, 50 tasks/min",
        "Fig. 9, 10",
        ("11 nodes",),
        _COMPARED,
        _USE,
        trial,
        plot="curves",
        curve_axes=("minutes", "GPUs busy (%)"),
        theirs={("11 nodes", LDWP, "gpu"): 83.0, ("11 nodes", LDWP, "gpu_first"): 87.0},
    )


def _speedup(datasets: Sequence[float]) -> Experiment:
    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        load = Load(dataset_mb=float(setting))
        seconds = _played(load, method, seed).values["makespan"]
        return TrialOutcome({"speedup": _played(load, RANDOM, seed).values["makespan"] / seconds, "seconds": seconds})

    metrics = (
        Metric("speedup", "speedup over Random", "×", is_lower_better=False),
        Metric("seconds", "processing time", "s", is_plotted=False),
    )
    settings = tuple(f"{value:g}" for value in datasets)
    return Experiment(
        "speedup",
        "Speedup by size of the data set, 11 nodes",
        "Fig. 12",
        settings,
        _COMPARED,
        metrics,
        trial,
        axis="MB",
        plot="lines",
    )


def _changing(is_quick: bool) -> Experiment:
    add_min, remove_min, end_min = (5, 10, 15) if is_quick else (18, 36, 54)
    load = Load(nodes=8, tasks=50 * end_min, add_min=add_min, remove_min=remove_min)

    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        played = _played(load, method, seed)
        found = recovery(played.curves["throughput"][1], add_min, remove_min, end_min)
        x, y = played.curves["throughput"]
        curves: dict[str, Curve] = {"throughput": (x[:end_min], y[:end_min])}
        return TrialOutcome({**played.values, **found}, curves)

    metrics = (
        Metric("minutes_up", "minutes to the plateau after + 3 nodes", "min"),
        Metric("minutes_down", "minutes to the plateau after − 2 nodes", "min"),
        Metric("gain", "plateau with 11 over 8 nodes", "×", is_lower_better=False),
        Metric("loss", "plateau with 9 over 11 nodes", "×", is_lower_better=False),
    )
    return Experiment(
        "changing",
        "Throughput while nodes come and go",
        "Fig. 13",
        ("8 → 11 → 9 nodes",),
        _COMPARED,
        metrics,
        trial,
        plot="curves",
        curve_axes=("minutes", "tasks finished per minute"),
        is_seeded=not is_quick,
        theirs={("8 → 11 → 9 nodes", LDWP, "minutes_up"): 12.0, ("8 → 11 → 9 nodes", LDWP, "minutes_down"): 10.0},
        note=f"Nodes join at minute {add_min} and leave at minute {remove_min}; five-minute means; on the plateau is "
        "every minute from then on within a tenth of the mean of the minutes before the next change.",
    )


def recovery(per_minute: Sequence[float], add_min: int, remove_min: int, end_min: int) -> dict[str, float]:
    """Minutes from each change until throughput is on its new plateau, and the ratios of the plateaus."""
    before, between, after = (
        float(np.mean(per_minute[max(0, end - _AVERAGE_MIN) : end])) for end in (add_min, remove_min, end_min)
    )
    return {
        "minutes_up": _settled(per_minute, add_min, remove_min, between),
        "minutes_down": _settled(per_minute, remove_min, end_min, after),
        "gain": between / before if before else 1.0,
        "loss": after / between if between else 1.0,
    }


def _settled(per_minute: Sequence[float], start: int, end: int, plateau: float) -> float:
    """Minutes until the last one that is not within a tenth."""
    off = [m for m in range(start, min(end, len(per_minute))) if abs(per_minute[m] - plateau) > _BAND * plateau]
    return float(max(off) + 1 - start) if off else 0.0


def _convergence(is_quick: bool) -> Experiment:
    tasks = 150 if is_quick else 3000

    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        found, curve = iterations(method == _PRETRAINED, seed, tasks)
        return TrialOutcome({"iterations": found}, {method: curve})

    metric = Metric("iterations", "iterations to converge")
    return Experiment(
        "convergence",
        "Convergence of the paper's DQN",
        "Fig. 3",
        ("3000 tasks",),
        tuple(ITERATIONS),
        (metric,),
        trial,
        plot="curves",
        curve_axes=("iterations", "tasks' worth of work per minute"),
        theirs={("3000 tasks", method, "iterations"): value for method, value in ITERATIONS.items()},
        note="50 tasks a minute on eleven nodes, Algorithm 2 on every node. Rewards are changes of throughput, which "
        "add up to nothing on a plateau: the plot shows the throughput itself. Converged: the mean of a hundred "
        "decisions is for the first time within a tenth of the better plateau of the two (the last third of each run).",
    )


_PRETRAINED = "with pre-training"


def _grid(base: Load, is_quick: bool) -> Experiment:
    """Who chooses nodes × who chooses units."""
    choosers = (*BASELINES, CONSOLIDATE, "drain", "dqn as written", "ldwp", "ldwp, times unknown")

    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        return TrialOutcome(run(replace(base, nodes=9), setting, method, seed).values)

    return Experiment(
        "grid",
        "Choice of nodes × choice of units, 9 nodes",
        "beyond the paper",
        choosers,
        (ECT, *OMITTED, "algorithm 2", "iawp"),
        (*_THROUGHPUT, _GPU, _BALANCE),
        trial,
        axis="nodes by",
        is_seeded=not is_quick,
        note="Methods are who chooses the units. “drain” knows true times and queues and sends a task to the node that "
        "would be empty first: the teacher of ldwp.",
    )


_LOADS = ("0.5", "0.67", "1", "1.5", "2")  # times the sizes of tasks


def _loads(base: Load, rates: Sequence[float], is_quick: bool) -> list[Experiment]:
    """The figures that gains are read from, at every load: in the cluster, and on worker 1."""
    by_rate = {f"rate {rate:g}": replace(base, per_minute=float(rate)) for rate in rates}
    by_nodes = {f"nodes {count}": replace(base, nodes=count) for count in (6, 10)}
    return [
        _by_load("loads", "Throughput by load", "throughput", {**by_rate, **by_nodes}, (BOUND,), is_quick),
        _by_load(
            "loads_first",
            "Throughput of worker 1 by load",
            "throughput_first",
            {"rate 60": by_rate["rate 60"], "nodes 6": by_nodes["nodes 6"]},
            (),
            is_quick,
        ),
    ]


def _by_load(
    key: str, title: str, measured: str, scenes: Mapping[str, Load], more: Sequence[str], is_quick: bool
) -> Experiment:
    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        loads = {name: replace(scene, scale=float(setting)) for name, scene in scenes.items()}
        if method == BOUND:
            return TrialOutcome({name: _most_per_min(load, seed) for name, load in loads.items()})
        return TrialOutcome({name: _played(load, method, seed).values[measured] for name, load in loads.items()})

    titles = {"rate": "{} tasks/min, 11 nodes", "nodes": "50 tasks/min, {} nodes"}
    metrics = [
        Metric(
            name,
            titles[name.split()[0]].format(name.split()[1]),
            "tasks/min",
            is_lower_better=False,
            is_plotted=name in ("rate 60", "nodes 10", "nodes 6"),
        )
        for name in scenes
    ]
    return Experiment(
        key,
        title,
        "Fig. 5 to 8, at other loads than theirs",
        ("0.67",) if is_quick else _LOADS,
        (*_COMPARED, *more),
        metrics,
        trial,
        axis="times the sizes of load 1",
        plot="lines",
    )


def _most_per_min(load: Load, seed: int) -> float:
    return most_per_min(ldwp_cluster(load.nodes), load.generate(FIRST_SEED + seed))


def _bound(base: Load, node_counts: Sequence[int]) -> Experiment:
    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        load = replace(base, nodes=int(setting))
        if method != BOUND:
            return TrialOutcome({"throughput": _played(load, method, seed).values["throughput"]})
        return TrialOutcome({"throughput": _most_per_min(load, seed)})

    return Experiment(
        "bound",
        "The most a perfect scheduler could do, 50 tasks/min",
        "beyond the paper",
        tuple(str(count) for count in node_counts),
        (BOUND, ECT, *OMITTED, LDWP),
        (_THROUGHPUT[0],),
        trial,
        axis="nodes",
        plot="lines",
        note="Fractional work on all cores and GPUs at once, shared without loss until a resource is full, and no task "
        "done sooner than alone on the fastest units: no schedule can do more, and none may reach it.",
    )
