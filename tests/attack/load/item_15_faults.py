"""Many clients on nearly full nodes, on two replicas, with and without a Redis that is killed meanwhile."""

import json
from functools import partial

from tests.attack.attack import Attack, Figures
from tests.attack.source import Source

TITLE = "Contention and chaos"
_WRONG = ("handed_out_twice", "leaked", "lost", "unexpected")
_KEPT = ("decisions", "kills", "acknowledged", *_WRONG, "recovery_max_s")


def _hunt(kind: str, words: tuple[str, ...], source: Source) -> Figures:
    """`placewise bench contention|chaos`, whose ledger compares every answer with every other."""
    done = source.run(["-m", "placewise_service.cli", "bench", kind, "--json", *words], timeout_s=1200.0)
    found = json.loads(done.stdout)
    # The earlier tree's command counts neither those that were acknowledged before a kill nor those lost.
    return {**{name: found.get(name, "not counted") for name in _KEPT}, "placed": found["outcomes"].get("PLACED", 0)}


def _is_right(figures: Figures) -> bool:
    is_shown = int(figures["placed"]) > 0 and (not figures["kills"] or figures["acknowledged"] != 0)
    return is_shown and all(figures[name] == 0 for name in _WRONG)


_TWICE = "64 clients on two replicas and nearly full nodes: no GPU is given twice, and no reservation is left over."
_LOST = "The same while Redis is killed again and again: no acknowledged placement is lost, and none is given twice."
_SMALL = "tests/bench/test_bench_small.py"
_TESTS = {
    "contention": f"{_SMALL}::test_two_replicas_on_nearly_full_nodes_keep_their_promises",
    "chaos": f"{_SMALL}::test_a_redis_that_is_killed_breaks_no_promise",
}


def _attack(name: str, promise: str, kind: str, *words: str, is_quick: bool = False) -> Attack:
    return Attack(name, promise, _TESTS[kind], partial(_hunt, kind, words), _is_right, is_quick)


ATTACKS = (
    _attack("contention, short", _TWICE, "contention", "--decisions", "2000", is_quick=True),
    _attack("contention", _TWICE, "contention", "--decisions", "50000"),
    _attack("chaos, short", _LOST, "chaos", "--decisions", "500", "--kills", "2", is_quick=True),
    _attack("chaos", _LOST, "chaos", "--decisions", "20000", "--kills", "20"),
)
