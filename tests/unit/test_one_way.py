"""One way to place a gang, one count of the tasks that fit on nodes, one score per policy."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

CORE = Path(__file__).parents[2] / "service/placewise_core"
ABILITIES = {"claim", "claims_last", "counted", "counts_rooms", "is_claimed", "keeps_claims"}


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(CORE.rglob("*.py")):
        yield str(path.relative_to(CORE)), ast.parse(path.read_text(encoding="utf-8"))


def calls(name: str) -> set[str]:
    """Files that call a function, method or class of this name."""
    return {
        path
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == name
    }


def test_only_the_gang_gives_tasks_to_nodes_and_only_node_scope_gives_them_to_units() -> None:
    assert calls("Assignment") == {"gang/gang.py", "subtasks/round.py"}


def test_only_the_view_divides_free_amounts_by_a_demand() -> None:
    found = {
        f"{path}:{function.name}"
        for path, tree in trees()
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.FloorDiv)
        and re.search("need|amount|demand|vector", ast.unparse(node))
    }
    of_gpus_that_may_be_shared = {"admit/pool.py:_count_slots"}
    assert found == {"view/slots.py:count_slots", "view/slots.py:whole_tasks"} | of_gpus_that_may_be_shared


def test_a_policy_states_its_score_once_and_no_further_ability() -> None:
    for path, tree in trees():
        if path.startswith(("policies/", "gang/")):
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    names = [each.name for each in node.body if isinstance(each, ast.FunctionDef)]
                    assert path.startswith("gang/") or sum("score" in name for name in names) <= 1, path
                    assert ABILITIES.isdisjoint(names), f"{path}: {node.name}"
