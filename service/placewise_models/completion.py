"""What the nets that complete a row of measurements have in common: loading, and the sample of their export."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from placewise_core.basics.arrays import FloatArray
from placewise_models.session import ModelError, answers_alike, open_column_net


class CompletionRuntime:
    """A net from `inputs` to "completed", ready. May be called from any thread."""

    model: ClassVar[str]
    report: ClassVar[str]
    schema: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]]

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self._session = session
        self.failures = 0

    @staticmethod
    @abstractmethod
    def columns() -> Sequence[str]:
        """The columns that the net has to be trained on."""

    @classmethod
    def load(cls, content: bytes, report: Mapping[str, Any]) -> Self:
        """From the model's bytes and its report. Raises ModelError for one that is torn, of other columns, or that does
        not answer its sample as it should."""
        if report.get("schema") != cls.schema:
            raise ModelError(f"{cls.report} is not a {cls.schema} document")
        runtime = cls.opened(content)
        runtime._check_sample(report)
        return runtime

    @classmethod
    def opened(cls, content: bytes) -> Self:
        """Without a report: compares no sample. Raises ModelError as `load` does."""
        return cls(open_column_net(content, cls.model, cls.columns()))

    def _run(self, feeds: Mapping[str, NDArray[Any]]) -> FloatArray:
        given = {name: array.astype(np.float32) for name, array in feeds.items()}
        return np.asarray(self._session.run(["completed"], given)[0], dtype=np.float64)

    def _check_sample(self, report: Mapping[str, Any]) -> None:
        try:
            sample = {name: np.asarray(values, dtype=np.float32) for name, values in report["sample"].items()}
            given = self._run({name: sample[name] for name in self.inputs})
        except Exception as error:  # the runtime's own exceptions share no base class
            raise ModelError(f"{self.model} fails on the sample exported with it: {error}. Export it again") from error
        if not answers_alike(given, sample["completed"]):
            raise ModelError(f"{self.model} does not answer its sample as at its export: export it again")
