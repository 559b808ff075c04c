"""Mixed gangs on nodes that are partly full: Volcano binds each as the decision log says, and in a dry run few.

A pod's node is read from the API, the decision from the exported log of a real service, joined by decision id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from tests.e2e.kubernetes.kubernetes_fixtures import placewise
from tests.e2e.kubernetes.kubernetes_scenario import watching
from tests.e2e.kubernetes.kubernetes_service import PlacewiseServer
from tests.e2e.volcano.volcano_cluster import VolcanoCluster
from tests.e2e.volcano.volcano_fixtures import volcano_on
from tests.e2e.volcano.volcano_gangs import GANGS, Burst, fill, mixed, read_starts, repeated

pytestmark = [pytest.mark.e2e, pytest.mark.e2e_heavy, pytest.mark.timeout(900)]

__all__ = ["placewise"]
Note = Callable[[str, object], None]


@pytest.fixture(params=[8, 200])
def sized(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[VolcanoCluster, int]]:
    with volcano_on(tmp_path_factory.mktemp("volcano"), request.param) as cluster:
        yield cluster, request.param


async def test_mixed_gangs_run_as_decided(
    sized: tuple[VolcanoCluster, int], placewise: PlacewiseServer, record_property: Note
) -> None:
    volcano, nodes = sized
    name = f"mixed-{nodes}"
    volcano.adapter.start(placewise.http_target, cluster=name)
    await volcano.adapter.ready()
    fill(volcano, nodes // 2)
    volcano.start_scheduler()
    async with watching(volcano.plane) as watched:
        burst = Burst(volcano, watched, mixed())
        await burst.run()
        ran = await burst.ran()
    log = await read_starts(placewise, name, set(ran))
    found = log.account(ran)
    record_property("gangs", f"{nodes} nodes: {found}")
    print(f"\n{nodes} nodes: {found}")
    assert found.as_decided == found.total == GANGS, found
    assert log.doubled() == repeated(placewise, name) == []


@pytest.mark.parametrize("sized", [8], indirect=True)
async def test_a_dry_run_agrees_seldom(
    sized: tuple[VolcanoCluster, int], placewise: PlacewiseServer, record_property: Note
) -> None:
    """The control: the same gangs as Volcano places them by itself, against decisions that were only logged."""
    volcano, nodes = sized
    volcano.adapter.start(placewise.http_target, cluster="dry", adapter={"is_dry_run": True})
    await volcano.adapter.ready()
    await asyncio.to_thread(fill, volcano, nodes // 2)
    volcano.start_scheduler()
    async with watching(volcano.plane) as watched:
        burst = Burst(volcano, watched, mixed(), limit_s=60.0, may_give_up=True)
        await burst.run()
        ran = await burst.ran()
    log = await read_starts(placewise, "dry", {key for key, places in ran.items() if "" not in places})
    found, agreed = log.account(ran), log.agreed_dry(ran)
    words = f"dry run: {found}; {agreed} ran on the nodes of their decision, of {len(log.dry)} with a place"
    words += f"; Volcano alone bound {GANGS - len(burst.given_up)} within a minute"
    record_property("gangs", words)
    print(f"\n{words}")
    assert len(log.dry) >= 15
    assert found.as_decided == 0
    assert agreed < 0.3 * len(log.dry)
