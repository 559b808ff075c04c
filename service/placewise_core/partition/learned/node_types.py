"""The types of a view's nodes, by which a cluster learns. Estimates nothing."""

import numpy as np

from placewise_core.basics.arrays import IntArray
from placewise_core.basics.frozen import frozen
from placewise_core.view.learned.heat import type_of
from placewise_core.view.view import ClusterView


@frozen
class NodeTypes:
    """Names of the types, and (M,) the index of each node's."""

    names: tuple[str, ...]
    of_nodes: IntArray


class TypesCache:
    """The types of the view last asked about, or a fork of it; found again when its layout changed."""

    def __init__(self) -> None:
        self._key: tuple[object, int] | None = None
        self._types = NodeTypes((), np.zeros(0, dtype=np.int64))

    def of(self, view: ClusterView) -> NodeTypes:
        """Types of this view's nodes."""
        key = (view.lineage, view.nodes.layout_stamp)
        if self._key != key:
            index: dict[str, int] = {}
            codes = [index.setdefault(type_of(node), len(index)) for node in view.nodes.records]
            self._types, self._key = NodeTypes(tuple(index), np.array(codes, dtype=np.int64)), key
        return self._types
