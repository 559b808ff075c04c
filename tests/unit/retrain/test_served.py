"""The log and the incumbent of a running service: who answers by an export, and how the export is asked for."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.bundles import copy_bundle
from tests.fakes.declog import FakeRing, decision, run

from placewise_log.record import CanarySeen, DecisionRecord
from placewise_models.bundle import load
from placewise_models.folder import shipped_bundle
from placewise_training.retrain import served
from placewise_training.retrain.retrain import RetrainArgs
from placewise_training.retrain.rounds import NoRoundError
from placewise_training.retrain.served import Answering, ServedCluster, answering

CANARY = CanarySeen("next", "dn", "salt", 0.1, "job")


def by(n: int, bundle: str, canary: CanarySeen | None = None, shadow_of: str = "", digest: str = "") -> DecisionRecord:
    """Decision n, which the bundle made."""
    made = decision(n)
    assert made.place is not None
    meta = replace(made.place.meta, bundle=bundle, bundle_digest=digest or f"d-{bundle}")
    return replace(made, place=replace(made.place, meta=meta), canary=canary, shadow_of=shadow_of)


async def log_of(folder: Path, *records: DecisionRecord) -> FakeRing:
    """The records, each exported into a file of its own."""
    ring = FakeRing(*records)
    await run(ring, folder, batch=1)
    return ring


async def test_one_bundle_answers_from_the_first_decision_on(tmp_path: Path) -> None:
    await log_of(tmp_path, by(1, "a"), by(2, "a"))
    assert answering(tmp_path, "c") == Answering("a", "d-a", "", "")


async def test_the_log_of_a_bundle_begins_behind_the_last_decision_of_another_or_of_a_canary(tmp_path: Path) -> None:
    records = [by(n, "a") for n in range(1, 9)] + [by(9, "b"), by(10, "a"), by(11, "a", CANARY), by(12, "a")]
    ring = await log_of(tmp_path, *records)
    assert answering(tmp_path, "c") == Answering("a", "d-a", "", ring.entries[10][0])


async def test_a_canary_is_seen_whichever_arm_answered_last(tmp_path: Path) -> None:
    await log_of(tmp_path, by(1, "a"), by(2, "next", CANARY), by(3, "a", CANARY))
    assert answering(tmp_path, "c").canary == "next"


async def test_shadows_do_not_answer(tmp_path: Path) -> None:
    await log_of(tmp_path, by(1, "a"), by(2, "b", shadow_of="1"))
    assert answering(tmp_path, "c") == Answering("a", "d-a", "", "")


async def test_a_log_that_does_not_tell_is_no_log_to_learn_from(tmp_path: Path) -> None:
    with pytest.raises(NoRoundError, match="has no decision of Place"):
        answering(tmp_path, "c")
    await log_of(tmp_path, by(1, "a"))
    with pytest.raises(NoRoundError, match="has no decision of Place"):
        answering(tmp_path, "elsewhere")
    await log_of(tmp_path / "old", decision(1))
    with pytest.raises(NoRoundError, match="names its bundle"):
        answering(tmp_path / "old", "c")


def command(path: Path, code: str) -> Path:
    """In place of `placewise`: its words and variables are in PATH.json."""
    path.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"json.dump([sys.argv[1:], dict(os.environ)], open({str(path)!r} + '.json', 'w'))\n{code}\n"
    )
    path.chmod(0o755)
    return path


@pytest.mark.process
def test_the_export_gets_target_cluster_position_and_todays_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = command(tmp_path / "placewise", "")
    monkeypatch.setattr(served, "_COMMAND", fake)
    token, logs = tmp_path / "token", tmp_path / "logs"
    (logs / "c" / "from-99-7").mkdir(parents=True)
    (logs / "c" / "from-100-2").mkdir()
    service = ServedCluster("h:1,h:2", logs, "c", token)
    for secret in ("first", "second"):
        token.write_text(f"{secret}\n")
        service.keep_up()
        words, variables = json.loads((tmp_path / "placewise.json").read_text())
        options = ["--target", "h:1,h:2", "--cluster", "c", "--after", "100-2"]
        assert words == ["log", "export", str(logs / "c" / "from-100-2"), *options]
        assert variables["PLACEWISE_CLIENT_TOKEN"] == secret


@pytest.mark.process
def test_an_export_that_fails_is_the_reason_why_there_is_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = command(tmp_path / "placewise", "print('{}\\nplacewise: the disk is full', file=sys.stderr); sys.exit(1)")
    monkeypatch.setattr(served, "_COMMAND", fake)
    with pytest.raises(NoRoundError, match=r"^the log was not exported: the disk is full$"):
        ServedCluster("h:1", tmp_path, "c").keep_up()
    with pytest.raises(NoRoundError, match=r"the token cannot be read: .*no-token"):
        ServedCluster("h:1", tmp_path, "c", tmp_path / "no-token").keep_up()


async def test_the_incumbent_is_looked_for_beside_the_retrained_and_among_the_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServedCluster, "_export", lambda *_: None)
    own = copy_bundle(tmp_path / "bundles" / "own")
    args = RetrainArgs(tmp_path / "logs", Path(), tmp_path / "bundles" / "new")
    for folder in (own, shipped_bundle()):
        logs = tmp_path / f"log of {folder.name}"
        await log_of(logs / "c" / "from-0", by(1, folder.name, digest=load(folder).digest))
        found = ServedCluster("h:1", logs, "c").next(args)
        assert (found.start, found.log, found.cluster) == (folder, logs / "c" / "from-0", "c")
        await log_of(logs / "c" / "from-1-0", by(1, folder.name))
        with pytest.raises(NoRoundError, match=f"the bundle {folder.name}, digest d-.* nor this release has it"):
            ServedCluster("h:1", logs, "c").next(args)
