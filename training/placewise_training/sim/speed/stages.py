"""Alone: the stages of one iteration of a placed job, from its profile. Neighbours come in contention.py.

Source of the numbers: profiles.py. Synchronisation: every NIC carries what crosses the node's boundary per iteration,
2(n−1)/n of the gradients for a ring all-reduce, the full gradients each way for every worker–server pair that is not
on one node (each of P servers holds 1/P of the parameters). Within a node gradients cross the links between its GPUs if
the node has an `interconnect_bps`, as a stage of synchronisation of their own: a ring over the w workers there moves
2(w−1)/w of the gradients through each link; to and from parameter servers they cross PCIe, once per worker and
direction. Without one they cross PCIe in the input stage, which is the model of every figure before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from placewise_training.sim.hardware import NodeSpec
from placewise_training.sim.jobs import SimJob
from placewise_training.sim.speed.base import Footprint, NodeLoad, Part, Spot
from placewise_training.sim.speed.profiles import ModelProfile

SERVER_GBPS_PER_CORE = 4.0e9  # bytes a parameter server adds up per core and second: float32 sums are memory bound


def overlapped(input_s: float, compute_s: float, overlap: float) -> float:
    """One iteration: the longer of input and compute, plus ω of the shorter (fitting.muri_overlap)."""
    return max(input_s, compute_s) + overlap * min(input_s, compute_s)


def local_batch(job: SimJob, profile: ModelProfile, workers: int) -> float:
    """Samples per worker and iteration: the global batch split, or the profile's own."""
    if job.local_batch > 0:
        return job.local_batch
    if job.job.batch_size > 0:
        return max(1.0, job.job.batch_size / max(1, workers))
    return float(profile.local_batch)


@dataclass(frozen=True, slots=True)
class _Whole:
    """The whole job: how many nodes it is on, its workers and servers there, and samples per worker and iteration."""

    nodes: int
    workers: int
    servers: int
    batch: float


def _nic_bytes(profile: ModelProfile, whole: _Whole, spot: Spot) -> float:
    """Bytes per iteration through the NIC of one of the job's nodes, the busier direction."""
    workers, servers, gradients = whole.workers, whole.servers, profile.gradient_bytes
    if servers == 0:
        return 0.0 if whole.nodes < 2 else 2.0 * (workers - 1) / workers * gradients
    to_far_servers = spot.workers * gradients * (servers - spot.servers) / servers
    from_far_workers = (workers - spot.workers) * gradients * spot.servers / servers
    return to_far_servers + from_far_workers


def _server_s(profile: ModelProfile, whole: _Whole, spot: Spot) -> float:
    """Seconds the servers on this node need to add up the gradients of all workers, one core each."""
    if spot.servers == 0:
        return 0.0
    return whole.workers * profile.gradient_bytes / whole.servers / SERVER_GBPS_PER_CORE


def _requested_cores(job: SimJob, spot: Spot) -> float:
    total = 0.0
    for group in job.job.groups:
        count = spot.servers if group.role == "PARAMETER_SERVER" else spot.workers
        total += count * group.demand.cpu_cores
    return total


