"""The speed of a job whose workers never wait, from its declaration. Zero if the job declares too little.

The unit of speeds that nets read and predict: 1 is the job's linear speed, every worker as fast as it is alone.
"""

import math
from collections.abc import Sequence

import numpy as np

from placewise_core.domain.cluster import RunningJob
from placewise_core.domain.job import Job, Role

MOST_LOG_MINUTES = 12.0  # four months
_MOST_SPEED = 4.0  # of the linear speed: beyond it the declaration cannot be right


def workers_of(job: Job) -> int:
    """Worker tasks of the gang, at least 1."""
    workers = 0
    for group in job.groups:
        if group.role is Role.WORKER:
            workers += group.count
    return workers or 1


def linear_speed(job: Job, workers: float) -> float:
    """Epochs per second if every worker were as fast as the job alone on one GPU; 0 if unknown."""
    if job.single_gpu_s <= 0 or job.total_epochs <= 0:
        return 0.0
    return job.total_epochs / job.single_gpu_s * max(1.0, workers)


def linear_minutes(job: Job) -> float:
    """Minutes the whole job takes at its linear speed; 0 if unknown."""
    return max(0.0, job.single_gpu_s) / 60.0 / workers_of(job)


def stretched(minutes: float, stretch: float) -> float:
    """Minutes, plus one, times e^stretch, less one: how a net says how much longer a job will run; between none and
    four months."""
    return math.expm1(min(MOST_LOG_MINUTES, max(0.0, math.log1p(minutes) + stretch)))


def shortest_first(jobs: Sequence[Job], minutes: Sequence[float]) -> list[Job]:
    """By minutes × √GPUs, so that what holds many GPUs for long comes last; a job of unknown length (0) counts as one
    of middling length. Equal ones stay in their order."""
    known = [each for each in minutes if each > 0]
    middling = float(np.median(known)) if known else 1.0
    keys = [(each or middling) * math.sqrt(max(1.0, job.gpus)) for job, each in zip(jobs, minutes, strict=True)]
    return [jobs[i] for i in sorted(range(len(jobs)), key=keys.__getitem__)]


def worker_step_ms(job: Job, workers: float) -> float:
    """Milliseconds one GPU needs for one worker's share of a batch, as declared; 0 if unknown."""
    iterations = job.total_iterations
    if job.single_gpu_s <= 0 or iterations <= 0:
        return 0.0
    return 1000.0 * job.single_gpu_s / iterations / max(1.0, workers)


def reported_speed(held: RunningJob) -> float:
    """Reported speed over linear speed, at most 4; 0 where either is unknown."""
    return relative_speed(held.speed, linear_speed(held.job, sum(a.role is Role.WORKER for a in held.assignments)))


def relative_speed(speed: float, linear: float) -> float:
    """A speed over the linear one, at most 4; 0 where either is unknown."""
    speed = speed / linear if linear > 0 else 0.0
    return min(_MOST_SPEED, speed) if math.isfinite(speed) and speed > 0 else 0.0
