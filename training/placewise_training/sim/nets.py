"""Exported nets on ONNX Runtime, one thread each, as the core's policies want them. No torch, no service, no training.

The service has loaders of its own, which distrust what they load; these are told by the feature schema alone whether a
net reads what this code writes.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import onnxruntime

from placewise_core.features import Float32, Observation, feature_schema
from placewise_core.part_tokens import PartTokens
from placewise_core.place.harmony import ClusterState, PolicyState
from placewise_core.place.ldwp_rows import COLUMNS
from placewise_core.policy_inputs import JOB_STATE, LOGITS, NODE_STATE, STRETCH, encoder_inputs
from placewise_training.sim.bundles import POLICY_GRAPHS


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
    """Harmony's graphs as a place.harmony.PolicyNet. `memory`: what the second takes of the first."""

    encoder: onnxruntime.InferenceSession
    jobs: onnxruntime.InferenceSession
    decoder: onnxruntime.InferenceSession
    memory: Sequence[str]

    @classmethod
    def load(cls, folder: Path) -> Self:
        """From the graphs in a folder. Raises ValueError for a net of other features."""
        encoder, jobs, decoder = (_session(folder / file, "policy") for file in POLICY_GRAPHS)
        memory = [found.name for found in encoder.get_outputs() if found.name != NODE_STATE]
        return cls(encoder, jobs, decoder, memory)

    def look(self, seen: Observation) -> ClusterState:
        nodes, *memory = self.encoder.run([NODE_STATE, *self.memory], encoder_inputs(seen))
        return ClusterState(nodes, memory)

    def read(self, cluster: ClusterState, jobs: Float32) -> PolicyState:
        feeds = dict(zip(self.memory, cluster.memory, strict=True)) | {"jobs": jobs}
        return PolicyState(cluster.nodes, *self.jobs.run([JOB_STATE, STRETCH], feeds))

    def decode(self, state: PolicyState, job: int, step: Float32) -> Float32:
        logits: Float32 = self.decoder.run([LOGITS], {"states": state.nodes + state.jobs[job], "step": step})[0]
        return logits.reshape(-1)


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
