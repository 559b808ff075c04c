"""PodGroups of Kubernetes itself: their size, their name through restarts, and what belongs to the pod's scheduler."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.contract.adapters.suite.adapter_world import SETTINGS
from tests.contract.adapters.test_gates_conformance import GatedScheduler
from tests.contract.adapters.test_kubernetes_conformance import KubernetesScheduler, KubernetesWorld, small_world
from tests.contract.adapters.test_kubernetes_jobs import job_of
from tests.e2e.kubernetes.kubernetes_cluster import gang, pod
from tests.fakes.schedulers.kubernetes_api import NATIVE_GROUPS

from placewise_client.adapter.native import End
from placewise_kubernetes.gang.spec import GangRules
from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.client import KubeError

OWN, ASKS, GATES = GangRules().own_scheduler, "default-scheduler", "gates"
KEY = "default/a/11111111"
JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "22222222-j", "controller": True}


@pytest.fixture(params=[ASKS, OWN, GATES])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[KubernetesWorld]:
    """Pods start by the extender, by our own scheduler name, or by gates."""
    host = GatedScheduler() if request.param == GATES else KubernetesScheduler(request.param)
    host.kube.served.add(NATIVE_GROUPS)
    async with small_world(host) as world:
        yield world


def scheduler_of(world: KubernetesWorld) -> str:
    return OWN if world.host._scheduler == OWN else ASKS


async def put_group(
    world: KubernetesWorld, policy: dict[str, Any], *owners: dict[str, Any], uid: str = "11111111-a"
) -> None:
    metadata = {"name": "a", "uid": uid, "ownerReferences": list(owners)}
    world.host.kube.put_object(NATIVE_GROUPS, {"metadata": metadata, "spec": {"schedulingPolicy": policy}})
    await world.host.kube.seen()


def of_size(count: int) -> dict[str, Any]:
    return {"gang": {"minCount": count}}


def members(world: KubernetesWorld, count: int, *, gpus: int = 8, first: int = 0) -> list[dict[str, Any]]:
    """Pods that name the PodGroup; by gates they carry a job label each, for which the policy puts our gate on."""
    labels = {names.JOB: "labelled"} if isinstance(world.host, GatedScheduler) else {}
    made = [pod(f"a-{index}", gpus=gpus, labels=labels, scheduler=scheduler_of(world)) for index in range(first, count)]
    for document in made:
        document["spec"]["schedulingGroup"] = {"podGroupName": "a"}
    return made


async def come(world: KubernetesWorld, documents: list[dict[str, Any]]) -> None:
    for document in documents:
        world.host.kube.add_pod(document)
    await world.host.kube.seen()


def nodes(world: KubernetesWorld) -> list[str]:
    return sorted(document["spec"]["nodeName"] for document in world.host.kube.pods.values() if _is_bound(document))


def _is_bound(document: dict[str, Any]) -> bool:
    return bool(document["spec"].get("nodeName"))


async def test_a_gang_has_the_size_and_the_uid_of_its_group(world: KubernetesWorld) -> None:
    await put_group(world, of_size(3))
    await come(world, members(world, 3))
    await world.step()
    await world.step()
    assert list(world.oracle.held) == [KEY]
    assert nodes(world) == world.decided_nodes(KEY)
    assert len(nodes(world)) == 3
    assert len(world.asked("place")) == 1


async def test_a_controllers_uid_names_the_gang_through_a_restart_and_it_is_told_once(world: KubernetesWorld) -> None:
    await put_group(world, of_size(2), JOB)
    await come(world, members(world, 2))
    await world.step()
    await world.step()
    key = "default/a/22222222"
    assert world.kinds(key) == ["STARTED"]
    world.start_adapter()
    await world.step()
    assert world.kinds(key) == ["STARTED"]
    for path in list(world.host.kube.pods):
        world.host.kube.set_phase(path, "Succeeded")
    await world.host.kube.seen()
    await world.step()
    assert world.kinds(key) == ["STARTED", "FINISHED"]
    assert len(world.oracle.decided[key]) == 1


async def test_nothing_is_bound_before_there_is_room_for_all(world: KubernetesWorld) -> None:
    await world.host.occupy("n1", 8)
    await put_group(world, of_size(4))
    await come(world, members(world, 4))
    await world.step()
    assert nodes(world) == ["n1"]  # the other pod
    assert not any(pod["spec"].get("affinity") for pod in world.host.kube.pods.values())
    world.host.kube.remove_pod("/api/v1/namespaces/default/pods/taken1")
    await world.host.kube.seen()
    world.clock.advance(SETTINGS.retry_s)
    await world.step()
    await world.step()
    assert nodes(world) == world.decided_nodes(KEY) == ["n1", "n2", "n3", "n4"]


@pytest.mark.parametrize("world", [OWN], indirect=True)
async def test_our_own_scheduler_name_binds_none_before_all_exist(world: KubernetesWorld) -> None:
    """Pods of a controller would be bound as they come, were it not for their PodGroup."""
    await put_group(world, of_size(3))
    documents = members(world, 3)
    for document in documents:
        document["metadata"]["ownerReferences"] = [JOB]
    await come(world, documents[:2])
    await world.step()
    assert len(world.oracle.held[KEY].assignments) == 3
    assert nodes(world) == []
    await come(world, documents[2:])
    await world.step()
    assert nodes(world) == world.decided_nodes(KEY)


async def test_pods_of_a_basic_group_are_no_gang(world: KubernetesWorld) -> None:
    await put_group(world, {"basic": {}})
    documents = members(world, 2)
    for document in documents:
        document["metadata"]["labels"] = {names.JOB: document["metadata"]["name"]}
    await come(world, documents[:1])
    await world.step()
    await world.step()
    assert len(nodes(world)) == 1
    await come(world, documents[1:])
    await world.step()
    await world.step()
    assert len(nodes(world)) == 2
    assert sorted(key.split("/")[1] for key in world.oracle.held) == ["a-0", "a-1"]


async def test_pods_beyond_the_size_are_decided_one_by_one(world: KubernetesWorld) -> None:
    await come(world, members(world, 3))  # shown before their group
    await put_group(world, of_size(2))
    for _ in range(3):
        await world.step()
    assert sorted(len(held.assignments) for held in world.oracle.held.values()) == [1, 2]
    assert len(set(nodes(world))) == 3


async def test_pods_shown_before_their_group_wait_for_it(world: KubernetesWorld) -> None:
    await come(world, members(world, 1))
    for _ in range(2):
        await world.step()
    assert world.asked("place") == []
    await put_group(world, of_size(2))
    await come(world, members(world, 2, first=1))
    await world.step()
    await world.step()
    assert list(world.oracle.held) == [KEY]
    assert nodes(world) == world.decided_nodes(KEY)


async def test_a_waiting_gang_has_the_size_that_its_group_has_then(world: KubernetesWorld) -> None:
    world.oracle.waits.add("*")
    await put_group(world, of_size(2))
    await come(world, members(world, 2))
    await world.step()
    await put_group(world, of_size(3))
    await come(world, members(world, 3, first=2))
    world.oracle.waits.clear()
    world.clock.advance(SETTINGS.retry_s)
    await world.step()
    await world.step()
    assert len(world.decided_nodes(KEY)) == 3
    assert nodes(world) == world.decided_nodes(KEY)


async def test_a_group_that_was_deleted_and_made_again_is_another_gang(world: KubernetesWorld) -> None:
    await put_group(world, of_size(2))
    await come(world, members(world, 2))
    await world.step()
    for path in list(world.host.kube.pods):
        world.host.kube.remove_pod(path)
    world.host.kube.remove_object(NATIVE_GROUPS, "a")
    await world.host.kube.seen()
    await world.step()
    assert world.oracle.held == {}
    await put_group(world, of_size(1), uid="33333333-a")
    await come(world, members(world, 1))
    await world.step()
    assert list(world.oracle.held) == ["default/a/33333333"]


async def test_labels_do_not_part_what_the_scheduler_starts_together(world: KubernetesWorld) -> None:
    await put_group(world, of_size(2))
    documents = members(world, 2)
    for document in documents:
        document["metadata"]["labels"] = {names.JOB: document["metadata"]["name"]}
    await come(world, documents)
    await world.step()
    assert list(world.oracle.held) == [KEY]


async def test_a_group_that_may_not_be_listed_is_read_by_name(
    world: KubernetesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = world.host.kube.list_all

    async def refused(path: str, *read: Any) -> Any:
        if path == NATIVE_GROUPS:
            raise KubeError(403, "Forbidden", path)
        return await listing(path, *read)

    monkeypatch.setattr(world.host.kube, "list_all", refused)
    world.start_adapter()
    await world.loop.run_pass(full=True)
    await put_group(world, of_size(2))
    await come(world, members(world, 2))
    for _ in range(3):
        await world.step()
    assert list(world.oracle.held) == [KEY]
    assert nodes(world) == world.decided_nodes(KEY)


@pytest.mark.parametrize("world", [ASKS, OWN], indirect=True)
async def test_without_the_feature_gate_the_stored_pods_are_no_gang_and_the_log_says_so(
    world: KubernetesWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """The API server drops the field in silence: the pods as they are stored count, never the intention."""
    caplog.set_level(logging.INFO)
    world.host.kube.served.clear()
    world.start_adapter()
    await world.loop.run_pass(full=True)
    first, second = members(world, 2)
    for document in (first, second):
        document["metadata"]["labels"] = {names.JOB: document["metadata"]["name"]}
    await come(world, [first])
    await world.step()
    assert [key.split("/")[1] for key in world.oracle.held] == ["a-0"]
    assert len(nodes(world)) == 1
    assert any(f"{NATIVE_GROUPS} is not watched" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("world", [OWN], indirect=True)
@pytest.mark.parametrize("spec", [{"scheduling": {"schedulingPolicy": of_size(2)}}, {}])
async def test_a_job_for_which_a_group_is_made_is_not_decided_under_its_label_as_well(
    world: KubernetesWorld, spec: dict[str, Any]
) -> None:
    pods = gang("g", 2, scheduler=OWN)
    if not spec:
        pods[0]["spec"]["schedulingGroup"] = {"podGroupName": "a"}
    world.host.kube.put_job(job_of(pods, **spec))
    await world.host.kube.seen()
    await world.step()
    assert world.asked("place") == []


async def test_a_running_gang_whose_group_is_gone_is_not_over_in_a_new_life(world: KubernetesWorld) -> None:
    await put_group(world, of_size(2))
    await come(world, members(world, 2))
    await world.step()
    await world.step()
    world.host.kube.remove_object(NATIVE_GROUPS, "a")
    world.start_adapter()
    await world.step()
    kinds = [kind for key in world.oracle.decided for kind in world.kinds(key)]
    assert End.CANCELLED.name not in kinds
    assert nodes(world) == world.decided_nodes(KEY)
