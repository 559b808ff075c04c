"""The disturbance of a gang on several nodes by those beside it, now and later: a correction of forecasts that know
the present alone. A gang keeps its nodes for all its life. speed/learned/disturbance.py has the site's loss."""

from collections.abc import Iterable, Sequence

import numpy as np

from placewise_core.basics.arrays import FloatArray, IntArray
from placewise_core.domain.cluster import Assignment
from placewise_core.domain.job import JobId
from placewise_core.gang.policy import Proposal
from placewise_core.view.disturbance import wide_beside
from placewise_core.view.view import ClusterView

# Chosen on scenarios of `--seed` 7 and 11 (docs/unseen.md): the chance that a node with GPUs left gets another job on
# several nodes, and how many jobs like the new one lose by it: itself, those that come, and those after them.
_CHANCE, _LOSERS = 0.5, 5.0
# The error of the reward model on all jobs (docs/models/reward.md): so small a loss may as well be that.
_WITHIN_ERROR = 0.05


def contention_factors(
    jobs: IntArray, neighbours: Sequence[JobId], proposals: Sequence[Proposal], view: ClusterView, loss: float
) -> FloatArray:
    """(K, P) factors on the speeds of `jobs` (K, P) under each placement: 0 is the new job, i > 0 is
    `neighbours[i − 1]`. `loss` as in Disturbance.loss; the reward model's own error is taken off it."""
    factors = np.ones(jobs.shape)
    loss = max(0.0, 1.0 - (1.0 - loss) / (1.0 - _WITHIN_ERROR))
    if loss == 0.0:
        return factors
    for k, proposal in enumerate(proposals):
        own = _gpus_by_node(proposal.assignments, view)
        if len(own) < 2:
            continue
        others = wide_beside(set(own), view)
        now = 1.0 - loss if others else 1.0 - loss * _chance(own, view)
        factors[k][jobs[k] == 0] = now * (1.0 - loss * _chance(own, view)) ** (_LOSERS - 1.0)
        beside = [(i, job_id) for i, job_id in enumerate(neighbours, 1) if job_id in others]
        newly = [i for i, job_id in beside if not _is_disturbed(job_id, view)]
        factors[k][np.isin(jobs[k], newly)] = 1.0 - loss
    return factors


def _gpus_by_node(assignments: Iterable[Assignment], view: ClusterView) -> dict[int, int]:
    gpus: dict[int, int] = {}
    for task in assignments:
        m = view.nodes.index[task.node]
        gpus[m] = gpus.get(m, 0) + len(task.gpu_indices)
    return gpus


def _chance(own: dict[int, int], view: ClusterView) -> float:
    """That another job on several nodes comes to one of these."""
    exists = view.nodes.gpu_exists
    return 1.0 - (1.0 - _CHANCE) ** sum([gpus < int(exists[m].sum()) for m, gpus in own.items()])


def _is_disturbed(job_id: JobId, view: ClusterView) -> bool:
    """Whether another job on several nodes is on a node of this one."""
    index = view.nodes.index
    nodes = {index[task.node] for task in view.jobs[job_id].assignments if task.node in index}
    return bool(wide_beside(nodes, view) - {job_id})
