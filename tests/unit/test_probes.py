"""Nobody asks an object for its abilities: one probe is left in the product, and this file holds the number."""

import ast
import re

from tests.fakes.quick.sources import nodes, parsed

# Reads of a field by its name, of messages of several kinds or of foreign objects: no ability is asked for.
FIELDS = {
    ("call_audit.py", "cluster"),
    ("call_audit.py", "dry_run"),
    ("gateway.py", "request_id"),
    ("rpcs.py", "f'{name}Response"),
    ("callers.py", "SUBJECTS"),
    ("exits.py", "exit_code"),
}
PROBES = [("exits.py", "show")]  # an error of the library that does not show its classes; asked twice in a row
# Readers of foreign documents: a text stands where an object was meant, or nothing does.
READERS = {
    "client.py",
    "connect.py",
    "groups.py",
    "inventory.py",
    "limits.py",
    "mirrors.py",
    "queues.py",
    "rest/__init__.py",
    "server.py",
    "vcjobs.py",
    "web_tokens.py",
    "whatif.py",
}


def probe(node: ast.AST) -> str:
    """The attribute for which a node asks an object; "" if it asks for none that may be missing."""
    if isinstance(node, ast.ExceptHandler) and node.type is not None and ast.unparse(node.type) == "AttributeError":
        return "AttributeError"
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return ""
    is_asking = node.func.id in ("hasattr", "callable") or (node.func.id == "getattr" and len(node.args) == 3)
    return ast.unparse(node.args[-1 if node.func.id == "callable" else 1]).strip("'\"") if is_asking else ""


def test_probes_for_abilities() -> None:
    asking = parsed(r"\b(getattr|hasattr|callable|AttributeError)\b")
    found = {(path.name, asked) for path, tree in asking for node in nodes(tree) if (asked := probe(node))}
    assert [each for each in sorted(found) if (each[0], each[1].replace('"', "'")) not in FIELDS] == PROBES
    assert len(PROBES) <= 1


def test_an_attribute_error_is_caught_beside_others_by_readers_of_foreign_documents_alone() -> None:
    catching = {
        "/".join(path.parts[-2:]) if path.name == "__init__.py" else path.name
        for path, tree in parsed("AttributeError")
        for node in nodes(tree)
        if isinstance(node, ast.ExceptHandler) and node.type is not None
        if "AttributeError" in ast.unparse(node.type)
    }
    assert catching == READERS


def derived(roots: set[str]) -> set[str]:
    """Names of the classes that derive from these, at any distance, and of these."""
    trees = [tree for _, tree in parsed(r"\bclass ")]
    classes = [node for tree in trees for node in nodes(tree) if isinstance(node, ast.ClassDef) and node.bases]
    bases = [(each.name, {ast.unparse(base) for base in each.bases}) for each in classes]
    found, before = roots, set[str]()
    while found != before:
        before = found
        found = roots | {name for name, above in bases if not before.isdisjoint(above)}
    return found


def test_no_policy_and_no_authenticator_is_asked_what_class_it_is_of() -> None:
    """What differs between them is stated by each, or is known to whoever built it."""
    policies = derived({"PlacementPolicy", "AdmissionPolicy", "PartitionPolicy", "SubtaskScheduler"})
    assert {"BestOfK", "Harmony", "Proteus", "Fifo", "Oracle"} < policies
    asked = {
        (path.name, kind)
        for path, tree in parsed(r"\bisinstance\(")
        for node in nodes(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance"
        for kind in ast.unparse(node.args[1]).strip("()").replace(",", " ").replace("|", " ").split()
        if kind in policies | {"Identity", "Open"}
    }
    assert asked == set()


def test_no_object_is_asked_whether_it_can_be_iterated_called_or_awaited() -> None:
    """The classes of collections.abc that stand for one ability. Those of plain data, as Mapping, are none."""
    abilities = {"AsyncIterable", "AsyncIterator", "Awaitable", "Callable", "Collection", "Coroutine"}
    abilities |= {"Generator", "Hashable", "Iterable", "Iterator", "Sized"}
    asked = [
        (path.name, ast.unparse(node.args[1]))
        for path, tree in parsed(r"\bisinstance\(")
        for node in nodes(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance"
        if not abilities.isdisjoint(re.findall(r"\w+", ast.unparse(node.args[1])))
    ]
    assert asked == []


def test_no_protocol_can_be_asked_for_at_run_time() -> None:
    """`isinstance` needs a Protocol that is marked so."""
    names = [path.name for path, tree in parsed("runtime_checkable") for node in nodes(tree)
             if isinstance(node, ast.Name | ast.Attribute) and "runtime_checkable" in ast.unparse(node)]  # fmt: skip
    assert not names
