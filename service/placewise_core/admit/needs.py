"""How many GPUs a job asks for, by its own word. Looks at no cluster."""

import math
from dataclasses import dataclass

from placewise_core.domain.job import Architecture, ElasticRange, Job

# The measured profiles end at 64 GPUs: a job that names no upper bound is not given more on their word.
DEFAULT_MAX_GPUS = 64


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """All in which jobs with the same options are alike. `own_gpus`: idle GPUs without which none can start.
    `is_on_idle`: each task takes GPUs that are idle."""

    own_gpus: int
    is_on_idle: bool

    @classmethod
    def of(cls, job: Job) -> "Kind":
        own = own_gpus(job)
        return cls(own, own > 0 and all(group.demand.gpus > 0 for group in job.groups))


def is_bare_pipeline(job: Job) -> bool:
    """True for a pipeline that asks for nothing but a node."""
    return job.architecture is Architecture.PIPELINE and not job.groups and job.elastic is None and job.shape is None


def elastic_range(job: Job) -> ElasticRange:
    """GPU counts a job may get: its range, its shape, or anything up to DEFAULT_MAX_GPUS."""
    if job.shape is not None:
        return ElasticRange(job.shape.gpus, job.shape.gpus)
    if job.elastic is not None:
        return job.elastic
    return ElasticRange(1, DEFAULT_MAX_GPUS)


def fewest_gpus(job: Job) -> float:
    """The GPUs of the job's smallest shape."""
    return job.gpus if job.is_rigid else float(elastic_range(job).min_gpus)


def own_gpus(job: Job) -> int:
    """Idle GPUs without which the job cannot start; 0 if GPUs in use or parts of GPUs may be enough."""
    if shares_gpus(job) or any(group.demand.gpus % 1.0 for group in job.groups):
        return 0
    if job.is_rigid:
        return int(job.gpus)
    if is_bare_pipeline(job) or (job.groups and not job.groups[0].demand.gpus):
        return 0
    return elastic_range(job).min_gpus


def shares_gpus(job: Job) -> bool:
    """True if a GPU that serves another job may be enough for it."""
    return job.gpu_sharing.allowed or any(group.demand.is_gpu_fraction for group in job.groups)


def requested_gpus(job: Job, platform_gpus: int) -> int:
    """The GPUs that the user asked for, for policies without a model of their own: the top of an elastic job's range.

    A job that names neither tasks nor a range asks for one GPU.
    """
    if job.is_rigid:
        return math.ceil(job.gpus)
    if job.shape is not None:
        return job.shape.gpus
    return min(job.elastic.max_gpus, platform_gpus) if job.elastic is not None else 1
