"""Inputs and outputs of a partition policy. Never reserves a unit: a share is advice until the host starts it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from placewise_core.basics.slices import ONE_SLICE, Slices
from placewise_core.domain.decision import LearnedCapability, LearnedHeat, PartitionPlan
from placewise_core.domain.divisible import DivisibleTask, ShareProgress
from placewise_core.view.view import ClusterView


@dataclass(slots=True)
class PartitionContext:
    """`units` names nodes or "node/gpu0" units to consider; empty means all idle ones. `slices` may be other than
    one only if the view is the request's own."""

    now_s: float
    units: tuple[str, ...] = ()
    is_explaining: bool = False
    slices: Slices = ONE_SLICE


class PartitionPolicy(Protocol):
    """Splits one divisible task. Pure."""

    name: str

    def partition(self, task: DivisibleTask, view: ClusterView, context: PartitionContext) -> PartitionPlan:
        """Shares whose scales sum to the task's parallel scale (all of it on one unit where k < 2)."""
        ...

    def reschedule(
        self, task: DivisibleTask, progress: Sequence[ShareProgress], view: ClusterView, context: PartitionContext
    ) -> PartitionPlan:
        """What every unit has left to do, once the shares that timed out or asked to move are spread over the rest.

        Scales sum to the rest of all shares. WAIT if no unit may take it.
        """
        ...

    def learned(self, view: ClusterView) -> tuple[LearnedHeat, ...]:
        """The learned heat that its forecasts read. Empty unless its setting `learn_heat` is on."""
        ...

    def capabilities(self, view: ClusterView, task_kind: str | None) -> tuple[LearnedCapability, ...]:
        """The learned capabilities on which its shares of a kind of task rest, None for all kinds. Empty unless
        its setting `learn_capability` is on."""
        ...


def partitioned(
    policy: PartitionPolicy,
    task: DivisibleTask,
    progress: Sequence[ShareProgress],
    view: ClusterView,
    context: PartitionContext,
) -> PartitionPlan:
    """Splits the task, or, given the progress of its shares, spreads what left them."""
    if progress:
        return policy.reschedule(task, progress, view, context)
    return policy.partition(task, view, context)
