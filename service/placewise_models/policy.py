"""Harmony's policy net on ONNX Runtime, in three graphs: one for the cluster, one for new jobs, one for each task.

Trains nothing. All prove at loading that they answer as when they were exported.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnxruntime

from placewise_core.basics.arrays import Float32
from placewise_core.basics.frozen import frozen
from placewise_core.inputs.cluster import JOB_FEATURES, NODE_FEATURES, STEP_FEATURES, Observation
from placewise_core.inputs.policy import JOB_STATE, LOGITS, NODE_STATE, STRETCH, encoder_inputs
from placewise_core.policies.harmony import ClusterState, PolicyState
from placewise_models.session import Answers, Sample, check_sample, check_schema, open_token_net, run

POLICY_ENCODER, POLICY_JOBS, POLICY_DECODER = "policy_encoder.onnx", "policy_jobs.onnx", "policy_decoder.onnx"
POLICY_GRAPHS, POLICY_REPORT = (POLICY_ENCODER, POLICY_JOBS, POLICY_DECODER), "policy.json"
_NET = f"the net of {POLICY_REPORT}"
_SCHEMA = "placewise.policy/3"
_WARM_UP = (
    (1, 1, 0),
    (30, 1, 32),
    (64, 16, 48),
)  # (nodes, new jobs, running ones): the smallest, a usual one, the largest


@frozen
class PolicyRuntime:
    """The policy net, ready. Implements place.harmony.PolicyNet; may be called from any thread.

    `memory`: the outputs of the first graph that the second reads; `outputs`: the second's outputs, with `stretch` if
    it predicts run times.
    """

    encoder: onnxruntime.InferenceSession
    jobs: onnxruntime.InferenceSession
    decoder: onnxruntime.InferenceSession
    memory: Sequence[str]
    outputs: Sequence[str]

    @classmethod
    def load(cls, encoder: bytes, jobs: bytes, decoder: bytes, report: Mapping[str, Any]) -> Self:
        """From the bytes of the graphs and their report. Raises ModelError for one that is torn, of other features,
        or that does not answer its parity sample as it should."""
        check_schema(report, POLICY_REPORT, _SCHEMA)
        runtime = cls.opened(encoder, jobs, decoder)
        check_sample(report, _NET, runtime._answers)
        for nodes, new, running in _WARM_UP:
            state = runtime.read(runtime.look(_blank(nodes, running)), _blank(nodes, new).jobs)
            runtime.decode(state, 0, np.zeros((nodes, STEP_FEATURES), dtype=np.float32))
        return runtime

    @classmethod
    def opened(cls, encoder: bytes, jobs: bytes, decoder: bytes) -> Self:
        """Without a report: compares no sample. Raises ModelError as `load` does."""
        graphs = zip(POLICY_GRAPHS, (encoder, jobs, decoder), strict=True)
        sessions = [open_token_net(content, file, "policy") for file, content in graphs]
        memory = tuple(found.name for found in sessions[0].get_outputs() if found.name != NODE_STATE)
        guesses = STRETCH in {found.name for found in sessions[1].get_outputs()}
        outputs = (JOB_STATE, STRETCH) if guesses else (JOB_STATE,)
        return cls(sessions[0], sessions[1], sessions[2], memory, outputs)

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """From the graphs in a folder; compares no sample. Raises ModelError as `load` does."""
        return cls.opened(*((folder / file).read_bytes() for file in POLICY_GRAPHS))

    def look(self, seen: Observation) -> ClusterState:
        """States of all nodes, and what new jobs are to be read beside."""
        nodes, *memory = run(self.encoder, (NODE_STATE, *self.memory), encoder_inputs(seen))
        return ClusterState(nodes, memory)

    def read(self, cluster: ClusterState, jobs: Float32) -> PolicyState:
        """States of new jobs."""
        feeds = dict(zip(self.memory, cluster.memory, strict=True))
        feeds["jobs"] = jobs
        return PolicyState(cluster.nodes, *run(self.jobs, self.outputs, feeds))

    def decode(self, state: PolicyState, job: int, step: Float32) -> Float32:
        """(2C,) logits of the next task of job `job`: a worker on each node, then a parameter server on each."""
        states = state.beside.get(job)
        if states is None:
            states = state.beside[job] = state.nodes + state.jobs[job]
        logits: Float32 = run(self.decoder, (LOGITS,), {"states": states, "step": step})[0]
        return logits.reshape(-1)

    def _answers(self, sample: Sample) -> Answers:
        cluster = self.look(Observation(sample["nodes"], sample["jobs"], sample["placement"], -1))
        state = self.read(cluster, sample["new_jobs"])
        yield state.nodes, sample[NODE_STATE]
        yield state.jobs, sample[JOB_STATE]
        yield self.decode(state, int(sample["job"]), sample["step"]), sample[LOGITS]
        if state.stretch is not None:
            yield state.stretch, sample[STRETCH]


def _blank(nodes: int, jobs: int) -> Observation:
    return Observation(
        nodes=np.zeros((nodes, NODE_FEATURES), dtype=np.float32),
        jobs=np.zeros((jobs, JOB_FEATURES), dtype=np.float32),
        placement=np.zeros((jobs, nodes, 2), dtype=np.float32),
        current=-1,
    )
