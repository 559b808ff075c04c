"""Reports of progress as measurements of two jobs on one GPU. Pure; speed/learned/pairs.py estimates.

A report counts if its job holds one whole GPU, alone or beside one other job, and its samples per epoch are known. Who
was beside it since its last report, nobody knows: that it was its neighbour of now is an assumption. It weighs as the
share of the job's work that was new in it (view/speeds.py).
"""

import math

from placewise_core.domain.cluster import RunningJob
from placewise_core.domain.model_names import canonical
from placewise_core.speed.learned.pairs import PairGroup
from placewise_core.speed.learned.sums import Addition
from placewise_core.view.speeds import gpu_type_of, new_share, shape_of
from placewise_core.view.view import ClusterView


def pair_of(running: RunningJob, speed: float, epochs_done: float, view: ClusterView) -> Addition | None:
    """The addition of a report to the sums; None if it says nothing of a pair. `running` is the job before the report;
    speed in epochs per second."""
    job, tasks = running.job, running.assignments
    weight = new_share(running, epochs_done)
    if shape_of(tasks) != (1, 1) or not 0 < speed < math.inf or job.dataset_size <= 0 or weight <= 0 or not job.model:
        return None
    gpu_type = gpu_type_of(tasks, view)
    (holder,) = [task for task in tasks if task.gpu_indices]
    if not gpu_type:
        return None
    others = [
        tenant
        for tenant in view.usage.tenants(view.nodes.index[holder.node], holder.gpu_indices[0])
        if tenant.job_id != running.id
    ]
    if len(others) > 1 or any(tenant.fraction < 1.0 or not tenant.model for tenant in others):
        return None
    partner = canonical(others[0].model) if others else ""
    group = PairGroup(canonical(job.model), canonical(gpu_type), job.batch_size, partner)
    return Addition(group.kind, math.log(speed * job.dataset_size), weight)
