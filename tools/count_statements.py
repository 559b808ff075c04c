"""Counts AST statements of production code per package: no docstrings, comments or generated stubs.

    python tools/count_statements.py [COMMIT …]

Without a commit it counts the files on disk. The number does not change with formatting.
"""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGE = 2  # parts of a path that name a package: service/placewise_core
FOLDERS = ("service", "training", "clients")
GENERATED = ("_pb2.py", "_pb2_grpc.py")


def statements(text: str) -> int:
    """Statements, without expressions that are only a string."""
    return sum(isinstance(node, ast.stmt) and not _is_string(node) for node in ast.walk(ast.parse(text)))


def _is_string(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def files(commit: str) -> Iterator[tuple[Path, str]]:
    """Production files and their text, at a commit or ("") on disk."""
    names = _git("ls-tree", "-r", "--name-only", commit, *FOLDERS) if commit else _git("ls-files", *FOLDERS)
    for path in map(Path, names.splitlines()):
        if path.suffix == ".py" and "tests" not in path.parts and not path.name.endswith(GENERATED):
            yield path, _git("show", f"{commit}:{path}") if commit else path.read_text(encoding="utf-8")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], check=True, capture_output=True, text=True)  # noqa: S603, S607
    return done.stdout


def main(commits: list[str]) -> None:
    counts = []
    for commit in commits or [""]:
        found: Counter[str] = Counter()
        for path, text in files(commit):
            found["/".join(path.parts[:PACKAGE])] += statements(text)
        counts.append(found)
    packages = sorted({package for found in counts for package in found})
    for package in packages:
        print(package, *(found[package] for found in counts))
    print("all", *(found.total() for found in counts))


if __name__ == "__main__":
    main(sys.argv[1:])
