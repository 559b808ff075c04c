"""Draws passages of the repository's English by a fixed seed, for a reader who knows schedulers and not this code.

    python -m tools.draw_passages [--seed N] [--each 20]

Prints as many of each kind: messages (errors raised, help of commands and settings), documents, comments (docstrings
included) of the shipped code.
"""

import argparse
import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path

from tools.prose_check import Line, files, prose

LEAST_WORDS = 8
CODE = ("service", "training", "clients", "proto")
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "docs")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=15, help="of the draw")
    parser.add_argument("--each", type=int, default=20, help="passages of each kind")
    options = parser.parse_args()
    code = [path for root in CODE for path in files(Path(root))]
    found = {
        "messages": [passage for path in code if path.suffix == ".py" for passage in messages(path)],
        "documents": [passage for root in DOCUMENTS for path in files(Path(root)) for passage in paragraphs(path)],
        "comments": [
            passage for path in code if path.suffix in (".py", ".proto", ".lua") for passage in comments(path)
        ],
    }
    rng = random.Random(options.seed)
    for kind, passages in found.items():
        print(f"\n# {kind}: {min(options.each, len(passages))} of {len(passages)}")
        for passage in rng.sample(passages, min(options.each, len(passages))):
            print(f"\n{passage}")


def messages(path: Path) -> Iterator[str]:
    """Texts within a `raise`, and those given as `help` or `description`."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from _texts(path, node.exc.args)
        elif isinstance(node, ast.Call):
            yield from _texts(path, [word.value for word in node.keywords if word.arg in ("help", "description")])
        elif isinstance(node, ast.Dict):
            named = zip(node.keys, node.values, strict=True)
            yield from _texts(path, [value for key, value in named if _is_help(key)])


def _is_help(key: ast.expr | None) -> bool:
    return isinstance(key, ast.Constant) and key.value == "help"


def _texts(path: Path, nodes: list[ast.expr]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.JoinedStr | ast.Constant) and _is_passage(text := ast.unparse(node)):
            yield f"{path}:{node.lineno}: {text}"


def paragraphs(path: Path) -> Iterator[str]:
    """Paragraphs and items of lists; no tables, headings, pictures or blocks of code."""
    whole = path.read_text("utf-8").splitlines()
    lines = (line._replace(text=whole[line.number - 1]) for line in prose(path))
    yield from _runs(path, (line for line in lines if not line.text.startswith(("|", "#", "!["))))


def comments(path: Path) -> Iterator[str]:
    yield from _runs(path, (line for line in prose(path) if not line.is_message))


def _runs(path: Path, lines: Iterator[Line]) -> Iterator[str]:
    """Adjacent lines as one passage; an empty line or the mark of an item begins the next."""
    run: list[Line] = []
    for line in lines:
        is_next = bool(run) and line.number == run[-1].number + 1 and not re.match(r"\s*([*-]|\d+\.) ", line.text)
        if run and not (is_next and line.text.strip()):
            yield from _passage(path, run)
            run = []
        if line.text.strip():
            run.append(line)
    if run:
        yield from _passage(path, run)


def _passage(path: Path, run: list[Line]) -> Iterator[str]:
    text = " ".join(line.text.strip() for line in run)
    if _is_passage(text):
        yield f"{path}:{run[0].number}: {text}"


def _is_passage(text: str) -> bool:
    return len(re.findall(r"[A-Za-z']{2,}", text)) >= LEAST_WORDS


if __name__ == "__main__":
    main()
