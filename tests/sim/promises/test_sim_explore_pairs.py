"""Support of one policy in the log of another, for each pair of explorers with the nets of the shipped bundle."""

import itertools
import math
from statistics import fmean

import pytest

from placewise_training.lab import support
from placewise_training.lab.support import FIRST_SEED, NAMES, ess, explored, line_of

RATE = 0.2


@pytest.mark.parametrize(("own", "other"), [*itertools.permutations(NAMES, 2)])
def test_an_explorer_has_support_in_the_log_of_another_policy(own: str, other: str) -> None:
    pair = explored(own, other, RATE, [FIRST_SEED], jobs=40)
    assert len(pair.seen) == 40
    assert pair.without == 0.0
    assert pair.largest_weight <= 10.0 + 1e-9, "one over the other policy's share"
    assert pair.before > 0.0, "the two policies differ somewhere, and without exploration the log has one of them"
    assert min(one.support for one in pair.seen) >= RATE / 2 - 1e-12
    assert f"{pair.before:.0%}" in line_of(pair)


@pytest.mark.parametrize(("own", "other"), [("consolidate", "load-balance"), ("load-balance", "harmony")])
def test_the_log_holds_the_other_policys_placement_as_often_as_its_support_says(own: str, other: str) -> None:
    """The mean weight is 1 if each of these placements is drawn with its probability, and 0 if none ever is."""
    pair = explored(own, other, 0.5, [FIRST_SEED, FIRST_SEED + 1], jobs=100)
    weights = [one.weight for one in pair.seen if not one.is_same]
    assert len(weights) >= 50
    assert abs(fmean(weights) - 1.0) <= 4.0 * math.sqrt((1.0 / 0.25 - 1.0) / len(weights))


def test_the_effective_sample_size_is_kishs() -> None:
    assert ess([1.0] * 7) == pytest.approx(7.0)
    assert ess([10.0, 0.0, 0.0]) == pytest.approx(1.0)
    assert ess([3.0, 1.0]) == pytest.approx(1.6)
    assert ess([]) == 0.0


def test_the_command_prints_a_row_for_each_pair(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(support, "NAMES", ("consolidate", "load-balance"))
    monkeypatch.setattr("sys.argv", ["support", "--seeds", "2", "--jobs", "8"])
    support.main()
    head, *rows = capsys.readouterr().out.splitlines()
    assert head == support.HEAD
    assert [row.split()[:2] for row in rows] == [["consolidate", "load-balance"], ["load-balance", "consolidate"]]
