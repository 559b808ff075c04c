"""IAWP (Zhang, Geng, Ma), node level: which subtask runs on which core or GPU of one hybrid server.

Algorithm 2 as the paper writes it and as the service has it (by contention), on known metrics, on two of them, and on
those that the paper's NCF or the shipped completion makes of two.
"""

import functools
from collections.abc import Callable, Mapping, Sequence

from placewise_core.subtasks.contention import ContentionRound
from placewise_core.subtasks.iawp import AsWritten, IawpSettings, SubtaskScheduler
from placewise_core.subtasks.metrics import SPEEDUP, SubtaskMetrics
from placewise_core.subtasks.round import SubtaskRound
from placewise_training.reproduce.design import Experiment, Metric, TrialOutcome
from placewise_training.reproduce.iawp.claims import (
    COMPLETED,
    DAMAGED,
    IAWP,
    NCF,
    NO_METRICS,
    SPEEDUPS_ONLY,
    TWO_METRICS,
    WRITTEN,
    WRITTEN_NCF,
    claims,
)
from placewise_training.reproduce.iawp.metrics import by_completion, by_ncf, by_random_ncf, ncf_losses
from placewise_training.reproduce.ldwp.runs import (
    BASELINES,
    CONSOLIDATE,
    KINDS,
    OMITTED,
    ORACLE,
    RANDOM,
    SHORTEST,
    UNITS,
    OnlyNode,
    Played,
    dataset_tasks,
    kind,
    play,
    profiled,
    saturating,
    smoothed,
)
from placewise_training.reproduce.paper import Paper
from placewise_training.sim.pipelines.applications import APPLICATIONS, PipelineTask
from placewise_training.sim.pipelines.units import IawpUnits, UnitPolicy

_METHODS = (*BASELINES, *OMITTED, ORACLE, WRITTEN, IAWP)
_FIRST_KIND = "2 × K80"  # worker 1
_WIDEST = 8
_UNITS: Mapping[str, str] = {
    **{name: name for name in (*BASELINES, *OMITTED, ORACLE)},
    WRITTEN: "algorithm 2",
    IAWP: "iawp",
}
_NODE = (
    Metric("speedup", "speedup over Random", "×", is_lower_better=False),
    Metric("gpu", "GPUs busy", "%", scale=100.0, is_lower_better=False),
    Metric("sm", "SMs in use", "%", scale=100.0, is_lower_better=False),
    Metric("cpu", "cores busy", "%", scale=100.0, is_lower_better=False, is_plotted=False),
    Metric("throughput", "throughput", "tasks/min", is_lower_better=False, is_plotted=False),
)


def paper(is_quick: bool) -> Paper:
    """The evaluation; quick has a fifth of the tasks and fewer data sets."""
    tasks = 30 if is_quick else 150
    experiments = [
        _kinds(tasks),
        _use(tasks),
        _applications(tasks),
        _speedup((20, 400) if is_quick else (10, 20, 60, 120, 200, 400)),
        _metrics(tasks, is_quick),
        _convergence(),
        _width(tasks),
    ]
    return Paper("iawp", "IAWP: subtasks on the cores and GPUs of one server", experiments, claims(), _ASSUMPTIONS)


