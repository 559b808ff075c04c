"""How warm nodes of a type become under load, and how fast, learned from their reports. Decides nothing.

Partition's forecast is dT/dt = αP − β(T − T_amb) with α = 1/C and β = 1/(R·C) (partition/thermal.py). Over a step of Δ
seconds at constant load P, with θ the mean of its first and last T − T_amb, it says

    T₁ − T₀ = α·ΔP − β·Δθ + noise,

exact but for a factor tanh(Δβ/2)/(Δβ/2) on α and β alike, with normal noise. The rise under load is αP_load/β, the
time constant 1/β. Both have a log-normal prior about the shipped value, `_RISE_SD` and `_TIME_PRIOR_SD` wide. The
estimate is the mode of their joint posterior, found by Gauss and Newton's method on the sums of products. The intervals
come from the normal approximation there (Gelman et al., Bayesian Data Analysis, 4.1 and 13.3). The noise has a scaled
inverse χ² prior: `_NOISE_REPORTS` reports of `_NOISE_K`. The interval of the rise is that of a single node of the type,
if another single one has reported: nodes of a type differ.

P is watts where nodes report their power, else a share of full load. P_load is the mean P of busy units, and
`_LOAD_SD` standard deviations more: a node whose units work one by one shows less than its full load.

The store keeps decayed sums of x and x² in rows. A type has four: `flow` of x = θ/P and `change` of
x = (T₁ − T₀)/(ΔP), both of weight (ΔP)², `balance` of x = T₁ − T₀ + Δθ, and `busy` of x = P. They hold all the products
that least squares asks for. Which reports count, view/learned/heat.py says.
"""

import math
from collections.abc import Iterable

from placewise_core.basics.frozen import frozen
from placewise_core.speed.learned.rows import SEPARATOR, SumRows
from placewise_core.speed.learned.sums import Sums

# A report counts half after this time: fans and filters of a site change over weeks. A guess.
HALVING_S = 14 * 86_400.0

_PREFIX = f"{SEPARATOR}heat{SEPARATOR}"
_FLOW, _CHANGE, _BALANCE, _BUSY = "flow", "change", "balance", "busy"

# Chosen on seeds 61000 to 61099 of reproduce/learned/heat.py.
_RISE_SD, _TIME_PRIOR_SD = 0.3, 1.2
_NOISE_K, _NOISE_REPORTS = 2.0, 3.0
_LOAD_SD = 1.0
# Of the time constant, relative, beyond the error of the estimate: a load is not as constant as it looks.
_TIME_SD = 0.15
# Of the rise among nodes of a type, relative: 312 V100s of one cluster under one load (gpu_variability_thermal.csv).
_NODE_SD = 0.16
_OF_TWO_NODES = (_NODE_SD, _NODE_SD)  # of the one that reported, if it was only one, and of the one asked about
_MOST_RISE, _MOST_TIME = math.log(5.0), math.log(20.0)  # from the shipped value: beyond, the reports are wrong
_ROUNDS, _LONGEST_STEP = 30, 0.5
_TWO_SIDED_90 = 1.645


@frozen
class HeatGroup:
    """Units that are taken to warm up alike: the GPUs or the CPUs of nodes of a type. `is_power` is whether loads are
    watts (shares of full load otherwise)."""

    node_type: str
    unit: str
    is_power: bool

    @property
    def kind(self) -> str:
        """Prefix of its rows, among rows of subtask profiles."""
        return _PREFIX + SEPARATOR.join([self.node_type, self.unit, "power" if self.is_power else "utilisation"])


@frozen
class HeatStep:
    """Two reports of a unit: seconds between them, its load, °C above the ambient at the first and at the last."""

    seconds: float
    load: float
    before: float
    after: float


@frozen
class HeatConstants:
    """What reports say of a group: °C above the ambient under lasting load, seconds of the time constant, each with the
    bounds of its 90 % interval; the load itself; and how many reports there are."""

    rise: float
    low: float
    high: float
    time_constant_s: float
    low_s: float
    high_s: float
    load: float
    reports: float

    @property
    def resistance(self) -> float:
        """°C per unit of load: K/W where loads are watts."""
        return self.rise / self.load


def is_heat(kind: str) -> bool:
    """True for a row of heat among rows of subtask profiles."""
    return kind.startswith(_PREFIX)


def rows_of_step(group: HeatGroup, step: HeatStep) -> Iterable[tuple[str, float, float]]:
    """(kind, x, weight) of what a step adds to the sums."""
    theta, change = 0.5 * (step.before + step.after), step.after - step.before
    given = step.seconds * step.load
    yield f"{group.kind}{SEPARATOR}{_FLOW}", theta / step.load, given * given
    yield f"{group.kind}{SEPARATOR}{_CHANGE}", change / given, given * given
    yield f"{group.kind}{SEPARATOR}{_BALANCE}", change + step.seconds * theta, 1.0


def row_of_busy(group: HeatGroup, load: float) -> tuple[str, float, float]:
    """(kind, x, weight) of a report of a busy unit."""
    return f"{group.kind}{SEPARATOR}{_BUSY}", load, 1.0


