"""Runs of LDWP's and IAWP's experiments: pipelines on the hybrid cluster, one method, one seed. Judges nothing.

Equal loads are run once per method and seed, however many figures look at them.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from placewise_core.policies.ldwp import NodeValues
from placewise_core.subtasks.iawp import AsWritten, SubtaskScheduler
from placewise_core.view.view import ClusterView
from placewise_training.ldwp.judge import SIZES, learned
from placewise_training.reproduce.design import Curve, InterruptedRunError, NeedsBundleError
from placewise_training.reproduce.harmony.runs import FIRST_SEED
from placewise_training.sim.faults import Fault, FaultKind, added
from placewise_training.sim.hardware import NodeSpec, ldwp_cluster
from placewise_training.sim.pipelines.applications import APPLICATIONS, PipelineTask, PipelineWorkload, pipeline_job
from placewise_training.sim.pipelines.baselines import FullestNode, PackedUnits, ShortestFirst
from placewise_training.sim.pipelines.choosers import BacklogEct, DrainFirst, NodeChooser, PolicyChooser, loaded_pats
from placewise_training.sim.pipelines.engine import PipelineResult, PipelineSimulation, deviation
from placewise_training.sim.pipelines.oracle import OracleUnits
from placewise_training.sim.pipelines.queues import NodeQueue
from placewise_training.sim.pipelines.units import EctUnits, IawpUnits, PatsUnits, RandomUnits, UnitPolicy
from placewise_training.sim.policies import placement_policy, shipped

if TYPE_CHECKING:
    from placewise_training.ldwp.agent import PaperDqn
    from placewise_training.ldwp.net import FixedDqn

TRUTH = "judge"
RANDOM, ECT, PATS = "random", "ect", "pats"
BASELINES = (RANDOM, ECT, PATS)  # the papers'
CONSOLIDATE, SHORTEST = "consolidate", "ect, shortest first"
OMITTED = (CONSOLIDATE, SHORTEST)  # what their tables leave out
IAWP = "iawp, nodes by ect"
WRITTEN = "ldwp + iawp, as written"
# Knows true times and every queue; its units go by IAWP, on true metrics. On one server it chooses units by true times.
ORACLE = "oracle"
LDWP = "ldwp + iawp"

NODES: Mapping[str, Callable[[int], NodeChooser]] = {
    RANDOM: lambda seed: PolicyChooser(placement_policy("random"), seed),
    ECT: lambda seed: BacklogEct(TRUTH),
    PATS: lambda seed: loaded_pats(),
    CONSOLIDATE: lambda seed: FullestNode(),
    "drain": lambda seed: DrainFirst(TRUTH),
    "dqn as written": lambda seed: written_dqn(seed),  # noqa: PLW0108 (defined below)
    "ldwp": lambda seed: _learned(seed, TRUTH),
    "ldwp, times unknown": lambda seed: _learned(seed, ""),
}
UNITS: Mapping[str, Callable[[int], UnitPolicy]] = {
    RANDOM: RandomUnits,
    ECT: lambda seed: EctUnits(TRUTH),
    PATS: lambda seed: PatsUnits(),
    CONSOLIDATE: lambda seed: PackedUnits(),
    SHORTEST: lambda seed: ShortestFirst(TRUTH),
    "algorithm 2": lambda seed: IawpUnits(scheduler=SubtaskScheduler(rules=AsWritten)),
    "iawp": lambda seed: IawpUnits(),
    ORACLE: lambda seed: OracleUnits(),
}
METHODS: Mapping[str, tuple[str, str]] = {  # (who chooses nodes, who chooses units)
    RANDOM: (RANDOM, RANDOM),
    ECT: (ECT, ECT),
    PATS: (PATS, PATS),
    CONSOLIDATE: (CONSOLIDATE, CONSOLIDATE),
    SHORTEST: (ECT, SHORTEST),
    IAWP: (ECT, "iawp"),
    ORACLE: ("drain", "iawp"),
    WRITTEN: ("dqn as written", "algorithm 2"),
    LDWP: ("ldwp", "iawp"),
}

_FRAMES_PER_MB = 200.0  # 25 frames a second at 1 Mbit/s
_PIECE_MB = 10.0
_WARM_UP_MIN = 5


def _learned(seed: int, times_of: str) -> NodeChooser:
    return learned(_net(), seed, times_of)


@functools.cache
def _net() -> NodeValues:
    """LDWP's net of the shipped bundle. Raises NeedsBundleError if it has none."""
    net = shipped().ldwp
    if net is None:
        raise NeedsBundleError("needs a bundle: there is no net that chooses nodes")
    return net


