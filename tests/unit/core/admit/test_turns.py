"""The order in which a host asks about its queues."""

from operator import index

import numpy as np
import pytest

from placewise_core.admit.turns import QueueTurn, Turns


def taken(queues: dict[str, list[int]], starting: set[int]) -> list[tuple[str, list[int]]]:
    """The questions of a round in which these jobs start."""
    turns, found = Turns(queues, index), []
    while (turn := turns.take()) is not None:
        asked = queues[turn.queue][turn.first : turn.behind]
        turns.end(turn, has_started=not starting.isdisjoint(asked))
        found.append((turn.queue, asked))
    return found


def test_the_first_jobs_come_alone_and_the_rest_up_to_the_first_jobs_of_other_queues() -> None:
    queues = {"b": [2, 5], "a": [0, 1, 3, 6, 7], "c": [4]}
    waits = [("a", [0]), ("a", [1]), ("b", [2]), ("a", [3]), ("c", [4]), ("b", [5]), ("a", [6, 7])]
    assert taken(queues, set()) == waits


def test_a_job_behind_one_that_starts_is_the_first() -> None:
    queues = {"a": [0, 1, 2, 4], "b": [3, 5]}
    assert taken(queues, {0, 3}) == [("a", [0]), ("a", [1]), ("a", [2]), ("b", [3]), ("a", [4]), ("b", [5])]


@pytest.mark.parametrize("seed", range(20))
def test_each_job_is_asked_about_once_and_none_before_an_older_first_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    queues: dict[str, list[int]] = {}
    for number in range(60):
        queues.setdefault(f"q{rng.integers(5)}", []).append(number)
    starting = set(np.flatnonzero(rng.random(60) < 0.3).tolist())
    turns, asked, waiting = Turns(queues, index), list[int](), set[str]()
    while (turn := turns.take()) is not None:
        now = queues[turn.queue][turn.first : turn.behind]
        fronts = [next(n for n in jobs if n not in asked) for name, jobs in queues.items() if name not in waiting]
        assert turn.is_front == (turn.queue not in waiting)
        assert all(max(now) <= front for front in fronts)
        has_started = not starting.isdisjoint(now)
        if turn.is_front and not has_started:
            waiting.add(turn.queue)
        if turn.is_front:
            assert len(now) == 1
        asked += now
        turns.end(turn, has_started=has_started)
        if set(queues[turn.queue]) <= set(asked):
            waiting.add(turn.queue)  # none is left
    assert sorted(asked) == list(range(60))


def test_a_caller_that_knows_more_jobs_to_wait_ends_the_turn_behind_them() -> None:
    turns = Turns({"a": [0, 1, 2, 3]}, index)
    turn = turns.take()
    assert turn == QueueTurn("a", 0, 1, is_front=True)
    turns.end(turn._replace(behind=3), has_started=False)
    assert turns.take() == QueueTurn("a", 3, 4, is_front=False)


def test_without_jobs_there_is_no_turn() -> None:
    assert Turns({"a": list[int]()}, index).take() is None
