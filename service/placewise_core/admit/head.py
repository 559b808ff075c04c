"""Chooses the nodes of a queue's head and the point in time at which it is expected to start there (EASY)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from placewise_core.admit.needs import fewest_gpus, shares_gpus
from placewise_core.admit.pool import Pool
from placewise_core.admit.shapes import Options, Take
from placewise_core.basics.arrays import BoolArray, FloatArray
from placewise_core.domain.cluster import HeadReservation
from placewise_core.domain.job import Job
from placewise_core.view.held import HeldAmounts, Holdings
from placewise_core.view.view import ClusterView

# A reservation that nobody renews ends: the host asks again about the jobs that still wait.
KEPT_S = 600.0
_RENEWED_AFTER_S = 200.0
_FEW_PARTS = 32  # given back, up to which adding them one by one is faster

# The index of the shape that a job starts with; None to wait for a better one.
Choose = Callable[[Options], int | None]


class _Key:
    """The key under which a view keeps the resources that its jobs hold."""


_HELD = _Key()

# The takes of a job that is about to start, and its expected end.
Starting = tuple[tuple[Take, ...], float]


class Releases:
    """Resources that running jobs and those about to start give back, by their expected ends."""

    def __init__(self, view: ClusterView, usable: BoolArray, starting: Sequence[Starting], now_s: float) -> None:
        self.view, self._usable, self._starting = view, usable, starting
        holdings = view.notes.get(_HELD)
        if holdings is None:
            holdings = view.notes[_HELD] = Holdings()
        self._held: HeldAmounts = holdings.at(view, now_s)
        self._now_s = now_s

    def after(self, time_s: float) -> FloatArray:
        """The later points in time at which something is given back, each once."""
        starting = [end_s for _, end_s in self._starting]
        times_s = np.unique(np.append(self._held.ends, starting))
        return times_s[(times_s > time_s) & (times_s < math.inf)]

    def earliest_s(self, gpus: float) -> float:
        """The first point in time at which so many GPUs may be idle; infinite if there are fewer."""
        need = math.ceil(gpus)
        if need < 1:
            return self._now_s
        gpu_end = self._held.gpu_end
        if self._starting:
            gpu_end = gpu_end.copy()
            for takes, end_s in self._starting:
                _occupy(gpu_end, takes, end_s)
        ends = gpu_end[self._usable].reshape(-1)
        if need > len(ends):
            return math.inf
        first_s = ends.min() if need == 1 else np.partition(ends, need - 1)[need - 1]
        return max(self._now_s, float(first_s))

    def pool(self, time_s: float) -> Pool:
        """The free resources expected at that time."""
        held = self._held
        ended = np.flatnonzero(held.ends <= time_s)
        rows, demands = held.rows[ended], held.demands[ended]
        free = self.view.usage.free.copy()
        if len(ended) <= _FEW_PARTS:
            np.add.at(free.T, rows, demands)
        else:
            for row, amounts in enumerate(demands.T):
                free[row] += np.bincount(rows, amounts, minlength=self.view.nodes.size)
        is_open = held.gpu_end <= time_s
        gpus = np.bincount(is_open.nonzero()[0], minlength=len(is_open))  # faster than a sum: few are open
        at = time_s, self._now_s
        pool = Pool(self.view, self._usable, gpus * self._usable, free, is_whole=True, gpu_open=is_open, time_s=at)
        for takes, end_s in self._starting:
            if end_s > time_s:
                pool.apply(takes)
        return pool


def _occupy(gpu_end: FloatArray, takes: Sequence[Take], end_s: float) -> None:
    """Writes the end of a job that is about to start to as many idle GPUs as it takes of each node, if there are so
    many: those that it shares are in use already."""
    for take in takes:
        for m, count in zip(take.rows.tolist(), (take.counts * take.gpus).tolist(), strict=True):
            idle = (gpu_end[m] == 0.0).nonzero()[0]
            gpu_end[m, idle[:count]] = end_s


def reserved(
    job: Job, since_s: float, releases: Releases, choose: Choose, now_s: float, bound_s: float
) -> HeadReservation | None:
    """The earliest expected start of a job that waits since then, and its nodes; None if it does not fit even after all
    ends."""
    start_s = now_s if shares_gpus(job) else releases.earliest_s(fewest_gpus(job))
    if start_s == math.inf:
        return None
    takes = _takes(job, releases.pool(start_s), choose)
    if takes is None:
        later = _first_start(job, releases, start_s, choose)
        if later is None:
            return None
        start_s, takes = later
    return HeadReservation(job.id, _nodes(takes, releases.view), start_s, since_s, since_s + bound_s, now_s + KEPT_S)


def _first_start(job: Job, releases: Releases, after_s: float, choose: Choose) -> tuple[float, tuple[Take, ...]] | None:
    """The earliest expected start after that time, and where; None if there is none."""
    times_s = releases.after(after_s)
    first, last, reach, takes = 0, len(times_s), 1, None
    while first < last:  # the resources given back only grow, and soon suffice in most cases
        middle = min((first + last) // 2, first + reach - 1)
        reach *= 2
        found = _takes(job, releases.pool(float(times_s[middle])), choose)
        if found is None:
            first = middle + 1
        else:
            last, takes = middle, found
    return None if takes is None else (float(times_s[first]), takes)


def since(job: Job, now_s: float) -> float:
    """The point in time from which the job waits."""
    return min(job.submit_time_s, now_s) if job.submit_time_s > 0 else now_s


def _takes(job: Job, pool: Pool, choose: Choose) -> tuple[Take, ...] | None:
    options = pool.options(job)
    i = choose(options) if len(options) else None
    return None if i is None else pool.takes(job, options, i)


def _nodes(takes: Sequence[Take], view: ClusterView) -> tuple[str, ...]:
    return tuple(sorted({view.nodes.records[m].id for take in takes for m in take.rows.tolist()}))


def taken(known: HeadReservation, takes: Sequence[Take], view: ClusterView, now_s: float) -> HeadReservation:
    """The reservation of a head that may start: nobody passes it any more until it is placed."""
    return replace(known, nodes=_nodes(takes, view), start_s=now_s, expire_s=now_s + KEPT_S)


def renewed(known: HeadReservation, view: ClusterView, now_s: float) -> HeadReservation | None:
    """The reservation as it goes on; None if it has to choose other nodes.

    Past its bound it keeps its nodes, however late the jobs there are expected to end: the bound rests on that alone.
    """
    if any(node not in view.nodes.index or not view.nodes.is_ready[view.nodes.index[node]] for node in known.nodes):
        return None
    if now_s > known.start_s and now_s < known.bound_s:
        return None
    is_due = known.expire_s - now_s < KEPT_S - _RENEWED_AFTER_S
    return replace(known, expire_s=now_s + KEPT_S) if is_due else known
