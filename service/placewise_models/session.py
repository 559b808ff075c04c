"""What every net of a bundle goes through on ONNX Runtime: loaded, read its feature schema, compared with its sample.

Trains nothing. One thread per session: a decision is one small net, and the cores are for other decisions.
"""

import numpy as np
import onnxruntime
from numpy.typing import ArrayLike

from placewise_core.features import feature_schema

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


def check_features(session: onnxruntime.InferenceSession, file: str, model: str) -> None:
    """Raises ModelError unless the net was trained on the tables that this version encodes for `model`."""
    trained_on = session.get_modelmeta().custom_metadata_map.get("feature_schema", "")
    if trained_on != feature_schema(model)["hash"]:
        raise ModelError(f"{file} was trained on other features than this version encodes")


def answers_alike(given: ArrayLike, wanted: ArrayLike) -> bool:
    """True where a net answers its sample as it did when it was exported, up to the rounding of another processor."""
    ours, theirs = np.asarray(given), np.asarray(wanted)
    return ours.shape == theirs.shape and bool(np.allclose(ours, theirs, TOLERANCE, TOLERANCE))
