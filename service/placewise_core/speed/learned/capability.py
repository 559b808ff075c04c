"""How fast units of a site do a kind of divisible task, learned from the shares that ended. Decides nothing.

The store keeps decayed sums of x = ln(computing scale per second): a row for each kind of task, unit (GPU or CPU) and
type of node. By the weights of (5) a unit of the type does c per second while the cluster is idle
(partition/capability.py). Learned are the residuals y = x − ln c by the bundle at hand, so the rows serve every bundle.
They shrink towards the shipped value (y = 0) at three levels:

    kind of task     k ~ N(0, τ_k²): hosts state the scale of a kind in a unit of their own
    unit             u ~ N(k, τ_u²): a kind may suit GPUs better than the weights say
    type of node     t ~ N(u, τ_t²)
    report           y ~ N(t, σ²),  σ² = (ν₀σ₀² + Σ(y − ȳ)²) / (ν₀ + Σ(n − 1)) over the rows of the kind

which is a hierarchical normal model, solved exactly (Gelman et al., Bayesian Data Analysis, 5.4): up from the reports,
then down again. The interval is of the next share on another node: t ± z·√(V + τ_n² + σ²), z by Student's
distribution. Which reports count, view/learned/capability.py says.
"""

import math
from collections.abc import Mapping, Sequence

from placewise_core.basics.frozen import frozen
from placewise_core.speed.learned.normal import Estimate, Normal
from placewise_core.speed.learned.rows import SEPARATOR, SumRows
from placewise_core.speed.learned.sums import Sums

# A report counts half after this time: programs and drivers of a site change over weeks. A guess.
HALVING_S = 14 * 86_400.0

_PREFIX = f"{SEPARATOR}capability{SEPARATOR}"

# Chosen on seeds 61000 to 61299 of reproduce/learned/capability.py.
_KIND_SD, _UNIT_SD, _TYPE_SD = 1.0, 0.6, 0.6  # τ_k, τ_u, τ_t
_NOISE, _NOISE_REPORTS = 0.15, 3.0  # σ₀ and ν₀
_NODE_SD = 0.1  # τ_n, of a node that has not reported, about the nodes of its type that have

UnitType = tuple[str, str]  # type of node, and "gpu" or "cpu"


@frozen
class CapabilityGroup:
    """Units that are taken to do a kind of task alike."""

    task_kind: str
    node_type: str
    unit: str

    @property
    def kind(self) -> str:
        """Of its row, among rows of subtask profiles."""
        return _PREFIX + SEPARATOR.join([self.task_kind, self.node_type, self.unit])


def is_capability(kind: str) -> bool:
    """True for a row of capabilities among rows of subtask profiles."""
    return kind.startswith(_PREFIX)


def group_of(kind: str) -> CapabilityGroup:
    """The inverse of CapabilityGroup.kind."""
    return CapabilityGroup(*kind.removeprefix(_PREFIX).split(SEPARATOR))


class Capabilities(SumRows):
    """The rows of one cluster."""

    def __init__(self) -> None:
        super().__init__()
        self._task_kinds: frozenset[str] | None = None

    @property
    def task_kinds(self) -> frozenset[str]:
        """Kinds of tasks with a report."""
        if self._task_kinds is None:
            self._task_kinds = frozenset(group_of(kind).task_kind for kind in self._rows)
        return self._task_kinds

    def has(self, task_kind: str, of: UnitType) -> bool:
        """Whether there is a report of it."""
        return CapabilityGroup(task_kind, *of).kind in self._rows

    def estimates(self, task_kind: str, shipped: Mapping[UnitType, float]) -> dict[UnitType, Estimate]:
        """The factors on shipped capabilities, computing scale per second; empty before a report of the kind on one of
        these. Only the rows count, so every replica has the same."""
        rows = {of: self._rows.get(CapabilityGroup(task_kind, *of).kind) for of in shipped}
        known = {of: sums for of, sums in rows.items() if sums is not None and sums.count > 0}
        if not known:
            return {}
        now_s = max(sums.time_s for sums in known.values())
        return _estimated({of: sums.at(now_s, HALVING_S) for of, sums in known.items()}, shipped)

    def _drop_found(self) -> None:
        self._task_kinds = None


def _estimated(rows: Mapping[UnitType, Sums], shipped: Mapping[UnitType, float]) -> dict[UnitType, Estimate]:
    freedom = _NOISE_REPORTS + sum(max(0.0, sums.count - 1.0) for sums in rows.values())
    noise = (_NOISE_REPORTS * _NOISE**2 + sum(sums.within for sums in rows.values())) / freedom
    seen = {of: Normal(sums.mean - math.log(shipped[of]), noise / sums.count) for of, sums in rows.items()}
    names = sorted({unit for _, unit in shipped})
    by_unit = {name: [seen[of].wider(_TYPE_SD) for of in sorted(seen) if of[1] == name] for name in names}
    kind = Normal(0.0, _KIND_SD**2).after(_together(some).wider(_UNIT_SD) for some in by_unit.values() if some)
    units = {name: _about(kind, _UNIT_SD, some) for name, some in by_unit.items()}
    counts = {name: sum(sums.count for of, sums in rows.items() if of[1] == name) for name in names}
    found = {}
    for of in shipped:
        own = _about(units[of[1]], _TYPE_SD, [seen[of]] if of in seen else [])
        if of in rows:
            source, reports = "kind, unit and type of node", rows[of].count
        elif counts[of[1]]:
            source, reports = "kind and unit", counts[of[1]]
        else:
            source, reports = "kind", sum(counts.values())
        found[of] = Estimate(own.mean, own.variance + _NODE_SD**2, noise, freedom, reports, source)
    return found


def _together(seen: Sequence[Normal]) -> Normal:
    """Several observations of one thing, as one."""
    return seen[0].after(seen[1:])


def _about(parent: Normal, spread: float, seen: Sequence[Normal]) -> Normal:
    """Of something that lies about `parent`. The belief of the parent has counted `seen` already."""
    own = Normal(0.0, spread * spread).after(seen)  # if the parent were 0
    share = own.variance / (spread * spread)
    return Normal(own.mean + share * parent.mean, own.variance + share * share * parent.variance)
