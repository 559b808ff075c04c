"""The report of scenarios: log ratios to `consolidate`, brought together from several files, by level."""

import json
import math
from pathlib import Path

import pytest

from placewise_training.unseen.report import main, rows, summary, table, worst, worst_level


def _file(path: Path, players: dict[str, dict[int, float]]) -> Path:
    numbers = sorted({number for of in players.values() for number in of})
    lines = [
        {
            "scenario": {"number": n},
            "levels": {"contention": "demand" if n % 2 else "flat 50%"},
            "players": {name: {"avg_jct_s": of[n]} for name, of in players.items() if n in of},
        }
        for n in numbers
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _files(folder: Path) -> list[Path]:
    played = {"consolidate": dict.fromkeys(range(6), 100.0), "search": {n: 100.0 + 10 * n for n in range(6)}}
    return [_file(folder / "a.jsonl", played), _file(folder / "b.jsonl", {"oracle by delay": {0: 90.0, 1: 80.0}})]


def test_players_of_several_files_meet_in_their_scenario(tmp_path: Path) -> None:
    found = rows(_files(tmp_path))
    assert [row.number for row in found] == list(range(6))
    assert found[1].ratios["search"] == pytest.approx(100 * math.log(1.1))
    assert found[1].ratios["oracle by delay"] == pytest.approx(100 * math.log(0.8))
    assert "oracle by delay" not in found[2].ratios


def test_the_table_has_a_line_per_level_and_no_mean_of_two(tmp_path: Path) -> None:
    found = rows(_files(tmp_path))
    text = table(found, ["search", "oracle by delay"], {"p95": found[:3]})
    mean = sum(100 * math.log(1 + n / 10) for n in range(6)) / 6
    assert f"| all | 6 | {mean:+.1f}" in text
    assert "| contention: demand | 3 |" in text
    assert "| p95 | 3 |" in text
    assert "–" in text.splitlines()[2]
    assert "(3)" not in text
    assert summary(found, "oracle by delay") is None


def test_a_mean_over_fewer_scenarios_says_of_how_many(tmp_path: Path) -> None:
    files = _files(tmp_path)
    files.append(_file(tmp_path / "c.jsonl", {"harmony": dict.fromkeys(range(4), 90.0)}))
    assert "−10.5 ± 0.0 (4)" in table(rows(files), ["harmony"], {}).splitlines()[2]


def test_the_worst_come_first(tmp_path: Path) -> None:
    assert [row.number for row in worst(rows(_files(tmp_path)), "search")] == [5, 4, 3, 2, 1, 0]


def test_the_command_prints_the_table_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([*map(str, _files(tmp_path)), "--plot", str(tmp_path / "p.png")])
    assert "Worst of `search`: 5 (+41)" in capsys.readouterr().out
    assert (tmp_path / "p.png").stat().st_size > 5000
    with pytest.raises(SystemExit, match="no scenario with consolidate"):
        main([str(tmp_path / "nothing.jsonl")])


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = _files(tmp_path)[0]
    path.write_text(path.read_text() + '{"scenario": {"num')
    assert len(rows([path])) == 6


@pytest.mark.parametrize(
    ("of_demand", "is_below"), [(90.0, True), (101.5, False)], ids=["shorter everywhere", "not by demand"]
)
def test_one_level_that_is_longer_decides(tmp_path: Path, of_demand: float, is_below: bool) -> None:
    jct = {n: (of_demand if n % 2 else 90.0) + n / 10 for n in range(20)}
    found = rows([_file(tmp_path / "a.jsonl", {"consolidate": dict.fromkeys(range(20), 100.0), "search": jct})])
    assert (worst_level(found, "search") < 1e-6) == is_below


def test_a_level_of_two_scenarios_shows_nothing(tmp_path: Path) -> None:
    found = rows(
        [
            _file(
                tmp_path / "a.jsonl",
                {"consolidate": dict.fromkeys(range(4), 100.0), "search": dict.fromkeys(range(4), 50.0)},
            )
        ]
    )
    assert worst_level(found, "search") == 1.0


def test_another_metric_may_be_missing(tmp_path: Path) -> None:
    assert all(not row.ratios for row in rows(_files(tmp_path), "p95"))
