"""Independent items of work, done in this process, in other ones or on a Ray cluster, with equal results.

An item is all that its function needs: done again, or elsewhere, it gives the same. Results come in the order of the
items, whichever ends first. Knows only the plainest way.
"""

import os
import pickle
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final, Generic, Self, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

# A matrix product in two threads rounds differently, and would make results depend on the machine.
ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class LostItemError(Exception):
    """One item took several workers with it. The message names the item."""

    exit_code = 1


class UnsentItemError(Exception):
    """A function, an item or its outcome cannot be sent to a worker or back."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Result]):
    """A result, or the error in place of it."""

    result: Result | None
    error: Exception | None = None

    def get(self) -> Result:
        """Raises the error."""
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]  # None may be the result


Outcomes = Generator[tuple[int, Outcome[Result]], None, None]


class Workers(ABC):
    """A context: its workers wait between two lists of items, and end with it. One list at a time."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:  # noqa: B027 - the plainest way has nothing to end
        """Ends the workers, also those that are busy."""

    @abstractmethod
    def outcomes(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Outcomes[Result]:
        """The number of an item in the list and its outcome, as each ends. An item is taken from `items` when a worker
        can have it."""

    def mapped(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result, None, None]:
        """The results in the order of the items. Raises the error of the first item that failed, LostItemError."""
        early: dict[int, Outcome[Result]] = {}
        number = 0
        with closing(self.outcomes(function, items)) as outcomes:
            for at, outcome in outcomes:
                early[at] = outcome
                while number in early:
                    yield early.pop(number).get()
                    number += 1

    def as_done(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[int, Result]]:
        """The number of an item and its result, as each ends. Raises as `mapped`."""
        with closing(self.outcomes(function, items)) as outcomes:
            for at, outcome in outcomes:
                yield at, outcome.get()


class Here(Workers):
    """This process, one item after the other, each when its result is asked for."""

    def outcomes(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Outcomes[Result]:
        for at, item in enumerate(items):
            yield at, performed(function, item)


def performed(function: Callable[[Item], Result], item: Item) -> Outcome[Result]:
    """One item, in the process that calls this."""
    try:
        return Outcome(function(item))
    except Exception as error:
        return Outcome(None, error)


def performed_away(function: Callable[[Item], Result], item: Item) -> Outcome[Result]:
    """As `performed`, with an error that can be sent: its traceback is in a note."""
    outcome = performed(function, item)
    if outcome.error is not None:
        outcome.error.add_note("".join(traceback.format_exception(outcome.error)))
        try:
            pickle.loads(pickle.dumps(outcome.error))  # noqa: S301 - our own: some errors cannot be read again
        except Exception:
            return Outcome(None, UnsentItemError(f"{type(outcome.error).__name__}: {outcome.error}"))
    return outcome


@contextmanager
def one_thread() -> Iterator[None]:
    """For processes that are started within: a library reads these variables when it is imported."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        os.environ.update({name: value for name, value in before.items() if value is not None})
        for name in (name for name, value in before.items() if value is None):
            del os.environ[name]
