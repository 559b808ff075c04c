"""A truth that is Proteus' own cost model: how a paper judges that simulates with the formulas it decides by.

Shown beside the measured truth, never instead of it: the difference between the two is the model's error.
"""

from collections.abc import Mapping, Sequence

from placewise_core.admit.facts import platform_facts
from placewise_core.domain.cluster import QueueSettings
from placewise_core.domain.events import ClusterRecords
from placewise_core.domain.job import Job
from placewise_core.speed.proteus_cost import FixedBatchCost
from placewise_core.view.view import ClusterView
from placewise_training.sim.hardware import NodeSpec
from placewise_training.sim.jobs import SimJob
from placewise_training.sim.policies import throughput_model
from placewise_training.sim.speed.base import Footprint, NodeLoad, Part, Spot


class BelievedSpeed:
    """A SpeedModel: a job on n GPUs of d nodes takes C(n) of equation (6), beside any neighbours. No noise."""

    def __init__(self, nodes: Sequence[NodeSpec]) -> None:
        view = ClusterView(ClusterRecords("facts", 0, "sim", nodes=tuple(spec.node for spec in nodes)))
        self._facts = platform_facts(view)

    def _seconds(self, job: Job, gpus: int, nodes: int) -> float:
        model = throughput_model()
        match = model.match(job, self._facts.gpu_model)
        cost = FixedBatchCost(model, job, match, self._facts.bandwidth, QueueSettings().tau_s)
        return float(cost.total_s(max(1, gpus), max(1, nodes)))

    def footprint(self, job: SimJob, spots: Sequence[Spot], nodes: Mapping[str, NodeLoad]) -> Footprint:
        parts = tuple(
            Part(s.node, s.workers, s.servers, nodes[s.node].spec.gpu_model, s.gpu_indices, cpu_wanted=float(s.workers))
            for s in spots
        )
        seconds = self._seconds(job.job, sum(len(s.gpu_indices) for s in spots), len(spots))
        return Footprint(job=job, parts=parts, samples_per_step=job.samples, alone_step_s=seconds)

    def rate(self, footprint: Footprint, nodes: Mapping[str, NodeLoad], jobs: Mapping[str, Footprint]) -> float:
        return footprint.samples_per_step / footprint.alone_step_s

    def alone_rate(self, job: SimJob, gpu_model: str, gpus_per_node: int) -> float:
        workers = max(1, round(job.job.gpus))
        return job.samples / self._seconds(job.job, workers, -(-workers // max(1, gpus_per_node)))
