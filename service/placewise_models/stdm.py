"""Completes missing subtask metrics with the bundle's net on ONNX Runtime. Trains nothing and never fails a decision.

Implements place.completed_metrics.MetricCompleter: from the known metrics of one subtask to all of them.
"""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import onnxruntime
import structlog
from numpy.typing import NDArray

from placewise_core.basics.bounded import Bounded
from placewise_core.subtasks.metrics import METRICS
from placewise_core.subtasks.scale import from_unit, to_unit
from placewise_models.session import ModelError, answers_alike, open_column_net

STDM_MODEL, STDM_REPORT = "stdm.onnx", "stdm.json"
_SCHEMA = "placewise.stdm/1"
_MOST_KEPT = 4096  # completed profiles; a cluster has far fewer kinds of subtasks

log = structlog.get_logger(__name__)


class StdmRuntime:
    """The completion, ready. May be called from any thread."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self._session = session
        self._completed: Bounded[bytes, dict[str, float]] = Bounded(_MOST_KEPT)
        self.failures = 0

    @classmethod
    def load(cls, content: bytes, report: Mapping[str, Any]) -> Self:
        """From the model's bytes and its report. Raises ModelError for one that is torn, of other columns, or that does
        not answer its sample as it should."""
        if report.get("schema") != _SCHEMA:
            raise ModelError(f"{STDM_REPORT} is not a {_SCHEMA} document")
        runtime = cls.opened(content)
        runtime._check_sample(report)
        return runtime

    @classmethod
    def opened(cls, content: bytes) -> Self:
        """As `load`, without a report to compare a sample with. Raises ModelError as `load` does."""
        return cls(open_column_net(content, STDM_MODEL, METRICS))

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
                found = from_unit(self._run(row[None]).astype(np.float64)[0])
            except Exception as error:  # the runtime's own exceptions share no base class
                self.failures += 1
                log.warning("completion of subtask metrics failed", error=str(error), failures=self.failures)
                return known
            self._completed[key] = found
        return {**self._completed[key], **known}

    def _run(self, rows: NDArray[np.float64]) -> NDArray[np.float32]:
        mask = ~np.isnan(rows)
        feeds = {"known": np.nan_to_num(rows).astype(np.float32), "mask": mask.astype(np.float32)}
        return np.asarray(self._session.run(["completed"], feeds)[0], dtype=np.float32)

    def _check_sample(self, report: Mapping[str, Any]) -> None:
        try:
            sample = {name: np.asarray(values, dtype=np.float32) for name, values in report["sample"].items()}
            given = self._session.run(["completed"], {"known": sample["known"], "mask": sample["mask"]})[0]
        except Exception as error:
            raise ModelError(f"{STDM_MODEL} does not run on its own sample: {error}") from error
        if not answers_alike(given, sample["completed"]):
            raise ModelError(f"{STDM_MODEL} does not answer its sample as at its export: export it again")
