"""Which reports of progress are measurements of throughput, and how much each weighs."""

import math
from dataclasses import replace

import pytest
from tests.fakes.cluster import make_job, make_node
from tests.fakes.proteus_queue import bundled

from placewise_core.domain.cluster import Assignment, ClusterSettings, Gpu, RunningJob
from placewise_core.domain.events import ClusterRecords, SubtaskProfiled
from placewise_core.domain.job import Architecture, NodeId, Resources, Role
from placewise_core.speed.learned.sums import sums_of
from placewise_core.speed.learned.throughputs import HALVING_S, row_of
from placewise_core.speed.solo import ThroughputSpeed
from placewise_core.speed.throughput import ThroughputModel
from placewise_core.view.speeds import (
    SiteSpeed,
    addition_of,
    gpu_type_of,
    gpu_types_of,
    match_on,
    of_placed,
    shape_of,
)
from placewise_core.view.view import ClusterView

MODEL = ThroughputModel(bundled("throughput.json"))


def view_of(*others: RunningJob, is_learning: bool = True) -> ClusterView:
    nodes = (*[make_node(f"n{i}", gpu_model="T4") for i in range(3)], make_node("v0", gpu_model="V100"))
    settings = ClusterSettings(learn_throughput=is_learning)
    return ClusterView(ClusterRecords("c", 1, "e", nodes=nodes, jobs=others, settings=settings))


def on(*spots: tuple[str, int], gpus: float = 1.0) -> tuple[Assignment, ...]:
    return tuple(
        Assignment(f"w{i}", Role.WORKER, NodeId(node), (g,), Resources(gpus=gpus)) for i, (node, g) in enumerate(spots)
    )


def running(*spots: tuple[str, int], name: str = "a", gpus: float = 1.0, **changes: object) -> RunningJob:
    job = replace(make_job(name), **{"dataset_size": 1000, "batch_size": 64, **changes})  # type: ignore[arg-type]
    return RunningJob(job, on(*spots, gpus=gpus))


def test_a_report_counts_samples_by_model_gpu_type_batch_and_shape() -> None:
    job = running(("n0", 0), ("n0", 1), ("n1", 0))
    addition = addition_of(job, 0.5, 2.0, view_of(job))
    assert addition is not None
    row = row_of(addition.kind)
    assert (row.model, row.gpu_type, row.batch, row.nodes, row.gpus) == ("resnet50", "T4", 64, 2, 3)
    assert (addition.value, addition.weight) == (math.log(500.0), 1.0)


def test_later_reports_of_a_job_weigh_as_the_share_of_its_work_that_is_new() -> None:
    job, weights = running(("n0", 0)), []
    for epochs in (1.0, 2.0, 4.0, 4.0):
        addition = addition_of(job, 0.5, epochs, view_of(job))
        weights.append(addition.weight if addition is not None else 0.0)
        job = replace(job, speed=0.5, epochs_done=epochs)
    assert weights == [1.0, 0.5, 0.5, 0.0]


def test_of_a_job_that_does_not_say_how_far_it_is_one_report_counts() -> None:
    job = running(("n0", 0))
    assert addition_of(job, 0.5, 0.0, view_of(job)) is not None
    job = replace(job, speed=0.5)
    assert addition_of(job, 0.6, 0.0, view_of(job)) is None


@pytest.mark.parametrize(
    "job",
    [
        running(("n0", 0), dataset_size=0),
        running(("n0", 0), architecture=Architecture.PARAMETER_SERVER),
        running(("n0", 0), architecture=Architecture.PIPELINE),
        running(("n0", 0), gpus=0.5),
        running(("n0", 0), ("v0", 0)),
        running(("gone", 0)),
        running(),
    ],
    ids=["no data set", "servers", "pipeline", "part of a GPU", "two GPU types", "unknown node", "nowhere"],
)
def test_reports_that_tell_nothing_of_the_model_do_not_count(job: RunningJob) -> None:
    assert addition_of(job, 0.5, 1.0, view_of()) is None


@pytest.mark.parametrize("speed", [0.0, -1.0, math.inf, math.nan])
def test_a_speed_that_is_none_does_not_count(speed: float) -> None:
    job = running(("n0", 0))
    assert addition_of(job, speed, 1.0, view_of(job)) is None


def test_a_job_with_neighbours_does_not_count() -> None:
    job, beside, elsewhere = running(("n0", 0)), running(("n0", 3), name="b"), running(("n1", 0), name="c")
    assert addition_of(job, 0.5, 1.0, view_of(job, elsewhere)) is not None
    assert addition_of(job, 0.5, 1.0, view_of(job, beside)) is None