_ASSUMPTIONS = (
    "Nobody has published times, speedups or metrics of these subtasks: they are drawn from stated ranges "
    "(sim/pipelines). The cost of sharing a GPU is assumed as well: the scarcest resource decides, and each co-tenant "
    "costs 3 %.",
    "All runs have one server. It gets more tasks than it can finish: one every two seconds, each of three to nine "
    "minutes of video. The other half of the paper, the choice of a node, is under ldwp.",
    "“GPUs busy” is the share of time in which a GPU runs something, as monitoring tools count it; “SMs in use” is how "
    "much of their multiprocessors their subtasks want. Both from minute five until three quarters of the run are over."
    " The rest is the tail of the last tasks.",
    "Baselines know true speedups, ECT true times too, and put one subtask on a unit at a time; IAWP shares GPUs among "
    f"up to eight. “{CONSOLIDATE}” and “{SHORTEST}” are ours: each subtask to the fullest GPU that takes it by its "
    "metrics; ECT with tasks in the order of their remaining work, true times known. "
    f"“{ORACLE}” knows every true time and what sharing a GPU costs, and gives each subtask in turn the unit where its "
    "own end and the time its neighbours lose are least: it shows headroom; no policy knows those times. "
    f"“{WRITTEN}” is Algorithm 2 to the letter, “{IAWP}” the service's policy: GPUs shared by predicted contention, "
    "cores kept for subtasks that only they can run.",
    "A data set of X MB is X/10 tasks of video synopsis, 2000 frames each, all there at the start.",
)


def _play(server: str, tasks: Sequence[PipelineTask], units: UnitPolicy, seed: int) -> Played:
    return play(kind(server), tasks, OnlyNode(), units, seed, has_sm=True)


@functools.cache
def _run(server: str, application: str, tasks: int, method: str, seed: int) -> Played:
    return _play(server, saturating(application, tasks, seed), UNITS[_UNITS[method]](seed), seed)


def _outcome(server: str, application: str, tasks: int, method: str, seed: int) -> TrialOutcome:
    return _compared(_run(server, application, tasks, method, seed), server, application, tasks, seed)


def _compared(played: Played, server: str, application: str, tasks: int, seed: int) -> TrialOutcome:
    """With its speedup over Random on the same tasks."""
    slowest_s = _run(server, application, tasks, RANDOM, seed).values["makespan"]
    return TrialOutcome({**played.values, "speedup": slowest_s / played.values["makespan"]})


def _kinds(tasks: int) -> Experiment:
    return Experiment(
        "kinds",
        "Mixed tasks on each kind of server",
        "Table 4, Fig. 10",
        tuple(KINDS),
        _METHODS,
        _NODE,
        lambda setting, method, seed: _outcome(setting, "mixed", tasks, method, seed),
    )


def _use(tasks: int) -> Experiment:
    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        played = _run(_FIRST_KIND, "mixed", tasks, method, seed)
        return TrialOutcome(played.values, {"GPUs busy": played.curves["worker 1"]})

    return Experiment(
        "use",
        "GPU utilisation of worker 1 over time",
        "Fig. 10",
        (_FIRST_KIND,),
        _METHODS,
        (_NODE[1], _NODE[2]),
        trial,
        plot="curves",
        curve_axes=("minutes", "GPUs busy (%)"),
        theirs={(_FIRST_KIND, IAWP, "gpu"): 87.0},
    )


def _applications(tasks: int) -> Experiment:
    return Experiment(
        "applications",
        "Each application, 4 × K80",
        "Table 5",
        tuple(APPLICATIONS),
        _METHODS,
        _NODE,
        lambda setting, method, seed: _outcome("4 × K80", setting, tasks, method, seed),
    )


@functools.cache
def _dataset_run(megabytes: float, method: str, seed: int) -> Played:
    return _play("4 × K80", dataset_tasks(megabytes), UNITS[_UNITS[method]](seed), seed)


def _speedup(datasets: Sequence[float]) -> Experiment:
    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        seconds = _dataset_run(float(setting), method, seed).values["makespan"]
        slowest_s = _dataset_run(float(setting), RANDOM, seed).values["makespan"]
        return TrialOutcome({"speedup": slowest_s / seconds, "seconds": seconds})

    metrics = (_NODE[0], Metric("seconds", "processing time", "s", is_plotted=False))
    settings = tuple(f"{value:g}" for value in datasets)
    return Experiment(
        "speedup",
        "Video synopsis by size of the data set, 4 × K80",
        "Fig. 12",
        settings,
        _METHODS,
        metrics,
        trial,
        axis="MB",
        plot="lines",
    )


