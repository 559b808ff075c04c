"""How much jobs on several nodes slow each other down at a site, learned from their reports. Decides nothing.

The store keeps decayed sums of x = ln(samples per second) in pairs of rows, a pair for each group of like jobs: model,
GPU type, batch, tasks, nodes and GPUs. One row is of reports while another job on several nodes was beside, the other
of reports without. In group g they have n and n' reports, and their means are Δ apart. Its weight is that of a
difference of two means, and a guess counts as `_GUESS_REPORTS` of such weights (Gelman et al., Bayesian Data Analysis,
2.5):

    ln(1 / (1 − loss)) = (Σ_g w_g·Δ_g + N₀·μ₀) / (Σ_g w_g + N₀),   w_g = n·n' / (n + n')

Which reports count, view/disturbance.py says.
"""

import math

from placewise_core.basics.frozen import frozen
from placewise_core.speed.learned.rows import SEPARATOR, SumRows

# A report counts half after this time: jobs, switches and drivers of a site change over weeks. A guess.
HALVING_S = 14 * 86_400.0

_PREFIX = f"{SEPARATOR}disturbance{SEPARATOR}"
_BESIDE, _APART = "beside", "apart"

# Before any report, half of the largest loss looked at (docs/unseen.md); chosen on scenarios of `--seed` 7 and 11.
_GUESS, _GUESS_REPORTS = 0.3, 0.25  # μ₀, as a logarithm, and N₀


@frozen
class Group:
    """Like jobs. `batch` is the global one, 0 if they declare none."""

    model: str
    gpu_type: str
    batch: int
    tasks: int
    nodes: int
    gpus: int

    def kind(self, *, is_beside: bool) -> str:
        """Of its row, among rows of subtask profiles."""
        numbers = [f"{self.batch}", f"{self.tasks}", f"{self.nodes}", f"{self.gpus}"]
        parts = [self.model, self.gpu_type, *numbers, _BESIDE if is_beside else _APART]
        return _PREFIX + SEPARATOR.join(parts)


def is_disturbance(kind: str) -> bool:
    """True for a row of disturbance among rows of subtask profiles."""
    return kind.startswith(_PREFIX)


class Disturbance(SumRows):
    """The rows of one cluster."""

    def __init__(self) -> None:
        super().__init__()
        self._found: tuple[float, float] | None = None

    def _drop_found(self) -> None:
        self._found = None

    @property
    def loss(self) -> float:
        """The share of its speed that a job on several nodes loses beside another one: 0 to below 1."""
        return self._estimate[0]

    @property
    def weight(self) -> float:
        """Σw: how many pairs of reports the loss rests on; 0 if on a guess."""
        return self._estimate[1]

    @property
    def _estimate(self) -> tuple[float, float]:
        if self._found is None:
            weight, total = self._pairs()
            logarithm = (total + _GUESS_REPORTS * _GUESS) / (weight + _GUESS_REPORTS)
            self._found = -math.expm1(-max(0.0, logarithm)), weight
        return self._found

    def _pairs(self) -> tuple[float, float]:
        """Σw and Σw·Δ as of the last report, in one order on every replica."""
        weight = total = 0.0
        now_s = max([sums.time_s for sums in self._rows.values()], default=0.0)
        for kind in sorted(self._rows):
            group, _, place = kind.rpartition(SEPARATOR)
            apart = self._rows.get(f"{group}{SEPARATOR}{_APART}")
            if place != _BESIDE or apart is None:
                continue
            ours, theirs = self._rows[kind].at(now_s, HALVING_S), apart.at(now_s, HALVING_S)
            w = ours.count * theirs.count / (ours.count + theirs.count)
            weight += w
            total += w * (theirs.mean - ours.mean)
        return weight, total
