"""Mixed gangs on nodes that are partly full: each runs as the decision log says, and in a dry run few do.

A pod's node is read from the API, the decision from the exported log of a real service, joined by decision id.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from tests.e2e.hosts.decision_log import DecisionLog, read_log
from tests.e2e.kubernetes.kubernetes_cluster import ControlPlane, environment, free_port, gang, pod
from tests.e2e.kubernetes.kubernetes_fixtures import cluster, placewise, plane, watched
from tests.e2e.kubernetes.kubernetes_scenario import PODS, AdapterProcess, Watched, finish, names_of
from tests.e2e.kubernetes.kubernetes_service import PlacewiseServer

pytestmark = [pytest.mark.e2e, pytest.mark.e2e_heavy, pytest.mark.timeout(600)]

__all__ = ["cluster", "placewise", "plane", "watched"]
MODES = {"extender": "default-scheduler", "own": "placewise"}
GANGS = 60
Note = Callable[[str, object], None]
Gangs = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def process(plane: ControlPlane) -> AdapterProcess:
    process = AdapterProcess(plane, free_port())
    plane.start_scheduler("kube-scheduler", {"extenders": [process.extender()]})
    return process


@pytest.fixture
async def adapter(process: AdapterProcess, placewise: PlacewiseServer, cluster: str) -> AsyncIterator[AdapterProcess]:
    yield process
    process.stop()


def mixed(
    scheduler: str,
    rng: random.Random,
    count: int = GANGS,
    gpus_of_pod: Sequence[int] = (1, 2, 4, 8),
    other_role: str = "head",
) -> Gangs:
    """Half of the gangs have 2 to 4 pods, a fifth has a pod of another role and size."""
    made = {}
    for number in range(count):
        size = rng.randint(2, 4) if number % 2 else 1
        name, gpus, roles = f"g{number}", rng.choice(gpus_of_pod), f"worker={size}"
        pods = gang(name, size, gpus=gpus, scheduler=scheduler)
        if number % 5 == 0:
            roles += f",{other_role}=1"
            labels, notes = {"placewise.dev/job": name}, {"placewise.dev/role": other_role}
            pods.append(
                pod(f"{name}-{size}", gpus=rng.choice([1, 2]), labels=labels, annotations=notes, scheduler=scheduler)
            )
        for document in pods:
            document["metadata"]["annotations"]["placewise.dev/gang"] = roles
        made[name] = pods
    return made


async def run(
    watched: Watched, gangs: Gangs, patience_s: float | None = None, *, fillers: int = 20, last_s: float = 2.0
) -> None:
    """Makes the gangs on a cluster of which pods of others take three GPUs each; a gang ends some time after it is
    bound. Of one that is not whole after `patience_s` the pods that are bound end: a scheduler without gangs lets parts
    of them block each other for ever."""
    others = [pod(f"filler-{number}", gpus=3) for number in range(fillers)]
    await watched.create(others)
    await watched.until_bound(names_of(others))
    ending = [asyncio.create_task(_end(watched, names_of(pods), patience_s, last_s)) for pods in gangs.values()]
    for pods in gangs.values():
        await watched.create(pods)
        await asyncio.sleep(0.1)
    await asyncio.gather(*ending)


async def _end(watched: Watched, names: list[str], patience_s: float | None, last_s: float) -> None:
    if patience_s is not None:
        try:
            await watched.until_bound(names, limit_s=patience_s)
        except TimeoutError:
            await asyncio.to_thread(finish, watched.plane, [name for name in names if name in watched.node])
    await watched.until_bound(names, limit_s=240)
    await asyncio.sleep(last_s)
    await asyncio.to_thread(finish, watched.plane, names)


async def where(plane: ControlPlane, gangs: Gangs) -> dict[str, Counter[str]]:
    """Pods by node, by the API's own records."""
    items = (await asyncio.to_thread(plane.request, "GET", PODS))["items"]
    nodes = {item["metadata"]["name"]: item["spec"]["nodeName"] for item in items}
    return {name: Counter(nodes[pod] for pod in names_of(pods)) for name, pods in gangs.items()}


async def logged(placewise: PlacewiseServer, cluster: str, count: int) -> DecisionLog:
    """The log, once it has the starts of so many gangs."""
    variables = {**environment(), "PLACEWISE_STATE_DIR": str(placewise.state_dir)}
    for attempt in range(20):
        folder = placewise.state_dir.parent / f"export-{cluster}-{attempt}"
        log = await asyncio.to_thread(read_log, folder, cluster, variables)
        if sum("/g" in job for job in log.starts) >= count:
            return log
        await asyncio.sleep(1)
    raise TimeoutError(f"{len(log.starts)} starts in the log")


def by_job(log: DecisionLog, ran: dict[str, Counter[str]]) -> dict[str, Counter[str]]:
    """By the gang's id at the service instead of its name."""
    ids = {job.split("/")[1]: job for job in log.starts}
    return {ids.get(name, name): places for name, places in ran.items()}


async def run_as_decided(
    title: str,
    gangs: Gangs,
    watched: Watched,
    placewise: PlacewiseServer,
    cluster: str,
    note: Note,
    *,
    fillers: int = 20,
    last_s: float = 2.0,
) -> None:
    """Runs the gangs: each has to run on the nodes in the log."""
    await run(watched, gangs, fillers=fillers, last_s=last_s)
    log = await logged(placewise, cluster, GANGS)
    found = log.account(by_job(log, await where(watched.plane, gangs)))
    note("gangs", f"{title}: {found}")
    print(f"\n{title}: {found}")
    assert found.as_decided == found.total == GANGS, found.elsewhere
    assert log.doubled() == []


@pytest.mark.parametrize("mode", MODES)
async def test_mixed_gangs_run_as_decided(
    mode: str,
    adapter: AdapterProcess,
    watched: Watched,
    placewise: PlacewiseServer,
    cluster: str,
    record_property: Note,
) -> None:
    adapter.start(placewise.http_target, cluster=cluster)
    await adapter.ready()
    gangs = mixed(MODES[mode], random.Random(20))
    await run_as_decided(mode, gangs, watched, placewise, cluster, record_property)


async def test_a_dry_run_agrees_seldom(
    adapter: AdapterProcess,
    plane: ControlPlane,
    watched: Watched,
    placewise: PlacewiseServer,
    cluster: str,
    record_property: Note,
) -> None:
    """The control: the same gangs as kube-scheduler places them, against decisions that were only logged."""
    adapter.start(placewise.http_target, cluster=cluster, adapter={"is_dry_run": True})
    await adapter.ready()
    gangs = mixed(MODES["extender"], random.Random(20))
    await run(watched, gangs, patience_s=20.0)
    log = await logged(placewise, cluster, GANGS)
    ran = by_job(log, await where(plane, gangs))
    found, agreed = log.account(ran), log.agreed_dry(ran)
    words = f"dry run: {found}; {agreed} ran on the nodes of their decision, of {len(log.dry)} with a place"
    record_property("gangs", words)
    print(f"\n{words}")
    assert len(log.dry) >= 15
    assert (found.as_decided, len(found.released)) == (0, GANGS)
    assert agreed < 0.3 * len(log.dry)
