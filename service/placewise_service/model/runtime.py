"""ONNX Runtime: loads a bundle's nets, proves that they answer as when they were exported, and runs them.

Trains nothing. One thread per session: a decision is one small net, and the cores are for other decisions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from placewise_core.features import PART_FEATURES, Float32, feature_schema
from placewise_core.part_tokens import PartTokens

REWARD_MODEL, REWARD_REPORT = "reward.onnx", "reward.json"
_SCHEMA = "placewise.reward/1"
_TOLERANCE = 1e-4  # other processors round otherwise than the exporter's did
_WARM_UP = ((8, 24), (8, 48))  # (placements, tokens): allocations happen before the first decision


class ModelError(ValueError):
    """A net that cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class RewardRuntime:
    """The reward model, ready. Implements place.search.SpeedScorer; may be called from any thread."""

    session: onnxruntime.InferenceSession

    @classmethod
    def load(cls, content: bytes, report: Mapping[str, Any]) -> Self:
        """From the model's bytes and its report. Raises ModelError for one that is torn, of other features, or that
        does not answer its parity sample as it should."""
        if report.get("schema") != _SCHEMA:
            raise ModelError(f"{REWARD_REPORT} is not a {_SCHEMA} document")
        runtime = cls(_session(content))
        runtime._check_schema()
        runtime._check_sample(report)
        for placements, tokens in _WARM_UP:
            runtime.speeds(_blank(placements, tokens))
        return runtime

    def speeds(self, tokens: PartTokens) -> Float32:
        """(K, P) predicted speed of each token's job over its linear speed."""
        return self._run({"tokens": tokens.parts, "job": tokens.job, "node": tokens.node})

    def _run(self, feeds: Mapping[str, NDArray[Any]]) -> Float32:
        return np.asarray(self.session.run(["speed"], dict(feeds))[0], dtype=np.float32)

    def _check_schema(self) -> None:
        trained_on = self.session.get_modelmeta().custom_metadata_map.get("feature_schema", "")
        if trained_on != feature_schema("reward")["hash"]:
            raise ModelError(f"{REWARD_MODEL} was trained on other features than this version encodes")

    def _check_sample(self, report: Mapping[str, Any]) -> None:
        try:
            sample = report["sample"]
            feeds: dict[str, NDArray[Any]] = {
                "tokens": np.asarray(sample["tokens"], dtype=np.float32),
                "job": np.asarray(sample["job"], dtype=np.int64),
                "node": np.asarray(sample["node"], dtype=np.int64),
            }
            wanted = np.asarray(sample["speed"], dtype=np.float32)
            given = self._run(feeds)
        except Exception as error:
            raise ModelError(f"{REWARD_MODEL} does not run on its own sample: {error}") from error
        is_token = feeds["job"] >= 0
        if given.shape != wanted.shape or not np.allclose(given[is_token], wanted[is_token], _TOLERANCE, _TOLERANCE):
            raise ModelError(f"{REWARD_MODEL} does not answer its sample as it did when it was exported")


def _session(content: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # a refused file is reported by us
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime's own exceptions share no base class
        raise ModelError(f"{REWARD_MODEL} is not a model ONNX Runtime can load: {type(error).__name__}") from error


def _blank(placements: int, tokens: int) -> PartTokens:
    shape = (placements, tokens)
    zeros = np.zeros(shape, dtype=np.int64)
    return PartTokens(np.zeros((*shape, PART_FEATURES), dtype=np.float32), zeros, zeros, ())
