"""Which tests of a session begin first."""

from typing import Protocol, TypeVar

_FIRST = "tests/reproduce/test_reproduce_quick.py"


class Named(Protocol):
    nodeid: str


Item = TypeVar("Item", bound=Named)


def quick_reproductions_first(items: list[Item]) -> None:
    """In place. The limit on slow tests skips those that would begin last, and nothing else runs these."""
    items.sort(key=lambda item: not item.nodeid.startswith(_FIRST))
