"""Rows of measurements in the in-memory store, each with the time of its last use."""

from collections.abc import Iterable
from typing import TypeVar

from placewise_service.state.store import MOST_FORGOTTEN

V = TypeVar("V")


class TimedRows(dict[str, V]):
    """Rows by kind. Times are in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._times: dict[str, float] = {}

    def put(self, kind: str, row: V, now_s: float) -> None:
        """Writes a row, now."""
        self[kind], self._times[kind] = row, now_s

    def use(self, kinds: Iterable[str], now_s: float) -> None:
        """Dates those of the kinds that are there."""
        self._times.update((kind, now_s) for kind in kinds if kind in self)

    def forget(self, before_s: float) -> list[str]:
        """Removes rows last used before that time, at most MOST_FORGOTTEN; their kinds."""
        idle = sorted(kind for kind, used_s in self._times.items() if used_s < before_s)[:MOST_FORGOTTEN]
        for kind in idle:
            del self[kind], self._times[kind]
        return idle


class Outcomes:
    """Outcomes that count once, however often they are reported."""

    def __init__(self) -> None:
        self._until_s: dict[str, float] = {}

    def is_first(self, outcome_id: str, now_s: float, kept_s: float) -> bool:
        """True for an id that is not remembered; it is for `kept_s` from now on."""
        if self._until_s.get(outcome_id, 0.0) > now_s:
            return False
        self._until_s[outcome_id] = now_s + kept_s
        return True