def written_dqn(seed: int, *, is_pretrained: bool = True) -> "PaperDqn":
    """The paper's DQN, which learns on; pre-trained on eleven nodes of the training truth, or with random weights."""
    from placewise_training.ldwp.agent import PaperDqn, clone  # noqa: PLC0415 (torch takes seconds to import)

    return PaperDqn(net=clone(_pretrained()) if is_pretrained else None, seed=seed)


@functools.cache
def _pretrained() -> "FixedDqn":
    """From a log of ECT's choices, the strongest of the baselines."""
    from placewise_training.ldwp.agent import Logged, pretrained  # noqa: PLC0415

    log = Logged(BacklogEct("train"))
    tasks = PipelineWorkload(tasks=_LOGGED, per_minute=50.0, sizes=SIZES).generate("train", 0)
    PipelineSimulation(ldwp_cluster(11), tasks, "train", log, UNITS["algorithm 2"](0), seed=0).run()
    return pretrained(log, seed=0)


_LOGGED = 600  # decisions


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a cluster of `nodes`: `tasks` at `per_minute`, or `dataset_mb` of video at once.

    `add_min`, `remove_min`: when three nodes join and when two of them leave (0: never). `scale`: of the sizes.
    """

    nodes: int = 11
    per_minute: float = 50.0
    tasks: int = 1500
    dataset_mb: float = 0.0
    add_min: float = 0.0
    remove_min: float = 0.0
    scale: float = 1.0

    def generate(self, seed: int) -> list[PipelineTask]:
        if self.dataset_mb > 0:
            return dataset_tasks(self.dataset_mb)
        sizes = (self.scale * SIZES[0], self.scale * SIZES[1])
        return PipelineWorkload(tasks=self.tasks, per_minute=self.per_minute, sizes=sizes).generate(TRUTH, seed)

    def faults(self) -> list[Fault]:
        more = ldwp_cluster(self.nodes + 3)[self.nodes :]
        joining = [added(60.0 * self.add_min, spec) for spec in more] if self.add_min else []
        leaving = [Fault(60.0 * self.remove_min, FaultKind.REMOVE, spec.id) for spec in more[1:]]
        return joining + (leaving if self.remove_min else [])

    @property
    def arrivals_min(self) -> int:
        """Minutes in which tasks arrive."""
        return int(self.tasks / self.per_minute)


def dataset_tasks(megabytes: float, application: str = "video_synopsis") -> list[PipelineTask]:
    """A data set in pieces of 10 MB, one task each, all there at the start."""
    pieces = max(1, round(megabytes / _PIECE_MB))
    size = megabytes / pieces * _FRAMES_PER_MB
    jobs = [pipeline_job(application, size, f"piece{i:04d}", TRUTH) for i in range(pieces)]
    return [PipelineTask(job, application, size, 0.0, i) for i, job in enumerate(jobs)]


@dataclass(slots=True)
class UseLog:
    """Use by minute: GPUs busy in the cluster and on the first node, and the degree of load balance (10).

    An observer of the simulation: each observation holds until the next call.
    """

    first: str
    has_sm: bool = False
    minutes: list[list[float]] = field(default_factory=list)
    _since_s: float = 0.0
    _values: tuple[float, ...] = (0.0, 0.0, 0.0, 1.0)

    def observe(self, now_s: float, nodes: Mapping[str, NodeQueue]) -> None:
        at_s = self._since_s
        while at_s < now_s:
            minute = int(at_s // 60)
            until_s = min(now_s, 60.0 * (minute + 1))
            while len(self.minutes) <= minute:
                self.minutes.append([0.0] * len(self._values))
            for i, value in enumerate(self._values):
                self.minutes[minute][i] += value * (until_s - at_s) / 60.0
            at_s = until_s
        self._since_s = now_s
        self._values = self._seen(nodes)

    def _seen(self, nodes: Mapping[str, NodeQueue]) -> tuple[float, ...]:
        loads, gpus, gpus_busy = [], 0, 0.0
        for queue in nodes.values():
            use = queue.utilisation()
            loads.append(sum(use) / 4.0)
            gpus, gpus_busy = gpus + queue.gpus, gpus_busy + use[2] * queue.gpus
        first = nodes[self.first].utilisation()[2] if self.first in nodes else 0.0
        sm = nodes[self.first].sm_utilisation() if self.has_sm and self.first in nodes else 0.0
        return gpus_busy / max(1, gpus), first, sm, 1.0 - deviation(loads)

    def steady(self, until_min: int) -> tuple[float, ...]:
        """(GPU busy, on the first node, its SMs, load balance) from minute five to `until_min`, or all there is."""
        warm = min(_WARM_UP_MIN, until_min // 2)
        window = self.minutes[warm : max(warm + 1, until_min)] or self.minutes
        return tuple(float(value) for value in np.mean(window, axis=0))

    def curve(self, column: int) -> Curve:
        """Minutes and means in % over five of them."""
        values = smoothed([100.0 * row[column] for row in self.minutes])
        return list(range(len(values))), values


def smoothed(values: Sequence[float], width: int = 5) -> list[float]:
    """Centred moving mean, narrower at the ends."""
    half = width // 2
    return [float(np.mean(values[max(0, i - half) : i + half + 1])) for i in range(len(values))]


@dataclass(frozen=True, slots=True)
class Played:
    """One run: numbers, and curves by name."""

    values: Mapping[str, float]
    curves: Mapping[str, Curve]


def play(
    nodes: Sequence[NodeSpec],
    tasks: Sequence[PipelineTask],
    chooser: NodeChooser,
    units: UnitPolicy,
    seed: int,
    *,
    steady_until_min: int | None = None,
    faults: Sequence[Fault] = (),
    has_sm: bool = False,
) -> Played:
    """Use is measured up to `steady_until_min`, or for three quarters of the run. Raises InterruptedRunError after
    Ctrl-C."""
    log = UseLog(nodes[0].id, has_sm)
    simulation = PipelineSimulation(
        nodes, tasks, TRUTH, chooser, units, faults=faults, seed=FIRST_SEED + seed, observer=log.observe
    )
    if isinstance(units, OracleUnits):
        units.simulation = simulation
    result = simulation.run()
    if result.is_partial:
        raise InterruptedRunError
    until_min = int(0.75 * result.makespan_s / 60.0) if steady_until_min is None else steady_until_min
    busy, first, sm, balance = log.steady(until_min)
    values = {**_numbers(result, nodes[0].id), "gpu": busy, "gpu_first": first, "sm": sm, "balance": balance}
    per_minute = smoothed(result.per_minute)
    curves: dict[str, Curve] = {
        "cluster": log.curve(0),
        "worker 1": log.curve(1),
        "throughput": (list(range(len(per_minute))), per_minute),
    }
    return Played(values, curves)


def _numbers(result: PipelineResult, first: str) -> dict[str, float]:
    return {
        "throughput": result.throughput_per_min,
        "throughput_first": 60.0 * result.node_finished[first] / result.makespan_s,
        "turnaround": result.avg_turnaround_s / 60.0,
        "makespan": result.makespan_s,
        "cpu": result.cpu_util,
    }


@functools.cache
def run(load: Load, nodes: str, units: str, seed: int) -> Played:
    """`nodes` and `units` are keys of NODES and UNITS. Raises NeedsBundleError for a method that is not trained yet."""
    return play(
        ldwp_cluster(load.nodes),
        load.generate(FIRST_SEED + seed),
        NODES[nodes](FIRST_SEED + seed),
        UNITS[units](FIRST_SEED + seed),
        seed,
        steady_until_min=load.arrivals_min,
        faults=load.faults(),
    )


class OnlyNode:
    """There is one node: every task goes there."""

    name = "only"

    def choose(self, task: PipelineTask, view: ClusterView, nodes: Mapping[str, NodeQueue], now_s: float) -> str:
        return next(iter(nodes))


# Table 4's four kinds of server, each as the only node.
KINDS: Mapping[str, int] = {"2 × K80": 0, "4 × P4": 1, "4 × K80": 2, "2 × P4": 5}


def kind(name: str) -> list[NodeSpec]:
    """One node of that kind."""
    return [ldwp_cluster(11)[KINDS[name]]]


def saturating(application: str, tasks: int, seed: int, truth: str = TRUTH) -> list[PipelineTask]:
    """More than one node can do: a task every two seconds. `application` is a name, or "mixed".

    `truth` is whose metrics the requests carry; what runs is the judge's.
    """
    names = tuple(APPLICATIONS) if application == "mixed" else (application,)
    workload = PipelineWorkload(tasks=tasks, per_minute=30.0, applications=names, sizes=SIZES)
    return workload.generate(truth, FIRST_SEED + seed)


def profiled(tasks: Sequence[PipelineTask], kept: Callable[[str], bool]) -> list[PipelineTask]:
    """The same tasks with only some metrics in their requests."""

    def stripped(task: PipelineTask) -> PipelineTask:
        subtasks = tuple(
            replace(s, profile={name: value for name, value in s.profile.items() if kept(name)})
            for s in task.job.subtasks
        )
        return replace(task, job=replace(task.job, subtasks=subtasks))

    return [stripped(task) for task in tasks]
