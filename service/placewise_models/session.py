"""What every net of a bundle goes through on ONNX Runtime: loaded, read its feature schema, compared with its sample.

Trains nothing. One thread per session: a decision is one small net, and the cores are for other decisions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import ArrayLike, NDArray

from placewise_core.inputs.cluster import earlier_schemas, feature_schema

Sample = Mapping[str, NDArray[np.float32]]
Answers = Iterable[tuple[ArrayLike, ArrayLike]]
TOLERANCE = 1e-4  # other processors round otherwise than the exporter's did


class ModelError(ValueError):
    """A net that cannot be used; the message says why."""


def open_session(content: bytes, file: str) -> onnxruntime.InferenceSession:
    """A session on the bytes of a net. Raises ModelError for what ONNX Runtime cannot load."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # a refused file is reported by us
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime's own exceptions share no base class
        raise ModelError(f"{file} is not a model ONNX Runtime can load: {type(error).__name__}") from error


def open_token_net(content: bytes, file: str, model: str) -> onnxruntime.InferenceSession:
    """A session on a net that reads the tables of `model`, or their first columns if it is of an earlier release.
    Raises ModelError, also if the net was trained on other tables."""
    session = open_session(content, file)
    if schema_of_net(session) not in (feature_schema(model)["hash"], *earlier_schemas(model)):
        raise ModelError(f"{file} was trained on other features than this version encodes: train it again")
    return session


def open_column_net(content: bytes, file: str, columns: Sequence[str]) -> onnxruntime.InferenceSession:
    """A session on a net that names its columns itself. Raises ModelError, also if it was trained on other columns than
    `columns`."""
    session = open_session(content, file)
    check_columns(session, file, columns)
    return session


def run(session: onnxruntime.InferenceSession, outputs: Sequence[str], feeds: Mapping[str, NDArray[Any]]) -> list[Any]:
    """The outputs of a net, by its native session: what InferenceSession.run looks for before each run (inputs that are
    missing, or on another device) takes a tenth of a small net's time. Raises the runtime's own errors."""
    found: list[Any] = session._sess.run(outputs, feeds, None)
    return found


def columns_of_net(session: onnxruntime.InferenceSession) -> list[str]:
    """The columns that the net names; [] if none."""
    return [name for name in _property(session, "columns").split(",") if name]


def check_columns(session: onnxruntime.InferenceSession, file: str, columns: Sequence[str]) -> None:
    """Raises ModelError if the net was trained on other columns than `columns`."""
    if _property(session, "columns") != ",".join(columns):
        raise ModelError(f"{file} was trained on other columns than this version encodes: train it again")


def check_schema(report: Mapping[str, Any], file: str, schema: str) -> None:
    """Raises ModelError for another document."""
    if report.get("schema") != schema:
        raise ModelError(f"{file} is not a {schema} document")


def check_sample(report: Mapping[str, Any], net: str, answers: Callable[[Sample], Answers]) -> None:
    """Raises ModelError unless the net answers the sample in its report as at its export. `answers` gives pairs: the
    net's present answer, and the one at its export."""
    try:
        sample = {name: np.asarray(values, dtype=np.float32) for name, values in report["sample"].items()}
        is_alike = all(answers_alike(now, then) for now, then in answers(sample))
    except Exception as error:  # the runtime's own exceptions share no base class
        raise ModelError(f"{net} fails on the sample exported with it: {error}. Export it again") from error
    if not is_alike:
        raise ModelError(f"{net} does not answer its sample as at its export: export it again")


def answers_alike(given: ArrayLike, wanted: ArrayLike) -> bool:
    """True if a net answers its sample as at its export, up to the rounding of another processor."""
    ours, theirs = np.asarray(given), np.asarray(wanted)
    return ours.shape == theirs.shape and bool(np.allclose(ours, theirs, TOLERANCE, TOLERANCE))


def schema_of_net(session: onnxruntime.InferenceSession) -> str:
    """Hash of the feature tables that the net was trained on, by its own word; "" if it has none."""
    return _property(session, "feature_schema")


def _property(session: onnxruntime.InferenceSession, name: str) -> str:
    return str(session.get_modelmeta().custom_metadata_map.get(name, ""))
