"""PodGroups and vcjobs as they are watched: sizes and roles, deletion, and the name of a gang through a restart."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.contract.adapters.test_kubernetes_conformance import KubernetesWorld, small_world
from tests.contract.adapters.test_volcano_conformance import SCHEDULER, VolcanoScheduler
from tests.e2e.kubernetes.kubernetes_cluster import pod
from tests.fakes.schedulers.kubernetes_api import POD_GROUPS, VOLCANO_GROUPS, VOLCANO_JOBS

from placewise_client.adapter.native import End, Stage
from placewise_kubernetes.faces.volcano import PERMIT, REJECT, VolcanoExtender
from placewise_kubernetes.gang.spec import Source
from placewise_kubernetes.host import GROUP_UNSHOWN_S
from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.client import KubeError

JOB_UID, GROUP_UID = "0a1b2c3d-job", "4e5f6071-group"
KEY = "default/train-0a1b2c3d-job/0a1b2c3d"
GROUP = "train-0a1b2c3d-job"
OWNER = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "train", "uid": JOB_UID, "controller": True}


@pytest.fixture
async def world() -> AsyncIterator[KubernetesWorld]:
    host = VolcanoScheduler()
    host.kube.served = {VOLCANO_GROUPS, VOLCANO_JOBS, POD_GROUPS}
    async with small_world(host) as world:
        yield world


def task(name: str, replicas: int, gpus: int, **fields: Any) -> dict[str, Any]:
    """A task of a vcjob."""
    spec = pod(name, gpus=gpus, scheduler=SCHEDULER)["spec"]
    return {"name": name, "replicas": replicas, "template": {"metadata": {}, "spec": spec}, **fields}


def put_job(world: KubernetesWorld, *tasks: dict[str, Any], least: int | None = None) -> None:
    """Makes the vcjob `train` and its PodGroup, or changes them, as Volcano's controller does."""
    kube, total = world.host.kube, least or sum(item["replicas"] for item in tasks)
    job = {"metadata": {"name": "train", "uid": JOB_UID}, "spec": {"minAvailable": total, "tasks": list(tasks)}}
    kube.put_object(VOLCANO_JOBS, job)
    gpus = sum(item["replicas"] * _gpus(item) for item in tasks)
    by_task = {item["name"]: item.get("minAvailable", item["replicas"]) for item in tasks}
    spec = {"minMember": total, "minTaskMember": by_task, "minResources": {"cpu": str(total), "nvidia.com/gpu": gpus}}
    put_group(world, spec)


def put_group(world: KubernetesWorld, spec: dict[str, Any], phase: str = "Pending") -> None:
    metadata = {"name": GROUP, "uid": GROUP_UID, "ownerReferences": [OWNER]}
    world.host.kube.put_object(VOLCANO_GROUPS, {"metadata": metadata, "spec": spec, "status": {"phase": phase}})


def set_phase(world: KubernetesWorld, phase: str) -> None:
    (path,) = (path for path in world.host.kube.groups if path.endswith(f"podgroups/{GROUP}"))
    put_group(world, world.host.kube.groups[path]["spec"], phase)


def make_pods(world: KubernetesWorld, role: str, count: int, gpus: int, owner: dict[str, Any] | None = OWNER) -> None:
    notes = {names.VOLCANO_GROUP: GROUP, names.VOLCANO_TASK: role}
    for index in range(count):
        document = pod(f"train-{role}-{index}", gpus=gpus, annotations=notes, scheduler=SCHEDULER)
        document["metadata"]["ownerReferences"] = [owner] if owner else []
        world.host.kube.add_pod(document)


async def ask(world: KubernetesWorld, group: str = GROUP) -> int:
    """Volcano's jobEnqueueable, asked a second time after the adapter's next look."""
    await world.host.kube.seen()
    extender = VolcanoExtender(world.host.native, 0.0)
    await extender.job_enqueueable({"job": {"Namespace": "default", "Name": group}})
    await world.loop.run_pass(full=False)
    return (await extender.job_enqueueable({"job": {"Namespace": "default", "Name": group}}))["status"]