def _part(job: SimJob, profile: ModelProfile, whole: _Whole, spot: Spot, spec: NodeSpec) -> Part:
    """Stage seconds on one node; its rates follow once the job's speed is known."""
    samples = spot.workers * whole.batch
    bytes_out, server_s = _nic_bytes(profile, whole, spot), _server_s(profile, whole, spot)
    in_node = 2.0 * profile.gradient_bytes * (spot.workers - 1) if spot.workers > 1 else 0.0
    peer_s = 0.0
    if spec.interconnect_bps > 0:
        in_node, peer_s = _between_peers(profile, whole, spot, spec)
    pcie = samples * profile.pcie_bytes + in_node
    gpu_s = profile.gpu_s(spec.gpu_model, whole.batch) if spot.workers else 0.0
    core_s = samples * profile.core_s_per_sample / spec.cpu_speed
    cores = max(1.0, spec.node.capacity.cpu_cores)
    return Part(
        node=spot.node,
        workers=spot.workers,
        servers=spot.servers,
        gpu_model=spec.gpu_model,
        gpu_indices=spot.gpu_indices,
        cpu_requested=_requested_cores(job, spot),
        input_cpu_s=core_s / cores,
        input_disk_s=samples * profile.disk_bytes * _missed(job, spec) / spec.disk_bps,
        input_pcie_s=(pcie if peer_s == 0 else samples * profile.pcie_bytes) / spec.pcie_bps,
        gpu_s=gpu_s,
        net_s=bytes_out / (spec.nic_bps * profile.net_efficiency) + server_s,
        peer_s=peer_s,
        cpu_wanted=core_s + spot.servers * server_s,
        disk_rate=samples * profile.disk_bytes * _missed(job, spec),
        pcie_rate=pcie,
        nic_rate=bytes_out / profile.net_efficiency,
    )


def _between_peers(profile: ModelProfile, whole: _Whole, spot: Spot, spec: NodeSpec) -> tuple[float, float]:
    """Bytes of gradients over PCIe per iteration, and seconds of synchronisation within the node."""
    if whole.servers:
        crossing = spot.workers * profile.gradient_bytes
        return crossing, crossing / spec.pcie_bps
    ring = 2.0 * (spot.workers - 1) / max(1, spot.workers) * profile.gradient_bytes
    return 0.0, ring / spec.interconnect_bps


def _missed(job: SimJob, spec: NodeSpec) -> float:
    """Share of the data set that the node's memory cannot hold and the disk must deliver again each epoch."""
    if job.dataset_gib <= 0:
        return 0.0
    return max(0.0, 1.0 - spec.node.capacity.memory_gib / job.dataset_gib)


def alone(
    job: SimJob, profile: ModelProfile, spots: Sequence[Spot], nodes: Mapping[str, NodeLoad], overlap: float
) -> Footprint:
    """The job's footprint: per-iteration amounts divided by the seconds of an iteration with nobody else there."""
    parts, samples = _parts(job, profile, spots, nodes)
    step_s = overlapped(*_slowest(parts), overlap)
    for part in parts:
        part.cpu_wanted /= step_s
        part.disk_rate /= step_s
        part.pcie_rate /= step_s
        part.nic_rate /= step_s
    return Footprint(job=job, parts=parts, samples_per_step=samples, alone_step_s=step_s)


def stage_times(
    job: SimJob, profile: ModelProfile, spots: Sequence[Spot], nodes: Mapping[str, NodeLoad]
) -> tuple[float, float, float]:
    """Samples per iteration, and the seconds of its input and of its GPU and network stages, with nobody else there."""
    parts, samples = _parts(job, profile, spots, nodes)
    return samples, *_slowest(parts)


def _parts(
    job: SimJob, profile: ModelProfile, spots: Sequence[Spot], nodes: Mapping[str, NodeLoad]
) -> tuple[tuple[Part, ...], float]:
    """Per node, with rates per iteration still; and the samples of an iteration."""
    workers = sum(s.workers for s in spots)
    batch = local_batch(job, profile, max(1, workers))
    whole = _Whole(len(spots), workers, sum(s.servers for s in spots), batch)
    return tuple([_part(job, profile, whole, s, nodes[s.node].spec) for s in spots]), max(1, workers) * batch


def _slowest(parts: Sequence[Part]) -> tuple[float, float]:
    input_s = gpu_s = net_s = 0.0
    for part in parts:
        input_s = max(input_s, part.input_cpu_s, part.input_disk_s, part.input_pcie_s)
        gpu_s, net_s = max(gpu_s, part.gpu_s), max(net_s, part.net_s + part.peer_s)
    return input_s, gpu_s + net_s