def test_the_gpu_type_is_that_of_the_gpus_in_use() -> None:
    mixed = replace(make_node("n0"), gpus=(Gpu(0, "T4"), Gpu(1, "A100"), Gpu(2, "")))
    view = ClusterView(ClusterRecords("c", 1, "e", nodes=(mixed,)))
    assert [gpu_type_of(on(("n0", g)), view) for g in (0, 1, 2, 3)] == ["T4", "A100", "", ""]
    assert gpu_type_of(on(("n0", 0), ("n0", 1)), view) == ""
    assert shape_of(on(("n0", 0), ("n0", 1), ("n1", 0))) == (2, 3)


def taught(view: ClusterView, job: RunningJob, factor: float, count: int = 40) -> None:
    """The view learns that the job runs at this multiple of its forecast."""
    speed = factor * ThroughputSpeed(MODEL)(replace(job.job, single_gpu_s=0.0), job.assignments)
    view.add_job(job)
    addition = addition_of(job, speed, 1.0, view)
    assert addition is not None
    for _ in range(count):
        row = sums_of(view.estimates.throughputs.row(addition.kind)).added(addition.value, 0.0, HALVING_S).row
        view.apply_change(SubtaskProfiled(addition.kind, row))
    view.remove_job(job.id)


def test_forecasts_follow_reports_once_there_are_some_if_it_is_switched_on() -> None:
    job = running(("n0", 0))
    site, forecast = SiteSpeed(MODEL), ThroughputSpeed(MODEL)(job.job, job.assignments)
    on_view, off_view = view_of(), view_of(is_learning=False)
    assert site(job.job, job.assignments, on_view) == forecast
    for view in (on_view, off_view):
        taught(view, job, 0.5)
    assert site(job.job, job.assignments, on_view) == pytest.approx(0.5 * forecast, rel=0.05)
    assert site(job.job, job.assignments, off_view) == forecast
    assert match_on(MODEL, job.job, "T4", off_view) == MODEL.match(job.job, "T4")


def test_a_declared_time_on_one_gpu_is_met_whatever_was_reported() -> None:
    job, view = running(("n0", 0), single_gpu_s=100.0, total_epochs=10.0), view_of()
    taught(view, job, 0.5)
    assert SiteSpeed(MODEL)(job.job, job.assignments, view) == pytest.approx(0.1)


def test_an_answer_names_what_was_learned_in_samples_per_second() -> None:
    job, view, site = running(("n0", 0)), view_of(), SiteSpeed(MODEL)
    taught(view, job, 0.5)
    found = site.learned(job.job, "T4", (1, 1), view)
    assert found is not None
    expected = float(MODEL.throughput(job.job, MODEL.match(job.job, "T4"), 1, 1))
    assert (found.nodes, found.gpus, found.gpu_type, found.source) == (1, 1, "T4", "model, GPU type and shape")
    assert found.forecast_per_s == pytest.approx(expected, rel=0.01)
    assert found.low_per_s < found.samples_per_s < found.high_per_s
    assert found.samples_per_s == pytest.approx(0.5 * expected, rel=0.05)
    assert of_placed([job.job], [], view_of(is_learning=False), site.learned) == ()


def test_a_speed_names_its_profile_by_the_gpus_of_the_placement() -> None:
    site, view = SiteSpeed(MODEL), view_of(is_learning=False)
    spots = {"own": [("n0", 0)], "carried": [("v0", 0)], "both": [("n0", 0), ("v0", 0)]}
    placed = {name: running(*nodes) for name, nodes in spots.items()}
    found = {name: site.profile_model(each.job, each.assignments, view) for name, each in placed.items()}
    assert found == {"own": "", "carried": "ResNet50@T4", "both": "ResNet50@T4"}


def test_gpu_types_of_a_placement_are_those_of_its_gpus_alone() -> None:
    mixed = replace(make_node("n0"), gpus=(Gpu(0, "T4"), Gpu(1, "A100"), Gpu(2, "")))
    view = ClusterView(ClusterRecords("c", 1, "e", nodes=(mixed, make_node("n1", gpu_model="V100"))))
    assert [gpu_types_of(on(("n0", g)), view) for g in (0, 1, 2)] == [["T4"], ["A100"], []]
    assert gpu_types_of(on(("n0", 1), ("n0", 0), ("n1", 0)), view) == ["A100", "T4", "V100"]
    assert gpu_types_of(on(("gone", 0)), view) == []


def test_a_learned_speed_names_the_profile_that_its_factors_are_on() -> None:
    job, view, site = running(("v0", 0)), view_of(), SiteSpeed(MODEL)
    taught(view, job, 0.5)
    assert site.profile_model(job.job, job.assignments, view) == "ResNet50@T4"


def test_a_gpu_that_its_node_has_lost_since_has_no_type() -> None:
    """A request that is decided in slices is answered after the nodes may have been reported again."""
    view = ClusterView(ClusterRecords("c", 1, "e", nodes=(make_node("n0", gpus=2, gpu_model="T4"),)))
    assert gpu_types_of(on(("n0", 7), ("n0", 1)), view) == ["T4"]
