"""Pairs on one GPU learned from reports: the reports that count, the estimate, and the forecasts that read it."""

import math
from dataclasses import replace

import pytest
from tests.fakes.cluster import make_job, make_node

from placewise_core.domain.cluster import Assignment, ClusterSettings, RunningJob
from placewise_core.domain.events import ClusterRecords, Event, SettingsChanged, SubtaskForgotten, SubtaskProfiled
from placewise_core.domain.job import CoRun, GpuSharing, Job, JobId, NodeId, Resources, Role
from placewise_core.speed.co_runs import KnownCoRuns, LearnedCell, PairSpeeds, learned_rows, rows_of
from placewise_core.speed.completed_interference import InterferenceSource, learned_co_runs
from placewise_core.speed.interference import MeasuredInterference
from placewise_core.speed.learned.pairs import HALVING_S, LearnedPairs, PairGroup, is_pair, pair_group_of
from placewise_core.speed.learned.sums import sums_of
from placewise_core.speed.pair_effects import shrunk
from placewise_core.view.learned.pairs import pair_of
from placewise_core.view.view import ClusterView

ALONE, BESIDE = PairGroup("lm", "t4", 64), PairGroup("lm", "t4", 64, "resnet50")
TABLE = MeasuredInterference({"T4": {"lm": {"resnet50": 0.8}, "resnet50": {"lm": 0.7}}}, {"T4": 0.4}, "T4")
SHARING = GpuSharing(True, 3.0)


def add(known: LearnedPairs, group: PairGroup, per_second: float, time_s: float = 0.0) -> None:
    row = sums_of(known.row(group.kind)).added(math.log(per_second), time_s, HALVING_S).row
    known.learn(group.kind, row)


def slowed(reports: int = 1, to: float = 0.5) -> LearnedPairs:
    known = LearnedPairs()
    for _ in range(reports):
        add(known, ALONE, 100.0)
        add(known, BESIDE, 100.0 * to)
    return known


def test_a_pair_needs_reports_alone_and_beside_of_one_batch() -> None:
    known = LearnedPairs()
    add(known, ALONE, 100.0)
    add(known, replace(BESIDE, batch=32), 50.0)
    assert known.cells() == []
    assert known.known.is_empty
    add(known, BESIDE, 50.0)
    (cell,) = known.cells()
    assert (cell.model, cell.partner, cell.gpu_type, cell.reports) == ("lm", "resnet50", "t4", 1.0)
    assert cell.speed == pytest.approx(0.5)
    assert known.known is known.known


def test_more_reports_make_a_pair_more_certain() -> None:
    (few,), (many,) = slowed(1).cells(), slowed(50).cells()
    assert many.variance < few.variance / 25.0
    assert slowed(1, to=3.0).cells()[0].speed == 1.0


def test_a_speed_shrinks_towards_the_assumed_one() -> None:
    (few,), (many,) = slowed(1).cells(), slowed(50).cells()
    near, far = (shrunk(cell.speed, cell.variance, 0.8).speed.forecast for cell in (many, few))
    assert near == pytest.approx(0.5, abs=0.01)
    assert 0.5 < near < far < 0.8
    assert shrunk(0.5, 1e-12, 0.8).speed.forecast == pytest.approx(0.5, abs=1e-5)


def test_a_stated_co_run_comes_before_a_learned_one() -> None:
    learned = KnownCoRuns(learned_rows([LearnedCell("lm", "resnet50", "t4", 0.5, 0.01, 3.0)]))
    assert learned.of("lm", "t4") == {"resnet50": PairSpeeds(0.5, 0.0, 0.0, 0.01)}
    own = KnownCoRuns(rows_of([("lm", (CoRun("resnet50", 0.6, gpu_model="t4"),))]), learned)
    assert own.of("lm", "t4") == {"resnet50": PairSpeeds(0.6, 0.0)}
    by_other = KnownCoRuns(rows_of([("resnet50", (CoRun("lm", 0.9, 0.65, gpu_model="t4"),))]), learned)
    assert by_other.of("lm", "t4")["resnet50"] == PairSpeeds(0.65, 0.9)


def view_of(*jobs: RunningJob) -> ClusterView:
    return ClusterView(ClusterRecords("c", 1, "e", nodes=(make_node("n0", gpu_model="T4"),), jobs=jobs))


