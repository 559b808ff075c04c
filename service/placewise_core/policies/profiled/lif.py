"""Least interference first (Harmony's LIF-Line and LIF-Quad): the node where tasks slow each other down least.

The model of slowdown is fitted to measurements (place/data/lif.json, made by placewise_training.data.fit_lif):
slowdown − 1 = a₁U + a₂B + a₃U² + a₄B², with U and B the shares of the node's CPU and bandwidth that *other* tasks hold.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from weakref import WeakKeyDictionary, ref

import numpy as np

from placewise_core.basics.arrays import BoolArray, FloatArray, IntArray
from placewise_core.basics.bounded import Bounded
from placewise_core.basics.slices import ONE_SLICE, Slices
from placewise_core.domain.job import Job, Resources
from placewise_core.gang.greedy import ScoredPolicy, Terms
from placewise_core.gang.offer import Offer
from placewise_core.policies.profiled.tables import LifCoefficients
from placewise_core.view.view import CPU, NETWORK, ClusterView

_KEPT_MODELS = 4096  # model names come from users, in any number
_KEPT_SHAPES = 16  # of jobs: each as long as the cluster
_TOGETHER = 32  # nodes from which arrays are faster than one node after the other
_PORTION = 1024  # nodes that are counted between two pauses


# Rows of a view's table: U, B, U², B² · the present loss of the tasks there · its first derivative and half its
# second, by the cores a task asks for and by its bandwidth · the sources of these: the constant and the
# coefficients of U, B, U² and B², summed over the tasks. Columns are nodes.
_U, _B, _UU, _BB, _PRESENT, _BY_CPU, _BY_CPU_SQUARED, _BY_NETWORK, _BY_NETWORK_SQUARED = range(9)
_SUMMED = slice(9, 14)
_PAIR = slice(CPU, NETWORK + 1, NETWORK - CPU)  # the rows of the two resources among all


@dataclass(slots=True)
class _Sums:
    """`table` (14, M) as of `stamps`: the score of a node is one weighted sum of the first rows of its column. `nodes`:
    capacity in cores and bandwidth of each node, and 1 over them, as of `layout_stamp`. `own`: (5, M) of `_own`, by
    model, cores and bandwidth."""

    table: FloatArray
    stamps: IntArray
    nodes: Sequence[tuple[float, float, float, float]]
    layout_stamp: int
    view: ref[ClusterView]
    own: Bounded[tuple[str, float, float], FloatArray]


class LeastInterference(ScoredPolicy):
    """Score = −Σ over all tasks on the node, the new one included, of (predicted slowdown − 1).

    A task that holds p of the CPU and q of the bandwidth sees U − p and B − q used by others; the sum over tasks of
    a₁(U−p) + a₂(B−q) + a₃(U−p)² + a₄(B−q)² is again quadratic in U and B: its value and derivatives at the present
    usage give its value with one more task. They are kept per node and renewed for changed nodes only.
    """

    def __init__(self, name: str, coefficients: LifCoefficients) -> None:
        self.name = name
        self._coefficients = coefficients
        self._of = lru_cache(maxsize=_KEPT_MODELS)(self._looked_up)
        self._kept: Bounded[tuple[str, float, float], FloatArray] = Bounded(_KEPT_MODELS)
        self._sums: WeakKeyDictionary[ClusterView, _Sums] = WeakKeyDictionary()
        self._last: tuple[Callable[[], ClusterView | None], _Sums | None] = (
            lambda: None,
            None,
        )  # mostly it is the same

    def _looked_up(self, model: str) -> tuple[float, float, float, float]:
        a1, a2, a3, a4 = self._coefficients.of(model).tolist()
        return a1, a2, a3, a4

    def prepare(self, view: ClusterView, now_s: float) -> None:
        """Counts the nodes that changed since they were asked about."""
        sums = self._sums.get(view)
        if sums is not None:
            self._renewed(view, sums.stamps > 0, ONE_SLICE)

    def scores(self, offer: Offer) -> FloatArray:
        if offer.nodes is None and offer.depth == 1:
            return offer.kept(self._weighed(offer), self._counted)
        return self._counted(offer)

    def terms(self, offer: Offer, m: int) -> Terms:
        used = (offer.capacity - offer.free) * offer.inverse_capacity
        return (
            ("interference", -float(self.scores(offer)[0, m])),
            ("cpu_used", float(used[CPU, 0, m])),
            ("bandwidth_used", float(used[NETWORK, 0, m])),
        )

    def slowdown(self, model: str, cpu: float, bandwidth: float) -> float:
        """Predicted slowdown of one task beside others that hold these shares of the node."""
        a1, a2, a3, a4 = self._of(model)
        return 1.0 + a1 * cpu + a2 * bandwidth + a3 * cpu * cpu + a4 * bandwidth * bandwidth

    def _weighed(self, offer: Offer) -> FloatArray:
        """(M,) without tasks of the gang, right for the nodes that may take the next one."""
        # Not a matrix product: that may round equal nodes differently, and ties go to the first.
        weights = self._weights(offer.job, offer.demand)
        table = self._renewed(offer.view, offer.mask, offer.slices)
        scores: FloatArray = np.add.reduce(weights * table[: len(weights)], axis=0)
        return scores

    def _weights(self, job: Job, demand: FloatArray) -> FloatArray:
        """(9, 1) weights of the table's rows in the score; (7, 1) for a task that asks for no bandwidth, whose last two
        would be 0."""
        key = (job.model, float(demand[CPU]), float(demand[NETWORK]))
        weights = self._kept.get(key)
        if weights is None:
            model, cpu, network = key
            row = [*self._of(model), 1.0, cpu, cpu * cpu, *((network, network * network) if network else ())]
            weights = self._kept[key] = -np.array(row)[:, None]
        return weights

    def _counted(self, offer: Offer) -> FloatArray:
        """(J, N) with tasks of the gang."""
        scale = offer.inverse_capacity[_PAIR]
        cpu_scale, network_scale = scale[:, 0]
        table = self._renewed(offer.view, offer.whole.mask, offer.slices)
        own = self._own_at(offer, cpu_scale, network_scale)
        sums: FloatArray = np.empty((5, offer.depth, own.shape[1]))
        sums[:, 0], sums[:, 1:] = table[_SUMMED, offer.at], own[:, None]
        for i, m in offer.changed:
            for group in offer.left_on(m).tasks:
                sums[:, 0, i : i + 1] += self._own(
                    offer.job.model, group.demand, cpu_scale[i : i + 1], network_scale[i : i + 1]
                )
        np.add.accumulate(sums, axis=1, out=sums)
        weights = self._weights(offer.job, offer.demand)[:, None]
        terms = _scored(sums, (offer.capacity[_PAIR] - offer.free[_PAIR]) * scale, scale)[: len(weights)]
        terms *= weights
        scores: FloatArray = np.add.reduce(terms, axis=0)
        return scores

    def _own_at(self, offer: Offer, cpu_scale: FloatArray, network_scale: FloatArray) -> FloatArray:
        """(5, N) `_own` of the offer's next task; kept for all nodes, as jobs come in few shapes. Do not write."""
        model, demand, sums = offer.job.model, offer.group.demand, self._last[1]
        if offer.nodes is not None or sums is None:
            return self._own(model, demand, cpu_scale, network_scale)
        key = (model, demand.cpu_cores, demand.network_gbps)
        own = sums.own.get(key)
        if own is None:
            own = sums.own[key] = self._own(model, demand, cpu_scale, network_scale)
        return own

    def _own(self, model: str, demand: Resources, cpu_scale: FloatArray, network_scale: FloatArray) -> FloatArray:
        """(5, N) share of one task in the sums of _column."""
        a1, a2, a3, a4 = self._of(model)
        p, q = demand.cpu_cores * cpu_scale, demand.network_gbps * network_scale
        own: FloatArray = np.empty((5, len(p)))
        own[0] = -a1 * p - a2 * q + a3 * p * p + a4 * q * q
        own[1], own[2] = a1 - 2.0 * a3 * p, a2 - 2.0 * a4 * q
        own[3:] = ((a3,), (a4,))
        return own

    def _renewed(self, view: ClusterView, asked: BoolArray, slices: Slices) -> FloatArray:
        """(14, M) the table, right in the columns that are asked for."""
        sums = self._last[1] if self._last[0]() is view else self._sums.get(view)
        if sums is None or sums.layout_stamp != view.nodes.layout_stamp:
            sums = self._sums[view] = _begun(view)
        self._last = (sums.view, sums)
        is_old = sums.stamps != view.usage.node_stamp
        is_old &= asked
        old = is_old.nonzero()[0]
        if len(old) < _TOGETHER:
            for m in old.tolist():
                sums.table[:, m] = self._column(view, m, sums.nodes[m])
            sums.stamps[old] = view.usage.node_stamp[old]
            return sums.table
        for at in range(0, len(old), _PORTION):
            portion = old[at : at + _PORTION]
            sums.table[:, portion] = self._columns(view, portion)
            sums.stamps[portion] = view.usage.node_stamp[portion]
            slices.pause()
        return sums.table

    def _column(self, view: ClusterView, m: int, node: tuple[float, float, float, float]) -> tuple[float, ...]:
        constant = u = b = uu = bb = 0.0  # of the polynomial in U and B; a task's part of it is also in _own
        cores, gbps, cpu_scale, network_scale = node
        coefficients = self._of
        for model, demand in view.usage.tasks_at(m):
            a1, a2, a3, a4 = coefficients(model)
            p, q = demand.cpu_cores * cpu_scale, demand.network_gbps * network_scale
            constant += -a1 * p - a2 * q + a3 * p * p + a4 * q * q
            u += a1 - 2.0 * a3 * p
            b += a2 - 2.0 * a4 * q
            uu += a3
            bb += a4
        free: list[float] = view.usage.free[:, m].tolist()
        cpu, network = (cores - free[CPU]) * cpu_scale, (gbps - free[NETWORK]) * network_scale
        return (
            cpu,
            network,
            cpu * cpu,
            network * network,
            constant + u * cpu + b * network + uu * cpu * cpu + bb * network * network,
            (u + 2.0 * uu * cpu) * cpu_scale,
            uu * cpu_scale * cpu_scale,
            (b + 2.0 * bb * network) * network_scale,
            bb * network_scale * network_scale,
            *(constant, u, b, uu, bb),
        )

    def _columns(self, view: ClusterView, nodes: IntArray) -> FloatArray:
        """(14, N) as _column for many nodes, to the last bit: sums run in the same order."""
        tasks = [list(view.usage.tasks_at(m)) for m in nodes.tolist()]
        at = np.repeat(np.arange(len(nodes)), [len(here) for here in tasks])
        held = [(*self._of(model), d.cpu_cores, d.network_gbps) for here in tasks for model, d in here]
        a1, a2, a3, a4, cores, gbps = np.array(held, dtype=np.float64).reshape(-1, 6).T
        scale, used = (
            view.nodes.inverse_capacity[_PAIR, nodes],
            view.nodes.capacity[_PAIR, nodes] - view.usage.free[_PAIR, nodes],
        )
        p, q = cores * scale[0, at], gbps * scale[1, at]
        terms = (-a1 * p - a2 * q + a3 * p * p + a4 * q * q, a1 - 2.0 * a3 * p, a2 - 2.0 * a4 * q, a3, a4)
        sums = np.array([np.bincount(at, term, len(nodes)) for term in terms])
        return np.concatenate([_scored(sums, used * scale, scale), sums])


