"""Harmony's policy net on ONNX Runtime, in two graphs: an encoder, once for many tasks, and a decoder, once per task.

Trains nothing. Both prove at loading that they answer as when they were exported.
"""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import onnxruntime

from placewise_core.features import JOB_FEATURES, NODE_FEATURES, STEP_FEATURES, Float32, Observation
from placewise_core.frozen import frozen
from placewise_core.place.harmony import PolicyState
from placewise_core.policy_inputs import ENCODER_OUTPUTS, IS_NEW, encoder_inputs
from placewise_service.model.session import ModelError, answers_alike, check_features, open_session

POLICY_ENCODER, POLICY_DECODER, POLICY_REPORT = "policy_encoder.onnx", "policy_decoder.onnx", "policy.json"
_BOTH = f"{POLICY_ENCODER} and {POLICY_DECODER}"
_SCHEMA = "placewise.policy/2"
*_STATES, _MINUTES = ENCODER_OUTPUTS  # minutes: of encoders that guess how long jobs run
_WARM_UP = (
    (1, 1, 0),
    (30, 33, 32),
    (64, 48, 32),
)  # (nodes, jobs, running ones): the smallest, a usual one, the largest


@frozen
class PolicyRuntime:
    """The policy net, ready. Implements place.harmony.PolicyNet; may be called from any thread."""

    encoder: onnxruntime.InferenceSession
    decoder: onnxruntime.InferenceSession
    outputs: tuple[str, ...] = ENCODER_OUTPUTS

    @classmethod
    def load(cls, encoder: bytes, decoder: bytes, report: Mapping[str, Any]) -> Self:
        """From the bytes of both graphs and their report. Raises ModelError for one that is torn, of other features,
        or that does not answer its parity sample as it should."""
        if report.get("schema") != _SCHEMA:
            raise ModelError(f"{POLICY_REPORT} is not a {_SCHEMA} document")
        session = open_session(encoder, POLICY_ENCODER)
        guesses = _MINUTES in {output.name for output in session.get_outputs()}
        outputs = ENCODER_OUTPUTS if guesses else tuple(_STATES)
        runtime = cls(session, open_session(decoder, POLICY_DECODER), outputs)
        check_features(runtime.encoder, POLICY_ENCODER, "policy")
        check_features(runtime.decoder, POLICY_DECODER, "policy")
        runtime._check_sample(report)
        for nodes, jobs, running in _WARM_UP:
            state = runtime.encode(_blank(nodes, jobs, running))
            runtime.decode(state, 0, np.zeros((nodes, STEP_FEATURES), dtype=np.float32))
        return runtime

    def encode(self, seen: Observation) -> PolicyState:
        """States of all nodes and of the new jobs of one observation."""
        return PolicyState(*self.encoder.run(self.outputs, encoder_inputs(seen)))

    def decode(self, state: PolicyState, job: int, step: Float32) -> Float32:
        """(2C,) logits of the next task of job `job`: a worker on each node, then a parameter server on each."""
        feeds = {"node_state": state.nodes, "job_state": state.jobs[job : job + 1], "step": step}
        logits: Float32 = self.decoder.run(("logits",), feeds)[0]
        return logits

    def _check_sample(self, report: Mapping[str, Any]) -> None:
        try:
            sample = {name: np.asarray(values, dtype=np.float32) for name, values in report["sample"].items()}
            job = int(sample["job"])
            state = self.encode(Observation(sample["nodes"], sample["jobs"], sample["placement"], -1))
            given = {"node_state": state.nodes, "job_state": state.jobs}
            given["logits"] = self.decode(state, job, sample["step"])
            if state.minutes is not None:
                given[_MINUTES] = state.minutes
            is_alike = all(answers_alike(values, sample[name]) for name, values in given.items())
        except Exception as error:
            raise ModelError(
                f"{POLICY_ENCODER} and {POLICY_DECODER} do not run on their own sample: {error}"
            ) from error
        if not is_alike:
            raise ModelError(f"{_BOTH} do not answer their sample as when exported")


def _blank(nodes: int, jobs: int, running: int) -> Observation:
    tokens = np.zeros((jobs, JOB_FEATURES), dtype=np.float32)
    tokens[: jobs - running, IS_NEW] = 1.0
    return Observation(
        nodes=np.zeros((nodes, NODE_FEATURES), dtype=np.float32),
        jobs=tokens,
        placement=np.zeros((jobs, nodes, 2), dtype=np.float32),
        current=-1,
    )
