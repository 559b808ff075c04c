"""Sharing a GPU: measured pairs, composition, unknown names; and the predictions for neighbours."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.fakes.place_cases import context, gang, node, running, view_of

from placewise_core.domain.cluster import RunningJob
from placewise_core.domain.job import GpuSharing, Job, Resources
from placewise_core.domain.model_names import canonical, nearest
from placewise_core.gang import neighbours
from placewise_core.gang.policy import Proposal
from placewise_core.policies.consolidate import Consolidate
from placewise_core.policies.profiled.tables import packaged_tables
from placewise_core.speed.interference import MeasuredInterference, NoInterference
from placewise_core.view.view import ClusterView

TABLE = {
    "pairs": {
        "V100": {
            "resnet50": {"resnet50": 0.5, "lm": 0.8},
            "lm": {"resnet50": 0.4, "lm": 0.5},
        },
        "K80": {"lm": {"lm": 0.25}},
    },
    "default": {"V100": 0.45, "K80": 0.3},
    "fallback_gpu": "V100",
}
MEASURED = MeasuredInterference.from_table(TABLE)


@pytest.mark.parametrize(
    ("model", "others", "gpu", "speed"),
    [
        ("resnet50", [], "V100", 1.0),
        ("resnet50", ["lm"], "V100", 0.8),
        ("lm", ["resnet50"], "V100", 0.4),
        ("LM (batch size 80)", ["ResNet-50 (batch size 16)"], "Tesla V100-SXM2-16GB", 0.4),
        ("lm", ["lm"], "Tesla-K80", 0.25),
        ("lm", ["lm"], "H100", 0.5),
        ("resnet101", ["seq2seq"], "V100", 0.8),
        ("mystery", ["lm"], "V100", 0.45),
        ("lm", ["resnet50"], "K80", 0.3),
        ("resnet50", ["resnet50", "resnet50"], "V100", 1 / 3),
        ("lm", ["resnet50", "lm"], "V100", 1 / (1 + 1.5 + 1.0)),
    ],
)
def test_relative_speed(model: str, others: list[str], gpu: str, speed: float) -> None:
    assert MEASURED.relative_speed(model, others, gpu) == pytest.approx(speed)
    assert MEASURED.relative_speed(model, others, gpu) == pytest.approx(speed)  # and from memory


def test_a_pair_that_does_not_fit_together_has_no_speed() -> None:
    never = MeasuredInterference({"V100": {"lm": {"lm": 0.0}}}, {"V100": 0.5}, "V100")
    assert never.relative_speed("lm", ["lm", "lm"], "V100") == 0.0


def test_equal_slices_are_what_composition_gives_for_pairs_at_a_half() -> None:
    even = MeasuredInterference({"V100": {"lm": {"lm": 0.5}}}, {"V100": 0.5}, "V100")
    for n in range(1, 6):
        assert even.relative_speed("lm", ["lm"] * n, "V100") == pytest.approx(
            NoInterference().relative_speed("lm", ["lm"] * n, "V100")
        )


def test_the_packaged_table_is_whole_and_in_range() -> None:
    table = packaged_tables().interference
    for gpu, rows in table.pairs.items():
        assert 0 < table.default[gpu] <= 0.5
        for model, row in rows.items():
            assert row.keys() == rows.keys(), (gpu, model)
            assert all(0 < speed <= 1 for speed in row.values())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ResNet-34", "resnet50"),
        ("resnet20", "resnet18"),
        ("VGG-16", "resnet18"),
        ("Seq2Seq", "lm"),
        ("BERT-large", "transformer"),
        ("NeuMF", "recommendation"),
        ("quantum", None),
        ("", None),
    ],
)
def test_the_nearest_known_name(name: str, expected: str | None) -> None:
    known = ("resnet18", "resnet50", "lm", "transformer", "recommendation", "cyclegan")
    assert nearest(name, known) == expected


def test_names_lose_case_punctuation_and_batch_size() -> None:
    assert canonical("ResNet-50 (batch size 64)") == canonical("resnet_50") == "resnet50"


def test_neighbours_on_a_shared_gpu_slow_down_and_others_do_not() -> None:
    share = GpuSharing(True, 5.0)
    view = view_of(
        [node("a", gpus=2, max_jobs_per_gpu=2), node("b")],
        [
            running("shared", "a", [0], model="lm", gpu_sharing=share, total_epochs=10.0, single_gpu_s=100.0),
            running("beside", "a", [1], model="lm", total_epochs=10.0, single_gpu_s=50.0),
            running("far", "b", [0], model="lm"),
        ],
    )
    job = gang("new", workers=1, model="resnet50", sharing=share, total_epochs=4.0, single_gpu_s=8.0)
    taken = running("new", "a", [0], Resources(4, 1, 8)).assignments
    view.add_job(RunningJob(job, taken))
    prediction = neighbours.predict(job, taken, view, MEASURED)
    assert prediction.speed == pytest.approx(0.5 * 0.8)
    found = {n.job_id: (n.speed_before, n.speed_after) for n in prediction.neighbours}
    assert found == {"shared": pytest.approx((0.1, 0.04)), "beside": pytest.approx((0.2, 0.2))}


def test_a_reported_speed_is_where_a_neighbour_starts_from() -> None:
    share = GpuSharing(True, 5.0)
    known = replace(running("shared", "a", [0], model="lm", gpu_sharing=share), speed=3.0)
    view = view_of([node("a", gpus=1, max_jobs_per_gpu=2)], [known])
    job = gang("new", workers=1, model="resnet50", sharing=share)
    taken = running("new", "a", [0]).assignments
    view.add_job(RunningJob(job, taken))
    prediction = neighbours.predict(job, taken, view, MEASURED)
    assert prediction.speed == 0.0
    assert [(n.speed_before, n.speed_after) for n in prediction.neighbours] == [pytest.approx((3.0, 1.2))]


class _ModelRecorder(NoInterference):
    """Notes the questions."""

    def __init__(self) -> None:
        self.models: list[str] = []

    def careful_speed(self, model: str, others: Sequence[str], gpu_model: str) -> float:
        self.models.append(model)
        return 0.9


@pytest.mark.parametrize(("needs_gib", "fits"), [(6.0, True), (9.0, False)])
@pytest.mark.parametrize("gpus", [1.0, 0.5])
def test_gpu_memory_decides_before_anybody_asks_for_speeds(needs_gib: float, fits: bool, gpus: float) -> None:
    """A GPU of 16 GiB, of which a tenant has 8, for a job that would be fast enough beside it."""
    share = GpuSharing(True, 1.5)
    holds = Resources(4, 0.5, 8, gpu_memory_gib=8)
    view = view_of(
        [node("a", gpus=1, max_jobs_per_gpu=2)], [running("there", "a", [0], holds, model="lm", gpu_sharing=share)]
    )
    job = gang("new", 1, gpus, model="lm", sharing=share, gpu_memory_gib=needs_gib)
    asked = _ModelRecorder()
    proposal = Consolidate().propose(job, view, context(interference=asked))
    assert (proposal is not None) == fits
    assert bool(asked.models) == fits


def test_a_limit_is_compared_with_the_careful_speed_and_an_answer_shows_the_forecast() -> None:
    class Unsure(NoInterference):
        def careful_speed(self, model: str, others: Sequence[str], gpu_model: str) -> float:
            return 0.4

    def placed(limit: float) -> tuple[ClusterView, Job, Proposal | None]:
        share = GpuSharing(True, limit)
        there = running("there", "a", [0], model="lm", gpu_sharing=share, total_epochs=1.0, single_gpu_s=1.0)
        view = view_of([node("a", gpus=1, max_jobs_per_gpu=2)], [there])
        job = gang("new", 1, model="lm", sharing=share, total_epochs=1.0, single_gpu_s=1.0)
        return view, job, Consolidate().propose(job, view, context(interference=Unsure()))

    assert placed(2.1)[2] is None
    view, job, found = placed(2.6)
    assert found is not None
    view.add_job(RunningJob(job, found.assignments))
    assert neighbours.predict(job, found.assignments, view, Unsure()).speed == pytest.approx(0.5)
