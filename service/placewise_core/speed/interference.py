"""How much jobs that share one GPU slow each other down. The Protocol, and the model that knows nothing."""

from collections.abc import Sequence
from typing import Protocol


class GpuInterference(Protocol):
    """Predicts the relative speed of a job on a GPU it shares."""

    def relative_speed(self, model: str, others: Sequence[str], gpu_model: str) -> float:
        """Speed beside `others` (names of the models that share the GPU) over speed alone, in (0, 1]."""
        ...


class NoInterference:
    """Equal time slices: n jobs on one GPU run at 1/n of their speed each (Gavel's time-slicing without data)."""

    def relative_speed(self, model: str, others: Sequence[str], gpu_model: str) -> float:
        return 1.0 / (1 + len(others))
