"""Three disjoint stretches of a log: train and sweep on the first, choose on the second, judge on the third.

Candidates that are older than a log cannot have learned from it: then no third is kept for their training.
"""

from typing import NamedTuple, Self

import numpy as np

from placewise_core.basics.arrays import BoolArray, FloatArray, IntArray

LEAST_BLOCKS = 6


def blocks_of(time_s: FloatArray, length_s: float) -> IntArray:
    """(N,) number of the block of time that each decision is in, counted from the first decision. A block should be
    several times as long as a reward's horizon, since rewards whose horizons overlap depend on one another."""
    if length_s <= 0:
        raise ValueError(f"a block of time needs a length above 0 s, not {length_s:g}")
    block: IntArray = ((time_s - time_s.min()) // length_s).astype(np.int64)
    return block


class Stretches(NamedTuple):
    """(N,) masks. Blocks between two stretches belong to none: their rewards reach into the next."""

    train: BoolArray
    choose: BoolArray
    judge: BoolArray

    @classmethod
    def of(cls, block: IntArray, gap: int = 1) -> Self:
        """Thirds of the span of blocks, with `gap` blocks left out after the first and the second. Raises ValueError if
        there are too few blocks for that."""
        first, count = int(block.min()), int(np.ptp(block)) + 1
        if count < LEAST_BLOCKS + 2 * gap:
            raise ValueError(
                f"the log covers {count} blocks of time, {LEAST_BLOCKS + 2 * gap} are needed: "
                "evaluate a longer log, or make blocks shorter"
            )
        one, two = first + count // 3, first + 2 * count // 3
        return cls(block < one - gap, (block >= one) & (block < two - gap), block >= two)

    @classmethod
    def unseen(cls, block: IntArray, is_unseen: BoolArray, candidates: int, gap: int = 1) -> Self:
        """The blocks at the end whose decisions no candidate can have learned from. A sixth of these is left out, so
        that the simulation has jobs to warm up with; one candidate is judged on the others, several are compared on the
        first half of these. Thirds, if that leaves too few blocks. Raises ValueError as `of`."""
        seen = block[~is_unseen]
        first = int(seen.max()) + 1 if seen.size else int(block.min())
        last = int(block.max())
        begin = first + max(gap, (last + 1 - first) // 6)
        if last + 1 - begin < LEAST_BLOCKS + (gap if candidates > 1 else 0):
            return cls.of(block, gap)
        middle = begin if candidates == 1 else begin + (last + 1 - begin + gap) // 2
        return cls(block < first, (block >= begin) & (block < middle - gap), block >= middle)
