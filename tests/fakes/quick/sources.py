"""Python files of the repository as syntax trees, each parsed and walked once per process."""

import ast
import gc
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
PRODUCT = tuple(ROOT / name for name in ("service", "training", "clients"))


def parsed(pattern: str, *folders: Path) -> Iterator[tuple[Path, ast.Module]]:
    """Each file whose text has the pattern somewhere, in order, without generated stubs. A test names what it looks
    for: to parse all files takes seconds. The trees stay, and no collection of garbage walks them."""
    found = [path for folder in folders or PRODUCT for path in _files(folder) if re.search(pattern, _text(path))]
    before = _tree.cache_info().currsize
    trees = [_tree(path) for path in found]
    if _tree.cache_info().currsize > before:
        gc.freeze()
    return zip(found, trees, strict=True)


@cache
def nodes(tree: ast.AST) -> Sequence[ast.AST]:
    """The tree and all below it, as ast.walk gives them."""
    return tuple(ast.walk(tree))


def tree_of(text: str) -> ast.Module:
    """The tree of a text. In CPython 3.11.7 `ast.parse` fails ("AST constructor recursion depth mismatch") if another
    runs meanwhile: in the finaliser of garbage that is collected, as where a traceback is logged for a lost task."""
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        if is_collecting:
            gc.enable()


@cache
def _files(folder: Path) -> Sequence[Path]:
    return [path for path in sorted(folder.rglob("*.py")) if not path.stem.endswith(("_pb2", "_pb2_grpc"))]


@cache
def _text(path: Path) -> str:
    return path.read_text("utf-8")


@cache
def _tree(path: Path) -> ast.Module:
    tree = tree_of(_text(path))
    nodes(tree)
    return tree
