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
from placewise_models.session import (
    Answers,
    ModelError,
    Sample,
    check_columns,
    check_sample,
    check_schema,
    open_session,
)

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
        check_schema(report, HARMONY_PAPER_REPORT, _SCHEMA)
        runtime = cls.opened(content)
        check_sample(report, HARMONY_PAPER_MODEL, runtime._answers)
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

    def _answers(self, sample: Sample) -> Answers:
        is_job = sample["mask"] > 0
        yield self._run(sample["rows"], sample["mask"])[is_job], sample["logits"][is_job]
