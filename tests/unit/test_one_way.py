"""One way to place a gang, one count of the tasks that fit on nodes, one score per policy."""

import ast
import gc
import re

from tests.fakes.quick.sources import ROOT, nodes, parsed, tree_of

CORE = ROOT / "service/placewise_core"
ABILITIES = {"claim", "claims_last", "counted", "counts_rooms", "is_claimed", "keeps_claims"}


def calls(name: str) -> set[str]:
    """Files that call a function, method or class of this name."""
    return {
        str(path.relative_to(CORE))
        for path, tree in parsed(rf"\b{name}\(", CORE)
        for node in nodes(tree)
        if isinstance(node, ast.Call) and called(node) == name
    }


def called(node: ast.Call) -> str:
    """The last part of the called function's name; "" for anything without a name."""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def test_only_the_gang_gives_tasks_to_nodes_and_only_node_scope_gives_them_to_units() -> None:
    assert calls("Assignment") == {"gang/gang.py", "subtasks/round.py"}


def test_only_the_view_divides_free_amounts_by_a_demand() -> None:
    found = {
        f"{path.relative_to(CORE)}:{function.name}"
        for path, tree in parsed("//", CORE)
        for function in nodes(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.FloorDiv)
        and re.search(r"need|amount|demand|vector|free|gpus", ast.unparse(node))
    }
    # A range of GPUs and a queue's share are divided there, not what nodes have.
    elsewhere = {"admit/shapes.py:shapes_of", "admit/shapes.py:_shapes_up_to", "admit/policies/capacity.py:choose"}
    on_nodes = found - elsewhere
    assert on_nodes == {"view/slots.py:count_slots", "view/slots.py:tasks_on_gpus", "view/slots.py:whole_tasks"}


def test_a_policy_states_its_score_once_and_no_further_ability() -> None:
    for path, tree in parsed(r"\bclass ", CORE / "policies", CORE / "gang"):
        for node in nodes(tree):
            if isinstance(node, ast.ClassDef):
                names = [each.name for each in node.body if isinstance(each, ast.FunctionDef)]
                assert path.is_relative_to(CORE / "gang") or sum("score" in name for name in names) <= 1, path
                assert ABILITIES.isdisjoint(names), f"{path}: {node.name}"


def product(pattern: str) -> list[tuple[str, ast.AST]]:
    """The nodes of all files that have the pattern, each with its file."""
    found = [(str(path.relative_to(ROOT)), tree) for path, tree in parsed(pattern)]
    return [(where, node) for where, tree in found for node in nodes(tree)]


def test_a_cache_is_bounded_by_one_class_on_each_side_of_the_wire() -> None:
    """Nobody clears a dict by hand when it has grown long, nor takes its oldest key out."""
    found = {
        path
        for path, node in product(r"\.(clear|popitem)\(\)")
        if isinstance(node, ast.If)
        and any(re.fullmatch(r".+\.(clear|popitem)\(\)", ast.unparse(each)) for each in node.body)
        and re.search(r"len\((.+)\) >=? .+", ast.unparse(node.test))
    }
    assert found == {"service/placewise_core/basics/bounded.py"}
    oldest = {
        path
        for path, node in product(r"next\(iter\(")
        if isinstance(node, ast.Delete) and re.search(r"(.+)\[next\(iter\(\1\)\)\]", ast.unparse(node))
    }
    by_bytes = {"service/placewise_service/state/reference/memory.py"}  # as many as fit into an amount of memory
    assert oldest == found | by_bytes
    named = product("class Bounded")
    classes = {path for path, node in named if isinstance(node, ast.ClassDef) and node.name == "Bounded"}
    assert classes == found | {"clients/python/placewise_client/adapter/bounded.py"}


def test_pauses_double_in_one_place_on_each_side_of_the_wire() -> None:
    found = {
        path
        for path, node in product(r"(?s)\A(?=.*(?<![.\w])min\()(?=.*(pause|delay|first_s))")
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "min"
        and re.search(r"\b2(\.0)? \*{1,2} |\* 2(\.0)?\b|_s \*", ast.unparse(node))
        and re.search("pause|delay|first_s", ast.unparse(node))
    }
    assert found == {"clients/python/placewise_client/backoff.py", "service/placewise_service/backoff.py"}


def test_a_trace_is_read_a_model_exported_and_a_trainer_registered_in_one_place() -> None:
    def callers(function: str) -> set[str]:
        found = product(rf"\b{re.escape(function)}\(")
        return {path for path, node in found if isinstance(node, ast.Call) and ast.unparse(node.func) == function}

    repeats_rows_of_a_trace = {"training/placewise_training/sim/environments/bench.py"}
    assert callers("TraceJob") == {"service/placewise_core/domain/traces.py"} | repeats_rows_of_a_trace
    assert callers("torch.onnx.export") == {"training/placewise_training/lab/export.py"}
    assert callers("register") == {"training/placewise_training/train_cli.py"}


def test_a_gang_has_one_record_in_each_part_of_an_adapter_and_one_stage() -> None:
    named = product("class Stage")
    stages = [path for path, node in named if isinstance(node, ast.ClassDef) and node.name == "Stage"]
    assert stages == ["clients/python/placewise_client/adapter/native.py"]


TEXT = "x = [[[1, 2], 3], f(4)]\n" * 2000


class Parses:
    """Garbage with a finaliser that parses, as one that logs a traceback does."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        ast.parse("x = [1]")


def test_a_finaliser_that_parses_disturbs_no_parsing() -> None:
    threshold = gc.get_threshold()
    gc.set_threshold(100)
    try:
        for _ in range(5):
            for _ in range(200):
                Parses()
            assert len(tree_of(TEXT).body) == 2000
        assert gc.isenabled()
    finally:
        gc.set_threshold(*threshold)
