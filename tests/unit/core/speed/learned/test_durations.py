"""The estimate of a job's length: sums, decay, what leans on what, and how wide its interval is."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.fakes.cluster import make_job, make_node

from placewise_core.domain.cluster import Assignment, RunningJob, RunState
from placewise_core.domain.events import ClusterRecords, SubtaskForgotten, SubtaskProfiled
from placewise_core.domain.job import ElasticRange, Job, NodeId, Role, Shape
from placewise_core.speed.learned.durations import (
    HALVING_S,
    Durations,
    is_duration,
    kinds_of,
    log_length,
)
from placewise_core.speed.learned.sums import Sums, sums_of
from placewise_core.view.lengths import with_lengths
from placewise_core.view.view import ClusterView


def taught(*reports: tuple[Job, float], time_s: float = 0.0) -> Durations:
    """The rows after jobs that took so many GPU-seconds."""
    known = Durations()
    for job, gpu_s in reports:
        teach(known, job, gpu_s, time_s)
    return known


def teach(known: Durations, job: Job, gpu_s: float, time_s: float = 0.0) -> None:
    for kind in kinds_of(job):
        known.learn(kind, sums_of(known.row(kind)).added(math.log(gpu_s), time_s, HALVING_S).row)


def asked(name: str = "j", *, model: str = "bert", user: str = "ann", workers: int = 1) -> Job:
    return replace(make_job(name, workers=workers), model=model, user=user)


def test_a_report_counts_half_after_the_half_life() -> None:
    sums = Sums().added(2.0, 0.0, HALVING_S).added(4.0, HALVING_S, HALVING_S)
    assert sums == Sums(1.5, 5.0, 18.0, HALVING_S)
    assert sums.added(1.0, 0.0, HALVING_S).time_s == HALVING_S, "a clock that was set back ages nothing"
    assert sums.added(1.0, 0.0, HALVING_S).count == 2.5
    assert sums_of(sums.row) == sums


def test_nothing_is_known_before_the_first_job_has_ended() -> None:
    assert Durations().length_of(asked()) is None


def test_the_estimate_comes_from_the_finest_level_with_reports() -> None:
    known = taught((asked(), 1000.0))
    sources = {
        "model, user and shape": asked(),
        "model and user": asked(workers=2),
        "model": asked(user="bob"),
        "all jobs": asked(model="vgg16"),
    }
    for source, job in sources.items():
        found = known.length_of(job)
        assert found is not None
        assert (found.source, found.single_gpu_s, found.reports) == (source, 1000.0, 1.0)


def test_a_level_with_few_reports_leans_on_the_one_above_and_leaves_it_with_many() -> None:
    known = taught(*[(asked(user="bob"), 1000.0)] * 30)
    lengths = []
    for _ in range(100):
        teach(known, asked(), 10.0)
        found = known.length_of(asked())
        assert found is not None
        lengths.append(found.single_gpu_s)
    assert 10.5 < lengths[0] < 900.0
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] == pytest.approx(10.0, rel=0.15)
    other = known.length_of(asked(user="bob"))
    assert other is not None
    assert other.single_gpu_s == pytest.approx(1000.0, rel=0.4)


def test_names_of_one_model_share_their_rows() -> None:
    assert kinds_of(asked(model="ResNet-50")) == kinds_of(asked(model="resnet50 (batch size 64)"))


def test_the_shape_of_a_job_is_the_same_before_it_starts_and_when_it_ends() -> None:
    elastic = replace(asked(), elastic=ElasticRange(1, 8))
    assert kinds_of(elastic) == kinds_of(replace(elastic, shape=Shape(2, 4)))
    bare = replace(asked(), groups=(), shape=Shape(2, 4))
    assert kinds_of(bare) == kinds_of(replace(bare, groups=asked(workers=2).groups))
    assert kinds_of(asked(workers=2)) != kinds_of(asked(workers=3))


@pytest.mark.parametrize("spread", [0.2, 1.0, 2.5])
@pytest.mark.parametrize("count", [1, 3, 10, 30, 100])
def test_nine_tenths_of_the_next_jobs_lie_within_the_interval(spread: float, count: int) -> None:
    """Of log-normal lengths whose spread is unknown. It is wider than that after few reports, and of lengths that
    spread by much less than was assumed before any."""
    rng = np.random.default_rng((7, count))
    job, known, inside = asked(), Durations(), 0
    for _ in range(400):
        *reports, after = np.exp(rng.normal(7.0, spread, count + 1))
        sums = Sums()
        for each in reports:
            sums = sums.added(math.log(each), 0.0, HALVING_S)
        for kind in kinds_of(job):  # jobs of one kind: all levels have had the same reports
            known.learn(kind, sums.row)
        found = known.length_of(job)
        assert found is not None
        inside += found.low_s <= after <= found.high_s
    low, high = (0.86, 0.95) if count >= 30 and spread >= 1.0 else (0.80, 1.0)
    assert low <= inside / 400 <= high


def running(job: Job, *gpus: int, start_s: float = 100.0) -> RunningJob:
    tasks = tuple(Assignment(f"w{g}", Role.WORKER, NodeId("n0"), (g,)) for g in gpus)
    return RunningJob(job, tasks, start_time_s=start_s)


def test_the_length_is_in_gpu_seconds() -> None:
    assert log_length(running(asked(), 0), 150.0) == math.log(50.0)
    assert log_length(running(asked(), 0, 1, 2), 150.0) == math.log(150.0)
    assert log_length(running(asked()), 150.0) == math.log(50.0), "a job without GPUs"
    assert log_length(running(asked(), 0, 1), 100.0) == math.log(2.0), "a second at least"


def test_a_job_whose_start_is_unknown_has_no_length() -> None:
    assert log_length(running(asked(), 0, start_s=0.0), 150.0) is None
    assert log_length(running(asked(), 0), 99.0) is None
    assert log_length(replace(running(asked(), 0), state=RunState.RESERVED), 150.0) is None


def view_of(*kinds_and_rows: tuple[str, dict[str, float]]) -> ClusterView:
    view = ClusterView(ClusterRecords("c", 0, "e", (make_node("n0"),)))
    for kind, row in kinds_and_rows:
        view.apply_change(SubtaskProfiled(kind, row))
    return view


def rows_after(reports: Sequence[tuple[Job, float]]) -> dict[str, dict[str, float]]:
    known = taught(*reports)
    return {kind: dict(known.row(kind)) for kind in known.kinds}


def test_a_job_that_tells_its_length_or_its_iterations_keeps_it() -> None:
    view = view_of(*rows_after([(asked(), 1000.0)]).items())
    reported = (replace(asked("a"), single_gpu_s=7.0), replace(asked("b"), iterations=5.0))
    assert with_lengths(reported, view) == (reported, ())
    jobs, lengths = with_lengths((*reported, asked("c")), view)
    assert [job.single_gpu_s for job in jobs] == [7.0, 0.0, 1000.0]
    assert [length.job_id for length in lengths] == ["c"]


def test_rows_in_another_order_and_a_view_that_was_loaded_give_the_same() -> None:
    rows = rows_after([(asked(), 1000.0), (asked(user="bob"), 50.0), (asked(workers=2), 9.0)])
    one, other = view_of(*rows.items()), view_of(*reversed(rows.items()))
    loaded = ClusterView(ClusterRecords("c", 0, "e", (make_node("n0"),), subtask_profiles=rows))
    for view in (other, loaded):
        assert with_lengths((asked(),), view) == with_lengths((asked(),), one)
        assert view.digest() == one.digest()
    assert not one.subtask_profiles
    assert one.digest() != view_of().digest()


def test_a_row_that_is_forgotten_is_gone_from_the_estimate_and_the_digest() -> None:
    rows = rows_after([(asked(), 1000.0)])
    view = view_of(*rows.items())
    assert all(is_duration(kind) for kind in rows)
    for kind in rows:
        view.apply_change(SubtaskForgotten(kind))
    assert with_lengths((asked(),), view) == ((asked(),), ())
    assert view.digest() == view_of().digest()
