"""What a plain gang would find on every node, by how many of its tasks are there already: for all counts at once.

A policy whose score of a node depends on that node alone then places the whole gang in one look. Claims nothing; the
answers are those that `decode` gives, to the last task.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol, Self

import numpy as np

from placewise_core.frozen import frozen
from placewise_core.place.plain_gang import PlainGang
from placewise_core.place.policy import PlacementPolicy
from placewise_core.view import FloatArray, IntArray

# Counts × nodes, per task of the gang. Beyond it claiming is faster: it looks again only at the nodes that changed.
_MOST_CELLS = 384
_LOWEST = -np.inf


@frozen
class Outlook:
    """free (R, J, M), free_gpus (J, M): what would be free on each of M nodes with 0 … J − 1 tasks of the gang on it. J
    is the most that any node takes. Do not write."""

    gang: PlainGang
    free: FloatArray
    free_gpus: IntArray

    @classmethod
    def of(cls, gang: PlainGang) -> Self | None:
        """None for a gang that does not fit, and where the arrays would be large."""
        view, rooms = gang.view, gang.rooms
        count = gang.group.count
        if rooms.sum() < count or rooms.max() * view.size > _MOST_CELLS * count:
            return None
        counts = np.arange(int(rooms.max()))[:, None]
        return cls(
            gang, view.free[:, None] - counts * gang.demand[:, None, None], view.free_gpus() - counts * gang.gpus
        )

    def greedy(self, scores: FloatArray) -> list[int]:
        """The node of each task, the one of highest score at its turn, ties to the lowest index. scores (J, M): with
        0 … J − 1 tasks of the gang on the node."""
        rooms: list[float] = self.gang.rooms.tolist()
        now = np.where(self.gang.rooms >= 1.0, scores[0], _LOWEST)
        nodes: list[int] = []
        counts: Counter[int] = Counter()
        for _ in range(self.gang.group.count):
            m = int(now.argmax())
            nodes.append(m)
            counts[m] += 1
            count = counts[m]
            self.gang.slices.pause()
            now[m] = scores[count, m] if count < rooms[m] else _LOWEST
        return nodes

    def filling(self, scores: FloatArray) -> list[int]:
        """The node of each task, where one that took a task is filled up. scores (M,): with none of the gang there."""
        now = np.where(self.gang.rooms >= 1.0, scores, _LOWEST)
        nodes: list[int] = []
        while (left := self.gang.group.count - len(nodes)) > 0:
            m = int(now.argmax())
            nodes += [m] * min(left, int(self.gang.rooms[m]))
            now[m] = _LOWEST
            self.gang.slices.pause()
        return nodes


class CountingPolicy(PlacementPolicy, Protocol):
    """A policy that can place a plain gang by an outlook, as it would place it by claiming task after task."""

    def counted(self, outlook: Outlook) -> Sequence[int] | None:
        """The node of each task, as `propose` chooses them; None where that takes more than the outlook says."""
        ...
