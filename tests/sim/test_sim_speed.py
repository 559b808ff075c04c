"""Speed models: invariants of any truth, and that the two truths are not one."""

from collections.abc import Sequence

import numpy as np
import pytest

from placewise_core.domain.job import Job, JobId, Resources
from placewise_training.data.measured import profiled_sets, step_times
from placewise_training.sim.hardware import NodeSpec, harmony_cluster, uniform_cluster
from placewise_training.sim.jobs import SimJob, gang
from placewise_training.sim.speed import fitting
from placewise_training.sim.speed.base import Footprint, NodeLoad, Spot
from placewise_training.sim.speed.composed import ComposedSpeed
from placewise_training.sim.speed.noise import speed_noise
from placewise_training.sim.speed.profiles import (
    MODEL_NAMES,
    SITE_MEMBERS,
    gpu_speed,
    judge_catalogue,
    site_catalogue,
    train_catalogue,
)
from placewise_training.sim.speed.stages import alone
from placewise_training.sim.truths import TRUTHS, make_truth


class Bench:
    """A few nodes on which jobs are put by hand."""

    def __init__(self, truth: ComposedSpeed, nodes: Sequence[NodeSpec]) -> None:
        self.truth = truth
        self.nodes = {spec.id: NodeLoad(spec) for spec in nodes}
        self.jobs: dict[str, Footprint] = {}

    def put(self, job_id: str, model: str, spots: Sequence[Spot], servers: int = 0, cores: float = 2) -> None:
        workers = sum(s.workers for s in spots)
        groups = gang(workers, servers, worker_demand=Resources(cpu_cores=cores, gpus=1))
        job = SimJob(Job(JobId(job_id), model=model, groups=groups), 1e6, 0.0, number=len(self.jobs))
        footprint = self.truth.footprint(job, spots, self.nodes)
        self.jobs[job_id] = footprint
        for part in footprint.parts:
            self.nodes[part.node].add(job_id, part)

    def rate(self, job_id: str) -> float:
        return self.truth.rate(self.jobs[job_id], self.nodes, self.jobs)


@pytest.fixture(params=TRUTHS)
def truth(request: pytest.FixtureRequest) -> ComposedSpeed:
    return make_truth(request.param, 0, noisy=False)


def test_sites_are_unlike_each_other_and_both_other_truths() -> None:
    found: dict[tuple[float, ...], str] = {}
    truths = {"train": train_catalogue(), "judge": judge_catalogue()}
    truths |= {f"site {member}": site_catalogue(member) for member in range(SITE_MEMBERS)}
    for name, catalogue in truths.items():
        profiles = [catalogue[model] for model in MODEL_NAMES]
        costs = tuple(p.per_sample_s * gpu_speed(p.gpu_type) for p in profiles)
        assert min(costs) > 0
        assert all(0 < p.net_efficiency <= 1 for p in profiles)
        assert all(np.median(np.abs(np.log(np.divide(costs, other)))) > 0.05 for other in found), (
            f"{name} is much like another"
        )
        found[costs] = name
    assert make_truth("site", 3).catalogue is make_truth("site", 3 + SITE_MEMBERS).catalogue
    assert make_truth("site", 3).overlap != make_truth("site", 4).overlap


@pytest.mark.parametrize("model", MODEL_NAMES)
def test_a_job_alone_runs_at_its_alone_rate(truth: ComposedSpeed, model: str) -> None:
    bench = Bench(truth, uniform_cluster(1, 4))
    bench.put("a", model, [Spot("node0000", 4, 0, (0, 1, 2, 3))])
    assert bench.rate("a") == pytest.approx(truth.alone_rate(bench.jobs["a"].job, "V100", 4), rel=1e-9)


def test_neighbours_never_speed_a_job_up_and_some_slow_it_down(truth: ComposedSpeed) -> None:
    slowdowns = {}
    for model in MODEL_NAMES:
        bench = Bench(truth, harmony_cluster(1))
        bench.put("a", model, [Spot("server0", 1, 0, (0,))])
        alone = bench.rate("a")
        bench.put("b", "ctc", [Spot("server0", 2, 0, (1,))])
        slowdowns[model] = alone / bench.rate("a")
    assert min(slowdowns.values()) >= 1 - 1e-12
    assert max(slowdowns.values()) > 1.1


def test_the_cpu_bound_speech_job_hurts_image_models_more_than_text_models(truth: ComposedSpeed) -> None:
    """Harmony's case study 2: CTC is CPU intensive and slows everybody who needs the CPU."""

    def slowdown(model: str) -> float:
        bench = Bench(truth, harmony_cluster(1))
        bench.put("a", model, [Spot("server0", 1, 0, (0,))], cores=1)
        alone = bench.rate("a")
        bench.put("b", "ctc", [Spot("server0", 2, 0, (1,))], cores=1)
        return alone / bench.rate("a")

    assert slowdown("alexnet") > 1.1
    assert slowdown("alexnet") > slowdown("wlm")


def test_spreading_a_ring_costs_and_more_so_for_large_models(truth: ComposedSpeed) -> None:
    def cost(model: str) -> float:
        packed, spread = Bench(truth, harmony_cluster(2)), Bench(truth, harmony_cluster(2))
        packed.put("a", model, [Spot("server0", 2, 0, (0, 1))])
        spread.put("a", model, [Spot("server0", 1, 0, (0,)), Spot("server1", 1, 0, (0,))])
        return packed.rate("a") / spread.rate("a")

    assert cost("vgg16") > 1.05
    assert cost("vgg16") > cost("resnext110")


