"""The outcomes of a reproduction: means with 95 % intervals over seeds, changes paired by seed. Judges nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from placewise_training.reproduce.design import Curve, TrialOutcome
from placewise_training.sim.statistics import Estimate, estimate, paired_change

Cell = tuple[str, str, str]  # experiment, setting, method
# What made results: `commit` and `command`; of a run with `--bundle` also `bundle`, and its `rows` by experiment and
# method: their settings.
RunOrigin = Mapping[str, Any]


@dataclass(slots=True)
class Results:
    """Outcomes by cell and seed. `missing` says why a cell has none, `stopped` why the whole is partial, `sittings` in
    how many runs of the command it was made, `origins` by which."""

    runs: dict[Cell, dict[int, TrialOutcome]] = field(default_factory=dict)
    missing: dict[Cell, str] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    stopped: str = ""
    wall_s: float = 0.0
    sittings: int = 1
    origins: tuple[RunOrigin, ...] = ()

    def add(self, cell: Cell, seed: int, outcome: TrialOutcome) -> None:
        """Raises ValueError if a number is not finite: NaN never reaches a table."""
        bad = [name for name, value in outcome.values.items() if not np.isfinite(value)]
        if bad:
            raise ValueError(f"{'/'.join(cell)}, seed {seed}: not finite: {', '.join(bad)}")
        if self.runs.get(cell):  # curves of the first seed are enough
            outcome = TrialOutcome(outcome.values)
        self.runs.setdefault(cell, {})[seed] = outcome

    def values(self, experiment: str, setting: str, method: str, metric: str) -> dict[int, float]:
        """By seed. Raises KeyError if it was not run."""
        return {s: float(o.values[metric]) for s, o in self.runs[experiment, setting, method].items()}

    def curves(self, experiment: str, setting: str, method: str) -> Mapping[str, Curve]:
        """Curves of the first seed; empty if it has none."""
        runs = self.runs.get((experiment, setting, method), {})
        return next(iter(runs.values())).curves if runs else {}

    def estimate(self, experiment: str, setting: str, method: str, metric: str) -> Estimate:
        """Mean and interval over seeds. Raises KeyError if it was not run."""
        return estimate(list(self.values(experiment, setting, method, metric).values()))

    def change(self, experiment: str, settings: Sequence[str], metric: str, ours: str, theirs: str) -> Estimate:
        """Relative change ours/theirs − 1, paired by seed; over several settings, the mean of a seed's changes. Raises
        KeyError without a setting, and if one was not run."""
        if not settings:
            raise KeyError(f"{experiment}: no setting was run")
        by_setting = [self._changes(experiment, setting, metric, ours, theirs) for setting in settings]
        common = set.intersection(*(set(changes) for changes in by_setting))
        return estimate([float(np.mean([changes[s] for changes in by_setting])) for s in sorted(common)])

    def _changes(self, experiment: str, setting: str, metric: str, ours: str, theirs: str) -> dict[int, float]:
        a = self.values(experiment, setting, ours, metric)
        b = self.values(experiment, setting, theirs, metric)
        common = sorted(set(a) & set(b))
        return {s: paired_change([a[s]], [b[s]]).mean for s in common}

    def difference(self, experiment: str, setting: str, metric: str, ours: str, theirs: str) -> Estimate:
        """ours − theirs, paired by seed."""
        a = self.values(experiment, setting, ours, metric)
        b = self.values(experiment, setting, theirs, metric)
        return estimate([a[s] - b[s] for s in sorted(set(a) & set(b))])

    def best(
        self, experiment: str, setting: str, metric: str, methods: Sequence[str], *, is_lower_better: bool = True
    ) -> str:
        """The method of best mean among those that ran. Raises KeyError if none did."""
        ran = [m for m in methods if self.runs.get((experiment, setting, m))]
        if not ran:
            raise KeyError(f"{experiment}/{setting}: none of {', '.join(methods)} ran")
        sign = 1.0 if is_lower_better else -1.0
        return min(ran, key=lambda m: sign * self.estimate(experiment, setting, m, metric).mean)
