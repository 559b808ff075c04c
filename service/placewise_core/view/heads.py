"""Reservations of queue heads: the nodes that others may not take, and the expected ends they are compared with.

A head is the first job of a queue that does not fit. It is part of the queue's state, so every replica, every other
queue and a direct Place obey it.
"""

from collections.abc import Sequence

import numpy as np

from placewise_core.basics.arrays import BoolArray, FloatArray
from placewise_core.domain.cluster import HeadReservation
from placewise_core.domain.job import Job, JobId
from placewise_core.view.view import ClusterView

# Each GPU beyond the first is expected to add half of its speed: admission must not promise ends that are too early.
_GAIN_PER_GPU = 0.5
# A job that declares no length, or outruns it, is expected to take as long again as it has run, at least this.
_ATTAINED_FACTOR, _LEAST_LEFT_S = 1.0, 60.0


def expected_s(job: Job, gpus: float) -> float:
    """Seconds that the job takes on `gpus` GPUs by its own word; infinite if it gives none."""
    if job.single_gpu_s <= 0:
        return float("inf")
    return job.single_gpu_s / (1.0 + _GAIN_PER_GPU * max(0.0, gpus - 1.0))


def expected_ends_s(starts_s: FloatArray, declared_s: FloatArray, left_s: FloatArray, now_s: float) -> FloatArray:
    """(N,) the points in time at which jobs are expected to end: by their progress (`left_s`), by the length that they
    declare, or by their age. NaN stands for an unknown start or progress, infinite for no declared length."""
    starts_s = np.where(np.isnan(starts_s), now_s, starts_s)
    ends_s: FloatArray = starts_s + declared_s
    by_age_s = now_s + np.maximum(_LEAST_LEFT_S, _ATTAINED_FACTOR * (now_s - starts_s))
    ends_s = np.where((now_s < ends_s) & (ends_s < np.inf), ends_s, by_age_s)
    return np.where(np.isnan(left_s), ends_s, now_s + left_s)


def end_of_start_s(job: Job, gpus: float, start_s: float, now_s: float) -> float:
    """The expected end of a job that started at `start_s`: by its word, or by its age if that is over or missing."""
    end_s = start_s + expected_s(job, gpus)
    if now_s < end_s < float("inf"):
        return end_s
    return now_s + max(_LEAST_LEFT_S, _ATTAINED_FACTOR * (now_s - start_s))


def is_in_force(head: HeadReservation, view: ClusterView, now_s: float) -> bool:
    """True while the head's job waits."""
    return head.expire_s > now_s and JobId(head.job) not in view.jobs


def outranking(in_force: Sequence[HeadReservation], job_id: JobId) -> list[HeadReservation]:
    """Those of reservations in force that hold against this job: all but its own, and those younger than its own."""
    for own in in_force:
        if own.job == job_id:
            return [head for head in in_force if (head.since_s, head.job) < (own.since_s, own.job)]
    return list(in_force)


def barred(view: ClusterView, job: Job, gpus: float, now_s: float) -> BoolArray | None:
    """(M,) nodes that the job may not take because of a queue's head; None if there are none.

    Past its bound a head bars everybody from its nodes; before, those that are not expected to end in time for it.
    """
    if not view.heads:
        return None
    heads = outranking([head for head in view.heads.values() if is_in_force(head, view, now_s)], job.id)
    return rows_of(view, barring(heads, job, gpus, now_s)) if heads else None


def barring(heads: Sequence[HeadReservation], job: Job, gpus: float, now_s: float) -> list[HeadReservation]:
    """Those whose nodes the job may not take now."""
    end_s = now_s + expected_s(job, gpus)
    return [head for head in heads if _bars(head, job, end_s, now_s)]


def bars(head: HeadReservation, job: Job, gpus: float, now_s: float) -> bool:
    """True if the job may not take the head's nodes now. Past the bound no earlier admission counts, but that of a job
    that waits longer than the head."""
    return _bars(head, job, now_s + expected_s(job, gpus), now_s)


def _bars(head: HeadReservation, job: Job, end_s: float, now_s: float) -> bool:
    if now_s >= head.bound_s:
        waits_longer = job.submit_time_s > 0 and (job.submit_time_s, job.id) < (head.since_s, head.job)
        return not (waits_longer and job.id in head.passes)
    return end_s > head.start_s and job.id not in head.passes


def rows_of(view: ClusterView, heads: list[HeadReservation]) -> BoolArray | None:
    """(M,) the nodes of these reservations; None if there are none."""
    rows = [view.nodes.index[node] for head in heads for node in head.nodes if node in view.nodes.index]
    if not rows:
        return None
    mask = np.zeros(view.nodes.size, dtype=np.bool_)
    mask[rows] = True
    return mask
