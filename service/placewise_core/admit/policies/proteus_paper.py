"""Proteus as printed (Xiang, Shi): a fixed batch per GPU, 0 ≤ n ≤ N, and a head that waits while S(n) ≥ 0, also beside
idle GPUs.

Three corrections of the print stand: times over τ, one decision a slot, no Comm on one GPU.
"""

from placewise_core.admit.policies.proteus import Proteus
from placewise_core.speed.proteus_cost import FixedBatchCost


class ProteusPaper(Proteus):
    """(1)–(8), (14), (15); nothing is done to keep GPUs at work."""

    name = "proteus-paper"
    cost = FixedBatchCost
