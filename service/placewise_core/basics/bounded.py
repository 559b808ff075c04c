"""Caches that never fill the memory. Only the assignment of single items keeps their bounds."""

from typing import TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class _OfAtMost(dict[_Key, _Value]):
    __slots__ = ("_most",)

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most


class Bounded(_OfAtMost[_Key, _Value]):
    """A dict that forgets all it holds before it takes a new key beyond `most`. For values that can be computed again:
    most of its keys do not come again, so it does not track which ones do."""

    __slots__ = ()

    def __setitem__(self, key: _Key, value: _Value) -> None:
        if len(self) >= self._most and key not in self:
            self.clear()
        super().__setitem__(key, value)

    def copy(self) -> "Bounded[_Key, _Value]":
        """Another of the same bound with the same items."""
        other = Bounded[_Key, _Value](self._most)
        other.update(self)
        return other


class Latest(_OfAtMost[_Key, _Value]):
    """A dict of the latest `most` keys: a new key beyond them displaces the oldest one. A key keeps its age when it is
    assigned again."""

    __slots__ = ()

    def __setitem__(self, key: _Key, value: _Value) -> None:
        if len(self) >= self._most and key not in self:
            del self[next(iter(self))]
        super().__setitem__(key, value)
