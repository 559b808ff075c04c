"""The partition policies of a bundle, by name."""

from collections.abc import Mapping
from typing import Any

from placewise_core.partition.heat_island import HeatIsland
from placewise_core.partition.heat_island_paper import HeatIslandPaper
from placewise_core.partition.policy import PartitionPolicy


def partition_policies(capability: Mapping[str, Any]) -> dict[str, PartitionPolicy]:
    """Each with the parsed capability.json. Raises ValueError for another file."""
    return {policy.name: policy(capability) for policy in (HeatIsland, HeatIslandPaper)}


def partition_policy(capability: Mapping[str, Any]) -> PartitionPolicy:
    """The one that answers if none is named."""
    return HeatIsland(capability)
