"""The loss of jobs on several nodes beside each other: a guess without reports, then the loss that they show."""

import math
import random

import pytest

from placewise_core.domain.events import SubtaskForgotten, SubtaskProfiled
from placewise_core.speed.learned.disturbance import HALVING_S, Disturbance, Group, is_disturbance
from placewise_core.speed.learned.durations import is_duration
from placewise_core.speed.learned.sums import Sums
from placewise_core.speed.learned.throughputs import is_throughput
from placewise_core.view.estimates import Estimates

RESNET = Group("resnet50", "T4", 64, 4, 2, 4)
BERT = Group("bert", "T4", 32, 8, 2, 8)
GUESS, REPORTS = 0.3, 0.25


def row(logarithm: float, count: float, time_s: float = 0.0) -> dict[str, float]:
    return Sums(count, count * logarithm, count * logarithm**2, time_s).row


def learned(*rows: tuple[Group, bool, float, float]) -> Disturbance:
    found = Disturbance()
    for group, is_beside, logarithm, count in rows:
        found.learn(group.kind(is_beside=is_beside), row(logarithm, count))
    return found


def test_without_reports_it_is_a_guess() -> None:
    assert (Disturbance().loss, Disturbance().weight) == (pytest.approx(1.0 - math.exp(-GUESS)), 0.0)


def test_one_row_of_a_pair_says_nothing() -> None:
    for is_beside in (True, False):
        assert learned((RESNET, is_beside, 3.0, 50.0)).weight == 0.0


def test_the_loss_is_the_weighted_mean_of_the_differences_and_the_guess() -> None:
    found = learned(
        (RESNET, False, 3.0, 6.0), (RESNET, True, 2.4, 3.0), (BERT, False, 1.0, 1.0), (BERT, True, 0.9, 1.0)
    )
    weight = 6.0 * 3.0 / 9.0 + 0.5
    logarithm = (2.0 * 0.6 + 0.5 * 0.1 + REPORTS * GUESS) / (weight + REPORTS)
    assert found.weight == pytest.approx(weight)
    assert found.loss == pytest.approx(1.0 - math.exp(-logarithm))


@pytest.mark.parametrize("true_loss", [0.0, 0.25, 0.5])
def test_many_noisy_reports_show_the_true_loss(true_loss: float) -> None:
    draw, rows = random.Random(7), []
    for model in range(20):
        for is_beside in (True, False):
            speed = model + math.log(1.0 - true_loss * is_beside)
            mean = sum(speed + draw.gauss(0.0, 0.2) for _ in range(10)) / 10.0
            rows.append((Group(f"model{model}", "V100", 64, 4, 2, 4), is_beside, mean, 10.0))
    found = learned(*rows)
    assert found.loss == pytest.approx(true_loss, abs=0.05)


def test_a_gain_beside_others_counts_as_no_loss() -> None:
    assert learned((RESNET, False, 1.0, 50.0), (RESNET, True, 2.0, 50.0)).loss == 0.0


def test_older_reports_count_less() -> None:
    found = learned((RESNET, False, 3.0, 8.0), (RESNET, True, 2.0, 8.0))
    for is_beside in (True, False):
        found.learn(BERT.kind(is_beside=is_beside), row(1.0, 8.0, HALVING_S))
    assert found.weight == pytest.approx(2.0 + 4.0)


def test_the_order_of_rows_does_not_matter_and_a_forgotten_one_is_gone() -> None:
    rows = [(group, is_beside, 3.0 - is_beside / 3.0, 5.0) for group in (RESNET, BERT) for is_beside in (True, False)]
    one, other = learned(*rows), learned(*reversed(rows))
    assert (one.loss, one.weight) == (other.loss, other.weight)
    for found in (one, other):
        found.forget(BERT.kind(is_beside=True))
        found.forget("never seen")
    assert one.loss == learned(*rows[:2]).loss


def test_its_rows_are_known_from_all_others_and_are_in_the_digest_of_the_view() -> None:
    kind = RESNET.kind(is_beside=True)
    assert is_disturbance(kind)
    assert not is_duration(kind)
    assert not is_throughput(kind)
    estimates = Estimates({}, {})
    estimates.profile(SubtaskProfiled(kind, row(1.0, 2.0)))
    assert estimates.kinds == (kind,)
    assert estimates.row(kind) == row(1.0, 2.0)
    assert estimates.digest == Estimates({}, {kind: row(1.0, 2.0)}).digest != 0
    estimates.forget(SubtaskForgotten(kind).kind)
    assert (estimates.kinds, estimates.digest) == ((), 0)