def test_a_parameter_server_beside_its_worker_is_faster_than_across_the_wire(truth: ComposedSpeed) -> None:
    near, far = Bench(truth, harmony_cluster(2)), Bench(truth, harmony_cluster(2))
    near.put("a", "vgg16", [Spot("server0", 1, 1, (0,))], servers=1)
    far.put("a", "vgg16", [Spot("server0", 1, 0, (0,)), Spot("server1", 0, 1, ())], servers=1)
    assert near.rate("a") > 1.05 * far.rate("a")


def test_three_on_one_gpu_are_slower_than_two(truth: ComposedSpeed) -> None:
    sharing = truth.sharing
    for model in ("resnet50", "lstm", "transformer"):
        two = sharing.relative_speed(model, ["lstm"], "V100")
        three = sharing.relative_speed(model, ["lstm", "resnet18"], "V100")
        assert 0 < three < two <= 1
        assert sharing.relative_speed(model, [], "V100") == 1


def test_equal_time_slices_are_the_fixed_point_of_the_additive_rule() -> None:
    sharing = make_truth("train").sharing
    halves = type(sharing)({("LM", "LM"): 0.5}, train_catalogue(), "additive")
    assert halves.relative_speed("lstm", ["lstm"] * 3, "") == pytest.approx(0.25)


def test_shared_gpus_run_at_the_measured_pair() -> None:
    truth = make_truth("train", 0, noisy=False, contended=False)
    bench = Bench(truth, uniform_cluster(1, 1))
    bench.put("a", "lstm", [Spot("node0000", 1, 0, (0,))])
    alone = bench.rate("a")
    bench.put("b", "resnet50", [Spot("node0000", 1, 0, (0,))])
    measured = fitting.pair_table("gavel_simulation", "K80")["LM", "ResNet-50"]
    assert bench.rate("a") / alone == pytest.approx(measured)


def test_the_two_truths_rest_on_different_numbers() -> None:
    train, judge = train_catalogue(), judge_catalogue()
    for model in MODEL_NAMES:
        assert train[model].source != judge[model].source
        assert train[model].gpu_s("V100", 32) != judge[model].gpu_s("V100", 32)
        assert train[model].params_millions == judge[model].params_millions
    assert make_truth("train").sharing.pair("lstm", "resnet50") != make_truth("judge").sharing.pair("lstm", "resnet50")


def test_noise_has_the_measured_size_and_is_paired() -> None:
    draws = np.array([speed_noise(0, job, 0) for job in range(4000)])
    deviations = np.abs(np.log(draws))
    assert np.median(deviations) == pytest.approx(0.0235, abs=0.003)
    assert np.quantile(deviations, 0.9) == pytest.approx(0.07, abs=0.012)
    assert speed_noise(0, 5, 0) == speed_noise(0, 5, 0) != speed_noise(1, 5, 0)


def test_unknown_models_and_gpus_have_a_stated_stand_in() -> None:
    unknown = train_catalogue()["never-heard-of"]
    assert (unknown.name, unknown.source) == ("neverheardof", "unknown model: as resnet50")
    assert gpu_speed("H9000") == 1.0
    assert gpu_speed("Tesla K80") < gpu_speed("T4") < gpu_speed("A100")


def test_fits_reproduce_the_rows_they_come_from() -> None:
    """Pollux' step less sync from the fitted line: within 15 % for the median row of every model."""
    for model in ("BERT", "ResNet50", "DeepSpeech2", "ResNet18"):
        base_s, per_sample_s = fitting.pollux_compute(model)
        rows = [r for r in step_times() if r.source == "pollux_osdi21" and r.model == model and r.sync_s is not None]
        compute_s = np.array([r.step_s - r.sync_s for r in rows if r.sync_s is not None])
        fitted_s = np.array([base_s + per_sample_s * r.local_batch for r in rows])
        assert np.median(np.abs(fitted_s / compute_s - 1)) < 0.15, model
    assert 0 < fitting.muri_overlap() < 1


def test_stages_alone_reproduce_measured_step_times_over_all_placements() -> None:
    """Stages × scaling against Pollux' rows, T4 nodes with 50 Gbit/s: median error below 13 % for each model."""
    catalogue = train_catalogue()
    for measured, model in (("BERT", "bert"), ("ResNet50", "resnet50"), ("DeepSpeech2", "deepspeech2")):
        errors = []
        for row in step_times():
            if row.source != "pollux_osdi21" or row.model != measured:
                continue
            specs = uniform_cluster(row.nodes, max(row.placement), "T4", network_gbps=50.0)
            nodes = {spec.id: NodeLoad(spec) for spec in specs}
            spots = [Spot(name, k, 0, tuple(range(k))) for name, k in zip(nodes, row.placement, strict=True)]
            groups = gang(row.gpus, worker_demand=Resources(gpus=1))
            job = SimJob(Job(JobId("a"), model=model, groups=groups), 1.0, 0.0, local_batch=row.local_batch)
            errors.append(abs(alone(job, catalogue[model], spots, nodes, 0.0).alone_step_s / row.step_s - 1))
        assert len(errors) > 400
        assert np.median(errors) < 0.13, (model, np.median(errors))


def test_what_the_contention_model_leaves_out_is_small_on_our_own_test_set() -> None:
    """It has no caches and no memory bandwidth: per CPU second a job beside others counts as undisturbed."""
    sets = profiled_sets()
    assert {len(s.models) for s in sets} == {2, 3}
    for size, most in ((2, 0.05), (3, 0.10)):
        errors = [abs(1.0 - norm) for s in sets if len(s.models) == size for norm in s.cpu_norms]
        assert np.median(errors) < most
    assert np.median([spread for s in sets for spread in s.cpu_spread]) < 0.08
