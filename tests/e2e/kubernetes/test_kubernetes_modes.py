"""Gangs on a real kube-apiserver, etcd and kube-scheduler: bound exactly as decided, whole or not at all."""

from __future__ import annotations

import asyncio
import time
import urllib.error
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest
from tests.e2e.kubernetes.kubernetes_cluster import ControlPlane, free_port, gang, pod
from tests.e2e.kubernetes.kubernetes_fixtures import cluster, placewise, plane, watched
from tests.e2e.kubernetes.kubernetes_recorder import Recorder
from tests.e2e.kubernetes.kubernetes_scenario import (
    GPUS_PER_NODE,
    NODES,
    PODS,
    AdapterProcess,
    Watched,
    described,
    events_of,
    finish,
    make_batch_job,
    make_pod_group,
    names_of,
)
from tests.e2e.kubernetes.kubernetes_service import Service, running_jobs
from tests.fakes.servers.oracle import OracleServer
from tests.fakes.servers.oracle_http import OracleHttpServer

from placewise_client import NotFoundError, StateUnavailableError

pytestmark = [pytest.mark.e2e, pytest.mark.e2e_heavy, pytest.mark.timeout(600)]

__all__ = ["cluster", "placewise", "plane", "watched"]
# After its first back-offs a refused pod is put aside: left to itself, the scheduler returns to it after a minute.
ASLEEP_S = 4.0
BINDING = "binding-scheduler"
MODES = {"extender": "default-scheduler", "own": "placewise"}


@pytest.fixture(scope="module")
def adapter(plane: ControlPlane) -> AdapterProcess:
    """The adapter's address, known to the scheduler for the whole module; tests start and stop the process."""
    process = AdapterProcess(plane, free_port())
    plane.start_scheduler("kube-scheduler", {"extenders": [process.extender()]})
    return process


@pytest.fixture
async def oracle() -> AsyncIterator[OracleServer]:
    server = await OracleServer().start()
    yield server
    await server.stop()


@pytest.fixture(params=["oracle", "placewise"])
async def service(request: pytest.FixtureRequest) -> AsyncIterator[Service]:
    """The fake service, which is strict, and the real one."""
    if request.param == "placewise":
        yield request.getfixturevalue("placewise")
        return
    server = await OracleHttpServer().start()
    yield server
    await server.stop()


@pytest.fixture
async def recorder(service: Service) -> AsyncIterator[Recorder]:
    async with Recorder(service.http_target) as running:
        yield running


@pytest.fixture
async def running(
    adapter: AdapterProcess, recorder: Recorder, watched: Watched, cluster: str
) -> AsyncIterator[AdapterProcess]:
    adapter.start(recorder.target, cluster=cluster)
    await adapter.ready()
    yield adapter
    adapter.stop()


def gangs_of(sizes: list[int], scheduler: str, **options: Any) -> dict[str, list[dict[str, Any]]]:
    return {f"g{index}": gang(f"g{index}", size, scheduler=scheduler, **options) for index, size in enumerate(sizes)}


def decided_for(recorder: Recorder, name: str) -> Any:
    """The decision for a gang, over all its incarnations."""
    found = [nodes for job, nodes in recorder.decided.items() if job.split("/")[1] == name]
    assert len(found) == 1, (name, recorder.decided)
    return found[0]


@pytest.mark.parametrize("mode", MODES)
async def test_every_gang_pod_is_bound_exactly_as_decided(
    mode: str, running: AdapterProcess, watched: Watched, recorder: Recorder, service: Service, cluster: str
) -> None:
    gangs = gangs_of([4, 8, 1, 2, 4, 6] * 5, MODES[mode])
    for pods in gangs.values():
        await watched.create(pods)
    every = [name for pods in gangs.values() for name in names_of(pods)]
    assert len(every) >= 100
    await watched.until_bound(every)
    for name in gangs:
        assert watched.on_nodes(name) == decided_for(recorder, name)
    confirmed = await _until_running(service, cluster, len(gangs))
    assert {job: recorder.decided[job] for job in confirmed} == confirmed
    assert running.metric("placewise_adapter_overrides_total") == 0
    assert max(recorder.answers.values()) == 1  # decided once, though asked about by every pod


@pytest.fixture
def binding(adapter: AdapterProcess) -> Iterator[AdapterProcess]:
    """The adapter's address as a scheduler with a bindVerb knows it; tests start and stop the process."""
    profile = {"profiles": [{"schedulerName": BINDING}], "extenders": [adapter.extender() | {"bindVerb": "bind"}]}
    adapter.plane.start_scheduler(BINDING, profile)
    yield adapter
    adapter.plane.stop_process(BINDING)
    adapter.stop()


