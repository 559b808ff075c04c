"""How much jobs that share one GPU slow each other down: the Protocol, equal time slices, and measured pairs.

Never decides who may share: that compares these predictions with every job's own limit (gang/gpus.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from placewise_core.basics.bounded import Bounded
from placewise_core.domain.model_names import canonical, nearest

_KEPT_ANSWERS = 100_000  # combinations of models, which users name, in any number


class GpuInterference(Protocol):
    """Predicts the relative speed of a job on a GPU it shares."""

    def relative_speed(self, model: str, others: Sequence[str], gpu_model: str) -> float:
        """Speed beside `others` (names of the models that share the GPU) over speed alone, in (0, 1]; 0 if they
        do not fit into its memory together."""
        ...

    def careful_speed(self, model: str, others: Sequence[str], gpu_model: str) -> float:
        """The speed to compare with a limit: lower than `relative_speed` where that is an uncertain estimate."""
        return self.relative_speed(model, others, gpu_model)


def composed(speeds: Iterable[float]) -> float:
    """Relative speed beside several, from those beside each of them: extra time adds up, 1/speed = 1 + Σ_j (1/speed
    beside j − 1); 0 if one of them is 0.

    Equal time slices are the fixed point of this rule (pairs at ½ give 1/n for n jobs); what three jobs really do to
    each other has not been published.
    """
    extra = 0.0
    for speed in speeds:
        if speed <= 0.0:
            return 0.0
        extra += 1.0 / speed - 1.0
    return 1.0 / (1.0 + extra)


class NoInterference:
    """Equal time slices: n jobs on one GPU run at 1/n of their speed each (Gavel's time-slicing without data)."""

    def relative_speed(self, model: str, others: Sequence[str], gpu_model: str) -> float:
        return 1.0 / (1 + len(others))

    def careful_speed(self, model: str, others: Sequence[str], gpu_model: str) -> float:
        return self.relative_speed(model, others, gpu_model)


@dataclass(frozen=True)
class MeasuredInterference:
    """Measured pairs on one GPU (Gavel, MIT licence), composed for three and more.

    `pairs[gpu][a][b]` is the relative speed of model `a` beside `b`, canonical names; 0 if every measured
    combination ran out of memory. `default[gpu]` stands for an unknown pair: the lower quartile of the measurements on
    that GPU, at most ½, so that an unknown neighbour is rather refused than trusted. `step_s[gpu][a]`:
    seconds per step of the model alone, the geometric mean of its measurements; may be missing.

    Unknown models: the nearest known one by name; unknown GPU models: `fallback_gpu`.
    """

    pairs: Mapping[str, Mapping[str, Mapping[str, float]]]
    default: Mapping[str, float]
    fallback_gpu: str
    step_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @classmethod
    def from_table(cls, table: Mapping[str, object]) -> "MeasuredInterference":
        """From the packaged table (place/data/interference.json). Raises KeyError for a table of another form."""
        return cls(
            pairs=table["pairs"],  # type: ignore[arg-type]
            default=table["default"],  # type: ignore[arg-type]
            fallback_gpu=table["fallback_gpu"],  # type: ignore[arg-type]
            step_s=table.get("step_s", {}),  # type: ignore[arg-type]
        )

    def relative_speed(self, model: str, others: Sequence[str], gpu_model: str) -> float:
        if not others:
            return 1.0
        key = (model, *others, gpu_model)
        known = self._answers.get(key)
        if known is None:
            gpu = self.gpu_of(gpu_model)
            known = self._answers[key] = composed([self._pair(model, other, gpu) for other in others])
        return known

    def careful_speed(self, model: str, others: Sequence[str], gpu_model: str) -> float:
        return self.relative_speed(model, others, gpu_model)

    @cached_property
    def references(self) -> tuple[str, ...]:
        """The models measured on every GPU model, by name."""
        return tuple(sorted(set.intersection(*(set(rows) for rows in self.pairs.values()))))

    def pair(self, model: str, other: str, gpu_model: str) -> float:
        """Relative speed of a model beside one other."""
        return self._pair(model, other, self.gpu_of(gpu_model))

    def gpu_of(self, gpu_model: str) -> str:
        """The measured GPU model that answers for this one."""
        return self.measured_gpu(gpu_model) or self.fallback_gpu

    def measured_gpu(self, gpu_model: str) -> str | None:
        """The measured GPU model that this one is; None if nothing was measured on it."""
        wanted = canonical(gpu_model)
        return next((gpu for gpu in self.pairs if canonical(gpu) in wanted), None)

    def _pair(self, model: str, other: str, gpu: str) -> float:
        table = self.pairs[gpu]
        a, b = nearest(model, table), nearest(other, table)
        if a is None or b is None:
            return self.default[gpu]
        return table[a].get(b, self.default[gpu])

    @cached_property
    def _answers(self) -> Bounded[tuple[str, ...], float]:
        return Bounded(_KEPT_ANSWERS)
