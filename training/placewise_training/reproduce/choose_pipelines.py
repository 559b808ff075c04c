"""Chooses the default policy of pipelines by the rule of choose.py, written down before its runs.

    python -m placewise_training.reproduce.choose_pipelines --out docs/pipelines.json [--workload NAME …]

Each candidate is the service's own policy, with the service's `iawp` on every node. The store has a time on a core for
each kind of subtask. These times are exact, wrong by a log-normal factor for each kind, or missing. Pipelines wait in
no queue, so there is no bound to break. The workloads are those of docs/reproduction.md: no open trace has pipelines.
"""

from collections.abc import Mapping

import numpy as np

from placewise_core.domain.events import SubtaskProfiled
from placewise_core.subtasks.metrics import CORE_SECONDS
from placewise_core.view.view import ClusterView
from placewise_training.reproduce.choose import LENGTHS, TRUTH, CaseResult, choose
from placewise_training.reproduce.ldwp.runs import Load
from placewise_training.sim.hardware import ldwp_cluster
from placewise_training.sim.pipelines.applications import PipelineTask, subtask_truths
from placewise_training.sim.pipelines.choosers import PolicyChooser
from placewise_training.sim.pipelines.engine import PipelineSimulation
from placewise_training.sim.pipelines.queues import NodeQueue
from placewise_training.sim.pipelines.units import IawpUnits
from placewise_training.sim.policies import placement_policy

CANDIDATES = ("ldwp", "ect", "consolidate")
_TASKS = 600
WORKLOADS: Mapping[str, Load] = {
    **{f"load {scale:g}": Load(tasks=_TASKS, scale=scale) for scale in (0.5, 0.67, 1.0, 1.5, 2.0)},
    **{f"{nodes} nodes": Load(tasks=_TASKS, nodes=nodes) for nodes in (6, 8)},
    **{f"{per_minute:g} per minute": Load(tasks=_TASKS, per_minute=per_minute) for per_minute in (10.0, 60.0)},
    "8, 11, 9 nodes": Load(tasks=_TASKS, nodes=8, add_min=4.0, remove_min=8.0),
}


class MeasuredTimes:
    """A policy on a view whose store has measured each kind of subtask, with log-normal errors of that σ."""

    def __init__(self, chooser: PolicyChooser, sigma: float, seed: int) -> None:
        rng = np.random.default_rng((seed, 57))
        kinds = subtask_truths(TRUTH)
        factors = np.exp(sigma * rng.standard_normal(len(kinds))).tolist()
        self.name, self._chooser = chooser.name, chooser
        self.core_s = {name: factor * kind.core_s for (name, kind), factor in zip(kinds.items(), factors, strict=True)}

    def choose(self, task: PipelineTask, view: ClusterView, nodes: Mapping[str, NodeQueue], now_s: float) -> str:
        for name, core_s in self.core_s.items():
            if CORE_SECONDS not in view.subtask_profiles.get(name, {}):
                view.apply_change(SubtaskProfiled(name, {CORE_SECONDS: core_s}))
        return self._chooser.choose(task, view, nodes, now_s)


def run(workload: str, lengths: str, policy: str, seed: int) -> CaseResult:
    """Raises ValueError if not all pipelines have ended."""
    load, sigma = WORKLOADS[workload], LENGTHS[lengths]
    chooser = PolicyChooser(placement_policy(policy), seed)
    result = PipelineSimulation(
        ldwp_cluster(load.nodes),
        load.generate(seed),
        TRUTH,
        chooser if sigma is None else MeasuredTimes(chooser, sigma, seed),
        IawpUnits(),
        faults=load.faults(),
        seed=seed,
    ).run()
    if result.unfinished:
        raise ValueError(f"{result.unfinished} pipelines of {workload} did not end under {policy}")
    return CaseResult(workload, lengths, policy, seed, result.avg_turnaround_s, keeps_bound=True)


if __name__ == "__main__":
    choose(__doc__, CANDIDATES, list(WORKLOADS), run)