async def bind_as_decided(world: KubernetesWorld, key: str = KEY) -> None:
    """Volcano asks prioritize for each pod, and binds it there."""
    await world.host.kube.seen()
    extender = VolcanoExtender(world.host.native, 0.0)
    for path, document in world.host.kube.pods.items():
        task_info = {"UID": document["metadata"]["uid"], "Job": f"default/{GROUP}"}
        nodes = [{"Name": f"n{index}"} for index in range(1, 5)]
        answer = await extender.prioritize({"task": task_info, "nodes": nodes})
        (node,) = answer["nodeScore"]
        world.host.kube.bind(path, node, {})
    await world.host.kube.seen()


def asked(world: KubernetesWorld) -> list[tuple[int, float]]:
    """(count, GPUs) of each group of the last question."""
    return [(group.count, group.demand.gpus) for group in world.asked("place")[-1].jobs[0].groups]


async def end_pods(world: KubernetesWorld, phase: str = "Succeeded") -> None:
    for path in list(world.host.kube.pods):
        world.host.kube.set_phase(path, phase)
    await world.host.kube.seen()


def _gpus(item: dict[str, Any]) -> int:
    return int(item["template"]["spec"]["containers"][0]["resources"]["limits"].get("nvidia.com/gpu", 0))


# --- sizes and roles ------------------------------------------------------------------------------------------------


async def test_unequal_roles_are_asked_for_as_the_vcjob_has_them(world: KubernetesWorld) -> None:
    put_job(world, task("launcher", 1, 1), task("worker", 3, 8))
    assert await ask(world) == PERMIT
    assert asked(world) == [(1, 1), (3, 8)]
    make_pods(world, "launcher", 1, 1)
    make_pods(world, "worker", 3, 8)
    await bind_as_decided(world)
    on_nodes = Counter(document["spec"]["nodeName"] for document in world.host.kube.pods.values())
    assert sorted(on_nodes.elements()) == world.decided_nodes(KEY)
    assert len(world.asked("place")) == 1


async def test_a_role_without_gpus_is_asked_for_without(world: KubernetesWorld) -> None:
    put_job(world, task("master", 1, 0), task("worker", 3, 8))
    await ask(world)
    assert asked(world) == [(1, 0), (3, 8)]


@pytest.mark.parametrize("least", [{}, {"minAvailable": 2}])
async def test_of_an_elastic_vcjob_what_starts_together_is_the_gang(
    world: KubernetesWorld, least: dict[str, int]
) -> None:
    put_job(world, task("worker", 4, 2, **least), least=2)
    await ask(world)
    assert asked(world) == [(2, 2)]


async def test_without_its_vcjob_a_groups_sum_is_cut_for_as_many_pods_as_it_is_of(world: KubernetesWorld) -> None:
    world.host.kube.served.discard(VOLCANO_JOBS)
    world.start_adapter()
    await world.loop.run_pass(full=True)
    least = {"cpu": "2", "nvidia.com/gpu": "4"}
    put_group(world, {"minMember": 2, "minTaskMember": {"worker": 4}, "minResources": least})
    await ask(world)
    assert asked(world) == [(2, 2)]


async def test_a_vcjob_of_another_shape_leaves_its_group_as_it_is(
    world: KubernetesWorld, caplog: pytest.LogCaptureFixture
) -> None:
    odd = {"metadata": {"name": "train", "uid": JOB_UID}, "spec": {"tasks": [{"replicas": 2}]}}
    world.host.kube.put_object(VOLCANO_JOBS, odd)
    put_group(world, {"minMember": 2, "minResources": {"nvidia.com/gpu": "8"}})
    await ask(world)
    assert asked(world) == [(2, 4)]
    assert "vcjob train cannot be read" in caplog.text


