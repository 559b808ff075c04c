"""Overhead Q of splitting a task: as asked, as learned from its kind's outcomes, or the stated default."""

from collections.abc import Mapping

from placewise_core.domain.divisible import DivisibleTask
from placewise_core.domain.events import OverheadLearned


def overhead_s(task: DivisibleTask, learned: Mapping[str, OverheadLearned], default_s: float) -> float:
    """Seconds: the request's own value, else the learned one of its kind, else the default."""
    if task.overhead_s > 0:
        return task.overhead_s
    history = learned.get(task.kind)
    return history.mean_overhead_s if history is not None and history.count > 0 else default_s
