"""The units that may take a share, strongest first, and how long heat lets each of them work. Splits nothing."""

import weakref

import numpy as np

from placewise_core.basics.arrays import FloatArray, IntArray
from placewise_core.basics.frozen import frozen
from placewise_core.partition.exclusion import Exclusion
from placewise_core.partition.figures import Figures
from placewise_core.partition.learned.site_heat import heat_stamp
from placewise_core.view.view import ClusterView


@frozen
class UnitCandidates:
    """Usable units, strongest first: (K,) index, capability in scale per second, seconds allowed.

    If `is_limited` is False, every `allowed_s` is infinite.
    """

    rows: IntArray
    capability: FloatArray
    allowed_s: FloatArray
    is_limited: bool

    def led_by(self, i: int) -> "UnitCandidates":
        """The same with unit i first, which runs the serial part."""
        if i == 0:
            return self
        return self.take(np.concatenate([[i], np.delete(np.arange(len(self.rows)), i)]))

    def take(self, chosen: IntArray | slice) -> "UnitCandidates":
        return UnitCandidates(self.rows[chosen], self.capability[chosen], self.allowed_s[chosen], self.is_limited)

    def first(self, k: int) -> "UnitCandidates":
        """The k strongest; all if there are no more."""
        return self.take(slice(k)) if k < len(self.rows) else self

    def after(self, serial_scale: float) -> "UnitCandidates":
        """The first unit has worked off the serial part already: that much less may follow."""
        allowed = self.allowed_s.copy()
        allowed[0] = max(allowed[0] - serial_scale / self.capability[0], 0.0)
        return UnitCandidates(self.rows, self.capability, allowed, self.is_limited)

    @property
    def room(self) -> float:
        """Scale these units may take together before the first limit."""
        return float((self.capability * self.allowed_s).sum())


@frozen
class UnitOffer:
    """Who may take a share, who may not, and the mean capability C_p of those who may (0 without any)."""

    figures: Figures
    candidates: UnitCandidates
    exclusion: Exclusion
    mean: float


class StandingOffer:
    """The offer of the last view to a task without requirements of its own.

    It stands until a job comes or goes, a node reports, or a report grows stale; where capabilities are learned, also
    until a share ends or a task is of another kind.
    """

    def __init__(self) -> None:
        self._offer: UnitOffer | None = None
        self._view: weakref.ref[ClusterView] | None = None
        self._stamps: tuple[object, ...] = ()
        self._made_s = 0.0
        self._oldest_fresh_s = 0.0

    def of(self, view: ClusterView, now_s: float, learned: object = None) -> UnitOffer | None:
        """None if it has to be made again. `learned` tells apart what the offer reads of learned capabilities."""
        if self._view is None or self._view() is not view or self._stamps != (*_stamps(view), learned):
            return None
        has_aged = now_s < self._made_s or now_s - self._oldest_fresh_s > view.stale_after_s
        return None if has_aged else self._offer

    def keep(self, view: ClusterView, now_s: float, offer: UnitOffer, learned: object = None) -> None:
        """From now on, the offer of this view."""
        fresh = (view.nodes.observe_time_s > 0) & ~view.is_stale(now_s)
        self._oldest_fresh_s = float(view.nodes.observe_time_s.min(where=fresh, initial=np.inf))
        self._offer, self._view, self._made_s = offer, weakref.ref(view), now_s
        self._stamps = (*_stamps(view), learned)


def _stamps(view: ClusterView) -> tuple[int, int, int, int]:
    return view.nodes.layout_stamp, view.nodes.telemetry_stamp, view.usage.stamp, heat_stamp(view)
