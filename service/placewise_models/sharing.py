"""Completes a model's slowdowns on shared GPUs with the bundle's net on ONNX Runtime. Trains nothing
and never fails a decision.

Implements speed.completed_interference.RowCompleter: from the assumed row and its measurements.
"""

from collections.abc import Sequence

import numpy as np
import structlog

from placewise_core.basics.arrays import FloatArray
from placewise_core.policies.profiled.tables import packaged_tables
from placewise_core.speed.sharing_row import columns_of
from placewise_models.completion import CompletionRuntime
from placewise_models.session import ModelError

SHARING_MODEL, SHARING_REPORT = "sharing.onnx", "sharing.json"

log = structlog.get_logger(__name__)


class SharingRuntime(CompletionRuntime):
    """The completion of a model's row of slowdowns."""

    model, report, schema = SHARING_MODEL, SHARING_REPORT, "placewise.sharing/1"
    inputs = ("prior", "known", "mask")

    @staticmethod
    def columns() -> Sequence[str]:
        return columns_of(packaged_tables().interference.references)

    def complete(self, prior: FloatArray, known: FloatArray) -> FloatArray | None:
        """(C,) the row with its measurements unchanged; None if the net fails."""
        mask = ~np.isnan(known)
        feeds = {"prior": np.nan_to_num(prior, nan=1.0)[None], "known": np.nan_to_num(known)[None], "mask": mask[None]}
        try:
            found = self._run(feeds)[0]
            if not np.isfinite(found).all():
                raise ModelError("the net's answer is not finite")
        except Exception as error:  # the runtime's own exceptions share no base class
            self.failures += 1
            log.warning("completion of co-runs failed", error=str(error), failures=self.failures)
            return None
        return np.asarray(np.where(mask, known, found))
