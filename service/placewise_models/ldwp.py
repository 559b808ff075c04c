"""LDWP's Q net on ONNX Runtime: the value of every candidate node for one pipeline task. Trains nothing.

Proves at loading that it answers as when it was exported. It names its columns itself, as the completion of subtask
metrics does.
"""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import onnxruntime

from placewise_core.basics.arrays import Float32
from placewise_core.basics.frozen import frozen
from placewise_core.inputs.ldwp import COLUMNS
from placewise_models.session import Answers, Sample, check_sample, check_schema, open_column_net

LDWP_MODEL, LDWP_REPORT = "ldwp.onnx", "ldwp.json"
_SCHEMA = "placewise.ldwp/1"
_WARM_UP = (1, 11, 64)  # nodes: the smallest, the paper's, the largest


@frozen
class LdwpRuntime:
    """The net, ready. Implements place.ldwp.NodeValues; may be called from any thread."""

    session: onnxruntime.InferenceSession

    @classmethod
    def load(cls, content: bytes, report: Mapping[str, Any]) -> Self:
        """From the model's bytes and its report. Raises ModelError for one that is torn, of other columns, or that does
        not answer its sample as it should."""
        check_schema(report, LDWP_REPORT, _SCHEMA)
        runtime = cls.opened(content)
        check_sample(report, LDWP_MODEL, runtime._answers)
        for nodes in _WARM_UP:
            runtime.values(np.zeros((nodes, len(COLUMNS)), dtype=np.float32))
        return runtime

    @classmethod
    def opened(cls, content: bytes) -> Self:
        """Without a report: compares no sample. Raises ModelError as `load` does."""
        return cls(open_column_net(content, LDWP_MODEL, COLUMNS))

    def values(self, rows: Float32) -> Float32:
        """(C,) value of each node from its row (C, len(COLUMNS))."""
        found: Float32 = self._run(rows[None], np.ones((1, len(rows)), dtype=np.float32))[0]
        return found

    def _run(self, rows: Float32, mask: Float32) -> Float32:
        return np.asarray(self.session.run(["q"], {"rows": rows, "mask": mask})[0], dtype=np.float32)

    def _answers(self, sample: Sample) -> Answers:
        is_node = sample["mask"] > 0
        yield self._run(sample["rows"], sample["mask"])[is_node], sample["q"][is_node]
