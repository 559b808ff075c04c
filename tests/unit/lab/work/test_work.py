"""Lists of work: equal results here and in processes, in the order of the items, also if a worker dies."""

import os
import pickle
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placewise_models.folder import shipped_bundle
from placewise_training.lab.work.asked import workers_of
from placewise_training.lab.work.tasks import MOST_DEATHS, Tasks
from placewise_training.lab.work.workers import ONE_THREAD, Here, LostItemError, UnsentItemError, Workers
from placewise_training.sim.policies import opened


class OddError(Exception):
    """Cannot be read again: its arguments are others than its message."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def drawn(seed: int) -> float:
    """Ends the sooner the later it begins."""
    time.sleep(0.02 * (5 - seed))
    return float(np.random.default_rng(seed).standard_normal())


def failing(item: int) -> int:
    if item in (1, 3):
        raise KeyError(f"no {item}")
    return item


def odd(item: int) -> int:
    raise OddError(item, item)


def unpicklable(item: int) -> Any:
    return lambda: item


def threads(_: int) -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in ONE_THREAD}


def killed_once(folder: Path, signalled: int, item: int) -> int:
    """The worker dies with item 2 the first time."""
    mark = folder / "died"
    if item == 2 and not mark.exists():
        mark.touch()
        if signalled:
            os.kill(os.getpid(), signalled)
        os._exit(7)
    return item * item


def deadly(item: int) -> int:
    if item == 1:
        os._exit(9)
    return item


@pytest.fixture(scope="module")
def two() -> Iterator[Workers]:
    with workers_of(None, 2) as workers:
        yield workers


def test_here_an_item_begins_when_its_result_is_asked_for() -> None:
    begun: list[int] = []
    results = Here().mapped(begun.append, iter(range(3)))
    assert begun == []
    next(results)
    assert begun == [0]


def test_here_an_error_comes_in_its_turn() -> None:
    results = Here().mapped(failing, range(4))
    assert next(results) == 0
    with pytest.raises(KeyError, match="no 1"):
        next(results)


def test_an_item_is_given_out_again_until_enough_workers_died_of_it() -> None:
    tasks = Tasks(["a", "b"])
    task = tasks.next()
    assert task is not None
    for _ in range(MOST_DEATHS - 1):
        assert tasks.died(task, "exit code -9") is None
        assert tasks.next() is task
    lost = tasks.died(task, "exit code -9")
    assert lost is not None
    assert str(lost.error) == "3 workers died of item 1, 'a'; the last one: exit code -9"
    after = tasks.next()
    assert after is not None
    assert after.item == "b"
    assert tasks.next() is None


@pytest.mark.process
def test_results_are_those_of_one_process_in_the_order_of_the_items(two: Workers) -> None:
    assert list(two.mapped(drawn, range(6))) == list(Here().mapped(drawn, range(6)))


@pytest.mark.process
def test_as_done_names_the_item_of_each_result(two: Workers) -> None:
    assert dict(two.as_done(failing, [0, 2, 4])) == {0: 0, 1: 2, 2: 4}


@pytest.mark.process
def test_the_first_error_of_the_list_is_raised_with_where_it_was_and_the_workers_stay(two: Workers) -> None:
    with pytest.raises(KeyError, match="no 1") as raised:
        list(two.mapped(failing, range(6)))
    assert "in failing" in raised.value.__notes__[0]
    assert list(two.mapped(failing, [2])) == [2]


@pytest.mark.process
@pytest.mark.parametrize("function", [odd, unpicklable])
def test_an_outcome_that_cannot_be_sent_is_an_error_of_its_own(two: Workers, function: Any) -> None:
    with pytest.raises(UnsentItemError):
        list(two.mapped(function, range(2)))
    with pytest.raises(UnsentItemError, match="item 1"):
        list(two.mapped(lambda item: item, range(2)))
    assert list(two.mapped(failing, [2])) == [2]


@pytest.mark.process
def test_workers_have_one_thread_and_this_process_keeps_its_own(two: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(two.mapped(threads, range(2))) == [ONE_THREAD, ONE_THREAD]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    with workers_of(None, 2) as others:
        assert list(others.mapped(threads, [0])) == [ONE_THREAD]
    assert os.environ["OMP_NUM_THREADS"] == "3"
    assert "MKL_NUM_THREADS" not in os.environ


@pytest.mark.process
@pytest.mark.parametrize("signalled", [0, signal.SIGKILL])
def test_a_worker_that_dies_changes_no_result(tmp_path: Path, two: Workers, signalled: int) -> None:
    assert list(two.mapped(partial(killed_once, tmp_path, signalled), range(6))) == [0, 1, 4, 9, 16, 25]
    assert (tmp_path / "died").exists()


@pytest.mark.process
def test_an_item_that_no_worker_survives_is_named(two: Workers) -> None:
    with pytest.raises(LostItemError, match="3 workers died of item 2, 1; the last one: exit code 9"):
        list(two.mapped(deadly, range(4)))
    assert list(two.mapped(failing, [2])) == [2]


@pytest.mark.process
def test_results_that_nobody_asks_for_any_more_end_their_workers() -> None:
    began = time.monotonic()
    with workers_of(None, 2) as workers:
        results = workers.mapped(time.sleep, [0.0, 60.0, 60.0])
        next(results)
        results.close()  # type: ignore[attr-defined]
    assert time.monotonic() - began < 30.0


def test_a_bundle_is_sent_as_where_it_lies() -> None:
    bundle = opened(shipped_bundle())
    sent = pickle.dumps(bundle)
    assert len(sent) < 1000
    again = pickle.loads(sent)
    assert (again.name, again.digest) == (bundle.name, bundle.digest)
    assert again is pickle.loads(sent)
    assert again.documents == bundle.documents
