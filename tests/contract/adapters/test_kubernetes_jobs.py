"""Gangs of batch Jobs: decided before their pods are made, and never held for pods that do not come."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.contract.adapters.suite.adapter_world import SETTINGS
from tests.contract.adapters.test_kubernetes_conformance import KubernetesScheduler, KubernetesWorld, small_world
from tests.e2e.kubernetes.kubernetes_cluster import gang
from tests.fakes.schedulers.kubernetes_api import JOBS

from placewise_client.adapter.native import Stage
from placewise_client.errors import StateUnavailableError
from placewise_kubernetes.faces.extender import Extender
from placewise_kubernetes.gang.spec import GangRules
from placewise_kubernetes.host import JOB_FORGOTTEN_S
from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.client import KubeError

OWN, ASKS = GangRules().own_scheduler, "default-scheduler"


@pytest.fixture
async def world() -> AsyncIterator[KubernetesWorld]:
    async with small_world(KubernetesScheduler(OWN)) as world:
        yield world


def job_of(pods: list[dict[str, Any]], **spec: Any) -> dict[str, Any]:
    """A Job whose controller makes pods like these."""
    first = copy.deepcopy(pods[0])
    template = {"metadata": {key: first["metadata"][key] for key in ("labels", "annotations")}, "spec": first["spec"]}
    return {
        "metadata": {"name": "g"},
        "spec": {"parallelism": len(pods), "template": template, **spec},
    }


async def make_job(world: KubernetesWorld, job: dict[str, Any], pods: list[dict[str, Any]]) -> None:
    """Makes the Job alone; the pods are only prepared."""
    made = world.host.kube.put_job(job)
    owner = {"kind": "Job", "name": "g", "uid": made["metadata"]["uid"], "controller": True}
    for document in pods:
        document["metadata"]["ownerReferences"] = [owner]
    await world.host.kube.seen()
    await world.loop.run_pass(full=False)


async def come(world: KubernetesWorld, *documents: dict[str, Any]) -> None:
    for document in documents:
        world.host.kube.add_pod(document)
    await world.host.kube.seen()
    await world.host.kube.seen()


def bound(world: KubernetesWorld) -> list[str]:
    return sorted(node for path, node in world.host.kube.bound)


def key_of(world: KubernetesWorld) -> str:
    (key,) = world.host.native.pods.book.gangs
    return key


async def test_pods_find_the_decision_made(world: KubernetesWorld) -> None:
    pods = gang("g", 3, gpus=4, scheduler=OWN)
    await make_job(world, job_of(pods), pods)
    assert len(world.asked("place")) == 1
    await come(world, *pods)  # bound without another pass
    assert bound(world) == world.decided_nodes(key_of(world))
    await world.step()
    assert world.kinds(key_of(world)) == ["STARTED"]
    assert list(world.events(key_of(world))[0].placement) == []  # as decided


async def test_the_extender_answers_the_first_pod_from_memory(world: KubernetesWorld) -> None:
    pods = gang("g", 2, gpus=8, scheduler=ASKS)
    await make_job(world, job_of(pods), pods)
    extender = Extender(world.host.native, fail_open_s=0.0)
    offered = list(world.host.kube.nodes)
    chosen = []
    for document in pods:
        answer = await extender.filter({"Pod": world.host.kube.add_pod(document), "NodeNames": offered})
        chosen += answer["NodeNames"]
    assert sorted(chosen) == world.decided_nodes(key_of(world))
    assert len(world.asked("place")) == 1


async def test_the_size_is_that_of_the_job_where_nobody_says_another(world: KubernetesWorld) -> None:
    pods = gang("g", 3, scheduler=OWN)
    for document in pods:
        del document["metadata"]["annotations"][names.GANG]
    await make_job(world, job_of(pods), pods)
    assert len(world.decided_nodes(key_of(world))) == 3


@pytest.mark.parametrize("status", [{}, {"active": 2}])
async def test_a_new_life_knows_the_gang_by_the_same_name(world: KubernetesWorld, status: dict[str, int]) -> None:
    pods = gang("g", 2, scheduler=OWN)
    job = job_of(pods)
    await make_job(world, job, pods)
    key = key_of(world)
    await come(world, *pods)
    await world.step()
    world.host.kube.put_job(job | {"status": status})
    world.start_adapter()
    await world.step()
    await world.step()
    assert key_of(world) == key
    assert world.kinds(key) == ["STARTED"]
    assert len(world.asked("place")) == 1


async def test_a_running_gang_whose_size_is_its_jobs_is_not_over_in_a_new_life(world: KubernetesWorld) -> None:
    pods = gang("g", 2, scheduler=OWN)
    for document in pods:
        del document["metadata"]["annotations"][names.GANG]
    job = job_of(pods)
    await make_job(world, job, pods)
    world.host.kube.groups["/apis/batch/v1/namespaces/default/jobs/g"] = job
    await come(world, *pods)
    await world.step()
    world.host.kube.put_job(job | {"status": {"active": 2}})
    world.start_adapter()
    await world.step()
    assert world.kinds(key_of(world)) == ["STARTED"]
    assert key_of(world) in world.oracle.held


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"suspend": True}},
        {"spec": {"parallelism": 0}},
        {"status": {"active": 1}},
        {"status": {"failed": 1}},
        {"status": {"conditions": [{"type": "Complete", "status": "True"}]}},
        {"metadata": {"deletionTimestamp": "2026-11-22T00:00:00Z"}},
        {"spec": {"template": {"spec": {}}}},
        {"spec": {"template": {"metadata": None, "spec": {}}}},
    ],
)
async def test_a_job_that_will_make_no_first_pod_is_not_decided(world: KubernetesWorld, change: dict[str, Any]) -> None:
    job = job_of(gang("g", 2, scheduler=OWN))
    for part, values in change.items():
        job[part] = job.get(part, {}) | values
    world.host.kube.put_job(job)
    await world.host.kube.seen()
    await world.step()
    assert world.asked("place") == []


async def test_a_job_that_was_there_before_is_decided_by_its_pods(world: KubernetesWorld) -> None:
    pods = gang("g", 2, scheduler=OWN)
    job = world.host.kube.put_job(job_of(pods))
    world.start_adapter()
    await world.step()
    await make_job(world, job, pods)  # a change of something
    assert world.asked("place") == []
    await come(world, *pods)
    await world.step()
    assert bound(world) == world.decided_nodes(key_of(world))


async def test_a_suspended_job_is_decided_when_it_is_resumed_and_cancelled_when_it_is_suspended(
    world: KubernetesWorld,
) -> None:
    pods = gang("g", 2, scheduler=OWN)
    job = job_of(pods, suspend=True)
    await make_job(world, job, pods)
    job["spec"]["suspend"] = False
    await make_job(world, job, pods)
    assert len(world.oracle.held) == 1
    job["spec"]["suspend"] = True
    await make_job(world, job, pods)
    assert world.oracle.held == {}
    job["spec"]["suspend"] = False
    await make_job(world, job, pods)
    assert len(world.oracle.held) == 1


async def test_a_job_that_is_scaled_to_none_is_decided_when_it_has_a_size(world: KubernetesWorld) -> None:
    pods = gang("g", 3, scheduler=OWN)
    for document in pods:
        del document["metadata"]["annotations"][names.GANG]
    job = job_of(pods, parallelism=0)
    await make_job(world, job, pods)
    assert world.asked("place") == []
    for size in (2, 0, 3):
        job["spec"]["parallelism"] = size
        await make_job(world, job, pods)
        assert [len(held.assignments) for held in world.oracle.held.values()] == [size] * (size > 0)
    await come(world, *pods)
    assert len(bound(world)) == 3
    await world.step()
    assert bound(world) == world.decided_nodes(key_of(world))


async def test_pods_of_a_job_are_one_gang_although_it_was_scaled_to_none_meanwhile(
    world: KubernetesWorld,
) -> None:
    pods = gang("g", 3, scheduler=ASKS)
    for document in pods:
        del document["metadata"]["annotations"][names.GANG]
    await make_job(world, job_of(pods, parallelism=0), pods)
    await come(world, *pods)
    await world.step()
    await world.step()
    assert len(world.decided_nodes(key_of(world))) == 3


async def test_a_job_that_is_deleted_before_it_made_a_pod_holds_nothing(world: KubernetesWorld) -> None:
    pods = gang("g", 2, scheduler=OWN)
    await make_job(world, job_of(pods), pods)
    assert len(world.oracle.held) == 1
    key = key_of(world)
    world.host.kube.remove_job("g")
    await world.host.kube.seen()
    await world.loop.run_pass(full=False)
    assert world.kinds(key) == ["CANCELLED"]
    assert world.oracle.held == {}
    assert world.host.native.pods.book.gangs == {}


@pytest.mark.parametrize("scheduler", [OWN, ASKS])
async def test_what_is_held_for_pods_that_do_not_come_is_held_once(world: KubernetesWorld, scheduler: str) -> None:
    pods = gang("g", 2, scheduler=scheduler)
    await make_job(world, job_of(pods), pods)
    world.clock.advance(SETTINGS.start_timeout_s + 1)
    for full in (False, False, True, True):
        await world.loop.run_pass(full=full)
        world.clock.advance(SETTINGS.retry_s)
    assert world.oracle.held == {}
    assert len(world.asked("place")) == 1
    await come(world, *pods)
    await world.step()
    assert len(world.asked("place")) == 2
    assert bound(world) == world.decided_nodes(key_of(world))


async def test_a_job_without_pods_does_not_stand_in_the_queue_for_ever(world: KubernetesWorld) -> None:
    world.oracle.waits.add("*")
    pods = gang("g", 2, scheduler=OWN)
    await make_job(world, job_of(pods), pods)
    first = key_of(world)
    world.host.native.pods.book.gangs[first].asked_at_s -= JOB_FORGOTTEN_S + 1
    world.oracle.waits.clear()
    await world.loop.run_pass(full=False)
    assert world.kinds(first) == ["SUBMITTED", "CANCELLED"]
    assert world.asked("place") == []
    await come(world, *pods)
    await world.step()
    assert bound(world) == world.decided_nodes(key_of(world))
    assert key_of(world) != first


@pytest.mark.parametrize("scheduler", [OWN, ASKS])
async def test_what_the_service_could_not_say_of_a_job_it_is_asked_of_its_pods(
    world: KubernetesWorld, scheduler: str
) -> None:
    world.oracle.fail_always = StateUnavailableError("away")
    pods = gang("g", 2, scheduler=scheduler)
    await make_job(world, job_of(pods), pods)
    for _ in range(3):
        world.clock.advance(SETTINGS.release_after_s)
        await world.loop.run_pass(full=False)
    assert [verb for verb, _ in world.host.changes] == ["release"]
    world.oracle.fail_always = None
    await come(world, *pods)
    for _ in range(2):
        world.clock.advance(SETTINGS.retry_s)
        await world.step()
    assert bound(world) == world.decided_nodes(key_of(world))


async def test_pods_that_ask_for_more_than_their_job_said_have_it_decided_anew(world: KubernetesWorld) -> None:
    pods = gang("g", 2, gpus=1, scheduler=OWN)
    await make_job(world, job_of(pods), pods)
    larger = gang("g", 2, gpus=8, scheduler=OWN)
    for document, plain in zip(larger, pods, strict=True):
        document["metadata"]["ownerReferences"] = plain["metadata"]["ownerReferences"]
    await come(world, *larger)
    for _ in range(3):
        await world.step()
    assert len(set(bound(world))) == 2
    assert bound(world) == world.decided_nodes(key_of(world))


async def test_where_jobs_may_not_be_read_pods_are_decided_all_the_same(
    world: KubernetesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = world.host.kube.list_all

    async def refused(path: str, *read: Any) -> Any:
        if path == JOBS:
            raise KubeError(403, "Forbidden", "jobs")
        return await listing(path, *read)

    monkeypatch.setattr(world.host.kube, "list_all", refused)
    world.start_adapter()
    pods = gang("g", 2, scheduler=OWN)
    await come(world, *pods)
    await world.step()
    assert len(bound(world)) == 2


async def test_pods_made_when_all_of_the_first_had_failed_are_another_gang(world: KubernetesWorld) -> None:
    pods = gang("g", 2, scheduler=OWN)
    await make_job(world, job_of(pods), pods)
    first = key_of(world)
    await come(world, *pods)
    await world.step()
    for path in list(world.host.kube.pods):
        world.host.kube.set_phase(path, "Failed")
    await world.host.kube.seen()
    await world.step()
    for document in pods:
        document["metadata"]["name"] += "-again"
    await come(world, *pods)
    await world.step()
    second = next(key for key in world.host.native.pods.book.gangs if key != first)
    assert world.kinds(first) == ["STARTED", "FAILED"]
    assert world.kinds(second) == ["STARTED"]


async def test_a_pod_that_comes_to_a_waiting_gang_is_told_why(world: KubernetesWorld) -> None:
    world.oracle.waits.add("*")
    pods = gang("g", 2, scheduler=OWN)
    await make_job(world, job_of(pods), pods)
    await come(world, *pods)
    await world.host.native.writer.drain()
    reported = {event["involvedObject"]["name"] for event in world.host.kube.events if "drift" in event["message"]}
    assert reported == {"g-0", "g-1"}


async def test_an_incomplete_gang_that_nobody_replaces_is_held_once(world: KubernetesWorld) -> None:
    first, second = gang("g", 2, scheduler=OWN)
    await come(world, first)
    await world.step()
    assert len(world.oracle.held) == 1
    world.clock.advance(SETTINGS.start_timeout_s + 1)
    for full in (False, False, True, True):
        await world.loop.run_pass(full=full)
        world.clock.advance(SETTINGS.retry_s)
    assert world.oracle.held == {}
    assert len(world.asked("place")) == 1
    await come(world, second)
    await world.step()
    assert len(bound(world)) == 2
    assert await world.host.stage(key_of(world)) is Stage.RUNNING
