"""One name, one thing, in the field's words: names that once stood for several things each name at most one class, and
names that told nothing are gone."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("service", "training", "clients", "tests")
PRODUCT = FOLDERS[:-1]
ONCE = {"Bundle", "Capacity", "Ledger", "Oracle", "Plan", "Round", "Verdict"}
GONE = {"Office", "Desk", "Common", "Served", "Link", "Wire", "Gate"}
# Adjectives and participles that act: the verbs are check_policy_exists, cancel_and_wait and decode_repeat.
NO_VERBS = {"known", "ended", "repeated", "redis_meant", "let_go"}
# The field says slots, co-tenants, linear speed, countable, sent, uncertainty and epoch.
NO_WORDS = {"rooms", "company", "companies", "pace", "plain", "told", "said", "doubt", "life"}
# An option of a command, and a function of a library.
PUBLIC = {"doubt_steps", "plain_traceback"}


def trees(folders: tuple[str, ...]) -> Iterator[tuple[Path, ast.Module]]:
    for path in (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))):
        if not path.stem.endswith(("_pb2", "_pb2_grpc")):
            yield path, ast.parse(path.read_text("utf-8"))


def classes() -> Counter[str]:
    return Counter(
        node.name.lstrip("_") for _, tree in trees(FOLDERS) for node in tree.body if isinstance(node, ast.ClassDef)
    )


def given(node: ast.AST) -> str:
    """The name that a node gives to something, or reads; "" for others."""
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.alias(name=name):
            return name
    return ""


def words(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}


def test_one_name_is_one_thing() -> None:
    assert {name: count for name, count in classes().items() if name in ONCE and count > 1} == {}


def test_names_that_told_nothing_are_gone() -> None:
    assert GONE.isdisjoint(classes())


def test_functions_that_act_have_verbs() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {node.name}"
        for path, tree in trees(PRODUCT)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in NO_VERBS
    }
    assert found == set()


def test_names_are_words_of_the_field() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path, tree in trees(PRODUCT)
        for name in map(given, ast.walk(tree))
        if name not in PUBLIC and not NO_WORDS.isdisjoint(words(name.rpartition(".")[2]))
    }
    assert found == set()


def test_a_name_is_read_word_by_word() -> None:
    assert words("_keptRooms_PACE") == {"kept", "rooms", "pace"}
    assert words("explained") == {"explained"}
