"""Shapes that a job could start with: nodes × GPUs per node, or a rigid job's own tasks. Takes nothing."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from placewise_core.basics.arrays import FloatArray, IntArray
from placewise_core.basics.frozen import frozen
from placewise_core.basics.lazy import lazy
from placewise_core.domain.job import ElasticRange, Shape
from placewise_core.view.domains import Domains


@frozen
class Take:
    """`count` tasks (or one shape's part) on each of `rows`, each taking `demand` (R,) and `gpus` GPUs. `is_exclusive`:
    of a job that wants its network for itself."""

    rows: IntArray
    counts: IntArray
    demand: FloatArray | None
    gpus: int
    is_exclusive: bool = False


@dataclass(frozen=True)  # no slots: derived values are cached on it
class Options:
    """Shapes a job could start with now: (K,) nodes and GPUs per node, fewest GPUs first; `gpus` (K,) in all.

    A rigid job has one, with the `takes` that make it up; `gpus_per_node` is then the most on any node.
    """

    nodes: IntArray
    gpus_per_node: IntArray
    gpus: IntArray
    takes: tuple[Take, ...] = ()

    def __len__(self) -> int:
        return len(self.gpus)

    def shape(self, i: int) -> Shape:
        return Shape(int(self.nodes[i]), int(self.gpus_per_node[i]))

    @lazy
    def key(self) -> bytes:
        """Equal for the same nodes and GPUs, shape by shape."""
        return self.nodes.tobytes() + self.gpus.tobytes() + self.gpus_per_node.tobytes()

    @property
    def without_takes(self) -> "Options":
        """The same shapes, for one who keeps them."""
        return Options(self.nodes, self.gpus_per_node, self.gpus) if self.takes else self

    @lazy
    def on_fewest_nodes(self) -> IntArray:
        """Indices of the shapes on as few nodes as any."""
        return np.flatnonzero(self.nodes == self.nodes.min())

    @lazy
    def few(self) -> tuple[tuple[int, int], ...]:
        """Index and GPUs of each shape on as few nodes as any."""
        return tuple(zip(self.on_fewest_nodes.tolist(), self.gpus[self.on_fewest_nodes].tolist(), strict=True))

    @lazy
    def consolidated(self) -> "Options":
        """For each GPU count the shape on fewest nodes (K' ≤ K)."""
        if self.takes or len(self) < 2:
            return self
        is_first = np.concatenate(([True], self.gpus[1:] != self.gpus[:-1]))  # sorted by GPUs, then nodes
        return Options(self.nodes[is_first], self.gpus_per_node[is_first], self.gpus[is_first])


_NOTHING = np.zeros(0, dtype=np.int64)
NO_OPTIONS = Options(_NOTHING, _NOTHING, _NOTHING)


def alone(take: Take, gpus: int) -> Options:
    """The one shape of a gang of one group."""
    most = int(take.counts[0]) * take.gpus if gpus else 0
    return Options(np.array([len(take.rows)]), np.array([most]), np.array([gpus]), (take,))


def shapes_of(at_least: IntArray, unit: int, wanted: ElasticRange, fixed: Shape | None) -> Options:
    """Every (nodes, GPUs per node) with GPUs per node a multiple of `unit`, sorted by GPUs, then nodes."""
    most = []
    g = 0
    for nodes in at_least[unit::unit].tolist():
        g += unit
        up_to = wanted.max_gpus // g if fixed is None or fixed.gpus_per_node == g else 0
        most.append(nodes if nodes < up_to else up_to)
    return _shapes_up_to(tuple(most), unit, wanted.min_gpus)


@lru_cache(maxsize=4096)  # where plenty is free the range alone decides: one entry serves all such questions
def _shapes_up_to(most: tuple[int, ...], unit: int, min_gpus: int) -> Options:
    """Shapes of at least `min_gpus` GPUs on up to most[i] nodes with (i + 1)·unit GPUs each. Do not write."""
    nodes, per_node = [], []
    for i, up_to in enumerate(most):
        g = (i + 1) * unit
        least = max(-(-min_gpus // g), 1)
        if up_to >= least:
            nodes.append(np.arange(least, up_to + 1))
            per_node.append(np.full(up_to + 1 - least, g))
    if not nodes:
        return NO_OPTIONS
    d, g_all = np.concatenate(nodes), np.concatenate(per_node)
    order = np.lexsort((d, d * g_all))
    return Options(d[order], g_all[order], (d * g_all)[order])


def at_most(options: Options, gpus: int) -> int | None:
    """Index of the most GPUs up to that number, on fewest nodes; None if even the fewest are more."""
    fitting = int(options.gpus.searchsorted(gpus, side="right"))  # sorted by GPUs, then nodes
    return int(options.gpus.searchsorted(options.gpus[fitting - 1])) if fitting else None


def at_least(slots: IntArray) -> IntArray:
    """(S + 1,) how many nodes have at least s slots."""
    counts: IntArray = np.bincount(slots) if slots.size else np.zeros(1, dtype=np.int64)
    return counts[::-1].cumsum()[::-1]


def at_least_within(slots: IntArray, domains: Domains) -> IntArray:
    """(S + 1,) the most nodes that a domain has with at least s slots. As `at_least`, which counts all nodes."""
    if not slots.size:
        return at_least(slots)
    width = int(slots.max()) + 1
    named, of = np.unique(domains.of, return_inverse=True)
    table = np.bincount(of * width + slots, minlength=len(named) * width).reshape(-1, width)
    return np.asarray(table[:, ::-1].cumsum(axis=1)[:, ::-1].max(axis=0))
