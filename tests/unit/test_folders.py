"""No folder is a mere listing: at most fifteen Python files stand in one. Modules and functions are short, too."""

import ast
import multiprocessing
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fakes.quick.sources import nodes, parsed

ROOT = Path(__file__).parents[2]
MOST = 15
MOST_LINES = 500
MOST_LINES_OF_A_FUNCTION = 60  # without its parameters: a command has one for each option


@pytest.mark.parametrize("root", ["service", "training", "clients", "tests", "tools"])
def test_a_folder_has_at_most_fifteen_python_files(root: str) -> None:
    folders = {path.parent for path in (ROOT / root).rglob("*.py")}
    counts = {str(folder.relative_to(ROOT)): len(list(folder.glob("*.py"))) for folder in folders}
    assert {name: count for name, count in counts.items() if count > MOST} == {}


@pytest.mark.parametrize("root", ["service", "training", "clients", "tests", "tools"])
def test_no_module_has_more_than_five_hundred_lines(root: str) -> None:
    files = [*(ROOT / root).rglob("*.py"), *(ROOT / root).rglob("*.java")]
    modules = [path for path in files if not path.stem.endswith(("_pb2", "_pb2_grpc"))]
    counts = {str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in modules}
    assert {name: count for name, count in counts.items() if count > MOST_LINES} == {}


def test_functions_are_short() -> None:
    functions = (
        (f"{path.name}: {node.name}", (node.end_lineno or 0) - node.body[0].lineno + 1)
        for path, tree in parsed("def ")
        for node in nodes(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    assert {name: lines for name, lines in functions if lines >= MOST_LINES_OF_A_FUNCTION} == {}


def test_no_unit_or_property_test_that_starts_no_process_is_slow() -> None:
    """`make test-fast` runs them all."""
    found = []
    for path in (path for folder in ("unit", "property") for path in (ROOT / "tests" / folder).rglob("test_*.py")):
        tests = re.findall(r"((?:^@.+\n)+)(?:async )?def (\w+)", path.read_text("utf-8"), re.MULTILINE)
        found += [name for marks, name in tests if "mark.slow" in marks and "mark.process" not in marks]
    assert found == []


def test_no_unit_or_property_test_asks_for_the_captured_log() -> None:
    """`make test-fast` and `make coverage` run without pytest's capture of logging, and have no such fixture."""
    tests = [path for folder in ("unit", "property") for path in (ROOT / "tests" / folder).rglob("test_*.py")]
    assert [path.name for path in tests if re.search(r"[(\s]caplog[:,)]", path.read_text("utf-8"))] == []


@pytest.mark.parametrize(
    "start",
    [
        os.fork,
        lambda: os.system("true"),
        lambda: os.posix_spawn("/bin/true", ["true"], {}),
        lambda: subprocess.run(["true"], check=True),
        lambda: multiprocessing.get_context("fork").Process(target=print).start(),
    ],
)
def test_a_fast_test_that_starts_a_process_fails(start: Callable[[], object]) -> None:
    with pytest.raises(RuntimeError, match="this test starts a process"):
        start()
