"""Nodes are lost, drained and cordoned three times each while Volcano's gangs start, run and wait: none is lost, none
starts twice, and gangs with a place on such a node get another one."""

from __future__ import annotations

import pytest
from tests.e2e.kubernetes.faults.kubernetes_fault_world import HITS, Note
from tests.e2e.kubernetes.faults.test_kubernetes_fault_nodes import FAULTS
from tests.e2e.kubernetes.kubernetes_fixtures import cluster, placewise
from tests.e2e.volcano.volcano_fault_world import VolcanoWorld, nodes_again, world
from tests.e2e.volcano.volcano_fixtures import volcano

pytestmark = [pytest.mark.e2e, pytest.mark.e2e_heavy, pytest.mark.timeout(300)]

__all__ = ["cluster", "nodes_again", "placewise", "volcano", "world"]


@pytest.mark.parametrize("fault", FAULTS)
async def test_no_gang_of_volcanos_is_lost_with_a_node(fault: str, world: VolcanoWorld, record_property: Note) -> None:
    for hit in range(HITS):
        names = await FAULTS[fault](world, hit)
        await world.after_hit(hit, names)
    await world.close(fault, record_property)
