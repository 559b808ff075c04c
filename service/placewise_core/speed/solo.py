"""Speed of a placed job with its GPUs to itself, from the throughput model. Knows nothing of neighbours."""

import math
from collections.abc import Sequence

from placewise_core.basics.bounded import Bounded
from placewise_core.domain.cluster import Assignment
from placewise_core.domain.job import Job, JobId
from placewise_core.speed.throughput import Match, ThroughputModel, label_of

_REMEMBERED = 4096


class ThroughputSpeed:
    """Epochs per second if the job gives its epochs or samples; else samples per second; 0 without GPUs.

    A job that declares its single-GPU time is scaled from that by the model's speedup; any other one runs at the
    model's throughput (5). The shape is taken as symmetric: GPUs over nodes, rounded up.
    """

    def __init__(self, throughput: ThroughputModel) -> None:
        self._throughput = throughput
        self._known: Bounded[tuple[object, ...], float] = Bounded(_REMEMBERED)
        self._placed: Bounded[JobId, tuple[Job, Sequence[Assignment], float]] = Bounded(_REMEMBERED)

    def __call__(self, job: Job, assignments: Sequence[Assignment]) -> float:
        last = self._placed.get(job.id)  # running jobs are asked about again and again, as neighbours of new ones
        if last is not None and last[0] is job and last[1] is assignments:
            return last[2]
        speed = self._of(job, assignments, None)
        self._placed[job.id] = (job, assignments, speed)
        return speed

    def measured(self, job: Job, assignments: Sequence[Assignment], match: Match) -> float:
        """The same by a match with a site's measurements. Its shape has GPUs over nodes, not rounded, as they have."""
        return self._of(job, assignments, match)

    def profile_model(self, job: Job, assignments: Sequence[Assignment], gpu_types: Sequence[str]) -> str:
        """Whose profile the speed rests on, as `Match.label`, for a placement on these GPU models. "" if it is the
        job's own on all of them, and for a speed that rests on none: without GPUs, or of up to one GPU as declared."""
        gpus = sum(a.demand.gpus for a in assignments)
        if gpus <= 0 or (gpus <= 1 and job.single_gpu_s > 0 and job.total_epochs > 0):
            return ""
        profile = self._throughput.match(job).profile
        labels = [label_of(job.model, profile, gpu_type) for gpu_type in gpu_types or ("",)]
        return max(labels, key=len)  # on several GPU models: the one that says more

    def _of(self, job: Job, assignments: Sequence[Assignment], measured: Match | None) -> float:
        gpus = sum(a.demand.gpus for a in assignments)
        if gpus <= 0:
            return 0.0
        nodes = len({a.node for a in assignments if a.demand.gpus > 0})
        declared = (
            job.model,
            job.params_millions,
            job.batch_size,
            job.single_gpu_s,
            job.total_epochs,
            job.dataset_size,
        )
        by = None if measured is None else measured.key
        key = (*declared, nodes, gpus, by)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._predict(job, nodes, gpus, measured)
        return found

    def _predict(self, job: Job, nodes: int, gpus: float, measured: Match | None) -> float:
        match = measured or self._throughput.match(job)
        # A fraction of one GPU runs at that fraction of its speed; beside others, interference comes on top.
        share = min(gpus, 1.0)
        per_node = gpus / nodes if measured else math.ceil(gpus / nodes)
        shape = (nodes, max(1, per_node))
        if job.single_gpu_s > 0 and job.total_epochs > 0:
            speedup = float(self._throughput.speedup(job, match, *shape))
            return share * job.total_epochs / job.single_gpu_s * speedup
        samples_per_s = share * float(self._throughput.throughput(job, match, *shape))
        return samples_per_s / job.dataset_size if job.dataset_size > 0 else samples_per_s
