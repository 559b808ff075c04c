"""Features of placements that the direct method reads, and their arrays."""

from pathlib import Path

import numpy as np
import pytest
from tests.unit.evaluate.exported import alternative, decision, outcome, parts, write

from placewise_training.evaluate.logged import Usable
from placewise_training.log.placed import PlacedJob, features_of, placed_jobs


def placed(folder: Path, beside: int = 1) -> PlacedJob:
    rows = [
        alternative("j0", ("n1", "n1"), True, 0.5, 1.0, consolidate=1.0),
        alternative("j0", ("n1", "n2"), False, 0.5, 0.0, **{"load-balance": 1.0}),
    ]
    write(folder, [decision(0, rows, parts=(parts("j0", 2, beside),))], [outcome(0, 0.7)])
    (found,) = placed_jobs(folder)
    return found


def test_a_placement_is_described_by_its_spread_over_nodes(tmp_path: Path) -> None:
    found = features_of(placed(tmp_path), has_parts=False)
    assert found[:, :4] == pytest.approx(np.log1p([[2, 2, 10, 0]] * 2))
    assert np.expm1(found[:, 4:]) == pytest.approx(np.array([[1, 2], [2, 1]]))


def test_with_the_reward_models_inputs_also_by_those_beside_it(tmp_path: Path) -> None:
    found = features_of(placed(tmp_path), has_parts=True)
    # Tokens are 3 wide; of each option two of its own, one beside it, a witness and padding.
    assert found.shape == (2, 6 + 3 + 3 + 1)
    assert found[0, 6:].tolist() == pytest.approx([1.5, 2.5, 3.5, 6.0, 7.0, 8.0, np.log(2)])
    alone = features_of(placed(tmp_path, beside=0), has_parts=True)
    assert alone[0, 9:].tolist() == [0.0, 0.0, 0.0, 0.0]


def test_arrays_of_a_candidate(tmp_path: Path) -> None:
    usable = Usable.of([placed(tmp_path)], 60.0)
    log, is_known = usable.decisions("load-balance")
    assert log is not None
    assert is_known.tolist() == [True]
    assert (log.reward.tolist(), log.propensity.tolist(), log.candidate.tolist()) == ([0.7], [0.5], [0.0])
    assert log.options.candidate.tolist() == [0.0, 1.0]
    assert log.options.own.tolist() == [1.0, 0.0]
    assert usable.decisions("tetris")[0] is None


def test_nothing_usable_names_the_reasons(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no Place decision has alternatives"):
        Usable.of([], 60.0)
