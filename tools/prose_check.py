"""Counts turns of phrase that make English hard to read, per 1,000 words, and fails if a path has more than the limit.

Reads comments, docstrings and messages (string literals with at least three words) of Python, Java and JavaScript,
Markdown outside code blocks, comments of `.proto`, `.lua`, shell, YAML, Makefiles and Dockerfiles, and the text of
`.html`. It never judges whether a paragraph is good: rewrite the paragraph, not the word.

    python tools/prose_check.py [--limit PER_1000] [--lines] [--no-messages] [PATH …]

Each path is judged alone, each kind of phrase for itself. One hit is allowed in any path, however short.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

# Read when no path is given, as `make lint` does. The list grows: a path joins once it is rewritten, and stays. A list
# of exceptions would never have shrunk.
CLEAN = (
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "clients",
    "deploy",
    "docker-compose.tokens.yml",
    "docker-compose.yml",
    "docs",
    "proto",
    "requirements",
    "service/placewise_core",
    "service/placewise_log",
    "service/placewise_models",
    "service/placewise_service",
    "tests",
    "tools",
    "training",
)
LIMIT = 0.5
# `bundles`: a signed bundle never changes, nor does the README in it.
SKIPPED = ("node_modules", "build", "__pycache__", "bundles")
LEAST_WORDS = 3


def _before_any(first: str, words: str) -> re.Pattern[str]:
    return re.compile(rf"\b{first} (?:{'|'.join(words.split())})\b", re.IGNORECASE)


KINDS = {
    "noun hidden in a what-clause": _before_any(
        "what",
        "is was are were has have had can cannot does did will would may might must needs it they he we you nobody no "
        "one this each all any other others else a an the of goes comes came fits stands ships follows remains",
    ),
    "where, for if or when": _before_any(
        "where", "there nothing nobody none that\\sis it they one no a an the both all any some"
    ),
    "told and said": re.compile(
        r"\b(?:is|are|was|were|be|been) told\b|\btold (?:of|by)\b|\bsa(?:ys|id) so\b", re.IGNORECASE
    ),
    "anew, whosoever": re.compile(r"\banew\b|\bwho(?:so)?ever\b|\bwhichever\b|\bwhatever\b", re.IGNORECASE),
}


class Line(NamedTuple):
    number: int
    text: str
    is_message: bool = False


def prose(path: Path) -> Iterator[Line]:
    """The lines of prose in one file. A Python file that cannot be parsed has none."""
    yield from _READERS[_kind(path)](path.read_text(encoding="utf-8", errors="replace"))


def _kind(path: Path) -> str:
    """The suffix; the name of a file without one."""
    return path.suffix or path.name


def _python(text: str) -> Iterator[Line]:
    try:
        tree = ast.parse(text)
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (SyntaxError, tokenize.TokenError):
        return
    for token in tokens:
        if token.type == tokenize.COMMENT:
            yield Line(token.start[0], token.string.lstrip("# "))
    docstrings = [constant for node in ast.walk(tree) if (constant := _docstring(node))]
    for constant in docstrings:
        yield from _lines(constant)
    others = {id(constant) for constant in docstrings}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in others:
            yield from (
                line._replace(text=_without_code(line.text), is_message=True)
                for line in _lines(node)
                if _has_words(line.text)
            )


def _docstring(node: ast.AST) -> ast.Constant | None:
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or not node.body:
        return None
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return first.value
    return None


def _lines(node: ast.Constant) -> Iterator[Line]:
    if isinstance(node.value, str):
        yield from (Line(number, line) for number, line in enumerate(node.value.splitlines(), node.lineno))


def _has_words(text: str) -> bool:
    return len(re.findall(r"\b[A-Za-z']{2,}\b", text)) >= LEAST_WORDS


def _without_code(text: str) -> str:
    return re.sub(r"`[^`]*`", "", text)


def _markdown(text: str) -> Iterator[Line]:
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield Line(number, _without_code(line))


def _comments(mark: str) -> Callable[[str], Iterator[Line]]:
    """Comments behind a mark that begins a line or follows a blank: elsewhere it may belong to a word."""
    start = re.compile(rf"(?:^|\s){re.escape(mark)}+(.+)")

    def read(text: str) -> Iterator[Line]:
        for number, line in enumerate(text.splitlines(), 1):
            if found := start.search(line):
                yield Line(number, found[1].strip())

    return read


# A string may contain the mark of a comment, and a comment a quote: the first to start is read to its end.
_JAVA = re.compile(
    r"//(?P<line>[^\n]*)"
    r"|/\*(?P<block>.*?)\*/"
    r'|"""(?P<text>(?:\\.|[^\\])*?)"""'
    r'|"(?P<string>(?:\\.|[^"\\\n])*)"'
    r"|'(?:\\.|[^'\\\n])*'",
    re.DOTALL,
)
_JAVASCRIPT = re.compile(_JAVA.pattern + r"|`(?P<template>(?:\\.|[^`\\])*)`", re.DOTALL)


def _java(text: str, pattern: re.Pattern[str] = _JAVA) -> Iterator[Line]:
    for found in pattern.finditer(text):
        kind = found.lastgroup
        if kind is None:  # a character
            continue
        first = text.count("\n", 0, found.start()) + 1
        for number, line in enumerate(found[kind].splitlines(), first):
            if kind in ("line", "block"):
                if comment := line.lstrip("/* \t").rstrip():
                    yield Line(number, comment)
            elif _has_words(line):
                yield Line(number, _without_code(line), is_message=True)


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[Line] = []

    def handle_data(self, data: str) -> None:
        self.lines.extend(Line(number, line) for number, line in enumerate(data.splitlines(), self.getpos()[0]))


def _html(text: str) -> Iterator[Line]:
    page = _Page()
    page.feed(text)
    yield from page.lines


_READERS: dict[str, Callable[[str], Iterator[Line]]] = {
    ".py": _python,
    ".md": _markdown,
    ".proto": _comments("//"),
    ".js": partial(_java, pattern=_JAVASCRIPT),
    ".java": _java,
    ".lua": _comments("--"),
    ".sh": _comments("#"),
    ".yaml": _comments("#"),
    ".yml": _comments("#"),
    "Makefile": _comments("#"),
    "Dockerfile": _comments("#"),
    ".html": _html,
}


class Count:
    """Words and hits of one path."""

    def __init__(self) -> None:
        self.words = 0
        self.hits: Counter[str] = Counter()
        self.lines: list[str] = []

    def add(self, path: Path, line: Line) -> None:
        self.words += len(line.text.split())
        for kind, pattern in KINDS.items():
            if found := len(pattern.findall(line.text)):
                self.hits[kind] += found
                self.lines.append(f"{path}:{line.number}: {line.text.strip()[:140]}")

    def above(self, limit: float) -> list[str]:
        """The kinds of phrase that this path has too many of."""
        return [kind for kind, hits in self.hits.items() if hits > max(1.0, limit * self.words / 1000)]


def files(root: Path) -> Iterator[Path]:
    """The files with prose under `root`, without generated stubs and hidden folders. `root` may end in a pattern:
    then the files of its folder alone."""
    if root.is_file():
        yield root
        return
    if "*" in root.name:
        yield from sorted(root.parent.glob(root.name))
        return
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        hidden = any(part.startswith(".") or part in SKIPPED for part in parts)
        if _kind(path) in _READERS and not hidden and not path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
            yield path


def count(root: Path, *, messages: bool = True) -> Count:
    result = Count()
    for path in files(root):
        for line in prose(path):
            if messages or not line.is_message:
                result.add(path, line)
    return result


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="*", default=CLEAN, metavar="PATH", help="files and folders; default: CLEAN")
    parser.add_argument("--limit", type=float, default=LIMIT, help=f"hits per 1,000 words and kind; default {LIMIT}")
    parser.add_argument("--lines", action="store_true", help="show every line with a hit")
    parser.add_argument(
        "--no-messages", action="store_true", help="leave out the string literals of Python, Java and JavaScript"
    )
    options = parser.parse_args(arguments)
    failed = False
    for path in options.paths:
        counted = count(Path(path), messages=not options.no_messages)
        above = counted.above(options.limit)
        failed |= bool(above)
        hits = ", ".join(f"{kind} {found}" for kind, found in counted.hits.items()) or "no hits"
        print(f"{path}: {counted.words} words; {hits}{'; above the limit: ' + ', '.join(above) if above else ''}")
        if above or options.lines:
            print("\n".join(counted.lines))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
