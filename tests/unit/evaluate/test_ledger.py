"""The record of judgements knows a candidate by what it is, and a stretch by its cluster and time."""

from dataclasses import replace
from pathlib import Path

import pytest

from placewise_models.bundle import Bundle, Manifest
from placewise_training.evaluate.again import CandidatePolicy
from placewise_training.evaluate.ledger import NAME, JudgedBeforeError, Look, counted, identity

LOOK = Look("next/search", "search abc", 100.0, 200.0, "c", {"reward": "reward_20min", "windows": 12})


def candidate(name: str, policy: str = "search", **files: str) -> CandidatePolicy:
    hashes = {each.replace("_", "."): value for each, value in files.items()}
    bundle = Bundle(Manifest(name, "", hashes), Path(name), "", "", {})
    return CandidatePolicy(f"{name}/{policy}", policy, bundle)


def test_a_bundle_is_known_by_its_models_and_policy() -> None:
    mine = identity(candidate("next", reward_onnx="1", retrain_json="2"))
    assert identity(candidate("renamed", reward_onnx="1", retrain_json="3", gate_json="4")) == mine
    others = [candidate("next", reward_onnx="9", retrain_json="2"), candidate("next", "harmony", reward_onnx="1")]
    assert mine not in map(identity, others)
    assert identity("consolidate") == "consolidate"


def test_every_look_at_a_stretch_counts_once_in_its_cluster(tmp_path: Path) -> None:
    assert [counted(tmp_path, None, LOOK).tried for _ in range(3)] == [1, 1, 1]
    longer = replace(LOOK, last_s=260.0)
    assert counted(tmp_path, None, longer).tried == 2
    assert counted(tmp_path, None, replace(longer, identity="search other")).tried == 3
    assert counted(tmp_path, None, replace(LOOK, first_s=300.0, last_s=400.0)).tried == 1, "later, on its own"
    assert counted(tmp_path, None, replace(LOOK, cluster="other")).tried == 1
    assert counted(tmp_path, None, LOOK).before_s > 0.0


def test_other_settings_are_refused_and_counted_for_nothing(tmp_path: Path) -> None:
    evaluated = replace(LOOK, settings={"reward": "reward_20min"})
    counted(tmp_path, None, evaluated)
    assert counted(tmp_path, None, LOOK).tried == 1, "the gate after an evaluation"
    before = (tmp_path / NAME).read_text("utf-8")
    for name, value in (("windows", 40), ("reward", "reward_5min")):
        with pytest.raises(JudgedBeforeError, match=f"JUDGED_BEFORE: next/search was .* with {name} "):
            counted(tmp_path, None, replace(LOOK, settings={**LOOK.settings, name: value}))
    assert (tmp_path / NAME).read_text("utf-8") == before


def test_a_line_that_was_cut_off_spoils_no_other(tmp_path: Path) -> None:
    counted(tmp_path, None, LOOK)
    with (tmp_path / NAME).open("a", encoding="utf-8") as file:
        file.write('{"candidate": "ne')
    counted(tmp_path, None, replace(LOOK, identity="search other"))
    assert counted(tmp_path, None, replace(LOOK, identity="search third")).tried == 3
