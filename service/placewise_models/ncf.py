"""The paper's NCF (LDWP/IAWP, equation 4): the description matrix of the kinds of subtasks that it was trained on.

It knows a subtask and a metric by their numbers alone, so that the whole matrix is computed at loading. Trains nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import onnxruntime

from placewise_core.basics.arrays import Float32
from placewise_core.basics.frozen import frozen
from placewise_core.subtasks.metrics import GPU_METRICS, METRICS
from placewise_core.subtasks.scale import from_unit
from placewise_models.session import ModelError, answers_alike, check_schema, open_column_net

NCF_MODEL, NCF_REPORT = "ncf.onnx", "ncf.json"
NCF_INPUTS = ("subtask", "metric")
_SCHEMA = "placewise.ncf/1"


def ncf_columns(gpus: int) -> tuple[str, ...]:
    """Metrics by their numbers: those of a node with one GPU, then the GPU metrics of each further one."""
    return (*METRICS, *(f"gpu{g}/{name}" for g in range(1, gpus) for name in GPU_METRICS))


@frozen
class NcfMatrix:
    """Implements subtasks.completed_metrics.KindMetrics: by kind, the metrics on each GPU of a node."""

    rows: Mapping[str, Sequence[Mapping[str, float]]]

    @classmethod
    def load(cls, content: bytes, report: Mapping[str, Any]) -> Self:
        """From the model's bytes and its report. Raises ModelError for one that is torn, reads other inputs, or does
        not answer its sample as it should."""
        check_schema(report, NCF_REPORT, _SCHEMA)
        try:
            gpus, first, kinds = (
                int(report["gpus"]),
                int(report["history_rows"]),
                [str(kind) for kind in report["kinds"]],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"{NCF_REPORT} names no kinds: export it again") from error
        session = open_column_net(content, NCF_MODEL, ncf_columns(gpus))
        if tuple(node.name for node in session.get_inputs()) != NCF_INPUTS:
            raise ModelError(f"{NCF_MODEL} reads other inputs than {' and '.join(NCF_INPUTS)}: export it again")
        _check_sample(session, report)
        values = _table(session, np.arange(first, first + len(kinds)), len(ncf_columns(gpus)))
        return cls({kind: _by_gpu(row, gpus) for kind, row in zip(kinds, values, strict=True)})

    def of_kind(self, kind: str, gpu: int) -> Mapping[str, float]:
        """Empty for an unknown kind. A GPU beyond those trained has the first one's metrics: that is what parameter
        transfer begins with."""
        row = self.rows.get(kind)
        return {} if row is None else row[gpu] if gpu < len(row) else row[0]


def _table(session: onnxruntime.InferenceSession, subtasks: "np.ndarray[Any, Any]", metrics: int) -> Float32:
    """(M, N) every value of these subtasks."""
    feeds = {
        "subtask": np.repeat(subtasks, metrics).astype(np.int64),
        "metric": np.tile(np.arange(metrics), len(subtasks)).astype(np.int64),
    }
    return np.asarray(_run(session, feeds), dtype=np.float32).reshape(len(subtasks), metrics)


def _run(session: onnxruntime.InferenceSession, feeds: Mapping[str, Any]) -> Any:
    try:
        return session.run(["value"], dict(feeds))[0]
    except Exception as error:  # the runtime's own exceptions share no base class
        raise ModelError(f"{NCF_MODEL} does not run: {error}") from error


def _check_sample(session: onnxruntime.InferenceSession, report: Mapping[str, Any]) -> None:
    try:
        sample = {name: np.asarray(report["sample"][name]) for name in (*NCF_INPUTS, "value")}
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{NCF_REPORT} has no sample: export it again") from error
    feeds = {name: sample[name].astype(np.int64) for name in NCF_INPUTS}
    if not answers_alike(_run(session, feeds), sample["value"]):
        raise ModelError(f"{NCF_MODEL} does not answer its sample as at its export: export it again")


def _by_gpu(row: Float32, gpus: int) -> tuple[dict[str, float], ...]:
    values = dict(zip(ncf_columns(gpus), row.tolist(), strict=True))
    found = []
    for g in range(gpus):
        own = {name: values[f"gpu{g}/{name}" if g else name] for name in GPU_METRICS}
        whole = {**{name: values[name] for name in METRICS}, **own}
        found.append(from_unit(np.array([whole[name] for name in METRICS])))
    return tuple(found)
