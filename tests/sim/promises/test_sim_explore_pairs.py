"""Support of one policy in the log of another, for each pair of explorers with the nets of the shipped bundle."""

import itertools

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