async def test_the_extender_binds_where_it_is_told_to(
    binding: AdapterProcess, plane: ControlPlane, watched: Watched, recorder: Recorder, service: Service, cluster: str
) -> None:
    binding.start(recorder.target, cluster=cluster, listen={"is_bind_served": True})
    await binding.ready()
    gangs = gangs_of([4, 8, 1], BINDING)
    for pods in gangs.values():
        await watched.create(pods)
    names = [name for pods in gangs.values() for name in names_of(pods)]
    await watched.until_bound(names)
    for name in gangs:
        assert watched.on_nodes(name) == decided_for(recorder, name)
    # Only the adapter knows this: kube-scheduler's own Bindings carry no notes.
    for name in names:
        assert plane.request("GET", f"{PODS}/{name}")["metadata"]["annotations"]["placewise.dev/decision"]
    assert len(await _until_running(service, cluster, len(gangs))) == len(gangs)


async def test_failing_open_binds_by_the_adapter_where_the_scheduler_says(
    binding: AdapterProcess, watched: Watched, oracle: OracleServer
) -> None:
    """What Placewise has no say in, or could not be asked about, is bound where kube-scheduler wants it."""
    listen = {"is_bind_served": True}
    binding.start(oracle.target, listen=listen, fail_open_s=0.1, adapter={"decide_budget_s": 0.08})
    await binding.ready()
    await oracle.stop()
    pods = [*gang("orphan", 4, scheduler=BINDING), pod("foreign", scheduler=BINDING)]
    await watched.create(pods)
    await watched.until_bound(names_of(pods), limit_s=20)
    assert binding.metric("placewise_kubernetes_bind_seconds_count") == len(pods)
    assert binding.metric('placewise_kubernetes_refused_total{reason="not_let_through"}') == 0


async def test_without_client_certificates_only_what_is_decided_is_bound_by_the_adapter(
    binding: AdapterProcess, plane: ControlPlane, watched: Watched, oracle: OracleServer
) -> None:
    binding.start(oracle.target, listen={"is_bind_served": True, "client_ca_path": ""})
    await binding.ready()
    decided = gang("decided", 2, scheduler=BINDING)
    await watched.create([*decided, pod("foreign", scheduler=BINDING)])
    await watched.until_bound(names_of(decided))
    await watched.until_bound(["foreign"])  # by kube-scheduler itself: the extender is ignorable
    assert binding.metric('placewise_kubernetes_refused_total{reason="no_certificate"}') == 1
    assert "placewise.dev/decision" not in plane.request("GET", f"{PODS}/foreign")["metadata"].get("annotations", {})


@pytest.mark.parametrize("mode", MODES)
async def test_gangs_of_jobs_are_decided_ahead_of_their_pods_and_once(
    mode: str, running: AdapterProcess, watched: Watched, recorder: Recorder, service: Service, cluster: str
) -> None:
    gangs = gangs_of([4, 8, 1, 2, 4, 6] * 5, MODES[mode])
    for name, pods in gangs.items():
        await watched.make_job(f"{name}-{uuid4().hex[:8]}", pods)
    await _until(lambda: len(recorder.decided) == len(gangs))
    for pods in gangs.values():
        await watched.create(pods)
    await watched.until_bound([name for pods in gangs.values() for name in names_of(pods)])
    for name in gangs:
        assert watched.on_nodes(name) == decided_for(recorder, name)
    confirmed = await _until_running(service, cluster, len(gangs))
    assert {job: recorder.decided[job] for job in confirmed} == confirmed
    assert max(recorder.answers.values()) == 1


@pytest.mark.parametrize("mode", MODES)
async def test_no_gang_is_bound_in_part_where_not_all_fit(
    mode: str, running: AdapterProcess, watched: Watched, recorder: Recorder
) -> None:
    whole = NODES * GPUS_PER_NODE
    # 12 × 24 = 288 GPUs are asked for, 240 are there: ten gangs fit.
    gangs = gangs_of([3] * 12, MODES[mode], gpus=8)
    for pods in gangs.values():
        await watched.create(pods)
    fitting = whole // 24
    await _until(lambda: sum(recorder.answers.values()) >= fitting)
    bound = {name: sum(watched.on_nodes(name).values()) for name in gangs}
    await _until(lambda: sum(sum(watched.on_nodes(name).values()) for name in gangs) >= fitting * 3)
    bound = {name: sum(watched.on_nodes(name).values()) for name in gangs}
    assert sorted(bound.values()) == [0] * (len(gangs) - fitting) + [3] * fitting


