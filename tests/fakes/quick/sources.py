"""Python files of the repository as syntax trees."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
PRODUCT = tuple(ROOT / name for name in ("service", "training", "clients"))


def parsed(pattern: str, *folders: Path) -> Iterator[tuple[Path, ast.Module]]:
    """Each file whose text has the pattern somewhere, in order, without generated stubs. A test names what it looks
    for: to parse all files takes seconds, and to keep their trees slows every later collection of garbage."""
    for path in (path for folder in folders or PRODUCT for path in sorted(folder.rglob("*.py"))):
        if not path.stem.endswith(("_pb2", "_pb2_grpc")):
            text = path.read_text("utf-8")
            if re.search(pattern, text):
                yield path, ast.parse(text)
