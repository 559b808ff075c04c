"""Exported nets on ONNX Runtime, one thread each, as the core's policies want them. No torch, no service, no training.

The service has loaders of its own, which distrust what they load; these are told by the feature schema alone whether a
net reads what this code writes.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import onnxruntime

from placewise_core.features import Float32, Observation, feature_schema
from placewise_core.part_tokens import PartTokens
from placewise_core.place.harmony import PolicyState
from placewise_core.place.ldwp_rows import COLUMNS
from placewise_core.policy_inputs import ENCODER_INPUTS, ENCODER_OUTPUTS, encoder_inputs


@dataclass(frozen=True, slots=True)
class OnnxScorer:
    """The reward model as a place.search.UncertainScorer."""

    session: onnxruntime.InferenceSession
    spread_limit: float = float("inf")

    @classmethod
    def load(cls, path: Path) -> Self:
        """With the limit of the report beside it, if there is one. Raises ValueError for a net of other features."""
        report = path.with_suffix(".json")
        limit = json.loads(report.read_text("utf-8")).get("spread_limit") if report.is_file() else None
        return cls(_session(path, "reward"), float("inf") if limit is None else float(limit))

    def speeds(self, tokens: PartTokens) -> Float32:
        return self._run(["speed"], tokens)[0]

    def speeds_and_spread(self, tokens: PartTokens) -> tuple[Float32, Float32]:
        speed, spread = self._run(["speed", "spread"], tokens)
        return speed, spread

    def _run(self, outputs: list[str], tokens: PartTokens) -> list[Float32]:
        feeds = {"tokens": tokens.parts, "job": tokens.job, "node": tokens.node}
        return [np.asarray(answer, dtype=np.float32) for answer in self.session.run(outputs, feeds)]


@dataclass(frozen=True, slots=True)
class OnnxPolicy:
    """Harmony's two graphs as a place.harmony.PolicyNet."""

    encoder: onnxruntime.InferenceSession
    decoder: onnxruntime.InferenceSession

    @classmethod
    def load(cls, encoder: Path, decoder: Path) -> Self:
        """Raises ValueError for a net of other features, and for one that was exported in an earlier form."""
        net = cls(_session(encoder, "policy"), _session(decoder, "policy"))
        if {given.name for given in net.encoder.get_inputs()} != set(ENCODER_INPUTS):
            raise ValueError(f"{encoder}: takes other inputs than this version gives: export it again")
        return net

    def encode(self, seen: Observation) -> PolicyState:
        return PolicyState(*self.encoder.run(ENCODER_OUTPUTS, encoder_inputs(seen)))

    def decode(self, state: PolicyState, job: int, step: Float32) -> Float32:
        feeds = {"node_state": state.nodes, "job_state": state.jobs[job : job + 1], "step": step}
        return np.asarray(self.decoder.run(("logits",), feeds)[0], dtype=np.float32)


@dataclass(frozen=True, slots=True)
class OnnxNodeValues:
    """LDWP's Q net as a place.ldwp.NodeValues."""

    session: onnxruntime.InferenceSession

    @classmethod
    def load(cls, path: Path) -> Self:
        """Raises ValueError for a net of other columns."""
        session = _opened(path)
        if session.get_modelmeta().custom_metadata_map.get("columns", "") != ",".join(COLUMNS):
            raise ValueError(f"{path.name} was trained on other columns than this version encodes")
        return cls(session)

    def values(self, rows: Float32) -> Float32:
        feeds = {"rows": rows[None], "mask": np.ones((1, len(rows)), dtype=np.float32)}
        return np.asarray(self.session.run(["q"], feeds)[0][0], dtype=np.float32)


def _session(path: Path, reader: str) -> onnxruntime.InferenceSession:
    session = _opened(path)
    made_for = session.get_modelmeta().custom_metadata_map.get("feature_schema")
    wanted = str(feature_schema(reader)["hash"])
    if made_for != wanted:
        raise ValueError(f"{path}: made for features {made_for}, not {wanted}: train or export it again")
    return session


def _opened(path: Path) -> onnxruntime.InferenceSession:
    """On one thread: nets this small lose more to threads that spin than they gain."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
