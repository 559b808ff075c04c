"""Long work in slices: a decision calls this between two steps, so that its host may turn to others. Decides nothing.

Core is synchronous and stays so: `pause` and `aside` return when the decision is to go on. A host that has nobody else
to turn to, as the simulator, takes `ONE_SLICE`. The decision's inputs must be its own: see ClusterView.fork.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

T = TypeVar("T")
_BETWEEN_PAUSES = 64
_MOST_TOKENS = 128  # a net reads as many in a millisecond or less; to hand them to another thread takes half of one


class Slices(Protocol):
    """How one decision shares its thread. Both calls raise what ends the decision when nobody waits for it any more."""

    def pause(self) -> None:
        """Between two steps, of a millisecond or less each."""
        ...

    def aside(self, work: Callable[[], T]) -> T:
        """The result of a step that is long and cannot be divided, as a net over thousands of nodes. The step may run
        in another thread: it reads nothing that others write, and writes nothing that others read."""
        ...


class _OneSlice:
    def pause(self) -> None:
        pass

    def aside(self, work: Callable[[], T]) -> T:
        return work()


ONE_SLICE: Slices = _OneSlice()


def ask_net(net: Callable[[], T], tokens: int, slices: Slices) -> T:
    """A net's answer about so many tokens: aside if that takes long."""
    return net() if tokens <= _MOST_TOKENS else slices.aside(net)


def spaced(items: Iterable[T], slices: Slices, between: int = _BETWEEN_PAUSES) -> Iterable[T]:
    """The items, with a pause before each so many."""
    return items if slices is ONE_SLICE else _spaced(items, slices, between)


def _spaced(items: Iterable[T], slices: Slices, between: int) -> Iterator[T]:
    for i, item in enumerate(items):
        if i % between == 0:
            slices.pause()
        yield item
