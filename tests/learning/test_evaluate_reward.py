"""The table of the reward model beside LIF: each predictor's inputs, and that the figures are those of the same
jobs."""

import numpy as np
import pytest

from placewise_core.basics.arrays import Float32
from placewise_core.inputs.reward import REPORTED, PartTokens
from placewise_core.policies.search import SpeedScorer
from placewise_training.reward.judge_against_lif import KINDS, Seen, markdown, table, watch


class AsReported(SpeedScorer):
    """Predicts the reported speed, else the linear one."""

    def speeds(self, tokens: PartTokens) -> Float32:
        has, speed = (tokens.parts[:, :, REPORTED.start + i] for i in (0, 1))
        return np.where(has > 0, speed, 1.0).astype(np.float32)


@pytest.fixture(scope="module")
def seen() -> list[Seen]:
    return watch(AsReported(), 0, 25)


def test_a_scorer_is_judged_by_what_it_says(seen: list[Seen]) -> None:
    for each in seen:
        assert each.predicted["reward model"] == pytest.approx(each.predicted["as reported, no interference"], rel=1e-5)


def test_lif_starts_from_what_it_is_told_and_only_slows_down(seen: list[Seen]) -> None:
    for each in seen:
        for name in ("lif-linear", "lif-quadratic"):
            assert each.predicted[f"{name}, undisturbed"] <= each.predicted["undisturbed, no interference"] + 1e-12
            assert each.predicted[f"{name}, as reported"] <= each.predicted["as reported, no interference"] + 1e-12


def test_noise_is_all_that_is_left_to_who_knows_everything(seen: list[Seen]) -> None:
    wrong = {kind: [abs(e.predicted["noise"] / e.true - 1) for e in seen if e.kind == kind] for kind in KINDS[1:]}
    assert all(error == 0 for error in wrong["reported"])
    assert 0.005 < np.mean(wrong["new"]) < 0.07


def test_every_kind_of_job_is_in_the_table() -> None:
    found = table(AsReported(), seeds=2, jobs=25)
    assert set(found) == set(KINDS)
    assert found["all"]["noise"]["error"]["mean"] < found["all"]["lif-linear, undisturbed"]["error"]["mean"]
    assert "| reward model |" in markdown(found)