@pytest.mark.parametrize("is_waiting", [True, False])
async def test_a_vcjob_that_shrinks_before_its_pods_is_decided_as_it_is_then(
    world: KubernetesWorld, is_waiting: bool
) -> None:
    if is_waiting:
        world.oracle.waits.add("*")
    put_job(world, task("worker", 4, 8))
    assert await ask(world) == (REJECT if is_waiting else PERMIT)
    world.oracle.waits.clear()
    put_job(world, task("worker", 2, 4))
    world.clock.advance(2)
    assert await ask(world) == PERMIT
    assert asked(world) == [(2, 4)]
    assert len(world.oracle.held[KEY].assignments) == 2


async def test_news_of_a_group_that_do_not_change_its_size_leave_the_decision(world: KubernetesWorld) -> None:
    put_job(world, task("worker", 2, 8))
    await ask(world)
    set_phase(world, "Inqueue")
    assert await ask(world) == PERMIT
    assert len(world.asked("place")) == 1


async def test_pods_that_need_more_than_their_vcjob_said_have_the_gang_decided_again(world: KubernetesWorld) -> None:
    put_job(world, task("worker", 2, 1))
    await ask(world)
    make_pods(world, "worker", 2, 8)
    await world.host.kube.seen()
    for _ in range(2):
        await world.loop.run_pass(full=False)
    assert asked(world) == [(2, 8)]


async def test_a_group_that_grows_while_its_pods_wait_is_decided_as_it_is_then(world: KubernetesWorld) -> None:
    world.oracle.waits.add("*")
    put_group(world, {"minMember": 1})
    make_pods(world, "worker", 1, 8, owner=None)
    await world.host.kube.seen()
    await world.loop.run_pass(full=False)
    put_group(world, {"minMember": 3})
    world.oracle.waits.clear()
    world.clock.advance(2)
    await world.host.kube.seen()
    await world.loop.run_pass(full=False)
    assert asked(world) == [(3, 8)]


# --- deletion -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deleted", ["vcjob", "group"])
async def test_what_is_deleted_before_it_has_pods_holds_nothing(world: KubernetesWorld, deleted: str) -> None:
    put_job(world, task("worker", 4, 8))
    assert await ask(world) == PERMIT
    await _delete(world, deleted)
    assert world.oracle.held == {}
    assert world.kinds(KEY) == ["CANCELLED"]
    other = await world.host.submit(4, 8)
    await world.step()
    assert len(await world.host.where(other)) == 4


async def test_a_group_that_is_left_of_a_deleted_vcjob_is_not_held_again(world: KubernetesWorld) -> None:
    put_job(world, task("worker", 4, 8))
    await ask(world)
    await _delete(world, "vcjob")
    assert [await ask(world) for _ in range(3)] == [REJECT] * 3  # until the garbage collector takes it
    set_phase(world, "Inqueue")
    world.start_adapter()
    await world.loop.run_pass(full=True)
    assert world.oracle.held == {}


async def test_a_vcjob_that_is_being_deleted_holds_nothing(world: KubernetesWorld) -> None:
    put_job(world, task("worker", 4, 8))
    await ask(world)
    metadata = {"name": "train", "uid": JOB_UID, "deletionTimestamp": "2026-11-21T00:00:00Z"}
    world.host.kube.put_object(VOLCANO_JOBS, {"metadata": metadata, "spec": {}})
    await world.host.kube.seen()
    await world.loop.run_pass(full=False)
    assert world.oracle.held == {}


async def test_a_group_of_the_same_name_is_asked_for_as_it_is_itself(world: KubernetesWorld) -> None:
    def put(uid: str, members: int) -> None:
        least = {"minMember": members, "minResources": {"nvidia.com/gpu": str(members * 8)}}
        world.host.kube.put_object(VOLCANO_GROUPS, {"metadata": {"name": "bare", "uid": uid}, "spec": least})

    put("11111111-a", 4)
    await ask(world, "bare")
    await world.host.set_reachable(False)
    world.host.kube.remove_object(VOLCANO_GROUPS, "bare")
    put("22222222-b", 2)
    await world.host.set_reachable(True)
    await world.loop.run_pass(full=True)
    assert world.kinds("default/bare/11111111") == ["CANCELLED"]
    assert await ask(world, "bare") == PERMIT
    assert {key: len(held.assignments) for key, held in world.oracle.held.items()} == {"default/bare/22222222": 2}


