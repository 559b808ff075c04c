"""The nets that complete a row of measurements share how they are loaded, and the check of their sample."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from placewise_core.basics.arrays import FloatArray
from placewise_models.session import Answers, Sample, check_sample, check_schema, open_column_net


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
        check_schema(report, cls.report, cls.schema)
        runtime = cls.opened(content)
        check_sample(report, cls.model, runtime._answers)
        return runtime

    @classmethod
    def opened(cls, content: bytes) -> Self:
        """Without a report: compares no sample. Raises ModelError as `load` does."""
        return cls(open_column_net(content, cls.model, cls.columns()))

    def _run(self, feeds: Mapping[str, NDArray[Any]]) -> FloatArray:
        given = {name: array.astype(np.float32) for name, array in feeds.items()}
        return np.asarray(self._session.run(["completed"], given)[0], dtype=np.float64)

    def _answers(self, sample: Sample) -> Answers:
        yield self._run({name: sample[name] for name in self.inputs}), sample["completed"]
