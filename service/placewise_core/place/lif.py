"""Least interference first (Harmony's LIF-Line and LIF-Quad): the node where tasks slow each other down least.

The model of slowdown is fitted to measurements (place/data/lif.json, made by placewise_training.data.fit_lif):
slowdown − 1 = a₁U + a₂B + a₃U² + a₄B², with U and B the shares of the node's CPU and bandwidth that *other* tasks hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from placewise_core.job import Job
from placewise_core.place.decode import decode
from placewise_core.place.policy import PlaceContext, Proposal, TaskContext
from placewise_core.place.tables import LifCoefficients
from placewise_core.view import CPU, NETWORK, ClusterView, FloatArray


@dataclass(slots=True)
class _Sums:
    """Per node, Σ over its tasks of the polynomial in the node's own usage: 1, U, B, U², B² → (5, M)."""

    terms: FloatArray
    stamps: np.ndarray


class LeastInterference:
    """Score = −Σ over all tasks on the node, the new one included, of (predicted slowdown − 1).

    A task that holds p of the CPU and q of the bandwidth sees U − p and B − q used by others; the sum over tasks of
    a₁(U−p) + a₂(B−q) + a₃(U−p)² + a₄(B−q)² is again a polynomial in U and B, whose five coefficients are kept per node
    and renewed for the nodes that changed only.
    """

    def __init__(self, name: str, coefficients: LifCoefficients) -> None:
        self.name = name
        self._coefficients = coefficients
        self._of_model: dict[str, FloatArray] = {}
        self._sums: WeakKeyDictionary[ClusterView, _Sums] = WeakKeyDictionary()

    def order(self, jobs: Sequence[Job], view: ClusterView, context: PlaceContext) -> Sequence[Job]:
        return jobs

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        return decode(self, job, view, context)

    def scores(self, task: TaskContext) -> FloatArray:
        return -self._interference(task)

    def terms(self, task: TaskContext, m: int) -> tuple[tuple[str, float], ...]:
        cpu, bandwidth = _usage(task.view)
        return (
            ("interference", float(self._interference(task)[m])),
            ("cpu_used", float(cpu[m])),
            ("bandwidth_used", float(bandwidth[m])),
        )

    def slowdown(self, model: str, cpu: float, bandwidth: float) -> float:
        """Predicted slowdown of one task beside others that hold these shares of the node."""
        return 1.0 + float(self._of(model) @ (cpu, bandwidth, cpu * cpu, bandwidth * bandwidth))

    def _interference(self, task: TaskContext) -> FloatArray:
        """(M,) Σ (slowdown − 1) on each node with the task there."""
        view = task.view
        cpu, bandwidth = _usage(view)
        own = self._of(task.job.model)
        with_task_cpu = cpu + task.demand[CPU] * view.inverse_capacity[CPU]
        with_task_bandwidth = bandwidth + task.demand[NETWORK] * view.inverse_capacity[NETWORK]
        others = _evaluate(self._renewed(view).terms, with_task_cpu, with_task_bandwidth)
        mine = own[0] * cpu + own[1] * bandwidth + own[2] * cpu * cpu + own[3] * bandwidth * bandwidth
        return np.asarray(others + mine)

    def _renewed(self, view: ClusterView) -> _Sums:
        sums = self._sums.get(view)
        if sums is None or len(sums.stamps) != view.size:
            sums = self._sums[view] = _Sums(np.zeros((5, view.size)), np.zeros(view.size, dtype=np.int64))
        for m in (sums.stamps != view.node_stamp).nonzero()[0].tolist():
            sums.terms[:, m] = self._sum_over_tasks(view, m)
        sums.stamps[:] = view.node_stamp
        return sums

    def _sum_over_tasks(self, view: ClusterView, m: int) -> tuple[float, ...]:
        constant = u = b = uu = bb = 0.0
        cpu_scale, network_scale = float(view.inverse_capacity[CPU, m]), float(view.inverse_capacity[NETWORK, m])
        for model, demand in view.tasks_at(m):
            a1, a2, a3, a4 = self._of(model).tolist()
            p, q = demand.cpu_cores * cpu_scale, demand.network_gbps * network_scale
            constant += -a1 * p - a2 * q + a3 * p * p + a4 * q * q
            u += a1 - 2.0 * a3 * p
            b += a2 - 2.0 * a4 * q
            uu += a3
            bb += a4
        return constant, u, b, uu, bb

    def _of(self, model: str) -> FloatArray:
        known = self._of_model.get(model)
        if known is None:
            known = self._of_model[model] = self._coefficients.of(model)
        return known


def _usage(view: ClusterView) -> tuple[FloatArray, FloatArray]:
    """(M,) shares of CPU and bandwidth that tasks hold."""
    cpu = (view.capacity[CPU] - view.free[CPU]) * view.inverse_capacity[CPU]
    network = (view.capacity[NETWORK] - view.free[NETWORK]) * view.inverse_capacity[NETWORK]
    return cpu, network


def _evaluate(terms: FloatArray, cpu: FloatArray, bandwidth: FloatArray) -> FloatArray:
    constant, u, b, uu, bb = terms
    return np.asarray(constant + u * cpu + b * bandwidth + uu * cpu * cpu + bb * bandwidth * bandwidth)
