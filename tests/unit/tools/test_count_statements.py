"""Statements are counted without docstrings and comments, however a file is formatted."""

from pathlib import Path

import pytest
from tools.count_statements import files, statements


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ('"""Module."""\n# comment\nx = 1\n', 1),
        ('def f(a):\n    """Doc."""\n    if a:\n        return 1\n    return 2\n', 4),
        ("x = [\n    1,\n    2,\n]\n", 1),
    ],
)
def test_statements_without_prose(text: str, count: int) -> None:
    assert statements(text) == count


@pytest.mark.process
def test_generated_stubs_and_tests_are_left_out() -> None:
    found = [path for path, _ in files("")]
    assert Path("service/placewise_core/gang/greedy.py") in found
    assert not [path for path in found if path.name.endswith("_pb2.py") or "tests" in path.parts]
