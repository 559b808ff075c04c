"""What LDWP's net is worth on the judging truth, against heuristics: the same tasks for each. Trains nothing."""

from collections.abc import Callable, Mapping
from typing import Any

from placewise_core.policies.ldwp import LearnedNodes, NodeValues
from placewise_training.sim.hardware import ldwp_cluster
from placewise_training.sim.pipelines.applications import PipelineWorkload
from placewise_training.sim.pipelines.choosers import BacklogEct, DrainFirst, NodeChooser, PolicyChooser, loaded_pats
from placewise_training.sim.pipelines.engine import PipelineSimulation
from placewise_training.sim.pipelines.units import IawpUnits
from placewise_training.sim.policies import placement_policy
from placewise_training.sim.statistics import estimate

FIGURES = ("throughput", "turnaround_s", "load_balance")
_FIRST_SEED = 20_000  # no run of training has it
# (nodes, tasks per minute): far more than six nodes can do, and about what nine can.
LOADS: Mapping[str, tuple[int, float]] = {"6 nodes, overloaded": (6, 50.0), "9 nodes": (9, 50.0)}
# Three to nine minutes of video. The paper gives no sizes, but says of 50 tasks a minute that worker 1 is busy all the
# time with up to nine nodes and less with ten (Fig. 6), and that throughput grows up to ten (Fig. 5): with these sizes
# that holds of the best choice without learning (drain, IAWP) on the training truth, where nine nodes finish 45.6 of
# 49.1 tasks that come in a minute, and ten 47.7.
SIZES = (4500.0, 13500.0)


def learned(net: NodeValues, seed: int, times_of: str = "judge") -> NodeChooser:
    """The service's policy on `net`; without `times_of` nobody has measured how long kinds take."""
    return PolicyChooser(LearnedNodes(net, placement_policy("load-balance")), seed, times_of)


def judged(
    net: NodeValues, seeds: int, tasks: int, show: Callable[[str, int, int], None] = lambda title, done, total: None
) -> dict[str, Any]:
    """{load: {chooser: {figure: {"mean", "half_width"}}}} with IAWP on every node; the figures are FIGURES."""
    choosers: dict[str, Callable[[int], NodeChooser]] = {
        "ldwp": lambda seed: learned(net, seed),
        "ldwp, times unknown": lambda seed: learned(net, seed, ""),
        "drain": lambda seed: DrainFirst("judge"),
        "ect": lambda seed: BacklogEct("judge"),
        "pats": lambda seed: loaded_pats(),
        "random": lambda seed: PolicyChooser(placement_policy("random"), seed),
    }
    found: dict[str, Any] = {}
    for i, (load, (nodes, per_minute)) in enumerate(LOADS.items()):
        found[load] = {}
        for j, (name, chooser) in enumerate(choosers.items()):
            runs = [_run(chooser(_FIRST_SEED + s), nodes, per_minute, tasks, _FIRST_SEED + s) for s in range(seeds)]
            if runs:
                found[load][name] = {
                    key: {"mean": e.mean, "half_width": e.half_width}
                    for key, e in ((key, estimate([run[key] for run in runs])) for key in FIGURES)
                }
            show("judging", i * len(choosers) + j + 1, len(LOADS) * len(choosers))
    return found


def _run(chooser: NodeChooser, nodes: int, per_minute: float, tasks: int, seed: int) -> Mapping[str, float]:
    work = PipelineWorkload(tasks=tasks, per_minute=per_minute, sizes=SIZES).generate("judge", seed)
    result = PipelineSimulation(ldwp_cluster(nodes), work, "judge", chooser, IawpUnits(), seed=seed).run()
    values = (result.throughput_per_min, result.avg_turnaround_s, result.load_balance)
    return dict(zip(FIGURES, values, strict=True))
