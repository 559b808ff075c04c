"""Ways to split a divisible task that the heat-island reproduction compares. The policy itself is the service's own."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from placewise_core.domain.decision import Outcome, PartitionPlan, Share
from placewise_core.domain.divisible import DivisibleTask
from placewise_core.partition.policy import PartitionContext
from placewise_core.partition.registry import partition_policies, partition_policy
from placewise_core.view.view import ClusterView
from placewise_models.bundle import CAPABILITY
from placewise_training.sim.divisible import HeatNode, Splitter, idle_units
from placewise_training.sim.policies import shipped

_GPU_CELSIUS, _LIMIT = 8, 9  # rows of the view's telemetry
_NO_OVERHEAD_S, _ENDLESS_OVERHEAD_S = 1e-9, 1e9


@functools.cache
def served_policy() -> Splitter:
    """The heat-island policy with the capability file the service ships."""
    return partition_policy(shipped().document(CAPABILITY))


@functools.cache
def printed_policy() -> Splitter:
    """The heat-island paper's method as printed."""
    return partition_policies(shipped().document(CAPABILITY))["heat-island-paper"]


class OneAtATime:
    """Algorithm 1 of the paper, to the letter: the next task is looked at when every share of this one is in."""

    name = "one task at a time"

    def __init__(self, policy: Splitter) -> None:
        self._policy = policy

    def partition(self, task: DivisibleTask, view: ClusterView, context: PartitionContext) -> PartitionPlan:
        if any(view.usage.tasks_on(m) for m in range(view.nodes.size)):
            return PartitionPlan(Outcome.WAIT)
        return self._policy.partition(task, view, context)


class Patient:
    """Ends a run in which a task waits for ever (it may never fit below the limits) instead of waiting with it.

    Raises RuntimeError after six hours of one task at the head of the queue.
    """

    name = "patient"
    limit_s = 21_600.0

    def __init__(self, policy: Splitter) -> None:
        self._policy = policy
        self._head, self._since_s = "", 0.0

    def partition(self, task: DivisibleTask, view: ClusterView, context: PartitionContext) -> PartitionPlan:
        if task.id != self._head:
            self._head, self._since_s = task.id, context.now_s
        if context.now_s - self._since_s > self.limit_s:
            raise RuntimeError(f"task {task.id} of scale {task.parallel_scale:.4g} never finds a unit it may run on")
        return self._policy.partition(task, view, context)


class Reactive:
    """Prediction replaced by a thermostat: a unit at its limit is left out, one below it may take any share."""

    name = "thermostat"

    def __init__(self, policy: Splitter) -> None:
        self._policy = policy

    def partition(self, task: DivisibleTask, view: ClusterView, context: PartitionContext) -> PartitionPlan:
        kept = view.nodes.telemetry[_LIMIT].copy()
        view.nodes.telemetry[_LIMIT] = np.where(view.nodes.telemetry[_GPU_CELSIUS] >= kept, kept, np.nan)
        try:
            return self._policy.partition(task, view, context)
        finally:
            view.nodes.telemetry[_LIMIT] = kept


class TrueShares:
    """Shares in proportion to the units' true speeds, which no policy knows: the result of a perfect estimate."""

    name = "true speeds"

    def __init__(self, nodes: Sequence[HeatNode]) -> None:
        self._nodes: Mapping[str, HeatNode] = {node.spec.id: node for node in nodes}

    def partition(self, task: DivisibleTask, view: ClusterView, context: PartitionContext) -> PartitionPlan:
        rate = {(node, unit): self._nodes[node].rate(unit, task.kind) for node, unit in idle_units(view)}
        idle = sorted(rate, key=lambda unit: -rate[unit])  # the serial part goes to the strongest
        if not idle:
            return PartitionPlan(Outcome.WAIT)
        total = sum(rate.values())
        shares = []
        for node, unit in idle:
            own = rate[node, unit]
            scale = task.parallel_scale * own / total
            shares.append(Share(node, unit, scale, scale / own, 0.0, own))
        return PartitionPlan(Outcome.PLACED, tuple(shares))


class Forced:
    """The served policy with another overhead: none, so that all units share, or endless, so that one works alone."""

    def __init__(self, policy: Splitter, *, is_alone: bool) -> None:
        self.name = "one unit" if is_alone else "all units"
        self._policy = policy
        self._overhead_s = _ENDLESS_OVERHEAD_S if is_alone else _NO_OVERHEAD_S

    def partition(self, task: DivisibleTask, view: ClusterView, context: PartitionContext) -> PartitionPlan:
        return self._policy.partition(replace(task, overhead_s=self._overhead_s), view, context)


class OneNode:
    """All idle units of the node that has the strongest one."""

    name = "one node"

    def __init__(self, policy: Splitter) -> None:
        self._alone, self._together = Forced(policy, is_alone=True), Forced(policy, is_alone=False)

    def partition(self, task: DivisibleTask, view: ClusterView, context: PartitionContext) -> PartitionPlan:
        strongest = self._alone.partition(task, view, context).shares
        if not strongest:
            return PartitionPlan(Outcome.WAIT)
        return self._together.partition(task, view, replace(context, units=(strongest[0].node,)))
