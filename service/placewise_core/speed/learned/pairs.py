"""How fast models of a site run beside each other on one GPU, learned from reports of progress. Decides nothing.

The store keeps decayed sums of x = ln(samples per second) of jobs on one GPU: a row for each model, GPU type and batch
with the GPU to itself, and one for each partner beside it. Alone and beside there are n and n' reports, and their means
are Δ apart. Over the batches of a pair

    ln s = −Σ w·Δ / Σ w,   w = n·n' / (n + n'),   variance σ² / Σ w,   σ² = (ν₀σ₀² + Σ(x − x̄)²) / (ν₀ + Σ(n − 1))

with the sums of σ² over all rows. A forecast shrinks the speed s towards the shipped one (completed_interference.py),
and other pairs of the two models follow it as they follow the co-runs that jobs bring (site_pairs.py). Which reports
count, view/learned/pairs.py says.
"""

import math
from collections.abc import Mapping

from placewise_core.basics.frozen import frozen
from placewise_core.speed.co_runs import KnownCoRuns, LearnedCell, learned_rows
from placewise_core.speed.learned.rows import SEPARATOR, SumRows
from placewise_core.speed.learned.sums import Sums

# A report counts half after this time: software and drivers change over weeks. A guess.
HALVING_S = 14 * 86_400.0

_PREFIX = f"{SEPARATOR}pair{SEPARATOR}"
_NOISE, _NOISE_REPORTS = 0.1, 3.0  # σ₀ and ν₀, as those of throughputs.py
_MOST_PAIRS = 300  # in forecasts: some milliseconds for the first one after a report
_LEAST = 0.01  # a relative speed: below, the reports are wrong


@frozen
class PairGroup:
    """Like jobs on one GPU each, beside one of the model `partner`, "" for none. `batch` is 0 if they declare none."""

    model: str
    gpu_type: str
    batch: int
    partner: str = ""

    @property
    def kind(self) -> str:
        """Of its row, among rows of subtask profiles."""
        return _PREFIX + SEPARATOR.join([self.model, self.gpu_type, f"{self.batch}", self.partner])


def is_pair(kind: str) -> bool:
    """True for a row of pairs among rows of subtask profiles."""
    return kind.startswith(_PREFIX)


def pair_group_of(kind: str) -> PairGroup:
    """The inverse of PairGroup.kind."""
    model, gpu_type, batch, partner = kind.removeprefix(_PREFIX).split(SEPARATOR)
    return PairGroup(model, gpu_type, int(batch), partner)


class LearnedPairs(SumRows):
    """The rows of one cluster."""

    def __init__(self) -> None:
        super().__init__()
        self._known: KnownCoRuns | None = None
        self._groups: dict[str, PairGroup] = {}  # by kind of row

    def learn(self, kind: str, row: Mapping[str, float]) -> None:
        """As SumRows."""
        if kind not in self._groups:
            self._groups[kind] = pair_group_of(kind)
        super().learn(kind, row)

    def forget(self, kind: str) -> None:
        """As SumRows."""
        self._groups.pop(kind, None)
        super().forget(kind)

    @property
    def known(self) -> KnownCoRuns:
        """The pairs with reports alone and beside, those with most reports; the same object until a row changes."""
        if self._known is None:
            cells = sorted(self.cells(), key=lambda cell: -cell.reports)[:_MOST_PAIRS]
            self._known = KnownCoRuns(learned_rows(cells))
        return self._known

    def cells(self) -> list[LearnedCell]:
        """The same one by one, in one order on every replica."""
        now_s = max([sums.time_s for sums in self._rows.values()], default=0.0)
        rows = {self._groups[kind]: self._rows[kind].at(now_s, HALVING_S) for kind in sorted(self._rows)}
        freedom = _NOISE_REPORTS + sum([max(0.0, sums.count - 1.0) for sums in rows.values()])
        noise = (_NOISE_REPORTS * _NOISE**2 + sum([sums.within for sums in rows.values()])) / freedom
        found: dict[tuple[str, str, str], tuple[float, float, float]] = {}
        for group, beside in rows.items():
            alone = rows.get(PairGroup(group.model, group.gpu_type, group.batch), Sums())
            if not group.partner or min(alone.count, beside.count) <= 0:
                continue
            at = group.model, group.partner, group.gpu_type
            weight, total, reports = found.get(at, (0.0, 0.0, 0.0))
            w = alone.count * beside.count / (alone.count + beside.count)
            found[at] = weight + w, total + w * (beside.mean - alone.mean), reports + beside.count
        return [
            LearnedCell(*at, min(1.0, max(_LEAST, math.exp(total / weight))), noise / weight, reports)
            for at, (weight, total, reports) in found.items()
        ]

    def _drop_found(self) -> None:
        self._known = None
