"""Gives jobs that declare no length the one that their cluster has learned. Pure.

speed/learned/durations.py estimates.
"""

from collections.abc import Sequence
from dataclasses import replace

from placewise_core.domain.decision import LearnedLength
from placewise_core.domain.job import Job
from placewise_core.view.view import ClusterView


def with_lengths(jobs: Sequence[Job], view: ClusterView) -> tuple[tuple[Job, ...], tuple[LearnedLength, ...]]:
    """The jobs as a policy is to read them, and the lengths filled in. A job that declares its length or its iterations
    stays as it is, and so do all until the first job has ended. For clusters whose setting `learn_durations` is on."""
    durations = view.estimates.durations
    known: list[Job] = []
    lengths: list[LearnedLength] = []
    for job in jobs:
        found = None if job.single_gpu_s > 0 or job.total_iterations > 0 else durations.length_of(job)
        if found is None:
            known.append(job)
            continue
        known.append(replace(job, single_gpu_s=found.single_gpu_s))
        lengths.append(replace(found, job_id=job.id))
    return tuple(known), tuple(lengths)