def running(name: str, model: str, *spots: int, **changes: object) -> RunningJob:
    values: dict[str, object] = {"model": model, "dataset_size": 1000, "batch_size": 64, "gpu_sharing": SHARING}
    job = replace(make_job(name), **{**values, **changes})  # type: ignore[arg-type]
    tasks = [
        Assignment(f"w{i}", Role.WORKER, NodeId("n0"), (g,), Resources(cpu_cores=1.0, gpus=1.0))
        for i, g in enumerate(spots)
    ]
    return RunningJob(job, tuple(tasks))


A, B, C = running("a", "lm", 0), running("b", "ResNet-50", 0), running("c", "vgg", 0)


@pytest.mark.parametrize(
    ("jobs", "group"),
    [
        ((A,), ALONE),
        ((A, B), BESIDE),
        ((A, running("b", "ResNet-50", 1)), ALONE),
        ((A, B, C), None),
        ((A, running("b", "", 0)), None),
    ],
    ids=["alone", "beside one", "one on another GPU", "beside two", "beside one without a model"],
)
def test_the_row_says_who_is_on_the_same_gpu(jobs: tuple[RunningJob, ...], group: PairGroup | None) -> None:
    addition = pair_of(A, 0.5, 2.0, view_of(*jobs))
    assert (addition.kind if addition else None) == (group.kind if group else None)
    if addition is not None:
        assert (addition.value, addition.weight) == (math.log(500.0), 1.0)


@pytest.mark.parametrize(
    ("job", "speed", "epochs"),
    [
        (running("a", "lm", 0, 1), 0.5, 2.0),
        (running("a", "lm", 0, dataset_size=0), 0.5, 2.0),
        (running("a", "", 0), 0.5, 2.0),
        (A, 0.0, 2.0),
        (replace(A, epochs_done=2.0), 0.5, 2.0),
        (running("a", "lm"), 0.5, 2.0),
    ],
)
def test_other_reports_say_nothing(job: RunningJob, speed: float, epochs: float) -> None:
    assert pair_of(job, speed, epochs, view_of(job)) is None


def test_rows_are_those_of_pairs_alone() -> None:
    assert pair_group_of(BESIDE.kind) == BESIDE
    assert is_pair(ALONE.kind)
    view = view_of()
    before = view.digest()
    view.apply_change(SubtaskProfiled(ALONE.kind, {"count": 1.0, "sum": 1.0, "squares": 1.0, "time_s": 0.0}))
    assert view.digest() != before
    assert ALONE.kind in view.estimates.kinds
    view.apply_change(SubtaskForgotten(ALONE.kind))
    assert view.digest() == before


def speed_of(view: ClusterView, model: str = "lm", partner: str = "resnet50") -> float:
    asked = Job(JobId("x"), model=model, gpu_sharing=SHARING)
    return InterferenceSource(TABLE).of(view.co_runs, (asked,)).relative_speed(model, [partner], "T4")


def test_forecasts_follow_the_reports_while_the_setting_is_on() -> None:
    view = view_of()
    for kind in (known := slowed(50)).kinds:
        view.apply_change(SubtaskProfiled(kind, known.row(kind)))
    assert speed_of(view) == 0.8
    view.apply(Event(2, "e", SettingsChanged(ClusterSettings(learn_co_runs=True))))
    assert speed_of(view) == pytest.approx(0.5, abs=0.01)
    assert speed_of(view.fork()) == speed_of(view)
    add(known, BESIDE, 90.0)
    view.apply_change(SubtaskProfiled(BESIDE.kind, known.row(BESIDE.kind)))
    assert speed_of(view) > 0.505
    view.apply_change(SubtaskForgotten(BESIDE.kind))
    assert speed_of(view) == 0.8
    again = ClusterView(
        ClusterRecords(
            "c", 1, "e", nodes=(make_node("n0", gpu_model="T4"),), settings=ClusterSettings(learn_co_runs=True),
            subtask_profiles={kind: known.row(kind) for kind in known.kinds},
        )
    )  # fmt: skip
    assert speed_of(again) < 0.6


def test_a_pair_is_shown_with_its_interval_and_the_shipped_speed() -> None:
    (shown,) = learned_co_runs(slowed(5).cells(), TABLE)
    assert (shown.model, shown.partner, shown.gpu_type, shown.shipped, shown.reports) == (
        *("lm", "resnet50", "t4"),
        *(0.8, 5.0),
    )
    assert 0.45 < shown.low < shown.relative_speed < shown.high < 0.65
    (free,) = learned_co_runs([LearnedCell("lm", "resnet50", "t4", 1.0, 1e-4, 9.0)], TABLE)
    assert 0.95 < free.low < free.relative_speed < free.high <= 1.0
