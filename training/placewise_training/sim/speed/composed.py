"""The composed speed model: stages alone × contention on the server × GPU sharing × noise. Sources: each module.

rate = noise · sharing · samples_per_step / overlapped(max input, max GPU + max network), maxima over the job's nodes:
every iteration waits for its slowest member.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from placewise_training.sim.hardware import uniform_cluster
from placewise_training.sim.jobs import SimJob, servers_of, workers_of
from placewise_training.sim.speed.base import Footprint, NodeLoad, Spot
from placewise_training.sim.speed.contention import input_s, network_s
from placewise_training.sim.speed.noise import speed_noise
from placewise_training.sim.speed.profiles import Catalogue
from placewise_training.sim.speed.sharing import PairSharing
from placewise_training.sim.speed.stages import alone, overlapped, stage_times

# Samples, input seconds and compute seconds of an iteration alone. They do not depend on a truth's overlap or noise:
# every truth of a catalogue shares them.
_Stages = tuple[float, float, float]
_PACKED: WeakKeyDictionary[Catalogue, dict[tuple[object, ...], _Stages]] = WeakKeyDictionary()


class ComposedSpeed:
    """A SpeedModel. `contended=False` or `noisy=False` switch a factor off, to see its effect.

    `burst` is of contention.network_s. `flat_loss` replaces both rules of the NIC: a job on several nodes loses that
    share of its speed beside another such job on one of them, however much either sends (the rule of Pollux's
    simulator). It is for judging alone.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        sharing: PairSharing,
        *,
        overlap: float,
        seed: int = 0,
        contended: bool = True,
        noisy: bool = True,
        burst: float = 0.0,
        flat_loss: float | None = None,
    ) -> None:
        self.catalogue = catalogue
        self.sharing = sharing
        self.overlap = overlap
        self.seed = seed
        self.contended = contended
        self.noisy = noisy
        self.burst = burst
        self.flat_loss = flat_loss

    def footprint(self, job: SimJob, spots: Sequence[Spot], nodes: Mapping[str, NodeLoad]) -> Footprint:
        made = alone(job, self.catalogue[job.job.model], spots, nodes, self.overlap)
        if self.noisy:
            made.noise = speed_noise(self.seed, job.number, job.attempt)
        return made

    def rate(self, footprint: Footprint, nodes: Mapping[str, NodeLoad], jobs: Mapping[str, Footprint]) -> float:
        step_s = self._contended_step_s(footprint, nodes) if self.contended else footprint.alone_step_s
        shared = self._sharing(footprint, nodes, jobs)
        if self.flat_loss and _is_disturbed(footprint, nodes, jobs):
            shared *= 1.0 - self.flat_loss
        return footprint.noise * shared * footprint.samples_per_step / step_s

    def _contended_step_s(self, footprint: Footprint, nodes: Mapping[str, NodeLoad]) -> float:
        slowest_input = slowest_gpu = slowest_net = 0.0
        for part in footprint.parts:
            load = nodes[part.node]
            if len(load.parts) > 1:
                slowest_input = max(slowest_input, input_s(load, part, footprint.alone_step_s))
                alone_s = part.net_s + part.peer_s
                slowest_net = max(
                    slowest_net, alone_s if self.flat_loss is not None else network_s(load, part, self.burst)
                )
            else:
                slowest_input = max(slowest_input, part.input_cpu_s, part.input_disk_s, part.input_pcie_s)
                slowest_net = max(slowest_net, part.net_s + part.peer_s)
            slowest_gpu = max(slowest_gpu, part.gpu_s)
        return overlapped(slowest_input, slowest_gpu + slowest_net, self.overlap)

    def _sharing(self, footprint: Footprint, nodes: Mapping[str, NodeLoad], jobs: Mapping[str, Footprint]) -> float:
        worst = 1.0
        me = footprint.job.id
        for part in footprint.parts:
            tenants = nodes[part.node].gpu_jobs
            for g in part.gpu_indices:
                ids = tenants[g]
                if len(ids) > 1:
                    others = [jobs[other].job.job.model for other in ids if other != me]
                    worst = min(worst, self.sharing.relative_speed(footprint.job.job.model, others, part.gpu_model))
        return worst

    def alone_rate(self, job: SimJob, gpu_model: str, gpus_per_node: int) -> float:
        workers, servers = max(1, workers_of(job.job)), servers_of(job.job)
        key = (job.job.model, workers, servers, job.local_batch, job.job.batch_size, gpu_model, gpus_per_node)
        kept = _PACKED.setdefault(self.catalogue, {})
        found = kept.get(key)
        if found is None:
            found = kept[key] = self._packed(job, workers, servers, gpu_model, gpus_per_node)
        samples, input_s, compute_s = found
        return samples / overlapped(input_s, compute_s, self.overlap)

    def _packed(self, job: SimJob, workers: int, servers: int, gpu_model: str, gpus_per_node: int) -> _Stages:
        """Stage times on as few nodes as the workers need, servers with the first of them, data in memory."""
        per_node = max(1, gpus_per_node)
        nodes = _empty_nodes(-(-workers // per_node), per_node, gpu_model)
        spots = []
        for i, name in enumerate(nodes):
            here = min(per_node, workers - i * per_node)
            spots.append(Spot(name, here, servers if i == 0 else 0, tuple(range(here))))
        return stage_times(replace(job, dataset_gib=0.0), self.catalogue[job.job.model], spots, nodes)


def _is_disturbed(footprint: Footprint, nodes: Mapping[str, NodeLoad], jobs: Mapping[str, Footprint]) -> bool:
    """Whether another job on several nodes is on one of the nodes of this one, which is on several, too."""
    if len(footprint.parts) < 2:
        return False
    me = footprint.job.id
    return any(
        other != me and len(jobs[other].parts) > 1 for part in footprint.parts for other in nodes[part.node].parts
    )


@functools.lru_cache(maxsize=256)
def _empty_nodes(count: int, gpus_per_node: int, gpu_model: str) -> Mapping[str, NodeLoad]:
    """Nodes with nobody on them. Shared: not to be written."""
    return {spec.id: NodeLoad(spec=spec) for spec in uniform_cluster(count, gpus_per_node, gpu_model)}