class NodeHeat(SumRows):
    """The rows of one cluster."""

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[tuple[HeatGroup, float, float], HeatConstants | None] = {}

    def _drop_found(self) -> None:
        self._found.clear()

    def constants(self, group: HeatGroup, rise: float, time_constant_s: float) -> HeatConstants | None:
        """Of a group whose shipped rise under load (°C) and time constant are these; None before a report of a busy
        unit and one of a step."""
        key = (group, rise, time_constant_s)
        if key not in self._found:
            self._found[key] = self._constants(group, rise, time_constant_s)
        return self._found[key]

    def _constants(self, group: HeatGroup, rise: float, time_constant_s: float) -> HeatConstants | None:
        names = (_FLOW, _CHANGE, _BALANCE, _BUSY)
        rows = [self._rows.get(f"{group.kind}{SEPARATOR}{name}", Sums()) for name in names]
        now_s = max(row.time_s for row in rows)
        flow, change, balance, busy = (row.at(now_s, HALVING_S) for row in rows)
        if min(flow.count, change.count, balance.count, busy.count) <= 0 or busy.mean <= 0:
            return None
        load = busy.mean + _LOAD_SD * math.sqrt(busy.within / busy.count)
        return _fitted(_Products.of(flow, change, balance), load, rise, time_constant_s)


@frozen
class _Products:
    """Sums over steps of products of ΔP, Δθ and T₁ − T₀, and the number of steps."""

    load_load: float
    load_theta: float
    theta_theta: float
    load_change: float
    theta_change: float
    change_change: float
    count: float

    @classmethod
    def of(cls, flow: Sums, change: Sums, balance: Sums) -> "_Products":
        both = 0.5 * (balance.squares - change.squares - flow.squares)
        return cls(flow.count, flow.sum, flow.squares, change.sum, both, change.squares, balance.count)

    def scaled(self, load: float) -> "_Products":
        """The same of ΔP/load."""
        return _Products(
            self.load_load / load**2,
            self.load_theta / load,
            self.theta_theta,
            self.load_change / load,
            self.theta_change,
            self.change_change,
            self.count,
        )

    def residual(self, rise: float, rate: float) -> float:
        """Σ of the squared residuals; of scaled products."""
        explained = rise * self.load_change - self.theta_change
        return max(0.0, self.change_change - 2.0 * rate * explained + rate**2 * self._driven(rise))

    def _driven(self, rise: float) -> float:
        """Σ of the squares of rise·Δg − Δθ, g = P/P_load."""
        return max(0.0, rise * rise * self.load_load - 2.0 * rise * self.load_theta + self.theta_theta)

    def normal(self, rise: float, rate: float) -> tuple[float, float, float, float, float]:
        """The normal equations by ln(rise) and ln(rate): JᵀJ (three values), and Jᵀ times the residuals (two)."""
        of_rise = rate * rise  # J of the first is of_rise·Δg, of the second rate·(rise·Δg − Δθ)
        across = of_rise * rate * (rise * self.load_load - self.load_theta)
        left_rise = of_rise * self.load_change - across
        driven = rate * rate * self._driven(rise)
        left_rate = rate * (rise * self.load_change - self.theta_change) - driven
        return of_rise * of_rise * self.load_load, across, driven, left_rise, left_rate


def _fitted(data: _Products, load: float, rise: float, time_constant_s: float) -> HeatConstants:
    scaled, noise = data.scaled(load), _NOISE_K**2
    at, spread = (0.0, 0.0), (_RISE_SD, _TIME_PRIOR_SD)
    for _ in range(_ROUNDS):
        at, spread = _moved(scaled, at, noise, rise, 1.0 / time_constant_s)
        left = scaled.residual(rise * math.exp(at[0]), math.exp(at[1]) / time_constant_s)
        noise = (_NOISE_REPORTS * _NOISE_K**2 + left) / (_NOISE_REPORTS + data.count)
    learned, constant_s = rise * math.exp(at[0]), time_constant_s * math.exp(-at[1])
    sds = math.hypot(spread[0], *_OF_TWO_NODES), math.hypot(spread[1], _TIME_SD)
    of_rise, of_time = (math.exp(_TWO_SIDED_90 * each) for each in sds)
    return HeatConstants(
        learned, learned / of_rise, learned * of_rise,
        constant_s, constant_s / of_time, constant_s * of_time,
        load, data.count,
    )  # fmt: skip


def _moved(
    data: _Products, at: tuple[float, float], noise: float, rise: float, rate: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """A step towards the mode of ln(rise/shipped) and ln(rate/shipped), and their standard deviations there."""
    found = data.normal(rise * math.exp(at[0]), rate * math.exp(at[1]))
    of_rise, of_rate = _RISE_SD**-2, _TIME_PRIOR_SD**-2
    aa, ab, bb = found[0] / noise + of_rise, found[1] / noise, found[2] / noise + of_rate
    a, b = found[3] / noise - of_rise * at[0], found[4] / noise - of_rate * at[1]
    determinant = max(aa * bb - ab * ab, of_rise * of_rate)
    step = (bb * a - ab * b) / determinant, (aa * b - ab * a) / determinant
    scale = min(1.0, _LONGEST_STEP / max(abs(step[0]), abs(step[1]), 1e-12))
    rows = zip(at, step, (_MOST_RISE, _MOST_TIME), strict=True)
    moved = [min(max(x + scale * by, -most), most) for x, by, most in rows]
    return (moved[0], moved[1]), (math.sqrt(bb / determinant), math.sqrt(aa / determinant))
