"""Items of work in several processes of this machine. A worker that dies leaves its item to another one."""

import multiprocessing
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Final

from placewise_training.lab.work.tasks import Task, Tasks
from placewise_training.lab.work.workers import (
    Item,
    Outcome,
    Outcomes,
    Result,
    UnsentItemError,
    Workers,
    one_thread,
    performed_away,
)

_SPAWN: Final = multiprocessing.get_context("spawn")  # a fork of torch's threads may hang


@dataclass(slots=True)
class _Seat:
    """A worker process, the task it has, and the function that it was sent last."""

    process: SpawnProcess
    connection: Connection
    task: Task | None = None
    function: object = None

    @classmethod
    def taken(cls) -> "_Seat":
        ours, theirs = _SPAWN.Pipe()
        process = _SPAWN.Process(target=_work, args=(theirs,), daemon=True)
        with one_thread():
            process.start()
        theirs.close()  # so that the worker's end closes the pipe
        return cls(process, ours)

    def give(self, function: Callable[[Any], Any], task: Task) -> None:
        """Raises OSError for a worker that is dead, any other error for what cannot be sent."""
        self.task = task
        self.connection.send((None if self.function is function else function, task.item))
        self.function = function

    def left(self) -> str:
        """Ends the worker, and says how it ended."""
        self.connection.close()
        if self.task is not None:
            self.process.kill()
        self.process.join()
        return f"exit code {self.process.exitcode}"


class Processes(Workers):
    """`count` processes, started when there are items for them."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free: list[_Seat] = []

    def __exit__(self, *error: object) -> None:
        while self._free:
            self._free.pop().left()

    def outcomes(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Outcomes[Result]:
        tasks, busy = Tasks(items), dict[Connection, _Seat]()
        try:
            while True:
                while len(busy) < self._count and (task := tasks.next()) is not None:
                    seat = self._free.pop() if self._free else _Seat.taken()
                    try:
                        seat.give(function, task)
                    except OSError:  # it died idle: the item is read from its pipe in vain
                        pass
                    except Exception as error:
                        seat.task = None
                        self._free.append(seat)
                        yield task.at, task.unsent(error)
                        continue
                    busy[seat.connection] = seat
                if not busy:
                    return
                for connection in wait(list(busy)):
                    found = self._ended(tasks, busy.pop(connection))  # type: ignore[call-overload]
                    if found is not None:
                        yield found
        finally:
            for seat in busy.values():
                seat.left()

    def _ended(self, tasks: Tasks, seat: _Seat) -> tuple[int, Outcome[Any]] | None:
        """What came of a seat's task; None if it is to be done again."""
        task = seat.task
        assert task is not None
        try:
            outcome: Outcome[Any] = seat.connection.recv()
        except (EOFError, OSError):
            lost = tasks.died(task, seat.left())
            return (task.at, lost) if lost is not None else None
        seat.task = None
        self._free.append(seat)
        return task.at, outcome


def _work(connection: Connection) -> None:
    """A worker: answers until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the first process's, which then ends this one
    known: Callable[[Any], Any] | None = None
    while True:
        try:
            function, item = connection.recv()
        except EOFError:
            return
        known = function or known
        assert known is not None
        outcome = performed_away(known, item)
        try:
            connection.send(outcome)
        except Exception as error:
            connection.send(Outcome(None, UnsentItemError(f"a result cannot be sent: {error}")))
