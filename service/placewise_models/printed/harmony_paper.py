"""The net of Harmony's paper on ONNX Runtime: a row per job → a logit per action. Trains nothing.

Proves at loading that it answers as when it was exported. It names its columns itself; they tell its number of nodes.
"""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import onnxruntime

from placewise_core.basics.arrays import Float32
from placewise_core.basics.frozen import frozen
from placewise_core.inputs.harmony_paper import columns
from placewise_models.session import ModelError, answers_alike, check_columns, open_session

HARMONY_PAPER_MODEL, HARMONY_PAPER_REPORT = "harmony_paper.onnx", "harmony_paper.json"
_SCHEMA = "placewise.harmony-paper/1"
_WARM_UP = (1, 8, 64)  # jobs


@frozen
class HarmonyPaperRuntime:
    """The net, ready. Implements policies.printed.harmony_paper.PaperNet; may be called from any thread."""

    session: onnxruntime.InferenceSession
    nodes: int

    @classmethod
    def load(cls, content: bytes, report: Mapping[str, Any]) -> Self:
        """From the model's bytes and its report. Raises ModelError for one that is torn, of other columns, or that does
        not answer its sample as it should."""
        if report.get("schema") != _SCHEMA:
            raise ModelError(f"{HARMONY_PAPER_REPORT} is not a {_SCHEMA} document")
        runtime = cls.opened(content)
        runtime._check_sample(report)
        for jobs in _WARM_UP:
            runtime.logits(np.zeros((jobs, len(columns(runtime.nodes))), dtype=np.float32))
        return runtime

    @classmethod
    def opened(cls, content: bytes) -> Self:
        """Without a report: compares no sample. Raises ModelError as `load` does."""
        session = open_session(content, HARMONY_PAPER_MODEL)
        actions = session.get_outputs()[0].shape[-1]
        if not isinstance(actions, int):
            raise ModelError(f"{HARMONY_PAPER_MODEL} gives no number of actions: export it again")
        check_columns(session, HARMONY_PAPER_MODEL, columns(actions // 2))
        return cls(session, actions // 2)

    def logits(self, rows: Float32) -> Float32:
        """(2M,) for the next task of the job in the first row of `rows` (J, columns)."""
        found: Float32 = self._run(rows[None], np.ones((1, len(rows)), dtype=np.float32))[0, 0]
        return found

    def _run(self, rows: Float32, mask: Float32) -> Float32:
        return np.asarray(self.session.run(["logits"], {"rows": rows, "mask": mask})[0], dtype=np.float32)

    def _check_sample(self, report: Mapping[str, Any]) -> None:
        try:
            sample = {name: np.asarray(values, dtype=np.float32) for name, values in report["sample"].items()}
            given, is_job = self._run(sample["rows"], sample["mask"]), sample["mask"] > 0
            is_alike = answers_alike(given[is_job], sample["logits"][is_job])
        except Exception as error:
            raise ModelError(f"{HARMONY_PAPER_MODEL} fails on its sample: {error}. Export it again") from error
        if not is_alike:
            raise ModelError(f"{HARMONY_PAPER_MODEL} does not answer its sample as at its export: export it again")
