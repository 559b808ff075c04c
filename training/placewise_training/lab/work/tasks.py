"""Which item a worker gets next, and how often workers died with it. Starts no worker."""

import reprlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from placewise_training.lab.work.workers import LostItemError, Outcome, UnsentItemError

MOST_DEATHS: Final = 3  # of workers with one item, which then counts as their reason


@dataclass(slots=True)
class Task:
    """One item on its way: its number in the list, and the workers that died with it."""

    at: int
    item: Any
    deaths: int = 0

    @property
    def name(self) -> str:
        return f"item {self.at + 1}, {reprlib.repr(self.item)}"

    def unsent(self, why: object) -> Outcome[Any]:
        """For an item that no worker can be given."""
        return Outcome(None, UnsentItemError(f"{self.name}, cannot go to a worker and back: {why}"))


class Tasks:
    """Items in turn. Those whose worker died come first again."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = enumerate(items)
        self._again: list[Task] = []

    def next(self) -> Task | None:
        if self._again:
            return self._again.pop()
        return next((Task(at, item) for at, item in self._items), None)

    def died(self, task: Task, why: object) -> Outcome[Any] | None:
        """Has the item done again; after MOST_DEATHS its outcome instead."""
        task.deaths += 1
        if task.deaths < MOST_DEATHS:
            self._again.append(task)
            return None
        return Outcome(None, LostItemError(f"{MOST_DEATHS} workers died of {task.name}; the last one: {why}"))
