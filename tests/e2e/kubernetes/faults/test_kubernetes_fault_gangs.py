"""60 mixed gangs on 8 and on 200 nodes that are partly full, by each way: all run as the decision log says."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.e2e.kubernetes.faults.kubernetes_fault_world import SCHEDULERS, WAYS, Note
from tests.e2e.kubernetes.gates.kubernetes_gates import GATE
from tests.e2e.kubernetes.kubernetes_cluster import ControlPlane, free_port
from tests.e2e.kubernetes.kubernetes_fixtures import control_plane
from tests.e2e.kubernetes.kubernetes_scenario import AdapterProcess, watching
from tests.e2e.kubernetes.kubernetes_service import PlacewiseServer
from tests.e2e.kubernetes.test_kubernetes_decided import mixed, run_as_decided

pytestmark = [pytest.mark.e2e, pytest.mark.e2e_heavy, pytest.mark.timeout(300)]

# By the number of nodes: pods of nobody's with three GPUs each, and how long a gang lasts. On eight nodes four stay
# empty, which the largest gangs need, and the gangs take turns.
SIZES = {8: (4, 0.5), 200: (130, 2.0)}


@pytest.fixture(scope="module", params=SIZES)
def nodes(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def plane(nodes: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with control_plane(tmp_path_factory, nodes) as control:
        yield control


@pytest.fixture(scope="module")
def process(plane: ControlPlane) -> AdapterProcess:
    """Its address is in one scheduler's configuration; the other one is as it comes."""
    process = AdapterProcess(plane, free_port())
    plane.start_scheduler(SCHEDULERS["extender"], {"extenders": [process.extender()]})
    plane.start_scheduler(SCHEDULERS["gates"], {"profiles": [{"schedulerName": WAYS["gates"]}]})
    return process


@pytest.fixture
async def adapter(process: AdapterProcess) -> AsyncIterator[AdapterProcess]:
    yield process
    process.stop()


@pytest.mark.parametrize("mode", WAYS)
async def test_sixty_mixed_gangs(
    mode: str,
    nodes: int,
    adapter: AdapterProcess,
    plane: ControlPlane,
    placewise: PlacewiseServer,
    record_property: Note,
) -> None:
    cluster, (fillers, last_s) = f"mixed-{mode}-{nodes}", SIZES[nodes]
    adapter.start(placewise.http_target, cluster=cluster, gates={"is_enabled": mode == "gates"})
    await adapter.ready()
    gangs = mixed(WAYS[mode], random.Random(20))
    if mode == "gates":
        for pods in gangs.values():
            for document in pods:
                document["spec"]["schedulingGates"] = [{"name": GATE}]
    async with watching(plane) as watched:
        title = f"{mode}, {nodes} nodes"
        await run_as_decided(title, gangs, watched, placewise, cluster, record_property, fillers=fillers, last_s=last_s)