async def test_a_group_deleted_while_it_was_being_read_is_forgotten_soon(
    world: KubernetesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server's answer was on its way when the watch showed the end."""

    async def answer_late(path: str, **_: str) -> dict[str, Any]:
        return {"metadata": {"name": "bare", "uid": GROUP_UID}, "spec": {"minMember": 4}}

    monkeypatch.setattr(world.host.kube, "get", answer_late)
    assert await ask(world, "bare") == PERMIT
    (gang,) = world.host.native.pods.book.gangs.values()
    gang.asked_at_s -= GROUP_UNSHOWN_S + 1
    await world.loop.run_pass(full=False)
    assert world.oracle.held == {}


async def _delete(world: KubernetesWorld, what: str) -> None:
    collection, name = (VOLCANO_JOBS, "train") if what == "vcjob" else (VOLCANO_GROUPS, GROUP)
    world.host.kube.remove_object(collection, name)
    await world.host.kube.seen()
    await world.loop.run_pass(full=False)


# --- restart --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["Inqueue", "Running"])
async def test_a_running_gang_keeps_its_name_through_a_restart(world: KubernetesWorld, phase: str) -> None:
    put_job(world, task("worker", 2, 8))
    await ask(world)
    make_pods(world, "worker", 2, 8)
    await bind_as_decided(world)
    await world.loop.run_pass(full=True)
    set_phase(world, phase)
    world.start_adapter()
    await world.loop.run_pass(full=True)
    await end_pods(world)
    await world.loop.run_pass(full=True)
    assert [(event.job_id, event.kind) for event in world.oracle.events] == [(KEY, 2), (KEY, 4)]
    assert world.oracle.held == {}


async def test_a_completed_vcjob_whose_group_is_gone_is_not_told_under_another_name(world: KubernetesWorld) -> None:
    put_job(world, task("worker", 2, 8))
    await ask(world)
    make_pods(world, "worker", 2, 8)
    await bind_as_decided(world)
    await world.loop.run_pass(full=True)
    await end_pods(world)
    await world.loop.run_pass(full=True)
    world.host.kube.remove_object(VOLCANO_GROUPS, GROUP)
    for _ in range(2):
        world.start_adapter()
        for _ in range(2):
            await world.host.kube.seen()
            await world.loop.run_pass(full=True)
    assert [(event.job_id, event.kind) for event in world.oracle.events] == [(KEY, 2), (KEY, 4)]


async def test_a_group_that_nobody_owns_names_its_gang_also_after_a_restart(world: KubernetesWorld) -> None:
    metadata = {"name": GROUP, "uid": GROUP_UID}
    least = {"minMember": 2, "minResources": {"nvidia.com/gpu": "16"}}
    world.host.kube.put_object(VOLCANO_GROUPS, {"metadata": metadata, "spec": least})
    await ask(world)
    key = f"default/{GROUP}/{GROUP_UID[:8]}"
    make_pods(world, "worker", 2, 8, owner=None)
    await bind_as_decided(world, key)
    await world.loop.run_pass(full=True)
    world.start_adapter()
    await world.loop.run_pass(full=True)
    assert [(event.job_id, event.kind) for event in world.oracle.events] == [(key, 2)]


async def test_a_group_let_in_before_the_restart_keeps_its_place_until_its_pods_come(world: KubernetesWorld) -> None:
    put_job(world, task("worker", 2, 8))
    assert await ask(world) == PERMIT
    before = world.decided_nodes(KEY)
    set_phase(world, "Inqueue")  # Volcano asks about it no more
    world.start_adapter()
    await world.loop.run_pass(full=True)
    other = await world.host.submit(2, 8)
    await world.loop.run_pass(full=True)
    make_pods(world, "worker", 2, 8)
    await bind_as_decided(world)
    assert sorted(document["spec"]["nodeName"] for document in world.host.kube.pods.values()) == before
    assert not set(world.decided_nodes(other)) & set(before)
    assert len(world.oracle.decided[KEY]) == 1


@pytest.mark.parametrize("collection", [VOLCANO_GROUPS, POD_GROUPS])
async def test_pods_shown_before_their_group_take_its_name(world: KubernetesWorld, collection: str) -> None:
    note = names.VOLCANO_GROUP if collection == VOLCANO_GROUPS else names.POD_GROUP_LABELS[0]
    group = {"metadata": {"name": "late", "uid": "33333333-c"}, "spec": {"minMember": 2}}
    world.host.kube.is_reachable = False  # it cannot be read either
    for index in range(2):
        world.host.kube.add_pod(pod(f"late-{index}", labels={note: "late"}, annotations={note: "late"}))
    await world.host.kube.seen()
    await world.loop.run_pass(full=False)
    assert world.asked("admit_or_wait") == []
    world.host.kube.is_reachable = True
    world.host.kube.put_object(collection, group)
    await world.host.kube.seen()
    await world.loop.run_pass(full=False)
    assert list(world.oracle.held) == ["default/late/33333333"]


async def test_pods_of_volcanos_that_come_before_their_group_are_decided_with_it(world: KubernetesWorld) -> None:
    """Volcano starts none of them before it is there. The API server says at once that it is not."""
    for index in range(2):
        notes = {names.VOLCANO_GROUP: "late"}
        world.host.kube.add_pod(pod(f"late-{index}", annotations=notes, scheduler=SCHEDULER))
    for _ in range(2):
        await world.host.kube.seen()
        await world.step()
    assert world.asked("admit_or_wait") == []
    group = {"metadata": {"name": "late", "uid": "33333333-c"}, "spec": {"minMember": 2}}
    world.host.kube.put_object(VOLCANO_GROUPS, group)
    await world.host.kube.seen()
    await world.step()
    assert list(world.oracle.held) == ["default/late/33333333"]


# --- collections not served -----------------------------------------------------------------------------------------


async def test_groups_that_are_not_served_are_said_once_and_looked_for_again(
    world: KubernetesWorld, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placewise_kubernetes.kube.watch.ABSENT_S", 0.01)
    caplog.set_level(logging.INFO)
    world.host.kube.served.clear()
    world.start_adapter()
    await world.loop.run_pass(full=True)  # that nodes and pods are listed is enough
    await asyncio.sleep(0.1)
    printed = [record for record in caplog.records if "is not watched" in record.getMessage()]
    assert len(printed) == 9
    world.host.kube.served.add(VOLCANO_GROUPS)
    while not world.host.native.are_groups_watched(Source.VOLCANO):  # noqa: ASYNC110 nobody tells
        await asyncio.sleep(0.01)
    assert not world.host.native.are_groups_watched(Source.VOLCANO_JOB)


async def test_what_may_not_be_listed_is_read_by_name(world: KubernetesWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(path: str, *read: Any) -> Any:
        if path in world.host.kube.served:
            raise KubeError(403, "Forbidden", path)
        return await listed(path, *read)

    listed = world.host.kube.list_all
    monkeypatch.setattr(world.host.kube, "list_all", refuse)
    world.start_adapter()
    await world.loop.run_pass(full=True)
    key = await world.host.submit(2, 8)
    await world.step()
    assert await world.host.where(key) == world.decided_nodes(key)
    await world.host.end(key, End.FINISHED)
    assert await world.host.stage(key) is Stage.ENDED


async def test_forged_groups_and_vcjobs_make_no_gang(world: KubernetesWorld) -> None:
    extender = VolcanoExtender(world.host.native, 0.0)
    forged = {"Namespace": "default", "Name": "ghost", "MinAvailable": 4, "PodGroup": {"spec": {"minMember": 4}}}
    assert (await extender.job_enqueueable({"job": forged}))["status"] == 0
    put_job(world, task("worker", 2, 8))
    await ask(world)
    await _delete(world, "group")
    assert (await extender.job_enqueueable({"job": {"Namespace": "default", "Name": GROUP}}))["status"] == 0
    await world.loop.run_pass(full=True)
    assert world.host.native.pods.book.gangs == {}
    assert world.oracle.held == {}
