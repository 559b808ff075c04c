"""What a real Volcano does with gangs of unequal roles, elastic ones, deleted ones, those beyond a quota, and those
that are never made or never fit. Each was wrong at the first run against a real Volcano.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.e2e.hosts.decision_log import DecisionLog
from tests.e2e.kubernetes.kubernetes_cluster import pod
from tests.e2e.kubernetes.kubernetes_fixtures import cluster, placewise
from tests.e2e.kubernetes.kubernetes_scenario import PODS, Watched, finish, watching
from tests.e2e.kubernetes.kubernetes_service import PlacewiseServer
from tests.e2e.volcano.volcano_cluster import (
    GROUPS,
    HYPER_NODES,
    QUEUES,
    VOLCANO,
    VolcanoCluster,
    key_of,
    pods_of,
    until,
    vcjob,
)
from tests.e2e.volcano.volcano_fixtures import NODES, volcano
from tests.e2e.volcano.volcano_gangs import fill, fill_nodes, last_rows, read_starts, repeated, reserved

from placewise_kubernetes.kube import names

pytestmark = [pytest.mark.e2e, pytest.mark.e2e_heavy, pytest.mark.timeout(300)]

__all__ = ["cluster", "placewise", "volcano"]
NUMBERS = itertools.count()
SOON_S = 15.0
START_TIMEOUT_S = 30.0


@dataclass
class World:
    """A cluster of its own to the service, on the Volcano that all tests share. Names are never used twice."""

    volcano: VolcanoCluster
    placewise: PlacewiseServer
    cluster: str
    watched: Watched

    async def submit(self, tasks: dict[str, tuple[int, int]], **options: Any) -> Submitted:
        job = vcjob(f"j{next(NUMBERS)}", tasks, **options)
        return Submitted(self, job, await asyncio.to_thread(self.volcano.submit, job))

    async def log(self, *submitted: Submitted) -> DecisionLog:
        return await read_starts(self.placewise, self.cluster, {item.key for item in submitted})

    async def reserved(self) -> dict[str, int]:
        return await reserved(self.placewise, self.cluster)

    async def restart_adapter(self) -> None:
        self.volcano.adapter.stop()
        self.start_adapter()
        await self.volcano.adapter.ready()

    def start_adapter(self) -> None:
        self.volcano.adapter.start(self.placewise.http_target, cluster=self.cluster)


@dataclass
class Submitted:
    """A vcjob that was made."""

    world: World
    job: dict[str, Any]
    uid: str

    @property
    def name(self) -> str:
        return str(self.job["metadata"]["name"])

    @property
    def group(self) -> str:
        return f"{self.name}-{self.uid}"

    @property
    def key(self) -> str:
        return key_of(self.name, self.uid)

    async def bound(self, limit_s: float = SOON_S) -> Counter[str]:
        """Pods by node, once all have one."""
        await self.world.watched.until_bound(pods_of(self.job), limit_s)
        await asyncio.to_thread(finish, self.world.volcano.plane, pods_of(self.job), "Running")
        return Counter(self.world.watched.node[name] for name in pods_of(self.job))

    def is_bound(self) -> bool:
        return all(name in self.world.watched.node for name in pods_of(self.job))

    async def finish(self) -> None:
        await asyncio.to_thread(finish, self.world.volcano.plane, pods_of(self.job))

    async def delete(self) -> None:
        await asyncio.to_thread(self.world.volcano.delete, self.name, self.uid)

    async def shown(self, phase: str) -> None:
        """Waits until Volcano is so far with its PodGroup."""
        volcano = self.world.volcano
        await asyncio.to_thread(until, lambda: volcano.phase(self.name, self.uid) == phase, f"{self.name} is {phase}")

    def events(self) -> list[str]:
        """Of ours, on its PodGroup."""
        return self.world.volcano.events_of("PodGroup", self.group)


@pytest.fixture(scope="module")
def scheduled(volcano: VolcanoCluster) -> VolcanoCluster:
    volcano.start_scheduler()
    return volcano


@pytest.fixture
async def world(scheduled: VolcanoCluster, placewise: PlacewiseServer, cluster: str) -> AsyncIterator[World]:
    async with watching(scheduled.plane) as watched:
        world = World(scheduled, placewise, cluster, watched)
        world.start_adapter()
        await scheduled.adapter.ready()
        yield world
        scheduled.adapter.stop()
        await asyncio.to_thread(scheduled.clear)


async def test_unequal_roles_run_as_decided(world: World) -> None:
    fill(world.volcano, NODES // 2)
    gang = await world.submit({"launcher": (1, 1), "worker": (3, 8)})
    on_nodes = await gang.bound()
    found = (await world.log(gang)).account({gang.key: on_nodes})
    assert found.as_decided == 1, found


async def test_of_an_elastic_vcjob_what_starts_together_is_decided_together(world: World) -> None:
    """Two pods are the gang. The others are decided one by one."""
    fill(world.volcano, NODES // 2)
    gang = await world.submit({"worker": (4, 2)}, least=2)
    on_nodes = await gang.bound()
    log = await world.log(gang)
    (decided,) = (places for (_, job), places in log.places.items() if job == gang.key)
    assert decided.total() == 2
    assert decided <= on_nodes
    others = [places for (_, job), places in log.places.items() if job != gang.key]
    assert sum(others, decided) == on_nodes


async def test_a_gang_deleted_while_it_waits_holds_nothing(world: World) -> None:
    first = await world.submit({"worker": (NODES, 8)})
    await first.bound()
    ghost = await world.submit({"worker": (NODES, 8)})
    await ghost.shown("Pending")
    await asyncio.sleep(2)  # it has been asked about
    await ghost.delete()
    await first.finish()
    follower = await world.submit({"worker": (NODES, 8)})
    await follower.bound()
    assert set(await world.reserved()) <= {follower.key}


@pytest.fixture
async def pairs(world: World) -> AsyncIterator[World]:
    """Two nodes in each HyperNode of tier 1, four in each of tier 2, and Volcano's plugin that heeds them."""
    volcano, made = world.volcano, list[str]()
    for number in range(NODES // 2):
        made.append(f"pair{number}")
        volcano.make_hyper_node(made[-1], 1, [f"n{2 * number:02d}", f"n{2 * number + 1:02d}"])
    for number in range(NODES // 4):
        made.append(f"four{number}")
        volcano.make_hyper_node(made[-1], 2, [f"pair{2 * number}", f"pair{2 * number + 1}"], "HyperNode")
    conf = volcano.shipped()
    conf["tiers"][1]["plugins"].append({"name": "network-topology-aware"})
    volcano.configure(conf)
    await asyncio.sleep(3)  # it loads that within a second or two
    yield world
    volcano.configure(volcano.shipped())
    for name in reversed(made):
        volcano.plane.request("DELETE", f"{HYPER_NODES}/{name}")
    await asyncio.sleep(3)


@pytest.mark.parametrize(("tier", "full"), [(1, (0, 2, 4)), (2, (0,))])
async def test_a_gang_of_hard_topology_is_decided_within_a_hyper_node(
    pairs: World, tier: int, full: tuple[int, ...]
) -> None:
    """There are enough free nodes in others, too; of one HyperNode only the last has enough."""
    fill_nodes(pairs.volcano, full)
    count = 2 * tier
    gang = await pairs.submit({"worker": (count, 8)}, highest_tier=tier)
    on_nodes = await gang.bound()
    assert on_nodes == {f"n{number:02d}": 1 for number in range(NODES - count, NODES)}
    assert (await pairs.log(gang)).account({gang.key: on_nodes}).as_decided == 1


async def test_nothing_is_reserved_beyond_the_quota_of_a_queue(world: World) -> None:
    queue = f"small{next(NUMBERS)}"
    await asyncio.to_thread(world.volcano.make_queue, queue, 8)
    await asyncio.to_thread(until, lambda: world.volcano.queue(queue)["status"]["state"] == "Open", f"{queue} is open")
    gangs = [await world.submit({"worker": (1, 8)}, queue=queue) for _ in range(3)]
    await asyncio.sleep(3)
    held = await world.reserved()
    assert sum(held.get(gang.key, 0) for gang in gangs) <= 8
    large = await world.submit({"worker": (NODES - 1, 8)})
    await large.bound()
    for left in (2, 1, 0):  # each takes the place of the one before
        await asyncio.to_thread(
            until, lambda: any(gang.is_bound() for gang in gangs), "one of the queue is bound", SOON_S
        )
        (running,) = (gang for gang in gangs if gang.is_bound())
        await running.finish()
        gangs.remove(running)
        assert len(gangs) == left


async def make_queue(volcano: VolcanoCluster, **options: Any) -> str:
    """Its name."""
    name = f"queue{next(NUMBERS)}"
    await asyncio.to_thread(volcano.make_queue, name, **options)
    await asyncio.to_thread(until, lambda: volcano.queue(name)["status"]["state"] == "Open", f"{name} is open")
    return name


async def started(gangs: list[Submitted], count: int) -> list[Submitted]:
    """Those that run, once there are so many and two more sessions have passed."""
    words = f"{count} are bound"
    await asyncio.to_thread(until, lambda: sum(gang.is_bound() for gang in gangs) >= count, words, SOON_S)
    await asyncio.sleep(3)
    return [gang for gang in gangs if gang.is_bound()]


async def test_nothing_is_reserved_of_what_another_queue_is_guaranteed(world: World) -> None:
    sure = await make_queue(world.volcano, guaranteed=NODES * 4)
    gangs = [await world.submit({"worker": (2, 8)}) for _ in range(3)]
    assert len(await started(gangs, 2)) == 2
    assert sum((await world.reserved()).values()) == 0
    guaranteed = await world.submit({"worker": (NODES // 2, 8)}, queue=sure)
    on_nodes = await guaranteed.bound()
    assert (await world.log(guaranteed)).account({guaranteed.key: on_nodes}).as_decided == 1
    world.volcano.plane.request("DELETE", f"{QUEUES}/{sure}")
    (waiting,) = (gang for gang in gangs if not gang.is_bound())
    for gang in gangs:
        if gang is not waiting:
            await gang.finish()
    await waiting.bound()


async def test_nothing_is_reserved_beyond_the_quota_of_the_queue_above(world: World) -> None:
    conf = world.volcano.shipped()
    (capacity,) = (plugin for plugin in conf["tiers"][1]["plugins"] if plugin["name"] == "capacity")
    capacity["enableHierarchy"] = True
    world.volcano.configure(conf)
    team = await make_queue(world.volcano, gpus=16)
    below = [await make_queue(world.volcano, parent=team) for _ in range(2)]
    gangs = [await world.submit({"worker": (1, 8)}, queue=below[number % 2]) for number in range(4)]
    running = await started(gangs, 2)
    assert len(running) == 2
    assert sum((await world.reserved()).values()) == 0
    for gang in running:
        await gang.finish()
    left = [gang for gang in gangs if gang not in running]
    assert len(await started(left, 2)) == 2
    for gang in left:
        await gang.finish()
    world.volcano.configure(world.volcano.shipped())
    for queue in (*below, team):
        world.volcano.plane.request("DELETE", f"{QUEUES}/{queue}")
    await asyncio.sleep(3)


async def make_group_with_pods(world: World, queue: str, gpus: int) -> str:
    """A PodGroup of one pod, and its pod, as controllers other than Volcano's make them. Its name and the pod's."""
    name = f"bare{next(NUMBERS)}"
    least = {"minMember": 1, "queue": queue, "minResources": {"nvidia.com/gpu": str(gpus)}}
    metadata = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": {"name": name}}
    await asyncio.to_thread(world.volcano.plane.request, "POST", GROUPS, metadata | {"spec": least})
    document = pod(name, gpus=gpus, annotations={names.VOLCANO_GROUP: name}, scheduler=VOLCANO)
    await asyncio.to_thread(world.volcano.plane.request, "POST", PODS, document)
    return name


async def test_pods_that_came_first_have_nothing_reserved_beyond_the_quota(world: World) -> None:
    queue, get = await make_queue(world.volcano, gpus=8), world.volcano.plane.request
    made = [await make_group_with_pods(world, queue, 8) for _ in range(2)]
    is_bound = lambda: [name for name in made if name in world.watched.node]  # noqa: E731
    await asyncio.to_thread(until, lambda: len(is_bound()) == 1, "one is bound", SOON_S)
    await asyncio.sleep(3)
    (first,) = is_bound()
    (second,) = (name for name in made if name != first)
    assert await world.reserved() == {}
    assert any("may use 8" in text for text in world.volcano.events_of("Pod", second))
    await asyncio.to_thread(finish, world.volcano.plane, [first])
    await asyncio.to_thread(until, lambda: second in is_bound(), "the other is bound", SOON_S)
    document = await asyncio.to_thread(get, "GET", f"{PODS}/{second}")
    assert document["metadata"]["annotations"][
        names.DECISION
    ]  # the API server takes the node's name away at the binding
    await asyncio.to_thread(finish, world.volcano.plane, [second])


async def test_what_is_held_for_pods_that_do_not_come_is_freed(world: World) -> None:
    """A PodGroup of nobody's: Volcano lets it in, and its pods never come."""
    body = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": f"bare{next(NUMBERS)}"},
        "spec": {"minMember": NODES, "queue": "default", "minResources": {"nvidia.com/gpu": str(NODES * 8)}},
    }
    made = await asyncio.to_thread(world.volcano.plane.request, "POST", GROUPS, body)
    path = f"{GROUPS}/{made['metadata']['name']}"
    get = world.volcano.plane.request
    await asyncio.to_thread(until, lambda: get("GET", path)["status"]["phase"] == "Inqueue", "it is let in")
    assert await world.reserved() != {}
    await asyncio.sleep(START_TIMEOUT_S)
    await asyncio.sleep(5)
    for _ in range(5):
        assert await world.reserved() == {}
        await asyncio.sleep(1)


async def test_a_restart_reports_no_gang_twice(world: World) -> None:
    running, ended = await world.submit({"worker": (2, 4)}), await world.submit({"worker": (2, 2)})
    await running.bound()
    await ended.bound()
    await ended.finish()
    await world.log(running, ended)
    await world.restart_adapter()
    await asyncio.sleep(3)
    await world.restart_adapter()
    await running.finish()
    await asyncio.sleep(3)
    log = await world.log(running, ended)
    assert set(log.starts) == {running.key, ended.key}
    assert repeated(world.placewise, world.cluster) == []
    assert all(run.end_s < float("inf") for run in log.runs)


async def test_what_a_vcjob_says_of_its_job_is_known_once_its_pods_are_read(world: World) -> None:
    """Volcano let it in while no adapter ran: only its pods are decided."""
    world.volcano.adapter.stop()
    fill(world.volcano, NODES, 8)
    gang = await world.submit({"worker": (2, 4)}, annotations={"placewise.dev/epochs": "7"})
    names = set(pods_of(gang.job))
    made = world.volcano.pods
    is_made = lambda: names <= {item["metadata"]["name"] for item in made()}  # noqa: E731
    await asyncio.to_thread(until, is_made, "its pods are made")
    world.start_adapter()
    await world.volcano.adapter.ready()
    await asyncio.to_thread(finish, world.volcano.plane, [f"filler-{number}" for number in range(NODES)])
    on_nodes = await gang.bound()
    log = await world.log(gang)
    assert log.account({gang.key: on_nodes}).as_decided == 1
    told = last_rows(world.placewise, world.cluster, "decisions", "job_ids", "job_total_epochs")
    epochs = {row["job_total_epochs"][row["job_ids"].index(gang.key)] for row in told if gang.key in row["job_ids"]}
    assert epochs == {7.0}


async def test_a_gang_that_is_too_large_says_why(world: World) -> None:
    gang = await world.submit({"worker": (NODES + 1, 8)})
    await gang.shown("Pending")
    await asyncio.to_thread(until, lambda: gang.events() != [], "its PodGroup has an event", SOON_S)
    await asyncio.sleep(3)  # it is asked about again and again
    told = await asyncio.to_thread(gang.events)
    print(told)
    assert len(told) == 1
    assert await world.reserved() == {}
