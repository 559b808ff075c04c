"""Least interference first (Harmony's LIF-Line and LIF-Quad): the node where tasks slow each other down least.

The model of slowdown is fitted to measurements (place/data/lif.json, made by placewise_training.data.fit_lif):
slowdown − 1 = a₁U + a₂B + a₃U² + a₄B², with U and B the shares of the node's CPU and bandwidth that *other* tasks hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from weakref import WeakKeyDictionary

import numpy as np

from placewise_core.job import Job
from placewise_core.place.decode import decode
from placewise_core.place.policy import PlaceContext, Proposal, TaskContext
from placewise_core.place.tables import LifCoefficients
from placewise_core.view import CPU, NETWORK, ClusterView, FloatArray, IntArray

_KEPT_MODELS = 4096  # model names come from users, in any number


@dataclass(slots=True)
class _Sums:
    """What the scores of a view's nodes are made of, as of `stamps`. Columns are nodes.

    `usage` (4, M): U, B, U², B². `present` (M,): the sum over the tasks there now. `slopes` and `curves` (2, M): its
    first derivative and half its second, by U and by B.
    """

    usage: FloatArray
    present: FloatArray
    slopes: FloatArray
    curves: FloatArray
    stamps: IntArray


class LeastInterference:
    """Score = −Σ over all tasks on the node, the new one included, of (predicted slowdown − 1).

    A task that holds p of the CPU and q of the bandwidth sees U − p and B − q used by others; the sum over tasks of
    a₁(U−p) + a₂(B−q) + a₃(U−p)² + a₄(B−q)² is again quadratic in U and B: its value and derivatives at the present
    usage say what it becomes with one more task. They are kept per node and renewed for the nodes that changed only.
    """

    def __init__(self, name: str, coefficients: LifCoefficients) -> None:
        self.name = name
        self._of = lru_cache(maxsize=_KEPT_MODELS)(coefficients.of)
        self._sums: WeakKeyDictionary[ClusterView, _Sums] = WeakKeyDictionary()

    def order(self, jobs: Sequence[Job], view: ClusterView, context: PlaceContext) -> Sequence[Job]:
        return jobs

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        return decode(self, job, view, context)

    def scores(self, task: TaskContext) -> FloatArray:
        return -self._interference(task)

    def terms(self, task: TaskContext, m: int) -> tuple[tuple[str, float], ...]:
        usage = self._renewed(task.view).usage
        return (
            ("interference", float(self._interference(task)[m])),
            ("cpu_used", float(usage[0, m])),
            ("bandwidth_used", float(usage[1, m])),
        )

    def slowdown(self, model: str, cpu: float, bandwidth: float) -> float:
        """Predicted slowdown of one task beside others that hold these shares of the node."""
        return 1.0 + float(self._of(model) @ (cpu, bandwidth, cpu * cpu, bandwidth * bandwidth))

    def _interference(self, task: TaskContext) -> FloatArray:
        """(M,) Σ (slowdown − 1) on each node with the task there."""
        view = task.view
        sums = self._renewed(view)
        total = sums.present.copy()
        for row, coefficient in enumerate(self._of(task.job.model).tolist()):
            if coefficient:
                total += coefficient * sums.usage[row]
        for i, row in enumerate((CPU, NETWORK)):
            amount = float(task.demand[row])
            if amount:
                share = amount * view.inverse_capacity[row]
                total += share * (sums.slopes[i] + share * sums.curves[i])
        return total

    def _renewed(self, view: ClusterView) -> _Sums:
        sums = self._sums.get(view)
        if sums is None or len(sums.stamps) != view.size:
            m = view.size
            sums = _Sums(np.zeros((4, m)), np.zeros(m), np.zeros((2, m)), np.zeros((2, m)), np.zeros(m, dtype=np.int64))
            self._sums[view] = sums
        changed = (sums.stamps != view.node_stamp).nonzero()[0].tolist()
        for m in changed:
            self._renew(view, m, sums)
            sums.stamps[m] = view.node_stamp[m]
        return sums

    def _renew(self, view: ClusterView, m: int, sums: _Sums) -> None:
        constant = u = b = uu = bb = 0.0  # of the polynomial in U and B
        cpu_scale, network_scale = float(view.inverse_capacity[CPU, m]), float(view.inverse_capacity[NETWORK, m])
        for model, demand in view.tasks_at(m):
            a1, a2, a3, a4 = self._of(model).tolist()
            p, q = demand.cpu_cores * cpu_scale, demand.network_gbps * network_scale
            constant += -a1 * p - a2 * q + a3 * p * p + a4 * q * q
            u += a1 - 2.0 * a3 * p
            b += a2 - 2.0 * a4 * q
            uu += a3
            bb += a4
        cpu = float(view.capacity[CPU, m] - view.free[CPU, m]) * cpu_scale
        network = float(view.capacity[NETWORK, m] - view.free[NETWORK, m]) * network_scale
        sums.usage[:, m] = (cpu, network, cpu * cpu, network * network)
        sums.present[m] = constant + u * cpu + b * network + uu * cpu * cpu + bb * network * network
        sums.slopes[:, m] = (u + 2.0 * uu * cpu, b + 2.0 * bb * network)
        sums.curves[:, m] = (uu, bb)
