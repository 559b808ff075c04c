"""Tiresias (Harmony's baseline): two-dimensional least attained service; consolidates jobs of skewed models."""

from collections.abc import Sequence
from functools import lru_cache

from placewise_core.domain.job import Job
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.greedy import ScoredPolicy
from placewise_core.gang.policy import PlacementPolicy, Proposal
from placewise_core.policies.consolidate import Consolidate
from placewise_core.policies.load_balance import LoadBalance
from placewise_core.policies.profiled.tables import SkewTable
from placewise_core.view.view import ClusterView

# Between the models Tiresias found to need consolidation (VGG, AlexNet: the largest tensor is 0.6 and more of the
# parameters) and those it did not (ResNet, Inception, GoogLeNet: 0.2 and less).
SKEW_THRESHOLD = 0.4
# Bounds of the service classes, GPU-seconds. Tiresias recommends few classes and tunes the bound per cluster; one hour
# of one GPU separates trial runs from training on the traces used here.
CLASS_BOUNDS_GPU_S = (3600.0,)

_KEPT_MODELS = 4096  # looking a name up costs more than placing a gang; names come from users, in any number


class Tiresias(PlacementPolicy):
    """Order: discretised 2D-LAS. Attained service = GPUs × time; the class with the least first, and first come, first
    served within a class, so that long jobs do not keep overtaking each other.

    Nodes: a job of several tasks whose model's largest tensor holds more than SKEW_THRESHOLD of its parameters is
    consolidated; others are spread. A model of unknown skew is consolidated, which can only cost waiting.
    """

    name = "tiresias"

    def __init__(self, skew: SkewTable) -> None:
        self._skew_of = lru_cache(maxsize=_KEPT_MODELS)(skew.of)
        self._consolidate = Consolidate()
        self._spread = LoadBalance()

    def order(self, jobs: Sequence[Job], view: ClusterView, context: PlaceContext) -> Sequence[Job]:
        return sorted(jobs, key=lambda job: (service_class(job), job.submit_time_s))

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        return self._policy_of(job).propose(job, view, context)

    def _policy_of(self, job: Job) -> ScoredPolicy:
        return self._consolidate if self.is_consolidated(job) else self._spread

    def is_consolidated(self, job: Job) -> bool:
        skew = self._skew_of(job.model, job.params_millions)
        return skew is None or skew > SKEW_THRESHOLD


def service_class(job: Job) -> int:
    """0 for the least attained service."""
    return sum(job.attained_gpu_s >= bound for bound in CLASS_BOUNDS_GPU_S)
