"""The service answers late or wrongly, and adapter and scheduler die at the worst moments, three times each: no gang of
Volcano's is lost, none starts twice, and the service holds what the pods hold. test_volcano_faults.py has parts that
are killed, or hang, while many gangs run."""

from __future__ import annotations

import pytest
from tests.e2e.kubernetes.faults.kubernetes_fault_world import HITS, Note
from tests.e2e.kubernetes.faults.test_kubernetes_fault_parts import FAULTS
from tests.e2e.kubernetes.kubernetes_fixtures import cluster, placewise
from tests.e2e.volcano.volcano_fault_world import VolcanoWorld, world
from tests.e2e.volcano.volcano_fixtures import volcano

pytestmark = [pytest.mark.e2e, pytest.mark.e2e_heavy, pytest.mark.timeout(300)]

__all__ = ["cluster", "placewise", "volcano", "world"]
WORST = [fault for fault in FAULTS if fault.startswith(("service slow", "service wrong")) or " between " in fault]


@pytest.mark.parametrize("fault", WORST)
async def test_nothing_of_volcanos_is_lost_or_doubled(fault: str, world: VolcanoWorld, record_property: Note) -> None:
    for hit in range(HITS):
        names = await FAULTS[fault](world, hit)
        if fault.startswith("adapter"):  # Volcano goes on alone
            world.excused.update(names)
        await world.after_hit(hit, names)
    await world.close(fault, record_property)