def _metrics(tasks: int, is_quick: bool) -> Experiment:
    """The value of the description matrix, and the loss by its holes."""

    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        asked = saturating("mixed", tasks, seed, "train" if method == DAMAGED else "judge")
        rules: type[SubtaskRound] = AsWritten if method in (WRITTEN, WRITTEN_NCF) else ContentionRound
        units = IawpUnits(_filled(method, seed, is_quick), SubtaskScheduler(rules=rules))
        played = _play(setting, profiled(asked, _KEPT[method]), units, seed)
        return _compared(played, setting, "mixed", tasks, seed)

    return Experiment(
        "metrics",
        "What IAWP knows of the subtasks",
        "section 4.3",
        (_FIRST_KIND, "4 × K80"),
        tuple(_KEPT),
        _NODE,
        trial,
        note=f"“{TWO_METRICS}”: SM and DRAM alone, as a short profile leaves them, nothing filled in. “{NCF}”: the "
        "rest by the paper's NCF, pre-trained on drawn variants of all kinds and trained on with these rows. "
        f"“{WRITTEN_NCF}”: Algorithm 2 as the paper runs it, two random metrics of each kind profiled, others for each "
        f"seed. “{COMPLETED}”: by the net of the shipped bundle, which was trained on none of these values. "
        f"“{DAMAGED}”: every metric as the training truth has it, which differs as one site's subtasks do from "
        "another's.",
    )


def _filled(method: str, seed: int, is_quick: bool) -> SubtaskMetrics | None:
    """The source of metrics that the requests lack. Raises NeedsBundleError if a net is missing."""
    steps = 200 if is_quick else 2500
    if method == NCF:
        return by_ncf(("sm", "dram"), steps)
    if method == WRITTEN_NCF:
        return by_random_ncf(seed, steps)
    return by_completion() if method == COMPLETED else None


_KEPT: Mapping[str, Callable[[str], bool]] = {
    IAWP: lambda name: True,
    DAMAGED: lambda name: True,
    SPEEDUPS_ONLY: lambda name: name == SPEEDUP,
    TWO_METRICS: lambda name: name in ("sm", "dram"),
    NO_METRICS: lambda name: False,
    NCF: lambda name: name in ("sm", "dram"),
    WRITTEN: lambda name: True,
    WRITTEN_NCF: lambda name: False,
    COMPLETED: lambda name: name in ("sm", "dram"),
}


def _convergence() -> Experiment:
    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        losses = ncf_losses(seed, is_pretrained=method == "with pre-training")
        curve = smoothed(losses, 21)
        return TrialOutcome({"loss": curve[100]}, {method: (list(range(len(curve))), curve)})

    metric = Metric("loss", "loss (5) after 100 iterations")
    return Experiment(
        "convergence",
        "Convergence of the NCF",
        "Fig. 4",
        ("3000 tasks",),
        ("with pre-training", "without pre-training"),
        (metric,),
        trial,
        plot="curves",
        curve_axes=("iterations", "loss"),
        note="Rows of kinds held back, two random metrics of each known, beside the history. With: Adam on the "
        "history, then SGD on all; without: Adam on all, as in the paper. Means of 21 iterations.",
    )


def _width(tasks: int) -> Experiment:
    """How many subtasks a GPU takes at most."""

    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        rules: type[SubtaskRound] = AsWritten if method == WRITTEN else ContentionRound
        units = IawpUnits(scheduler=SubtaskScheduler(IawpSettings(max_per_gpu=int(setting)), rules))
        played = _play("4 × K80", saturating("mixed", tasks, seed), units, seed)
        return _compared(played, "4 × K80", "mixed", tasks, seed)

    settings = tuple(str(2**i) for i in range(_WIDEST.bit_length()))
    return Experiment(
        "width",
        "Subtasks a GPU takes at once, 4 × K80",
        "beyond the paper",
        settings,
        (WRITTEN, IAWP),
        _NODE,
        trial,
        axis="at most",
        plot="lines",
    )
