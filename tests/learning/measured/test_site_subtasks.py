"""A site's own metrics of subtasks join the data of the completion and of NCF."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from placewise_core.domain.traces import TraceError
from placewise_core.subtasks.metrics import METRICS
from placewise_service.commands.remote.bundle import _data as hashes_of
from placewise_training.data.site_rows import SUBTASKS, read_site_rows
from placewise_training.stdm import ncf
from placewise_training.stdm import train as train_stdm
from placewise_training.stdm.data import subtask_matrix

ROWS = """kind,cpu,sm,dram,speedup,note
denoise,0.2,0.9,0.5,30,
denoise,0.4,0.9,0.5,,again
upscale,,0.3,,,
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / SUBTASKS).write_text(ROWS)
    return tmp_path


def test_metrics_of_a_kind_are_the_means_of_its_rows(folder: Path) -> None:
    rows = read_site_rows(folder)
    assert rows.subtasks == {
        "denoise": {"cpu": pytest.approx(0.3), "sm": 0.9, "dram": 0.5, "speedup": 30.0},
        "upscale": {"sm": 0.3},
    }
    assert rows.data(SUBTASKS) == {f"measured/{SUBTASKS}": hashlib.sha256(ROWS.encode()).hexdigest()}
    assert (~np.isnan(rows.subtask_matrix())).sum(axis=1).tolist() == [4, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ROWS.replace("0.9", "1.9", 1), "subtasks.csv:2:3: sm: 1.9 is not a finite number from 0 on and at most 1"),
        (ROWS.replace("30", "-1"), "subtasks.csv:2:5: speedup: -1 is not a finite number from 0 on"),
        (ROWS.replace("upscale", ""), "subtasks.csv:4:1: kind: is empty"),
        ("kind,warp\na,1\n", "subtasks.csv:2:1: kind: the header has no metric; known: cpu, host_memory"),
        ("sm\n1\n", "subtasks.csv:1:1: kind: no such column in the header"),
    ],
)
def test_bad_metrics_are_named(folder: Path, text: str, message: str) -> None:
    (folder / SUBTASKS).write_text(text)
    with pytest.raises(TraceError) as error:
        read_site_rows(folder)
    assert message in str(error.value)


def test_the_completion_learns_from_the_sites_own_kinds(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    histories: list[np.ndarray] = []
    trained = train_stdm.train_completion

    def kept(history: np.ndarray, *given: object) -> object:
        histories.append(history)
        return trained(history, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(train_stdm, "train_completion", kept)
    monkeypatch.setattr(train_stdm, "folds", lambda _: {"subtasks_unseen_kinds": [None]})
    monkeypatch.setattr(train_stdm, "judged_all", lambda *_: {"subtasks_unseen_kinds": {}})
    monkeypatch.setattr(train_stdm, "is_better", lambda _: True)
    monkeypatch.setattr(train_stdm, "convergence", lambda *_: {})
    args = train_stdm.Args(out=tmp_path / "out", draws=2, completion_steps=3, measured=folder)
    report = train_stdm.train(args)
    (history,), drawn = histories, len(subtask_matrix(2).values)
    own = history[drawn:]
    assert len(own) == drawn
    assert np.nanmax(np.abs(own - read_site_rows(folder).subtask_matrix()[0])) == 0.0
    assert report["site_rows"] == {"used": 1, "too_few": 1}
    assert hashes_of(report)[f"measured/{SUBTASKS}"] == hashlib.sha256(ROWS.encode()).hexdigest()


def test_ncf_has_the_sites_own_kinds(folder: Path, tmp_path: Path) -> None:
    args = ncf.Args(out=tmp_path / "out", draws=1, pretrain_steps=2, sgd_steps=2, measured=folder)
    report = ncf.train(args)
    assert report["kinds"] == ["denoise", "upscale"]
    row = ncf.load(args.out).values[-2]
    assert row[METRICS.index("sm")] == 0.9
    assert hashes_of(report)[f"measured/{SUBTASKS}"] == hashlib.sha256(ROWS.encode()).hexdigest()
