"""Subtask metrics with their holes filled by a learned completion. Knows no net; known metrics are never overruled."""

from collections.abc import Callable, Mapping
from typing import Protocol

from placewise_core.domain.job import Subtask
from placewise_core.subtasks.metrics import GPU_METRICS, METRICS, SPEEDUP, KnownMetrics, SubtaskMetrics
from placewise_core.view.view import ClusterView

# Fewer tell nothing: IAWP profiles two metrics, and CPU use and host memory say nothing about the GPU.
LEAST_KNOWN = 2
_TELLING = {*GPU_METRICS, SPEEDUP}


class MetricCompleter(Protocol):
    """A learned completion. Must not raise."""

    def complete(self, known: Mapping[str, float]) -> Mapping[str, float]:
        """All metrics of one subtask from the known ones; only those if they cannot be completed."""
        ...


class CompletedMetrics:
    """The known metrics, and for subtasks with a GPU version and at least two known metrics, the completed rest."""

    def __init__(self, known: SubtaskMetrics, completer: MetricCompleter) -> None:
        self._known = known
        self._completer = completer

    def of(self, subtask: Subtask) -> Mapping[str, float]:
        given = self._known.of(subtask)
        known = {name: value for name, value in given.items() if name in METRICS}
        is_enough = len(known) >= LEAST_KNOWN and not _TELLING.isdisjoint(known)
        if not subtask.has_gpu_version or not is_enough or len(known) == len(METRICS):
            return given
        return {**self._completer.complete(known), **given}

    def on(self, gpu: int) -> "CompletedMetrics":
        return self


class KindMetrics(Protocol):
    """A learned matrix of kinds and metrics, with columns for each GPU of a node. Must not raise."""

    def of_kind(self, kind: str, gpu: int) -> Mapping[str, float]:
        """All metrics of a kind on a GPU; empty for a kind that it does not know."""
        ...


class MatrixMetrics:
    """The known metrics, and for subtasks with a GPU version the others of their kind in the matrix."""

    def __init__(self, known: SubtaskMetrics, matrix: KindMetrics, gpu: int = 0) -> None:
        self._known, self._matrix, self._gpu = known, matrix, gpu

    def of(self, subtask: Subtask) -> Mapping[str, float]:
        known = self._known.of(subtask)
        return {**self._matrix.of_kind(subtask.kind, self._gpu), **known} if subtask.has_gpu_version else known

    def on(self, gpu: int) -> "MatrixMetrics":
        return MatrixMetrics(self._known, self._matrix, gpu)


def metrics_source(completer: MetricCompleter | None) -> Callable[[ClusterView], SubtaskMetrics]:
    """The metrics that a scheduler of subtasks reads of a view: completed ones, or known ones without a completion."""
    if completer is None:
        return KnownMetrics.from_view
    return lambda view: CompletedMetrics(KnownMetrics.from_view(view), completer)


def matrix_source(matrix: KindMetrics | None) -> Callable[[ClusterView], SubtaskMetrics]:
    """As metrics_source, with a learned matrix."""
    if matrix is None:
        return KnownMetrics.from_view
    return lambda view: MatrixMetrics(KnownMetrics.from_view(view), matrix)
