"""One name, one thing, in the field's words: names that once stood for several things each name at most one class, and
names that told nothing are gone."""

import ast
import re
from collections import Counter
from functools import cache

from tests.fakes.quick.sources import PRODUCT, ROOT, nodes, parsed

FOLDERS = (*PRODUCT, ROOT / "tests")
ONCE = {
    *("Asked", "Bundle", "Candidate", "Capacity", "Figures", "Ledger", "Manifest", "Oracle", "Plan", "Round", "Row"),
    *("Run", "Scope", "Telemetry", "Verdict", "Waiting"),
}
GONE = {
    *("Office", "Desk", "Common", "Served", "Link", "Wire", "Gate"),
    *("Chosen", "Found", "Judged", "Kept", "Known", "Step"),
}
# Imperatives that look like participles, and participles that do not end in "ed".
VERBS = {"embed", "feed", "need", "proceed", "seed", "shed", "succeed"}
PARTICIPLES = {
    *("begun", "bought", "bound", "brought", "built", "caught", "chosen", "done", "drawn", "fallen", "felt", "found"),
    *("frozen", "given", "gone", "grown", "heard", "held", "hidden", "kept", "known", "laid", "learnt", "left", "lost"),
    *("made", "meant", "met", "paid", "seen", "sent", "shown", "sold", "spent", "spoken", "stood", "taken", "told"),
    *("torn", "understood", "woken", "won", "worn", "written"),
}
# The field says slots, co-tenants, linear speed, countable, sent, uncertainty and epoch.
NO_WORDS = {"rooms", "company", "companies", "pace", "plain", "told", "said", "doubt", "life"}
# An option of a command, and a function of a library.
PUBLIC = {"doubt_steps", "plain_traceback"}


@cache
def classes() -> Counter[str]:
    found: Counter[str] = Counter()
    for path in (path for folder in FOLDERS for path in folder.rglob("*.py")):
        found.update(re.findall(r"^class _?(\w+)", path.read_text("utf-8"), re.MULTILINE))
    return found


def names(pattern: str) -> set[tuple[str, type[ast.AST], str]]:
    """(file, kind of node, name) of everything that the product names or reads by a name, in files that have the
    pattern."""
    return {
        (where, type(node), name.rpartition(".")[2])
        for path, tree in parsed(pattern)
        for where in [str(path.relative_to(ROOT))]
        for node in nodes(tree)
        if (name := given(node))
    }


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


def test_in_core_each_class_has_a_name_of_its_own() -> None:
    paths = (ROOT / "service/placewise_core").rglob("*.py")
    found = Counter(name for path in paths for name in re.findall(r"^class ([A-Z]\w*)", path.read_text("utf-8"), re.M))
    assert {name: count for name, count in found.items() if count > 1} == {}


def test_names_that_told_nothing_are_gone() -> None:
    assert GONE.isdisjoint(classes())


def is_participle(word: str) -> bool:
    return word in PARTICIPLES or (word.endswith("ed") and word not in VERBS)


def test_functions_that_act_have_verbs() -> None:
    """A function that returns nothing acts: its name begins with an imperative (cancel_and_wait), and no participle."""
    found = {
        f"{path.relative_to(ROOT)}: {node.name}"
        for path, tree in parsed(rf"(?s)\bdef _*(?:[a-z]*ed|{'|'.join(PARTICIPLES)})[_(](?:(?!\bdef ).)*?-> None:")
        for node in nodes(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and isinstance(node.returns, ast.Constant)
        and node.returns.value is None
        and is_participle(node.name.lstrip("_").partition("_")[0])
    }
    assert found == set()
    assert [is_participle(word) for word in ("ended", "shown", "end", "shed")] == [True, True, False, False]


def test_names_are_words_of_the_field() -> None:
    named = names(rf"(?i){'|'.join(NO_WORDS)}")
    found = {(path, name) for path, _, name in named if name not in PUBLIC and not NO_WORDS.isdisjoint(words(name))}
    assert found == set()


def test_a_name_is_read_word_by_word() -> None:
    assert words("_keptRooms_PACE") == {"kept", "rooms", "pace"}
    assert words("explained") == {"explained"}