def _begun(view: ClusterView) -> _Sums:
    """No node is counted yet: the stamps of a view begin at 1."""
    rows = [CPU, NETWORK]
    nodes = list(zip(*view.nodes.capacity[rows].tolist(), *view.nodes.inverse_capacity[rows].tolist(), strict=True))
    table, stamps = np.zeros((14, view.nodes.size)), np.zeros(view.nodes.size, dtype=np.int64)
    return _Sums(table, stamps, nodes, view.nodes.layout_stamp, ref(view), Bounded(_KEPT_SHAPES))


def _scored(sums: FloatArray, used: FloatArray, scale: FloatArray) -> FloatArray:
    """(9, …) the rows of the table that tasks are scored by: from the sums (5, …), and from the shares of CPU and
    bandwidth in use and 1 over their capacity (2, …)."""
    constant, linear, squared = sums[0], sums[1:3], sums[3:]
    here, bent = linear * used, squared * used * used
    rows: FloatArray = np.empty((9, *used.shape[1:]))
    rows[:2] = used
    np.multiply(used, used, out=rows[2:4])
    np.add(constant + here[0] + here[1] + bent[0], bent[1], out=rows[_PRESENT])
    np.multiply(linear + 2.0 * squared * used, scale, out=rows[_BY_CPU::2])
    np.multiply(squared * scale, scale, out=rows[_BY_CPU_SQUARED::2])
    return rows
