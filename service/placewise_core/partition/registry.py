"""The partition policy of a bundle. There is one."""

from collections.abc import Mapping
from typing import Any

from placewise_core.partition.heat_island import HeatIsland
from placewise_core.partition.policy import PartitionPolicy


def partition_policy(capability: Mapping[str, Any]) -> PartitionPolicy:
    """The heat-island policy with the parsed capability.json. Raises ValueError for another file."""
    return HeatIsland(capability)