@pytest.mark.parametrize("mode", MODES)
async def test_a_waiting_gang_says_why_and_is_bound_within_a_second_of_turning(
    mode: str, adapter: AdapterProcess, plane: ControlPlane, watched: Watched, oracle: OracleServer
) -> None:
    adapter.start(oracle.target)
    await adapter.ready()
    try:
        await _wait_and_turn(mode, plane, watched, oracle)
    finally:
        adapter.stop()


async def _wait_and_turn(mode: str, plane: ControlPlane, watched: Watched, service: OracleServer) -> None:
    service.oracle.waits.add("*")
    pods = gang("late", 4, scheduler=MODES[mode])
    await watched.create(pods)
    await _until(lambda: any("drift plus penalty" in text for text in events_of(plane, "late-0")), limit_s=20)
    assert not watched.on_nodes("late")
    text = await asyncio.to_thread(described, plane, "late-0")
    assert text is None or "drift plus penalty" in text
    await asyncio.sleep(ASLEEP_S)
    service.oracle.waits.clear()
    turned_s = time.monotonic()
    await watched.until_bound(names_of(pods), limit_s=20)
    waited_s = max(watched.bound_s[name] for name in names_of(pods)) - turned_s
    print(f"{mode}: bound {waited_s * 1e3:.0f} ms after turning")
    assert waited_s < 1.0


@pytest.mark.parametrize("mode", MODES)
async def test_a_gang_behind_a_full_cluster_follows_a_finished_one(
    mode: str, running: AdapterProcess, plane: ControlPlane, watched: Watched
) -> None:
    first = gang("first", NODES, gpus=GPUS_PER_NODE, scheduler=MODES[mode])
    second = gang("second", 4, gpus=GPUS_PER_NODE, scheduler=MODES[mode])
    await watched.create(first)
    await watched.until_bound(names_of(first))
    await watched.create(second)
    await _until(lambda: any("insufficient gpu" in text for text in events_of(plane, "second-0")), limit_s=20)
    await asyncio.to_thread(finish, plane, names_of(first))
    ended_s = time.monotonic()
    await watched.until_bound(names_of(second), limit_s=20)
    waited_s = max(watched.bound_s[name] for name in names_of(second)) - ended_s
    print(f"{mode}: bound {waited_s * 1e3:.0f} ms after the last pod of the other gang ended")
    assert waited_s < 1.0


