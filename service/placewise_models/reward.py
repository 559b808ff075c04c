"""The reward model on ONNX Runtime: proves that it answers as when it was exported, then predicts speeds.

Trains nothing.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from placewise_core.basics.arrays import Float32
from placewise_core.basics.frozen import frozen
from placewise_core.inputs.cluster import PART_FEATURES
from placewise_core.inputs.reward import PartTokens
from placewise_models.session import Answers, ModelError, Sample, check_sample, check_schema, open_token_net, run

REWARD_MODEL, REWARD_REPORT = "reward.onnx", "reward.json"
_SCHEMA = "placewise.reward/1"
_WARM_UP = ((8, 24), (8, 48))  # (placements, tokens): allocations happen before the first decision


@frozen
class RewardRuntime:
    """The reward model, ready. Implements place.search.SpeedScorer; may be called from any thread.

    `features`: the columns of a token that it reads. `spread_limit`: the spread of log-speeds above which the model
    counts as uncertain, by its own report; infinite for a model that gives no spread.
    """

    session: onnxruntime.InferenceSession
    spread_limit: float = float("inf")
    features: int = PART_FEATURES

    @classmethod
    def load(cls, content: bytes, report: Mapping[str, Any]) -> Self:
        """From the model's bytes and its report. Raises ModelError for one that is torn, of other features, or that
        does not answer its parity sample as it should."""
        check_schema(report, REWARD_REPORT, _SCHEMA)
        session = open_token_net(content, REWARD_MODEL, "reward")
        runtime = cls(session, _spread_limit(session, report), _features(session))
        check_sample(report, REWARD_MODEL, runtime._answers)
        for placements, tokens in _WARM_UP:
            runtime.speeds(_blank(placements, tokens))
        return runtime

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """From a file, with the limit of the report beside it, if it has one; compares no sample. Raises ModelError as
        `load` does."""
        report = path.with_suffix(".json")
        limit = json.loads(report.read_text("utf-8")).get("spread_limit") if report.is_file() else None
        session = open_token_net(path.read_bytes(), path.name, "reward")
        return cls(session, float("inf") if limit is None else float(limit), _features(session))

    def speeds(self, tokens: PartTokens) -> Float32:
        """(K, P) predicted speed of each token's job over its linear speed."""
        return self._run(("speed",), self._feeds(tokens))[0]

    def speeds_and_spread(self, tokens: PartTokens) -> tuple[Float32, Float32]:
        """As `speeds`, and (K, P) the spread of its logarithm: only where `spread_limit` is finite."""
        speed, spread = self._run(("speed", "spread"), self._feeds(tokens))
        return speed, spread

    def _feeds(self, tokens: PartTokens) -> dict[str, NDArray[Any]]:
        """A net of an earlier release reads the first columns alone."""
        parts = tokens.parts
        if self.features < PART_FEATURES:
            parts = np.ascontiguousarray(parts[..., : self.features])
        return {"tokens": parts, "job": tokens.job, "node": tokens.node}

    def _run(self, outputs: Sequence[str], feeds: Mapping[str, NDArray[Any]]) -> list[Float32]:
        return run(self.session, outputs, feeds)

    def _answers(self, sample: Sample) -> Answers:
        feeds = {"tokens": sample["tokens"], "job": sample["job"].astype(int), "node": sample["node"].astype(int)}
        names = ("speed",) if np.isinf(self.spread_limit) else ("speed", "spread")
        is_token = feeds["job"] >= 0
        for name, values in zip(names, self._run(names, feeds), strict=True):
            yield values[is_token], sample[name][is_token]


def _spread_limit(session: onnxruntime.InferenceSession, report: Mapping[str, Any]) -> float:
    if "spread" not in {output.name for output in session.get_outputs()}:
        return float("inf")
    limit = report.get("spread_limit")
    if not isinstance(limit, int | float) or not 0 < limit < float("inf"):
        raise ModelError(f"{REWARD_REPORT} has no spread_limit for the spread that {REWARD_MODEL} gives")
    return float(limit)


def _features(session: onnxruntime.InferenceSession) -> int:
    shape = next(each.shape for each in session.get_inputs() if each.name == "tokens")
    return int(shape[-1])


def _blank(placements: int, tokens: int) -> PartTokens:
    shape = (placements, tokens)
    zeros = np.zeros(shape, dtype=np.int64)
    return PartTokens(np.zeros((*shape, PART_FEATURES), dtype=np.float32), zeros, zeros, ())
