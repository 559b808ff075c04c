"""Links between GPUs apart from PCIe, the flat rule of contention, and measured rows that set no bandwidth."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from placewise_core.domain.job import Job, JobId, Resources
from placewise_training.data.measured import StepTime, step_times
from placewise_training.sim.hardware import NodeSpec, uniform_cluster
from placewise_training.sim.jobs import SimJob, gang
from placewise_training.sim.speed import fitting
from placewise_training.sim.speed.base import Footprint, NodeLoad, Spot
from placewise_training.sim.speed.composed import ComposedSpeed
from placewise_training.sim.speed.contention import network_s
from placewise_training.sim.speed.profiles import Catalogue, judge_catalogue, train_catalogue
from placewise_training.sim.speed.stages import alone
from placewise_training.sim.truths import make_truth

_GRADIENTS = judge_catalogue()["vgg16"].gradient_bytes


def _nodes(count: int, **changes: float) -> dict[str, NodeLoad]:
    return {spec.id: NodeLoad(replace(spec, **changes)) for spec in uniform_cluster(count, 8)}


def _job(workers: int, servers: int = 0, model: str = "vgg16") -> SimJob:
    groups = gang(workers, servers, worker_demand=Resources(cpu_cores=2, gpus=1))
    return SimJob(Job(JobId(f"{model}-{workers}-{servers}"), model=model, groups=groups), 1e6, 0.0, local_batch=32)


def _placed(job: SimJob, spots: list[Spot], nodes: Mapping[str, NodeLoad]) -> Footprint:
    return alone(job, judge_catalogue()["vgg16"], spots, nodes, 0.5)


def _packed(workers: int, servers: int = 0) -> list[Spot]:
    return [Spot("node0000", workers, servers, tuple(range(workers)))]


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_a_ring_within_a_node_crosses_its_links_and_not_pcie(workers: int) -> None:
    nodes = _nodes(1, interconnect_bps=2e10, pcie_bps=1.2e10)
    (part,) = _placed(_job(workers), _packed(workers), nodes).parts
    assert part.peer_s == pytest.approx(2 * (workers - 1) / workers * _GRADIENTS / 2e10)
    samples = workers * 32
    assert part.input_pcie_s == pytest.approx(samples * judge_catalogue()["vgg16"].pcie_bytes / 1.2e10)
    assert part.net_s == 0.0


def test_gradients_to_and_from_parameter_servers_cross_pcie_at_the_synchronisation() -> None:
    nodes = _nodes(1, interconnect_bps=3e11, pcie_bps=1.2e10)
    (part,) = _placed(_job(4, 1), _packed(4, 1), nodes).parts
    assert part.peer_s == pytest.approx(4 * _GRADIENTS / 1.2e10)


def test_a_single_worker_synchronises_with_nobody() -> None:
    (part,) = _placed(_job(1), _packed(1), _nodes(1, interconnect_bps=3e9)).parts
    assert part.peer_s == 0.0


def test_without_an_interconnect_gradients_stay_in_the_input_stage() -> None:
    """The truths of the reproductions: their event hashes stand in tests/golden."""
    (part,) = _placed(_job(4), _packed(4), _nodes(1, pcie_bps=1.2e10)).parts
    input_bytes = 4 * 32 * judge_catalogue()["vgg16"].pcie_bytes
    assert part.peer_s == 0.0
    assert part.input_pcie_s == pytest.approx((input_bytes + 2 * _GRADIENTS * 3) / 1.2e10)


def _flat(loss: float | None) -> ComposedSpeed:
    truth = make_truth("judge", 1, noisy=False)
    truth.flat_loss = loss
    return truth


def _beside(truth: ComposedSpeed, first: list[Spot], second: list[Spot]) -> float:
    """Speed of the first job with the second one running."""
    nodes = _nodes(3, interconnect_bps=3e10, nic_bps=1.25e9)
    jobs = {}
    for name, spots in (("first", first), ("second", second)):
        sim_job = replace(_job(sum(spot.workers for spot in spots)), job=replace(_job(1).job, id=JobId(name)))
        jobs[name] = truth.footprint(sim_job, spots, nodes)
        for part in jobs[name].parts:
            nodes[part.node].add(name, part)
    return truth.rate(jobs["first"], nodes, jobs)


_WIDE = [Spot("node0000", 1, 0, (0,)), Spot("node0001", 1, 0, (0,))]
_WIDE_TOO = [Spot("node0001", 1, 0, (4,)), Spot("node0002", 1, 0, (4,))]
_NARROW = [Spot("node0001", 2, 0, (4, 5))]


def test_under_the_flat_rule_a_wide_job_loses_that_share_beside_another_wide_one_alone() -> None:
    undisturbed = _beside(_flat(0.0), _WIDE, _WIDE_TOO)
    assert _beside(_flat(0.5), _WIDE, _WIDE_TOO) == pytest.approx(0.5 * undisturbed)
    assert _beside(_flat(0.25), _WIDE, _WIDE_TOO) == pytest.approx(0.75 * undisturbed)
    for first, second in ((_WIDE, _NARROW), (_NARROW, _WIDE)):
        assert _beside(_flat(0.5), first, second) == pytest.approx(_beside(_flat(0.0), first, second))


def test_the_flat_rule_takes_the_place_of_demand_over_capacity() -> None:
    assert _beside(_flat(None), _WIDE, _WIDE_TOO) < _beside(_flat(0.0), _WIDE, _WIDE_TOO)


def _errors(
    source: str, model: str, catalogue: Catalogue, overlap: float, cluster: Callable[[StepTime], list[NodeSpec]]
) -> float:
    """Median relative error of the step time over the rows of several GPUs on one node."""
    errors = []
    for row in step_times():
        if (row.source, row.model.lower()) == (source, model) and row.nodes == 1 and row.gpus > 1:
            nodes = {spec.id: NodeLoad(spec) for spec in cluster(row)}
            spots = [Spot(name, k, 0, tuple(range(k))) for name, k in zip(nodes, row.placement, strict=True)]
            groups = gang(row.gpus, worker_demand=Resources(gpus=1))
            job = SimJob(Job(JobId("a"), model=model, groups=groups), 1.0, 0.0, local_batch=row.local_batch)
            errors.append(abs(alone(job, catalogue[model], spots, nodes, overlap).alone_step_s / row.step_s - 1))
    assert len(errors) >= 9
    return float(np.median(errors))


def _t4(**changes: float) -> Callable[[StepTime], list[NodeSpec]]:
    return lambda row: [replace(s, **changes) for s in uniform_cluster(row.nodes, max(row.placement), "T4")]


def _a100(**changes: float) -> Callable[[StepTime], list[NodeSpec]]:
    return lambda row: [
        replace(s, **changes) for s in uniform_cluster(row.nodes, max(row.placement), "A100", network_gbps=1600.0)
    ]


def test_parted_links_fit_measured_nodes_better_than_one_constant_for_both() -> None:
    """Gangs of one node that set no constant of this: BERT on T4 without peer links (Pollux), where PCIe carries the
    ring at about 1e10 B/s; VGG-16 on A100 with NVLink, 3e11 B/s, and PCIe 4 (ElasticFlow)."""
    bert = ("pollux_osdi21", "bert", train_catalogue(), 0.0)
    assert _errors(*bert, _t4(interconnect_bps=1e10)) < 0.06
    assert _errors(*bert, _t4()) > 0.12
    vgg = ("elasticflow", "vgg16", judge_catalogue(), fitting.muri_overlap())
    assert _errors(*vgg, _a100(interconnect_bps=3e11, pcie_bps=2.4e10)) < 0.08
    assert _errors(*vgg, _a100(pcie_bps=2.4e10)) > 0.5


@pytest.mark.parametrize(
    ("model", "one_constant", "apart"),
    [("bert", 0.135, 0.046), ("resnet50", 0.037, 0.023), ("deepspeech2", 0.077, 0.065)],
)
def test_t4_rows_of_the_document(model: str, one_constant: float, apart: float) -> None:
    """Of docs/truths.md."""
    rows = ("pollux_osdi21", model, train_catalogue(), 0.0)
    assert _errors(*rows, _t4()) == pytest.approx(one_constant, abs=6e-4)
    assert _errors(*rows, _t4(interconnect_bps=1e10)) == pytest.approx(apart, abs=6e-4)


@pytest.mark.parametrize(("model", "one_constant", "apart"), [("vgg16", 0.880, 0.075), ("resnet50", 0.175, 0.102)])
def test_a100_rows_of_the_document(model: str, one_constant: float, apart: float) -> None:
    """Of docs/truths.md."""
    rows = ("elasticflow", model, judge_catalogue(), fitting.muri_overlap())
    assert _errors(*rows, _a100(pcie_bps=2.4e10)) == pytest.approx(one_constant, abs=6e-4)
    assert _errors(*rows, _a100(interconnect_bps=3e11, pcie_bps=2.4e10)) == pytest.approx(apart, abs=6e-4)


def _bursts(burst: float) -> ComposedSpeed:
    truth = make_truth("judge", 1, noisy=False)
    truth.burst = burst
    return truth


def test_bursts_stretch_the_synchronisation_by_the_share_of_the_time_that_others_send() -> None:
    nodes = _nodes(3, interconnect_bps=3e10, nic_bps=1e11)
    truth = _bursts(2.0)
    jobs = {}
    for name, spots in (("first", _WIDE), ("second", _WIDE_TOO)):
        sim_job = replace(_job(2), job=replace(_job(2).job, id=JobId(name)))
        jobs[name] = truth.footprint(sim_job, spots, nodes)
        for part in jobs[name].parts:
            nodes[part.node].add(name, part)
    shared = nodes["node0001"]
    others = shared.parts["second"].nic_rate / 1e11
    assert 0 < others < 0.9
    stretched = network_s(shared, shared.parts["first"], 2.0)
    assert stretched == pytest.approx(shared.parts["first"].net_s * (1 + 2.0 * others))
    alone_s = network_s(nodes["node0000"], nodes["node0000"].parts["first"], 2.0)
    assert alone_s == nodes["node0000"].parts["first"].net_s
    assert _beside(_bursts(2.0), _WIDE, _WIDE_TOO) < _beside(_bursts(0.0), _WIDE, _WIDE_TOO)
    assert _beside(_bursts(2.0), _WIDE, _NARROW) == _beside(_bursts(0.0), _WIDE, _NARROW)
