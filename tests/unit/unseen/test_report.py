"""The report of scenarios: log ratios to `consolidate`, brought together from several files, by level."""

import json
import math
from pathlib import Path

import pytest

from placewise_training.unseen.judge import PLAYERS
from placewise_training.unseen.report import (
    BETTER,
    against,
    alike,
    criterion,
    main,
    paired,
    rows,
    summary,
    table,
    with_better_oracle,
    worst,
    worst_level,
)


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


def _default_and_oracles(folder: Path) -> list[Path]:
    """Six scenarios; the oracles have played four of them."""
    return [
        _file(
            folder / "d.jsonl",
            {
                "consolidate": dict.fromkeys(range(6), 100.0),
                "consolidate-apart": {n: 100.0 + n for n in range(6)},
                "adaptive": {0: 100.0, 1: 100.0 + 1e-4, 2: 90.0, 3: 91.0, 4: 92.0, 5: 93.0},
                "oracle by delay": {0: 80.0, 1: 130.0, 2: 90.0, 3: 120.0},
                "oracle by progress": {0: 85.0, 1: 125.0, 2: 95.0, 3: 121.0},
            },
        )
    ]


def test_two_players_are_paired_by_scenario(tmp_path: Path) -> None:
    found = rows(_default_and_oracles(tmp_path))
    differences = [100 * math.log(a / (100.0 + n)) for n, a in enumerate((100.0, 100.0001, 90.0, 91.0, 92.0, 93.0))]
    value = paired(found, "adaptive", "consolidate-apart")
    assert value is not None
    assert value.count == 6
    assert value.mean == pytest.approx(sum(differences) / 6)
    only_four = paired(found, "adaptive", "oracle by delay")
    assert only_four is not None
    assert only_four.count == 4
    assert paired(found, "adaptive", "nobody") is None


def test_a_scenario_is_alike_up_to_the_digits_of_the_file(tmp_path: Path) -> None:
    assert alike(rows(_default_and_oracles(tmp_path)), "adaptive") == (2, 6)


def test_the_better_oracle_is_another_one_in_each_scenario(tmp_path: Path) -> None:
    found = with_better_oracle(rows(_default_and_oracles(tmp_path)))
    better = [row.ratios.get(BETTER) for row in found]
    assert better[:4] == pytest.approx([100 * math.log(x / 100) for x in (80.0, 125.0, 90.0, 120.0)])
    assert better[4:] == [None, None]


def test_the_letter_of_the_criterion_has_a_row_for_each_reading_of_the_gap(tmp_path: Path) -> None:
    lines = criterion(with_better_oracle(rows(_default_and_oracles(tmp_path))), "adaptive").splitlines()
    assert lines[0].startswith("`adaptive`: −5.")
    in_mean, of_each, or_usual = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines[-3:])
    logs = {x: 100 * math.log(x / 100) for x in (80.0, 85.0, 90.0, 95.0, 120.0, 121.0, 125.0, 130.0)}
    gap = (logs[80.0] + logs[90.0]) / 4
    assert or_usual[:2] == ["the better oracle of each scenario, or `consolidate`", "4"]
    assert or_usual[2].startswith(f"{gap:+.2f}".replace("-", "−"))
    assert or_usual[3] == f"{gap / 2:+.2f}".replace("-", "−")
    assert or_usual[-1] == "it is not", "this gap is 8.2"
    assert of_each[-1] == in_mean[-1] == "half is reached"
    assert in_mean[0] == "`oracle by delay`, the better one in the mean"


def test_without_oracles_there_is_no_gap(tmp_path: Path) -> None:
    played = {"consolidate": dict.fromkeys(range(6), 100.0), "adaptive": {n: 80.0 + n for n in range(6)}}
    text = criterion(with_better_oracle(rows([_file(tmp_path / "a.jsonl", played)])), "adaptive")
    assert ": as wanted" in text
    assert "No gap" in text


def test_the_command_prints_pairs_and_the_criterion(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(_default_and_oracles(tmp_path)[0])])
    printed = capsys.readouterr().out
    assert "| `consolidate-apart` | 6 | −" in printed
    assert "As long as under `consolidate`: 2 of 6 scenarios." in printed
    assert "the better oracle of each scenario, or `consolidate`" in printed


def test_the_document_has_the_figures_of_its_file() -> None:
    """The paired figure and the criterion of docs/unseen.md are those of docs/unseen.jsonl."""
    docs = Path(__file__).parents[3] / "docs"
    found, text = with_better_oracle(rows([docs / "unseen.jsonl"])), (docs / "unseen.md").read_text("utf-8")
    players = [player for player in PLAYERS if player not in ("consolidate", "adaptive")]
    assert against(found, players).partition("\n\n")[0] in text
    assert criterion(found, "adaptive").partition("\n\n")[2] in text
    equal, played = alike(found, "adaptive")
    assert f"{equal} of the {played} scenarios" in text
