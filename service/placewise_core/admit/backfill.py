"""One request while jobs may pass the head of their queue: who is the head, and which nodes are kept from whom."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from operator import eq, le

from placewise_core.admit.head import Choose, Releases, Starting, renewed, reserved, since, taken
from placewise_core.admit.needs import fewest_gpus
from placewise_core.admit.policy import AdmitContext
from placewise_core.admit.pool import Pool
from placewise_core.admit.shapes import Take
from placewise_core.basics.arrays import BoolArray
from placewise_core.domain.cluster import HeadReservation, QueueState
from placewise_core.domain.job import Job
from placewise_core.view.heads import barring, bars, end_of_start_s, is_in_force, outranking, rows_of
from placewise_core.view.view import ClusterView

_MOST_PASSES = 1000


class Backfill:
    """The head of this request's queue, once one job waits, beside the heads of the other queues.

    The queue's head of before stays the head if this request does not ask about its job: a host may ask about one job
    at a time. If it does, this request finds the head again: the first job that waits, unless one is past its bound.
    A head that may start keeps its nodes until it is placed, or until another job needs the reservation.
    """

    def __init__(self, jobs: Sequence[Job], view: ClusterView, queue: QueueState, context: AdmitContext) -> None:
        self._view, self._queue, self._context = view, queue, context
        self._asked = {job.id for job in jobs}
        self._head: HeadReservation | None = None
        self._is_served = False
        before = queue.head if queue.queue in view.heads else None  # the view drops the heads of jobs that ended
        self._before = before if before is not None and is_in_force(before, view, context.now_s) else None
        if self._before is not None and self._before.job not in self._asked:
            self._head = self._before
        others = [head for name, head in view.heads.items() if name != queue.queue]
        self._others = [head for head in others if is_in_force(head, view, context.now_s)]
        self._other_jobs = {head.job for head in self._others}
        self._idle_stamp = -1  # of the pool, when the next four were found
        self._idle_others: list[HeadReservation] = []  # heads whose nodes have idle GPUs
        self._idle_own: HeadReservation | None = None
        self._is_idle_kept = False  # all idle GPUs are on nodes of heads past their bounds
        self._excepted: set[str] = set()  # jobs that those may let pass
        self._left: dict[tuple[str, ...], tuple[Pool, int, Pool]] = {}  # by the heads that bar, with pool and stamp
        self._starting: list[Starting] = []
        self._passes: list[str] = []

    @property
    def needs_head(self) -> bool:
        """True until a job waits."""
        return self._head is None or self._is_served

    @property
    def has_head(self) -> bool:
        """True if a job waits, or one is known to have waited."""
        return self._head is not None or self._queue.head is not None

    @property
    def head(self) -> HeadReservation | None:
        """The queue's head after this request."""
        head, before = self._head, self._queue.head
        if head is None:
            return None
        still = [job for job in before.passes if job not in self._asked] if before is not None else []
        passes = [job for job in (*still, *self._passes) if job != head.job and job not in self._view.jobs]
        kept = tuple(dict.fromkeys(passes))[-_MOST_PASSES:]
        return head if kept == head.passes else replace(head, passes=kept)

    def same_until_s(self, jobs: Sequence[Job]) -> float:
        """The point in time before which jobs of which none starts go on waiting, as long as the view and the other
        queues' heads stay as they are. Jobs only take longer than the head can wait as time goes by; other than that,
        a start that passes, a bound or the end of a reservation changes the answer."""
        head, now_s, bound_s = self._head, self._context.now_s, self._context.settings.bound_s
        if head is None or self._is_served:
            return -math.inf
        times_s = [head.start_s, head.bound_s]
        times_s += [job.submit_time_s + bound_s for job in jobs if job.submit_time_s > 0]
        times_s += [time_s for other in self._others for time_s in (other.bound_s, other.expire_s)]
        return min([time_s for time_s in times_s if time_s >= now_s], default=math.inf)

    def in_turn(self, jobs: Sequence[Job]) -> tuple[Sequence[Job], int]:
        """The jobs in the order in which they are tried, and how many of them come first because they are past their
        bounds, the one that waits longest first: it becomes the head before any job is admitted."""
        if self._head is not None:
            return jobs, 0
        latest_s = self._context.now_s - self._context.settings.bound_s
        times_s = [job.submit_time_s for job in jobs]
        known = self._queue.head
        place = None if known is None else next((i for i, job in enumerate(jobs) if job.id == known.job), None)
        if known is not None and place is not None:
            times_s[place] = known.since_s
        if times_s and times_s[0] > 0 and all(map(le, times_s, times_s[1:])):  # as they mostly stand
            late = bisect_right(times_s, latest_s)
            ties = [i for i, is_tie in enumerate(map(eq, times_s[:late], times_s[1:late])) if is_tie]
            if all(jobs[i].id < jobs[i + 1].id for i in ties):
                return jobs, late
        timed = list(zip(times_s, jobs, strict=True))
        first = sorted(
            [entry for entry in timed if 0 < entry[0] <= latest_s], key=lambda entry: (entry[0], entry[1].id)
        )
        rest = [job for time_s, job in timed if not 0 < time_s <= latest_s]
        return [*[job for _, job in first], *rest], len(first)

    def pool_for(self, job: Job, pool: Pool) -> Pool:
        """The pool without the nodes that the job may not take; `pool` itself if there are none. Once the head is
        known and only starts are asked for, nodes that have nothing for the job may stay in it."""
        others, own = self._others, self._head
        is_explained = not self._context.starts_only
        if not (is_explained or self.needs_head) and pool.is_on_idle(job) and job.id not in self._other_jobs:
            others, own = self._with_idle(pool)
        return self._without(self._against(job, others, own), pool)

    def usable_for(self, job: Job, pool: Pool) -> BoolArray:
        """(M,) the usable nodes of `pool_for`, before the head is known."""
        return self._beside(self._against(job, self._others, self._head), pool.usable)

    def _against(self, job: Job, others: list[HeadReservation], own: HeadReservation | None) -> list[HeadReservation]:
        """Those of the heads whose nodes the job may not take."""
        before = self._before if self._before is not None and self._before.job == job.id else None
        known = others if before is None else [*others, before]  # a younger head of another queue bars no older one
        heads = outranking(known, job.id) if others else []
        if own is not None and own.job != job.id and not self._is_served:
            heads.append(own)
        return barring(heads, job, fewest_gpus(job), self._context.now_s) if heads else heads

    def keeps_all_from(self, job: Job, pool: Pool) -> bool:
        """True if heads past their bounds keep every idle GPU of the pool from the job: most jobs that wait behind them
        need no closer look. Asked once the head is known."""
        self._look_at_idle(pool)
        return self._is_idle_kept and job.id not in self._excepted and pool.is_on_idle(job)

    def _with_idle(self, pool: Pool) -> tuple[list[HeadReservation], HeadReservation | None]:
        """The heads of other queues and this queue's, as far as their nodes have idle GPUs in the pool."""
        self._look_at_idle(pool)
        return self._idle_others, self._idle_own

    def _look_at_idle(self, pool: Pool) -> None:
        if self._idle_stamp == pool.stamp:
            return
        self._idle_stamp, idle, own = pool.stamp, pool.idle_nodes, self._head
        self._idle_others = [head for head in self._others if not idle.isdisjoint(head.nodes)]
        self._idle_own = None if own is None or idle.isdisjoint(own.nodes) else own
        heads = self._idle_others if self._idle_own is None else [*self._idle_others, self._idle_own]
        late = [head for head in heads if self._context.now_s >= head.bound_s]
        self._is_idle_kept = bool(late) and self._without(late, pool).total_gpus == 0
        own_job = () if own is None else (own.job,)
        self._excepted = {*own_job, *self._other_jobs, *[job for head in late for job in head.passes]}

    def start(self, job: Job, takes: tuple[Take, ...], gpus: float) -> None:
        """Counts a job as admitted; Place obeys the answer."""
        now_s = self._context.now_s
        self._starting.append((takes, end_of_start_s(job, gpus, now_s, now_s)))
        known = self._head or self._queue.head
        if known is not None and known.job == job.id:
            self._head, self._is_served = taken(known, takes, self._view, now_s), True
            self._passes.append(job.id)  # another job may become the head before it is placed
        elif self.needs_head or self._head is None or not bars(self._head, job, fewest_gpus(job), now_s):
            self._passes.append(job.id)

    def reserve(self, job: Job, usable: BoolArray, choose: Choose) -> None:
        """Makes the job the head, with some of the usable nodes (M,), unless another is it."""
        if not self.needs_head:
            return
        now_s, known = self._context.now_s, self._known(job)
        kept = None if known is None else renewed(known, self._view, now_s)
        if kept is None:
            waits_since_s = since(job, now_s) if known is None else known.since_s
            usable = self._beside(self._older(job, waits_since_s), usable)
            releases = Releases(self._view, usable, self._starting, now_s)
            kept = reserved(job, waits_since_s, releases, choose, now_s, self._context.settings.bound_s)
        if kept is not None:
            self._head, self._is_served = kept, False

    def heads_at_once(self, job: Job) -> bool:
        """Makes a job that is about to start the head. False if other heads may keep it from becoming one."""
        now_s, bound_s, known = self._context.now_s, self._context.settings.bound_s, self._known(job)
        since_s = since(job, now_s) if known is None else known.since_s
        older = self._older(job, since_s)
        against = self._against(job, self._others, None) if older else []
        if not all(head in against for head in older):
            return False
        self._head = known or HeadReservation(job.id, (), now_s, since_s, since_s + bound_s, now_s)
        return True

    def _known(self, job: Job) -> HeadReservation | None:
        """The queue's head of before if this is its job, with the present bound."""
        known = self._queue.head
        if known is None or known.job != job.id:
            return None
        bound_s = known.since_s + self._context.settings.bound_s  # the setting may be another now
        return known if known.bound_s == bound_s else replace(known, bound_s=bound_s)

    def _older(self, job: Job, since_s: float) -> list[HeadReservation]:
        """The heads of other queues that wait longer."""
        return [head for head in self._others if (head.since_s, head.job) < (since_s, job.id)]

    def _beside(self, heads: list[HeadReservation], usable: BoolArray) -> BoolArray:
        """(M,) usable nodes that are not the heads'."""
        mask = rows_of(self._view, heads) if heads else None
        return usable if mask is None else usable & ~mask

    def _without(self, heads: list[HeadReservation], pool: Pool) -> Pool:
        if not heads:
            return pool
        key = tuple([head.job for head in heads])
        kept = self._left.get(key)
        if kept is None or kept[0] is not pool or kept[1] != pool.stamp:
            mask = rows_of(self._view, heads)
            kept = self._left[key] = (pool, pool.stamp, pool if mask is None else pool.without(mask))
        return kept[2]
