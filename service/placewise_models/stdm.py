"""Completes missing subtask metrics with the bundle's net on ONNX Runtime. Trains nothing and never fails a decision.

Implements subtasks.completed_metrics.MetricCompleter: from the known metrics of one subtask to all of them.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnxruntime
import structlog

from placewise_core.basics.bounded import Bounded
from placewise_core.subtasks.metrics import METRICS
from placewise_core.subtasks.scale import from_unit, to_unit
from placewise_models.completion import CompletionRuntime

STDM_MODEL, STDM_REPORT = "stdm.onnx", "stdm.json"
_MOST_KEPT = 4096  # completed profiles; a cluster has far fewer kinds of subtasks

log = structlog.get_logger(__name__)


class StdmRuntime(CompletionRuntime):
    """The completion of one subtask's metrics."""

    model, report, schema = STDM_MODEL, STDM_REPORT, "placewise.stdm/1"
    inputs = ("known", "mask")

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        super().__init__(session)
        self._completed: Bounded[bytes, dict[str, float]] = Bounded(_MOST_KEPT)

    @staticmethod
    def columns() -> Sequence[str]:
        return METRICS

    def complete(self, known: Mapping[str, float]) -> Mapping[str, float]:
        """All metrics of a subtask, the known ones unchanged. If they are on another scale than the net's (a throughput
        that is no share of 1) or the net fails, only the known ones come back."""
        try:
            row = to_unit(known)
        except ValueError:
            return known
        key = row.tobytes()
        if key not in self._completed:
            try:
                feeds = {"known": np.nan_to_num(row)[None], "mask": ~np.isnan(row)[None]}
                found = from_unit(self._run(feeds)[0])
            except Exception as error:  # the runtime's own exceptions share no base class
                self.failures += 1
                log.warning("completion of subtask metrics failed", error=str(error), failures=self.failures)
                return known
            self._completed[key] = found
        return {**self._completed[key], **known}
