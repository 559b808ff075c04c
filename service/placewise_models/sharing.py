"""Completes a model's slowdowns on shared GPUs with the bundle's net on ONNX Runtime. Trains nothing
and never fails a decision.

Implements speed.completed_interference.RowCompleter: from the assumed row and its measurements.
"""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import onnxruntime
import structlog

from placewise_core.basics.arrays import FloatArray
from placewise_core.policies.profiled.tables import packaged_tables
from placewise_core.speed.sharing_row import columns_of
from placewise_models.session import ModelError, answers_alike, open_column_net

SHARING_MODEL, SHARING_REPORT = "sharing.onnx", "sharing.json"
_SCHEMA = "placewise.sharing/1"
_INPUTS = ("prior", "known", "mask")

log = structlog.get_logger(__name__)


class SharingRuntime:
    """The completion, ready. May be called from any thread."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self._session = session
        self.failures = 0

    @classmethod
    def load(cls, content: bytes, report: Mapping[str, Any]) -> Self:
        """From the model's bytes and its report. Raises ModelError for one that is torn, of other columns, or that does
        not answer its sample as it should."""
        if report.get("schema") != _SCHEMA:
            raise ModelError(f"{SHARING_REPORT} is not a {_SCHEMA} document")
        runtime = cls.opened(content)
        runtime._check_sample(report)
        return runtime

    @classmethod
    def opened(cls, content: bytes) -> Self:
        """Without a report: compares no sample. Raises ModelError as `load` does."""
        columns = columns_of(packaged_tables().interference.references)
        return cls(open_column_net(content, SHARING_MODEL, columns))

    def complete(self, prior: FloatArray, known: FloatArray) -> FloatArray | None:
        """(C,) the row with its measurements unchanged; None if the net fails."""
        mask = ~np.isnan(known)
        feeds = {"prior": np.nan_to_num(prior, nan=1.0)[None], "known": np.nan_to_num(known)[None], "mask": mask[None]}
        try:
            found = self._run({name: array.astype(np.float32) for name, array in feeds.items()})[0].astype(np.float64)
            if not np.isfinite(found).all():
                raise ModelError("the net's answer is not finite")
        except Exception as error:  # the runtime's own exceptions share no base class
            self.failures += 1
            log.warning("completion of co-runs failed", error=str(error), failures=self.failures)
            return None
        return np.asarray(np.where(mask, known, found))

    def _run(self, feeds: Mapping[str, Any]) -> Any:
        return self._session.run(["completed"], dict(feeds))[0]

    def _check_sample(self, report: Mapping[str, Any]) -> None:
        try:
            sample = {name: np.asarray(values, dtype=np.float32) for name, values in report["sample"].items()}
            given = self._run({name: sample[name] for name in _INPUTS})
        except Exception as error:
            raise ModelError(f"{SHARING_MODEL} does not run on its own sample: {error}") from error
        if not answers_alike(given, sample["completed"]):
            raise ModelError(f"{SHARING_MODEL} does not answer its sample as at its export: export it again")
