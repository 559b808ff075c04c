"""Co-runs that a site measured: their storage, and the order of sources for a pair."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.fakes.place_cases import node, running, view_of

from placewise_core.basics.arrays import FloatArray
from placewise_core.domain.events import ClusterRecords, Event, SubtaskProfiled
from placewise_core.domain.job import CoRun, GpuSharing, Job, JobId
from placewise_core.domain.model_names import canonical
from placewise_core.speed import completed_interference, interference
from placewise_core.speed.co_runs import CoRunBook, KnownCoRuns, PairSpeeds, is_row, rows_of
from placewise_core.speed.completed_interference import CompletedInterference, InterferenceSource
from placewise_core.speed.interference import MeasuredInterference
from placewise_core.speed.sharing_row import Square, columns_of, known_row
from placewise_core.view.view import ClusterView

TABLE = MeasuredInterference.from_table(
    {
        "pairs": {
            "K80": {"lm": {"lm": 0.5, "resnet50": 0.6}, "resnet50": {"lm": 0.4, "resnet50": 0.45}},
            "V100": {"lm": {"lm": 0.7, "resnet50": 0.6}, "resnet50": {"lm": 0.8, "resnet50": 0.5}},
        },
        "default": {"K80": 0.3, "V100": 0.35},
        "fallback_gpu": "V100",
        "step_s": {"K80": {"lm": 1.0, "resnet50": 4.0}, "V100": {"lm": 0.1, "resnet50": 0.4}},
    }
)


class Fixed:
    """Completes every row with one value, and remembers its input."""

    def __init__(self, value: float | None) -> None:
        self.value = value
        self.given: list[tuple[FloatArray, FloatArray]] = []

    def complete(self, prior: FloatArray, known: FloatArray) -> FloatArray | None:
        self.given.append((prior, known))
        return None if self.value is None else np.where(np.isnan(known), self.value, known)


def known(**co_runs: Sequence[CoRun]) -> KnownCoRuns:
    return KnownCoRuns(rows_of((model, tuple(several)) for model, several in co_runs.items()))


def job_of(model: str, *co_runs: CoRun, name: str = "j") -> Job:
    return Job(JobId(name), model=model, gpu_sharing=GpuSharing(True, 2.0, co_runs))


def test_columns_and_rows_agree() -> None:
    assert columns_of(TABLE.references) == (
        *("own:lm", "own:resnet50"),
        *("other:lm", "other:resnet50"),
        *("itself", "step_s"),
    )
    square = Square.of(TABLE, "V100")
    np.testing.assert_allclose(square.row(0), [0.7, 0.6, 0.7, 0.8, 0.7, 0.1])
    np.testing.assert_allclose(square.row(None), [0.75, 0.55, 0.65, 0.65, 0.6, 0.2])
    np.testing.assert_allclose(square.row(None, without=0), [0.8, 0.5, 0.6, 0.5, 0.5, 0.4])
    pairs = known(new=[CoRun("LM", 0.9, 0.2, step_s=2.0), CoRun("new", 0.4, step_s=8.0)]).of("new", "v100")
    np.testing.assert_allclose(known_row(TABLE.references, "new", pairs), [0.9, np.nan, 0.2, np.nan, 0.4, 4.0])
    assert np.isnan(known_row(TABLE.references, "lm", known(new=[CoRun("LM", 0.9, 0.2)]).of("lm", "v100"))).all()


def test_a_pair_is_known_from_both_sides_and_on_the_gpu_it_was_measured_on() -> None:
    reported = known(new=[CoRun("Res-Net 50", 0.9, 0.8), CoRun("resnet50", 0.5, 0.4, "V100")])
    assert reported.of("new", "teslak80") == {"resnet50": reported.of("new", "k80")["resnet50"]}
    assert reported.of("new", "k80")["resnet50"].own == 0.9
    assert reported.of("new", "teslav100sxm216gb")["resnet50"].own == 0.5
    assert reported.of("resnet50", "teslav100sxm216gb")["new"].own == 0.4
    assert known(new=[CoRun("lm", 0.9)]).of("lm", "v100") == {}, "the other's speed was not measured"
    assert known(new=[CoRun("lm", 0.9, 0.8, "Tesla V100")]).of("new", "v100"), "a node may name its GPU in fewer words"
    assert known(new=[CoRun("lm", 0.9, 0.8, "V100")]).of("new", "") == {}


@pytest.mark.parametrize(
    ("measured_on", "gpu", "goes"),
    [
        ("A10", "NVIDIA A10", True),
        ("A10", "NVIDIA A10-24GB", True),
        ("A10", "NVIDIA A100-SXM4-40GB", False),
        ("A10", "A100 40GB", False),
        ("NVIDIA A100 80GB", "A10", False),
        ("A100-SXM4", "NVIDIA-A100-SXM4-40GB", True),
        ("Tesla V100-SXM2-16GB", "V100", True),
        ("T4", "Quadro T400 4GB", False),
        ("P4", "Tesla P40", False),
    ],
)
def test_a_gpu_model_whose_name_goes_on_in_digits_is_another(measured_on: str, gpu: str, goes: bool) -> None:
    reported = known(new=[CoRun("lm", 0.9, 0.8, measured_on)])
    assert bool(reported.of("new", canonical(gpu))) == goes
    assert bool(reported.of("lm", canonical(gpu))) == goes


def test_of_gpu_models_alike_the_one_that_is_named_stands_in_whatever_order_they_were_told() -> None:
    reported = [CoRun("lm", 0.5, gpu_model="Tesla V100"), CoRun("lm", 0.6, gpu_model="V100"), CoRun("lm", 0.7)]
    for order in (reported, reported[::-1]):
        assert known(new=order).of("new", "v100")["lm"].own == 0.6
        assert known(new=order).of("new", "teslav100")["lm"].own == 0.5
        assert known(new=order).of("new", "k80")["lm"].own == 0.7


def test_a_pair_that_each_side_told_its_own_part_of_is_known_whole() -> None:
    both = known(new=[CoRun("lm", 0.9, step_s=2.0)], lm=[CoRun("new", 0.4)])
    assert both.of("new", "") == {"lm": PairSpeeds(0.9, 0.4, 2.0)}
    assert both.of("lm", "") == {"new": PairSpeeds(0.4, 0.9)}


@pytest.mark.parametrize(
    ("pair", "speed"),
    [
        (("new", "lm"), 0.9),  # measured
        (("lm", "new"), 0.8),  # measured, seen from the other
        (("new", "resnet50"), 0.65),  # completed
        (("resnet50", "new"), 0.65),
        (("new", "resnet101"), 0.626),  # of a model like resnet50, moved as far as the row
        (("new", "new"), 0.65),
        (("new", "mystery"), 0.718),  # nothing is like it: the mean of the table, moved
        (("mystery", "new"), 0.65),
        (("mystery", "lm"), 0.35),  # nobody has measured it: the careful default
        (("resnet50", "lm"), 0.8),  # the table
        (("resnet101", "lm"), 0.8),  # the nearest name
    ],
)
def test_who_answers_for_a_pair(pair: tuple[str, str], speed: float) -> None:
    reported = known(new=[CoRun("lm", 0.9, 0.8)])
    found = CompletedInterference(TABLE, reported, Fixed(0.65))
    for _ in range(2):  # and from memory
        assert found.relative_speed(pair[0], [pair[1]], "V100") == pytest.approx(speed, abs=1e-3)


def test_rows_of_both_move_a_pair_and_of_a_named_reference_the_row_itself_answers() -> None:
    class Own(Fixed):
        """The model's own speeds are 0.8, the others' 0.4."""

        def complete(self, prior: FloatArray, known: FloatArray) -> FloatArray | None:
            return np.array([0.8, 0.8, 0.4, 0.4, 0.8, 1.0])

    both = known(resnet101=[CoRun("lm", 0.9)], resnet18=[CoRun("lm", 0.9)])
    found = CompletedInterference(TABLE, both, Own(None))
    own = np.log(0.8 / 0.2)  # from ½, beside resnet50 and itself
    other = (np.log(0.4 / 0.6) - np.log(0.6 / 0.4) + np.log(0.4 / 0.6)) / 2  # of lm from 0.6, of resnet50 from ½
    moved = 1 / (1 + np.exp(-(own + other)))
    assert found.relative_speed("resnet101", ["resnet18"], "V100") == pytest.approx(moved)
    assert found.relative_speed("resnet101", ["resnet50"], "V100") == pytest.approx(0.8)
    one = CompletedInterference(TABLE, known(resnet50=[CoRun("lm", 0.9)], odd=[CoRun("lm", 0.9)]), Own(None))
    assert one.relative_speed("resnet50", ["odd"], "V100") == pytest.approx(0.4), "odd's row names resnet50"


def test_what_is_completed_starts_from_the_table_of_the_gpu() -> None:
    completer = Fixed(0.65)
    found = CompletedInterference(TABLE, known(new=[CoRun("lm", 0.9, step_s=3.0)]), completer)
    for gpu in ("Tesla-K80", "H100"):
        found.relative_speed("new", ["resnet50"], gpu)
    np.testing.assert_allclose(completer.given[0][0], Square.of(TABLE, "K80").row(None))
    assert completer.given[0][1][-1] == pytest.approx(3.0)
    assert len(completer.given) == 1, "on a GPU model that the table lacks a row says little: equal shares, moved"
    assert found.relative_speed("new", ["mystery"], "H100") > 0.5


@pytest.mark.parametrize("completer", [None, Fixed(None)])
def test_without_a_completion_what_was_measured_still_counts(completer: Fixed | None) -> None:
    found = CompletedInterference(TABLE, known(new=[CoRun("lm", 1.02, 0.8)]), completer)
    assert found.relative_speed("new", ["lm"], "V100") == 1.0, "faster beside others is noise"
    assert found.relative_speed("new", ["resnet50"], "V100") > 0.6, "and it moves the others"
    assert found.relative_speed("mystery", ["lm"], "V100") == pytest.approx(0.35)
    assert found.relative_speed("lm", ["new", "mystery"], "V100") == pytest.approx(1 / (1 + 1 / 0.8 - 1 + 1 / 0.35 - 1))


def test_co_runs_beside_no_reference_complete_no_row_and_inform_the_pairs_of_both() -> None:
    completer = Fixed(0.65)
    found = CompletedInterference(TABLE, known(new=[CoRun("odd", 0.9, 0.8)]), completer)
    assert found.relative_speed("new", ["odd"], "V100") == pytest.approx(0.9)
    square = Square.of(TABLE, "V100").speeds
    for one in ("new", "odd"):
        assert found.relative_speed(one, ["lm"], "V100") > square[:, 0].mean()
        assert found.relative_speed(one, ["mystery"], "V100") > square.mean()
    assert not completer.given
    assert found.relative_speed("mystery", ["lm"], "V100") == pytest.approx(0.35)


def test_the_book_changes_with_the_first_and_the_last_job_of_a_series() -> None:
    book = CoRunBook({}, ())
    assert book.is_empty
    series = [job_of("new", CoRun("lm", 0.9), name=f"j{i}") for i in range(3)]
    assert book.known_with(series).of("new", "")["lm"].own == 0.9
    assert book.known_with(series[:1]) is book.known_with(series[:1])
    assert not book.known_with(()).of("new", ""), "co-runs of one request apply to no other"
    book.add(series[0])
    known_now = book.known_with(())
    assert known_now.of("new", "")["lm"].own == 0.9
    book.add(series[1])
    assert book.known_with([series[2]]) is known_now
    book.remove(series[0])
    assert book.known_with(()) is known_now
    book.remove(series[1])
    assert book.is_empty
    assert not book.known_with(()).of("new", "")


def test_a_request_stands_before_the_store_and_leaves_the_rest_of_it() -> None:
    stored = rows_of([("new", (CoRun("lm", 0.9, 0.8), CoRun("vgg", 0.3)))])
    book = CoRunBook({**stored, "decode": {"sm": 0.5}}, ())
    reported = book.known_with([job_of("New", CoRun("LM", 0.5))]).of("new", "")
    assert (reported["lm"].own, reported["lm"].neighbour, reported["vgg"].own) == (0.5, 0.8, 0.3)
    assert set(book.known_with(()).of("decode", "")) == set()


def test_the_source_answers_by_name_until_something_is_known() -> None:
    source = InterferenceSource(TABLE, Fixed(0.65))
    book = CoRunBook({}, ())
    assert source.of(book, [job_of("new")]) is TABLE
    book.learn(*next(iter(rows_of([("new", (CoRun("lm", 0.9),))]).items())))
    first = source.of(book, ())
    assert first.relative_speed("new", ["resnet50"], "V100") == pytest.approx(0.65)
    assert source.of(book, [job_of("other")]) is first
    source.completer = None  # another bundle
    assert source.of(book, ()).relative_speed("new", ["resnet50"], "V100") != pytest.approx(0.65, abs=0.01)


def test_the_source_does_not_begin_anew_for_clusters_in_turns() -> None:
    source = InterferenceSource(TABLE, Fixed(0.65))
    books = [CoRunBook(rows_of([(model, (CoRun("lm", 0.9),))]), ()) for model in ("new", "newer")]
    first = [source.of(book, ()) for book in books]
    assert [source.of(book, ()) for book in books] == first


def test_what_is_kept_does_not_grow_with_the_names_that_users_give(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (completed_interference, interference):
        monkeypatch.setattr(module, "_KEPT_ANSWERS", 50)
    table = replace(TABLE)
    source = InterferenceSource(table, Fixed(0.65))
    book = CoRunBook(rows_of([("new", (CoRun("lm", 0.9),))]), ())
    for predicts in (table, source.of(book, ())):
        for i in range(120):
            assert predicts.relative_speed(f"model-{i}", ["lm"], "V100") == pytest.approx(0.35)
        assert len(vars(predicts)["_answers"]) <= 50
    site = vars(source.of(book, ()))["_sites"]["v100"]
    assert len(vars(site)["_rows"]) <= 101
    for i in range(120):
        source.of(CoRunBook(rows_of([(f"model-{i}", (CoRun("lm", 0.9),))]), ()), ())
    assert len(vars(source)["_kept"]) <= 16


def test_what_a_request_brings_is_laid_over_what_is_known_and_copies_little_of_it() -> None:
    many = rows_of([(f"model-{i}", (CoRun("lm", 0.9, 0.8), CoRun(f"other-{i}", 0.5))) for i in range(50)])
    book = CoRunBook(many, ())
    before = book.known_with(())
    waiting = book.known_with([job_of("model-3", CoRun("vgg", 0.7, 0.6))])
    assert set(waiting.of("model3", "")) == {"lm", "other3", "vgg"}
    assert waiting.of("vgg", "") == {"model3": PairSpeeds(0.6, 0.7)}
    assert not before.of("vgg", "")
    shared = [model for model, pairs in vars(waiting)["_stated"].items() if vars(before)["_stated"].get(model) is pairs]
    assert len(shared) == 49
    assert vars(waiting)["_stated_by"]["other7"] is vars(before)["_stated_by"]["other7"]


def test_layers_know_what_one_that_was_told_all_at_once_knows() -> None:
    rng = np.random.default_rng(7)
    names, gpus = [f"m{i}" for i in range(5)], ["", "v100", "teslav100", "a10"]

    def drawn() -> tuple[str, tuple[CoRun, ...]]:
        def one() -> CoRun:
            own, neighbour = float(rng.choice([0.3, 0.5])), float(rng.choice([0.0, 0.8]))
            return CoRun(str(rng.choice(names)), own, neighbour, str(rng.choice(gpus)))

        return str(rng.choice(names)), tuple(one() for _ in range(3))

    for _ in range(40):
        reported = [drawn() for _ in range(6)]
        at_once = KnownCoRuns(rows_of(reported))
        in_layers = KnownCoRuns(
            rows_of(reported[4:]), KnownCoRuns(rows_of(reported[2:4]), KnownCoRuns(rows_of(reported[:2])))
        )
        for model in names:
            for gpu in gpus:
                assert in_layers.of(model, gpu) == at_once.of(model, gpu)


def test_a_view_knows_the_co_runs_of_its_jobs_and_of_the_store() -> None:
    sharing = GpuSharing(True, 2.0, (CoRun("lm", 0.9, 0.8),))
    row = rows_of([("stored", (CoRun("lm", 0.7),))])
    view = view_of([node("a", gpus=2)])
    assert not view.co_runs.known_with(()).of("new", "")
    job = running("r", "a", [0], model="new", gpu_sharing=sharing)
    view.add_job(job)
    view.add_job(job)  # as the store repeats it
    view.add_job(replace(job, job=replace(job.job, model="newer")))  # and with another description
    assert set(view.co_runs.known_with(()).of("new", "")) == set()
    assert view.co_runs.known_with(()).of("newer", "")["lm"].own == 0.9
    assert not view.emptied().co_runs.known_with(()).of("new", "")
    view.remove_job(job.id)
    assert not view.co_runs.known_with(()).of("new", "")
    for kind, metrics in row.items():
        assert is_row(kind)
        view.apply(Event(view.version + 1, view.epoch, SubtaskProfiled(kind, metrics)))
    assert view.co_runs.known_with(()).of("stored", "")["lm"].own == 0.7
    assert not view.subtask_profiles
    again = ClusterView(ClusterRecords("c", 1, "e", jobs=(job,), subtask_profiles=row))
    assert {*again.co_runs.known_with(()).of("lm", "")} == {"new"}
    assert again.co_runs.known_with(()).of("stored", "")["lm"].own == 0.7


def test_a_table_without_steps_serves_as_before() -> None:
    bare = replace(TABLE, step_s={})
    completer = Fixed(0.65)
    found = CompletedInterference(bare, known(new=[CoRun("lm", 0.9, step_s=3.0)]), completer)
    assert found.relative_speed("new", ["resnet50"], "V100") == pytest.approx(0.65)
    assert np.isnan([completer.given[0][0][-1], completer.given[0][1][-1]]).all()


def test_of_co_runs_that_differ_the_same_stand_whoever_came_first() -> None:
    one, other = (job_of("new", CoRun("lm", speed)) for speed in (0.9, 0.4))
    found = [CoRunBook({}, jobs).known_with(()).of("new", "") for jobs in ((one, other), (other, one))]
    assert found[0] == found[1]
    book = CoRunBook({}, (one,))
    before = book.known_with(())
    book.add(other)
    assert book.known_with(()) is not before
    book.remove(other)
    assert book.known_with(()) is before