async def test_a_short_gang_passes_one_that_does_not_fit_and_a_long_one_does_not(
    adapter: AdapterProcess, plane: ControlPlane, watched: Watched, placewise: Service, cluster: str
) -> None:
    """The head takes every node; the gangs behind it find room on one node that is busy in part."""
    lasting = {"placewise.dev/single-gpu-seconds": "36000"}
    adapter.start(placewise.http_target, cluster=cluster)
    await adapter.ready()
    try:
        first = gang("first", 1, gpus=GPUS_PER_NODE // 2, scheduler="placewise", annotations=lasting)
        await watched.create(first)
        await watched.until_bound(names_of(first))
        head = gang("head", NODES, gpus=GPUS_PER_NODE, scheduler="placewise")
        await watched.create(head)
        await _until(lambda: any("GPUs short" in text for text in events_of(plane, "head-0")), limit_s=20)
        long = gang("long", 1, scheduler="placewise", annotations={"placewise.dev/single-gpu-seconds": "360000"})
        short = gang("short", 1, scheduler="placewise", annotations={"placewise.dev/single-gpu-seconds": "60"})
        await watched.create(long)
        await watched.create(short)
        await watched.until_bound(names_of(short), limit_s=20)
        assert not watched.on_nodes("long")
        await asyncio.to_thread(finish, plane, [*names_of(first), *names_of(short)])
        await watched.until_bound(names_of(head), limit_s=20)
        assert not watched.on_nodes("long")
    finally:
        adapter.stop()


async def test_without_the_adapter_the_scheduler_goes_on(adapter: AdapterProcess, watched: Watched) -> None:
    pods = gang("alone", 4)
    await watched.create(pods)
    await watched.until_bound(names_of(pods))


@pytest.mark.parametrize("mode", MODES)
async def test_without_the_service_gangs_are_bound_all_the_same(
    mode: str, adapter: AdapterProcess, watched: Watched, recorder: Recorder, service: Service, cluster: str
) -> None:
    adapter.start(recorder.target, cluster=cluster, fail_open_s=0.1, adapter={"decide_budget_s": 0.08})
    await adapter.ready()
    try:
        await service.stop()
        pods = gang("orphan", 4, scheduler=MODES[mode])
        await watched.create(pods)
        await watched.until_bound(names_of(pods), limit_s=5)
        assert recorder.decided == {}
        await service.start()
        # The host's own starts are reported once the service is back.
        (confirmed,) = (await _until_running(service, cluster, 1)).items()
        assert confirmed[0].startswith("default/orphan/")
        assert confirmed[1] == watched.on_nodes("orphan")
    finally:
        adapter.stop()


@pytest.mark.parametrize("mode", MODES)
async def test_a_killed_adapter_takes_up_what_it_had_decided(
    mode: str, adapter: AdapterProcess, watched: Watched, recorder: Recorder, service: Service, cluster: str
) -> None:
    adapter.start(recorder.target, cluster=cluster)
    await adapter.ready()
    try:
        whole = gang("half", 4, scheduler=MODES[mode])
        # The gang is decided ahead of its pods, and bound as they come: two of them when the adapter has been replaced.
        await watched.make_job(f"half-{uuid4().hex[:8]}", whole)
        early = whole[:2]
        await watched.create(early)
        await watched.until_bound(names_of(early))
        running = gang("running", 4, scheduler=MODES[mode])
        await watched.create(running)
        await watched.until_bound(names_of(running))
        await _until_running(service, cluster, 1)
        adapter.kill()
        adapter.start(recorder.target, cluster=cluster)
        await adapter.ready()
        await watched.create(whole[len(early) :])
        await watched.until_bound(names_of(whole))
        assert watched.on_nodes("half") == decided_for(recorder, "half")
        assert watched.on_nodes("running") == decided_for(recorder, "running")
        assert len(await _until_running(service, cluster, 2)) == 2
        assert max(recorder.answers.values()) == 1
    finally:
        adapter.stop()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fault", ["service", "adapter"])
async def test_nothing_is_lost_or_given_twice_when_a_part_dies_in_a_burst(
    mode: str,
    fault: str,
    adapter: AdapterProcess,
    watched: Watched,
    recorder: Recorder,
    service: Service,
    cluster: str,
    record_property: Callable[[str, object], None],
) -> None:
    options: dict[str, Any] = {"cluster": cluster, "fail_open_s": 0.1, "adapter": {"decide_budget_s": 0.08}}
    adapter.start(recorder.target, **options)
    await adapter.ready()
    try:
        gangs = gangs_of([4, 2, 3, 1] * 6, MODES[mode], gpus=2)
        for number, (name, pods) in enumerate(gangs.items()):
            if number == 8:
                await (service.stop() if fault == "service" else asyncio.to_thread(adapter.kill))
            if number % 2:  # decided ahead of its pods, which are bound as they come
                await watched.make_job(f"{name}-{uuid4().hex[:8]}", pods)
            await watched.create(pods)
            if number == 16:
                await (service.start() if fault == "service" else _again(adapter, recorder, options))
        # If the scheduler took a decided node meanwhile, the gang is decided again after 30 s, perhaps twice.
        await watched.until_bound([name for pods in gangs.values() for name in names_of(pods)], limit_s=120)
        used = Counter(watched.node[name] for pods in gangs.values() for name in names_of(pods))
        assert max(used.values()) * 2 <= GPUS_PER_NODE
        known = await _until_running(service, cluster, len(gangs))
        assert {job.split("/")[1]: nodes for job, nodes in known.items()} == {
            name: watched.on_nodes(name) for name in gangs
        }
        doubled = sum(count * 2 > GPUS_PER_NODE for count in used.values())
        faced = f"{len(gangs) - len(known)} lost, {doubled} nodes with more than their GPUs"
        record_property("fault", f"{mode}: {fault} killed once in a burst of {len(gangs)} gangs: {faced}")
    finally:
        adapter.stop()


async def _again(adapter: AdapterProcess, recorder: Recorder, options: dict[str, Any]) -> None:
    adapter.start(recorder.target, **options)
    await adapter.ready()


async def test_of_two_replicas_one_decides_and_the_other_takes_over(
    adapter: AdapterProcess, watched: Watched, recorder: Recorder, cluster: str
) -> None:
    first, second = adapter, AdapterProcess(adapter.plane, free_port(), name="standby")
    first.start(recorder.target, cluster=cluster)
    await first.ready()
    second.start(recorder.target, cluster=cluster)
    try:
        await _until(lambda: _stands_by(second))
        gangs = gangs_of([4, 2, 1] * 4, "placewise")
        for number, pods in enumerate(gangs.values()):
            if number == 6:
                await asyncio.to_thread(first.kill)
            await watched.create(pods)
        await watched.until_bound([name for pods in gangs.values() for name in names_of(pods)])
        await second.ready()
        for name in gangs:
            assert watched.on_nodes(name) == decided_for(recorder, name)
        assert max(recorder.answers.values()) == 1
    finally:
        second.stop()
        with suppress(KeyError):  # it was killed
            first.stop()


def _stands_by(replica: AdapterProcess) -> bool:
    try:
        replica.get("/readyz")
    except urllib.error.HTTPError as refused:
        with refused:
            return b"another replica decides" in refused.read()
    except OSError:
        return False  # it does not listen yet
    return False


async def test_a_pod_that_replaces_another_takes_its_place(
    running: AdapterProcess, plane: ControlPlane, watched: Watched, recorder: Recorder
) -> None:
    pods = gang("again", 4, gpus=GPUS_PER_NODE)
    await watched.create(pods)
    await watched.until_bound(names_of(pods))
    place = watched.node["again-2"]
    await asyncio.to_thread(
        plane.request, "DELETE", "/api/v1/namespaces/default/pods/again-2", {"gracePeriodSeconds": 0}
    )
    await _until(lambda: "again-2" not in watched.node)
    await watched.create([pods[2]])
    await watched.until_bound(["again-2"])
    assert watched.node["again-2"] == place
    assert watched.on_nodes("again") == decided_for(recorder, "again")


@pytest.mark.parametrize("mode", MODES)
async def test_the_size_of_a_gang_comes_from_its_group(
    mode: str, running: AdapterProcess, plane: ControlPlane, watched: Watched, recorder: Recorder
) -> None:
    name = f"{mode}-{uuid4().hex[:8]}"  # one that no other test has used
    group = await asyncio.to_thread(make_pod_group, plane, name, 3)
    job = await asyncio.to_thread(make_batch_job, plane, name, 2)
    labels = {"scheduling.x-k8s.io/pod-group": group}
    of_group = [pod(f"group-{index}", labels=labels, scheduler=MODES[mode]) for index in range(3)]
    labels = {"placewise.dev/job": "j"}
    of_job = [pod(f"job-{index}", labels=labels, scheduler=MODES[mode]) for index in range(2)]
    for document in of_job:
        document["metadata"]["ownerReferences"] = [job]
    for pods in (of_group, of_job):
        await watched.create(pods)
        await watched.until_bound(names_of(pods))
    sizes = {name.split("/")[1]: sum(nodes.values()) for name, nodes in recorder.decided.items()}
    assert sizes == {group: 3, "j": 2}


async def test_pods_of_others_are_left_alone_and_counted(
    running: AdapterProcess, watched: Watched, recorder: Recorder, service: Service, cluster: str
) -> None:
    foreign = [pod(f"foreign-{index}", gpus=GPUS_PER_NODE) for index in range(NODES - 1)]
    await watched.create(foreign)
    await watched.until_bound(names_of(foreign))
    await _until_running(service, cluster, len(foreign))
    assert (recorder.calls["Place"], recorder.calls["AdmitOrWait"]) == (0, 0)
    mine = gang("mine", 1, gpus=GPUS_PER_NODE)
    await watched.create(mine)
    await watched.until_bound(names_of(mine))
    assert watched.node["mine-0"] not in {watched.node[name] for name in names_of(foreign)}


async def _until(condition: Any, limit_s: float = 15.0) -> None:
    """Polls: the events happen in other processes, by their clocks."""
    async with asyncio.timeout(limit_s):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 no event can come from another process
            await asyncio.sleep(0.05)


async def _until_running(service: Service, cluster: str, count: int) -> dict[str, Counter[str]]:
    """Waits until the service, which may just be starting, knows that so many jobs run; their holdings."""
    async with asyncio.timeout(15):
        while True:
            with suppress(StateUnavailableError, NotFoundError):
                found = await running_jobs(service, cluster)
                if len(found) >= count:
                    return found
            await asyncio.sleep(0.1)
