"""GPU sharing: the relative speed of a job beside others on one GPU, from measured pairs.

Sources: Gavel's single-GPU pairs, one table per truth (K80 of `gavel_simulation` to train, V100 of `gavel_oracle_v1` to
judge). Three and more: nobody measured them. `additive`: slowdowns add up, 1/r = 1 + Σ(1/r_i − 1), exact for time
slices; `product`: r = Π r_i, the way independent losses combine. Pairs of one model family never measured take the
mean of the table.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Literal

from placewise_training.sim.speed.fitting import pair_table
from placewise_training.sim.speed.profiles import Catalogue

Composition = Literal["additive", "product"]


class PairSharing:
    """Relative speeds from a table of pairs. It is a GpuInterference, so a simulated policy can be given it too."""

    def __init__(self, pairs: Mapping[tuple[str, str], float], catalogue: Catalogue, rule: Composition) -> None:
        self._pairs = pairs
        self._catalogue = catalogue
        self._rule = rule
        self._mean = sum(pairs.values()) / len(pairs)

    def relative_speed(self, model: str, others: Sequence[str], gpu_model: str) -> float:
        """Speed beside `others` over speed alone, in (0, 1]; on the table's GPU, for every GPU model."""
        ratios = [self.pair(model, other) for other in others]
        if self._rule == "product":
            product = 1.0
            for ratio in ratios:
                product *= ratio
            return product
        return 1.0 / (1.0 + sum(1.0 / ratio - 1.0 for ratio in ratios))

    def careful_speed(self, model: str, others: Sequence[str], gpu_model: str) -> float:
        """The same: nothing here is estimated."""
        return self.relative_speed(model, others, gpu_model)

    def pair(self, model: str, other: str) -> float:
        """Relative speed of `model` beside one other."""
        key = (self._catalogue[model].pair_family, self._catalogue[other].pair_family)
        return min(1.0, self._pairs.get(key, self._mean))


@functools.cache
def gavel_sharing(source: str, gpu_type: str, catalogue: Catalogue, rule: Composition) -> PairSharing:
    """Sharing by one of Gavel's tables."""
    return PairSharing(pair_table(source, gpu_type), catalogue, rule)
