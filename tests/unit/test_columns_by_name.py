"""Columns of net inputs and rows of telemetry are read and written by name."""

import ast

import pytest
from tests.fakes.quick.sources import ROOT, nodes, parsed

CORE = ROOT / "service/placewise_core"
FOLDERS = [CORE / name for name in ("gang", "inputs", "partition", "view")]


def literals(index: ast.expr) -> set[int]:
    """The whole numbers that an index or the bounds of a slice write out."""
    parts = [index.lower, index.upper] if isinstance(index, ast.Slice) else [index]
    return {p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, int)}


def numbered(tree: ast.AST) -> list[str]:
    """Subscripts with a row of telemetry or a column written as a number. The first two columns may be a pair."""
    found = []
    for node in nodes(tree):
        if not isinstance(node, ast.Subscript):
            continue
        first, *others = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        is_telemetry = ast.unparse(node.value).rpartition(".")[2] == "telemetry"
        is_column = any(max(literals(each), default=0) > 1 for each in others)
        if is_column or (is_telemetry and literals(first)):
            found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("text", ["out[:, 4] = x", "a = out[:, :6]", "view.telemetry[0]", "telemetry[7:10, at]"])
def test_a_number_is_found(text: str) -> None:
    assert len(numbered(ast.parse(text))) == 1


@pytest.mark.parametrize("text", ["out[:, _AT['gpus']]", "waiting[:, 1]", "view.telemetry[_ROWS]", "telemetry[:, at]"])
def test_a_name_and_a_pair_pass(text: str) -> None:
    assert numbered(ast.parse(text)) == []


def test_no_column_is_written_by_number() -> None:
    found = {f"{path.relative_to(CORE)}: {each}" for path, tree in parsed(r"\[", *FOLDERS) for each in numbered(tree)}
    assert found == set()
