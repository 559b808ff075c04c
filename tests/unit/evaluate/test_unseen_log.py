"""A log that is younger than the candidate is judged whole: the candidate cannot have learned from it."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from tests.fakes.declog import decision_id
from tests.unit.evaluate.exported import START_S, explored, write

from placewise_models.bundle import Bundle, Manifest, opened
from placewise_training.evaluate.again import CandidatePolicy
from placewise_training.evaluate.evaluation import stretches_for
from placewise_training.evaluate.logged import Usable
from placewise_training.evaluate.stretches import Stretches
from placewise_training.log.placed import placed_jobs


@pytest.fixture
def usable(tmp_path: Path) -> Usable:
    """120 decisions in 24 blocks of time."""
    found = Usable.of(list(placed_jobs(write(tmp_path / "log", *explored(120, gain=0.1)))), 600.0)
    jobs = [replace(one, decision_id=decision_id(n, one.time_s)) for n, one in enumerate(found.jobs)]
    return replace(found, jobs=tuple(jobs))


def bundle(folder: Path, created: str) -> Bundle:
    folder.mkdir()
    return replace(opened(folder), manifest=Manifest("b", created, {}))


def judged(usable: Usable, folder: Path, created: str, policies: tuple[str, ...] = ("search",)) -> set[int]:
    """The blocks of time on which the candidates are judged."""
    made = bundle(folder, created)
    found = stretches_for(usable, [CandidatePolicy(f"b/{name}", name, made) for name in policies])
    return set(np.asarray(usable.block)[found.judge].tolist())


def at(after_s: float) -> str:
    return datetime.fromtimestamp(START_S + after_s, UTC).isoformat(timespec="seconds")


def test_a_bundle_older_than_the_log_is_judged_on_all_but_the_first_sixth(usable: Usable, tmp_path: Path) -> None:
    assert judged(usable, tmp_path / "b", at(-5.0)) == set(range(4, 24))


def test_decisions_made_before_the_bundle_are_not_for_judging(usable: Usable, tmp_path: Path) -> None:
    assert judged(usable, tmp_path / "b", at(6 * 600.0 - 1.0)) == set(range(9, 24))


def test_several_policies_of_a_bundle_are_judged_on_the_second_half(usable: Usable, tmp_path: Path) -> None:
    assert judged(usable, tmp_path / "b", at(-5.0), ("search", "harmony")) == set(range(14, 24))


@pytest.mark.parametrize("created", ["", "yesterday", at(86_400.0)])
def test_a_bundle_of_unknown_or_later_date_is_judged_on_the_last_third(
    usable: Usable, tmp_path: Path, created: str
) -> None:
    assert judged(usable, tmp_path / "b", created) == set(range(16, 24))


def test_decisions_without_a_date_are_judged_by_thirds(usable: Usable, tmp_path: Path) -> None:
    unknown = replace(usable, jobs=tuple(replace(one, decision_id="d") for one in usable.jobs))
    assert judged(unknown, tmp_path / "b", at(-5.0)) == set(range(16, 24))


def test_a_policy_of_the_log_is_judged_on_the_last_third(usable: Usable) -> None:
    """Its name does not say from when its bundle is."""
    found = stretches_for(usable, ["load-balance"])
    for mine, theirs in zip(found, Stretches.of(usable.block), strict=True):
        assert (mine == theirs).all()
