"""Shares of divisible tasks from a log with the state of their units: what capability and heat of units are fitted to.

The view that each Partition read is rebuilt from the log of views.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from placewise_core.basics.arrays import FloatArray
from placewise_core.domain.decision import Share
from placewise_core.partition.capability import COMPONENTS, Weights, node_capabilities
from placewise_core.partition.thermal import Readings, readings_of
from placewise_core.partition.units import CPU_UNIT, units_of
from placewise_core.view.view import ClusterView
from placewise_log.reading import ExportedLog
from placewise_log.rebuilding import NotRebuiltError
from placewise_log.record import PARTITION, DecisionRecord
from placewise_log.store import LogStore
from placewise_training.log.index import LogIndex
from placewise_training.log.places import records
from placewise_training.log.units import at_least_s, share_heat

_CPU_COMPONENTS = 3  # of the five: CPU, memory and cache; a GPU unit has the others


class UnitHeat(NamedTuple):
    """°C of a unit before its share and at most during it, ambient °C and watts as its node reports them; NaN if it
    does not."""

    before: float
    peak: float
    ambient: float
    watts: float


class UnitRow(NamedTuple):
    """One share: `scale` of work of a kind on a unit, in `seconds`, or at least so many if `is_bound`. Capability (5)
    of the unit is Σ k·`parts` / Σ k·`present`: (5,) the Q_j of the components that it counts, times the nodes, and (5,)
    1 for those that the cluster has. `heat` is None if the host reported no temperature, or if the unit worked before
    on the part that cannot be split."""

    time_s: float
    kind: str
    is_on_gpu: bool
    parts: FloatArray
    present: FloatArray
    scale: float
    seconds: float
    is_bound: bool
    heat: UnitHeat | None


class _State(NamedTuple):
    """(5, M) parts of the nodes, (5,) which components there are; temperatures."""

    view: ClusterView
    parts: FloatArray
    present: FloatArray
    readings: Readings


@dataclass(slots=True)
class UnitRows:
    """`counts` has the shares that gave rows, of which `bounds`, and those that gave none, by reason."""

    store: LogStore
    index: LogIndex
    counts: Counter[str] = field(default_factory=Counter)

    def __iter__(self) -> Iterator[UnitRow]:
        """Raises LogError."""
        self.counts.clear()
        if not self.store.has("views"):
            self.counts["view not in the log"] += 1
            return
        log = ExportedLog(self.store.where)
        self.index.remember_heat(
            (each.decision_id, each.unit, each.peak_celsius) for each in share_heat(self.store) if each.peak_celsius > 0
        )
        for record in records(self.store, PARTITION):
            if record.partition is None or record.task is None or record.is_dry_run or record.progress:
                self.counts["dry run or rescheduling"] += 1
                continue
            shares = record.partition.plan.shares
            try:
                state = _state(log.view_at(record)) if shares else None
            except NotRebuiltError:
                self.counts["view not in the log"] += len(shares)
                continue
            for i, share in enumerate(shares):
                assert state is not None
                found = self._row(record, share, state, has_serial=i == 0 and record.task.serial_scale > 0)
                if isinstance(found, str):
                    self.counts[found] += 1
                else:
                    self.counts["shares"] += 1
                    self.counts["bounds"] += found.is_bound
                    yield found

    def _row(self, record: DecisionRecord, share: Share, state: _State, *, has_serial: bool) -> UnitRow | str:
        """The row, or why there is none."""
        assert record.task is not None
        unit = f"{share.node}/{share.unit}"
        part = self.index.share(record.decision_id, record.task.id, unit)
        seconds = part.seconds or at_least_s(part, record.time_s, self.index)
        m = state.view.nodes.index.get(share.node)
        if share.scale <= 0 or seconds <= 0 or m is None:
            return "nothing known of its end"
        is_on_gpu = share.unit != CPU_UNIT
        parts = np.zeros(len(COMPONENTS))
        of_unit = slice(_CPU_COMPONENTS, None) if is_on_gpu else slice(_CPU_COMPONENTS)
        parts[of_unit] = state.parts[of_unit, m]
        peak = None if has_serial or part.seconds is None else self.index.peak_celsius(record.decision_id, unit)
        heat = None
        if peak is not None:
            readings, at = state.readings, m if is_on_gpu else state.view.nodes.size + m
            before = float(readings.celsius[at])
            if not math.isnan(before):
                heat = UnitHeat(before, peak, float(readings.ambient[at]), float(readings.watts[at]))
        return UnitRow(
            record.time_s, record.task.kind, is_on_gpu, parts, state.present, share.scale, seconds,
            part.seconds is None, heat,
        )  # fmt: skip


def _state(view: ClusterView) -> _State:
    units = units_of(view)
    alone = np.eye(len(COMPONENTS))
    parts = np.stack(
        [
            node_capabilities(view, units.gpu_memory_gib, units.has_gpu, Weights(*alone[j]))[j]
            for j in range(len(COMPONENTS))
        ]
    )
    return _State(view, parts * view.nodes.size, (parts.sum(axis=1) > 0).astype(np.float64), readings_of(view))
