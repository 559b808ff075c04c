"""An attribute that is worked out when it is first read. As functools.cached_property, without its lock."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class lazy(Generic[T]):  # noqa: N801 - read as a decorator
    """For classes whose instances belong to one thread and have a `__dict__`."""

    def __init__(self, work_out: Callable[[Any], T]) -> None:
        self._work_out = work_out
        self.__doc__ = work_out.__doc__

    def __get__(self, owner: Any, kind: type) -> T:
        found = owner.__dict__[self._work_out.__name__] = self._work_out(owner)
        return found
