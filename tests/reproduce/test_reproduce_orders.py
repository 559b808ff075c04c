"""Orders of the queue under one placement: paired windows, and the table of a file."""

import json
import math
from pathlib import Path

import pytest

from placewise_training.lab.compare import PATTERNS, Setting
from placewise_training.reproduce.harmony.orders import (
    LENGTHS,
    better,
    change,
    main,
    play,
    table,
    windows,
)

DOCS = Path(__file__).parents[2] / "docs"
_SMALL = Setting("uniform", nodes=2, per_interval=6.0, most_tasks=3, jobs=24)


def test_without_lengths_the_shortest_declared_first_is_first_come_first_served() -> None:
    assert play(_SMALL, "declared", None, 1) == play(_SMALL, "fifo", None, 1)


def test_first_come_first_served_reads_no_lengths() -> None:
    assert play(_SMALL, "fifo", 0.0, 1) == play(_SMALL, "fifo", 0.7, 1)


def test_orders_that_read_lengths_differ_from_it_in_a_queue() -> None:
    found = {order: play(_SMALL, order, 0.0, 1)["avg_jct_s"] for order in ("learned", "declared", "fifo")}
    assert len(set(found.values())) == 3
    assert found["declared"] < found["fifo"]


def _line(pattern: str, seed: int, learned: float, declared: float, fifo: float) -> str:
    metrics = {"learned": learned, "declared": declared, "fifo": fifo}
    runs = {
        lengths: {order: {"avg_jct_s": 1200.0 * jct, "p95": 2400.0 * jct} for order, jct in metrics.items()}
        for lengths in LENGTHS
    }
    return json.dumps({"pattern": pattern, "seed": seed, "runs": runs}) + "\n"


def test_changes_are_paired_by_window(tmp_path: Path) -> None:
    path = tmp_path / "orders.jsonl"
    path.write_text(_line("uniform", 1, 1.0, 2.0, 4.0) + _line("uniform", 2, 3.0, 3.0, 3.0), "utf-8")
    found = windows(path)
    value = change(found, "exact", "declared", "avg_jct_s")
    assert value.mean == pytest.approx(100 * math.log(0.5) / 2)
    assert better(found, "exact") == "declared"
    text = table(found)
    assert "| uniform | exact | 2 | 2.00 | 2.50 | 3.50 | −34.7 ± " in text
    assert "| all | unknown | 2 | 4.00 | 5.00 | 7.00 |" in text
    assert "poisson" not in text, "no window of it"


def test_a_later_run_adds_what_is_missing(tmp_path: Path) -> None:
    out = tmp_path / "orders.jsonl"
    asked = ["--out", str(out), "--jobs", "6", "--patterns", "uniform", "--first-seed", "300000"]
    main([*asked, "--seeds", "1"])
    first = out.read_text("utf-8")
    main([*asked, "--seeds", "2"])
    assert out.read_text("utf-8").startswith(first)
    assert [each.seed for each in windows(out)] == [300_000, 300_001]
    assert json.loads(first)["commit"]
    assert "reproduce.harmony.orders" in json.loads(first)["command"]


def test_the_document_has_the_table_of_its_file(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--table", str(DOCS / "orders.jsonl")])
    printed = capsys.readouterr().out.strip()
    text = (DOCS / "policy.md").read_text("utf-8")
    for part in printed.split("\n\n"):
        assert part in text
    found = windows(DOCS / "orders.jsonl")
    assert {each.pattern for each in found} == set(PATTERNS)
    assert len({each.seed for each in found}) >= 10
