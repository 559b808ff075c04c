"""ARCHITECTURE.md shows code that is there, and its table opens files and symbols that are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def excerpts() -> list[tuple[str, str]]:
    """(path, line) of each line of code in the document."""
    found, path = [], ""
    for block in re.findall(r"```python\n(.+?)```", TEXT, re.DOTALL):
        for line in block.splitlines():
            if heading := re.match(r"# (\S+\.py): ", line):
                path = heading[1]
            elif line:
                found.append((path, line.strip()))
    return found


def rows() -> list[str]:
    table = TEXT.partition("## To change X, open Y")[2].partition("\n## ")[0]
    return [line.split("|")[2] for line in table.splitlines() if line.startswith("| ") and "to change" not in line]


@pytest.mark.parametrize(("path", "line"), excerpts())
def test_a_line_of_code_is_in_its_file(path: str, line: str) -> None:
    lines = [each.strip() for each in (ROOT / path).read_text(encoding="utf-8").splitlines()]
    assert line in lines


def test_the_way_ends_where_the_node_is_chosen() -> None:
    assert "argmax" in {path.rpartition("/")[2]: line for path, line in excerpts()}["greedy.py"]


def test_the_table_has_twenty_rows() -> None:
    assert len(rows()) >= 20


@pytest.mark.parametrize("row", rows())
def test_a_row_opens_what_is_there(row: str) -> None:
    paths = [each for each in re.findall(r"`([^`]+)`", row) if each.count("/") > 1 or each.startswith("docs/")]
    assert paths
    paths += [f"training/placewise_training/{each}" for each in re.findall(r"`(\w+/)`", row)]
    for path in paths:
        assert (ROOT / path).exists(), path
    for path, named in re.findall(r"`([^`]+\.py)` \(([^)]+)\)", row):
        for symbol in re.findall(r"`(\w+)`", named):
            defined = rf"^ *(class|def|async def) {symbol}\b|^ *{symbol}\b.*="
            assert re.search(defined, (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), f"{symbol} in {path}"
    files = [ROOT / path for path in paths if (ROOT / path).is_file()]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    for name in re.findall(r"`([A-Za-z_]\w+)`", row):
        is_golden = any(file.name.startswith(name) for file in (ROOT / "tests/golden/net/data").iterdir())
        assert is_golden or re.search(rf"\b{name}\b", text), f"{name} stands in none of the files of its row"
