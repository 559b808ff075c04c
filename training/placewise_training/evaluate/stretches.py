"""Three disjoint stretches of a log: train and sweep on the first, choose on the second, judge on the third."""

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
