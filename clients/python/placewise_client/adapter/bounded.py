"""The only bounded memory of the adapters."""

from __future__ import annotations

from collections.abc import KeysView
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Bounded(Generic[K, V]):
    """Remembers values by key. Beyond a total weight of `most` it forgets the oldest."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._items: dict[K, tuple[V, int]] = {}
        self._weight = 0

    def __contains__(self, key: K) -> bool:
        return key in self._items

    def keys(self) -> KeysView[K]:
        return self._items.keys()

    def get(self, key: K) -> V | None:
        item = self._items.get(key)
        return item[0] if item is not None else None

    def put(self, key: K, value: V, weight: int = 1) -> None:
        """Replaces the value of a known key, which counts as new."""
        self.forget(key)
        self._items[key] = value, weight
        self._weight += weight
        while self._weight > self._most:
            self.forget(next(iter(self._items)))

    def forget(self, key: K) -> None:
        if key in self._items:
            self._weight -= self._items.pop(key)[1]
