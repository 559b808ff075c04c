"""LDWP's DQN as printed on ONNX Runtime: a state → the value of each node. Trains nothing.

Proves at loading that it answers as when it was exported. Its columns name its nodes and types of task.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import onnxruntime

from placewise_core.basics.arrays import Float32
from placewise_core.basics.frozen import frozen
from placewise_core.inputs.ldwp_paper import columns
from placewise_models.session import (
    Answers,
    Sample,
    check_columns,
    check_sample,
    check_schema,
    columns_of_net,
    open_session,
)

LDWP_PAPER_MODEL, LDWP_PAPER_REPORT = "ldwp_paper.onnx", "ldwp_paper.json"
_SCHEMA = "placewise.ldwp-paper/1"


@frozen
class LdwpPaperRuntime:
    """The net, ready. Implements policies.printed.ldwp_paper.PaperQ; may be called from any thread."""

    session: onnxruntime.InferenceSession
    nodes: Sequence[str]
    types: Sequence[str]

    @classmethod
    def load(cls, content: bytes, report: Mapping[str, Any]) -> Self:
        """From the model's bytes and its report. Raises ModelError for one that is torn, of other columns, or that does
        not answer its sample as it should."""
        check_schema(report, LDWP_PAPER_REPORT, _SCHEMA)
        runtime = cls.opened(content)
        check_sample(report, LDWP_PAPER_MODEL, runtime._answers)
        return runtime

    @classmethod
    def opened(cls, content: bytes) -> Self:
        """Without a report: compares no sample. Raises ModelError as `load` does."""
        session = open_session(content, LDWP_PAPER_MODEL)
        names = columns_of_net(session)
        nodes = [name.removeprefix("a_") for name in names if name.startswith("a_")]
        types = [name.removeprefix("tid_") for name in names if name.startswith("tid_")]
        check_columns(session, LDWP_PAPER_MODEL, columns(types, nodes))
        return cls(session, nodes, types)

    def values(self, state: Float32) -> Float32:
        """(M,) from a state (columns,)."""
        found: Float32 = self._run(state[None])[0]
        return found

    def _run(self, states: Float32) -> Float32:
        return np.asarray(self.session.run(["q"], {"state": states})[0], dtype=np.float32)

    def _answers(self, sample: Sample) -> Answers:
        yield self._run(sample["state"]), sample["q"]
