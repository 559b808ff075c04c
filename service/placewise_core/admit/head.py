"""Chooses the nodes of a queue's head and the point in time at which it is expected to start there (EASY)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from placewise_core.admit.pool import Options, Pool, Take, fewest_gpus, shares_gpus
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
        times_s = self._held.times_s
        if starting:
            times_s = np.unique(np.append(times_s, [end_s for _, end_s in starting]))
        self.times_s: FloatArray = times_s

    def after(self, gpus: float) -> int:
        """Index of the first point in time at which so many GPUs may be idle."""
        ends = self._held.gpu_end[self._usable].reshape(-1)
        need = math.ceil(gpus)
        if need < 1:
            return 0
        if need > len(ends):
            return len(self.times_s)
        first = ends.min() if need == 1 else np.partition(ends, need - 1)[need - 1]
        return int(self.times_s.searchsorted(first))

    def pool(self, time_s: float) -> Pool:
        """The free resources expected at that time."""
        held = self._held
        ended = int(held.ends.searchsorted(time_s, side="right"))
        free = self.view.free.copy()
        if ended <= _FEW_PARTS:
            np.add.at(free.T, held.rows[:ended], held.demands[:ended])
        else:
            for row, amounts in enumerate(held.demands[:ended].T):
                free[row] += np.bincount(held.rows[:ended], amounts, minlength=self.view.size)
        is_open = held.gpu_end <= time_s
        gpus = np.add.reduce(is_open, axis=1, dtype=np.int64)
        pool = Pool(self.view, self._usable, gpus, free, is_whole=True, gpu_open=is_open)
        for takes, end_s in self._starting:
            if end_s > time_s:
                pool.apply(takes)
        return pool


def reserved(job: Job, releases: Releases, choose: Choose, now_s: float, bound_s: float) -> HeadReservation | None:
    """The earliest expected start of a job, and its nodes then; None if it does not fit even after all ends."""
    times = releases.times_s
    first = 0 if shares_gpus(job) else releases.after(fewest_gpus(job))
    last, takes, reach = len(times), None, 1
    while first < last:  # what is given back only grows, and is mostly enough soon
        middle = min((first + last) // 2, first + reach - 1)
        reach *= 2
        found = _takes(job, releases.pool(float(times[middle])), choose)
        if found is None:
            first = middle + 1
        else:
            last, takes = middle, found
    if takes is None:
        return None
    since_s = since(job, now_s)
    nodes = _nodes(takes, releases.view)
    return HeadReservation(job.id, nodes, float(times[first]), since_s, since_s + bound_s, now_s + KEPT_S)


def since(job: Job, now_s: float) -> float:
    """The point in time from which the job waits."""
    return min(job.submit_time_s, now_s) if job.submit_time_s > 0 else now_s


def _takes(job: Job, pool: Pool, choose: Choose) -> tuple[Take, ...] | None:
    options = pool.options(job)
    i = choose(options) if len(options) else None
    return None if i is None else pool.takes(job, options, i)


def _nodes(takes: Sequence[Take], view: ClusterView) -> tuple[str, ...]:
    return tuple(sorted({view.nodes[m].id for take in takes for m in take.rows.tolist()}))


def taken(known: HeadReservation, takes: Sequence[Take], view: ClusterView, now_s: float) -> HeadReservation:
    """The reservation of a head that may start: nobody passes it any more until it is placed."""
    return replace(known, nodes=_nodes(takes, view), start_s=now_s, expire_s=now_s + KEPT_S)


def renewed(known: HeadReservation, view: ClusterView, now_s: float) -> HeadReservation | None:
    """The reservation as it goes on; None if its nodes have to be chosen anew.

    Past its bound it keeps its nodes, whatever is expected of those that run there: that alone makes the bound hold.
    """
    if any(node not in view.index or not view.is_ready[view.index[node]] for node in known.nodes):
        return None
    if now_s > known.start_s and now_s < known.bound_s:
        return None
    is_due = known.expire_s - now_s < KEPT_S - _RENEWED_AFTER_S
    return replace(known, expire_s=now_s + KEPT_S) if is_due else known
