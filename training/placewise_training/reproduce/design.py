"""The parts of a reproduction: experiments, metrics, outcomes. Plain data; runs nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from placewise_training.sim.policies import NeedsBundleError

__all__ = [
    "Curve",
    "Experiment",
    "InterruptedRunError",
    "Metric",
    "NeedsBundleError",
    "Plot",
    "Trial",
    "TrialOf",
    "TrialOutcome",
]

Curve = tuple[Sequence[float], Sequence[float]]  # x, y
Plot = Literal["bars", "lines", "curves", "none"]


class InterruptedRunError(Exception):
    """A run inside a trial was stopped by Ctrl-C: its return value is not a result."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A number of an outcome. `scale` turns it into the unit shown (seconds into hours, shares into %);
    `is_log` plots it on a logarithmic axis."""

    name: str
    title: str
    unit: str = ""
    scale: float = 1.0
    is_lower_better: bool = True
    is_plotted: bool = True
    is_log: bool = False


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """One run: numbers by metric, and curves by name (kept for the first seed alone)."""

    values: Mapping[str, float]
    curves: Mapping[str, Curve] = field(default_factory=dict)


# One run of a method in a setting: (setting, method, seed).
Trial = Callable[[str, str, int], TrialOutcome]


class TrialOf(NamedTuple):
    """One trial of a paper, by name."""

    experiment: str
    setting: str
    method: str
    seed: int


@dataclass(frozen=True, slots=True)
class Experiment:
    """One figure or table. `source` names it in the paper ("beyond the paper" if it is ours).

    `axis` is the title of the settings; with plot "lines" they are numbers. `theirs` holds numbers the paper prints,
    by (setting, method, metric), in the unit shown. `is_seeded` False: nothing random in it, one run is all.
    `least_seeds`: it is run on so many seeds at least, however few the others have. Seeds count from `first_seed`; with
    0, from the first seed of the paper's other experiments.
    """

    key: str
    title: str
    source: str
    settings: Sequence[str]
    methods: Sequence[str]
    metrics: Sequence[Metric]
    trial: Trial
    axis: str = ""
    plot: Plot = "bars"
    is_log_x: bool = False
    is_seeded: bool = True
    least_seeds: int = 0
    first_seed: int = 0
    curve_axes: tuple[str, str] = ("", "")
    theirs: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    note: str = ""

    def trials(self) -> list[tuple[str, str]]:
        """(setting, method), settings outermost: methods of one setting run next to each other."""
        return [(setting, method) for setting in self.settings for method in self.methods]
