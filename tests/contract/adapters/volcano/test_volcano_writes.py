"""What the adapter tells Volcano and its users: nodes to try first, why a PodGroup waits, and queues that are full."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contract.adapters.suite.adapter_world import Clock
from tests.contract.adapters.test_kubernetes_conformance import KubernetesWorld
from tests.contract.adapters.test_volcano_groups import (
    GROUP,
    JOB_UID,
    KEY,
    OWNER,
    ask,
    make_pods,
    put_group,
    put_job,
    set_phase,
    task,
    world,
)
from tests.fakes.schedulers.kubernetes_api import VOLCANO_GROUPS, VOLCANO_JOBS

from placewise_kubernetes.faces.volcano import PERMIT, REJECT
from placewise_kubernetes.gang.spec import GangRef, GroupFacts, Source
from placewise_kubernetes.gang.volcano.queues import QUEUES_PATH, QueueMirror
from placewise_kubernetes.gang.volcano.writer import NOMINATIONS
from placewise_kubernetes.host import GROUP_FORGOTTEN_S
from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.client import KubeUnreachableError

__all__ = ["world"]
START_TIMEOUT_S = 30.0


async def nominated(world: KubernetesWorld) -> dict[str, str]:
    """The node that each pod's status names, by the last patch."""
    await world.host.native.writer.drain()
    return {
        path.split("/")[-2]: body["status"]["nominatedNodeName"]
        for path, body in world.host.kube.patches
        if "nominatedNodeName" in body.get("status", {})
    }


def fail_patches(world: KubernetesWorld, monkeypatch: pytest.MonkeyPatch, count: int) -> list[str]:
    """The API refuses so many patches. Their paths, as they come."""
    client, failures = world.host.native.writer._client, list[str]()
    patch = client.patch

    async def failing(path: str, *arguments: Any, **named: Any) -> Any:
        if len(failures) < count:
            failures.append(path)
            raise KubeUnreachableError("the API is away")
        return await patch(path, *arguments, **named)

    monkeypatch.setattr(client, "patch", failing)
    return failures


async def told(world: KubernetesWorld, group: str = GROUP) -> list[str]:
    """Messages of the events on a PodGroup."""
    await world.host.native.writer.drain()
    found = [event for event in world.host.kube.events if event["involvedObject"]["kind"] == "PodGroup"]
    assert all(event["involvedObject"]["apiVersion"] == "scheduling.volcano.sh/v1beta1" for event in found)
    return [event["message"] for event in found if event["involvedObject"]["name"] == group]


async def turn(world: KubernetesWorld) -> None:
    await world.host.kube.seen()
    await world.loop.run_pass(full=False)


# --- nodes to try first ---------------------------------------------------------------------------------------------


async def test_each_pod_names_its_decided_node_as_soon_as_it_is_there(world: KubernetesWorld) -> None:
    put_job(world, task("launcher", 1, 1), task("worker", 2, 8))
    await ask(world)
    make_pods(world, "launcher", 1, 1)
    make_pods(world, "worker", 2, 8)
    await world.host.kube.seen()
    assert sorted((await nominated(world)).values()) == world.decided_nodes(KEY)
    assert len(world.host.kube.patches) == 3


async def test_pods_that_were_there_before_the_decision_name_their_nodes_too(world: KubernetesWorld) -> None:
    put_group(world, {"minMember": 2})
    make_pods(world, "worker", 2, 8, owner=None)
    await turn(world)
    (decided,) = world.oracle.held.values()
    assert sorted((await nominated(world)).values()) == sorted(held.node for held in decided.assignments)


async def test_a_decision_that_is_taken_back_names_no_node_any_more(world: KubernetesWorld) -> None:
    put_job(world, task("worker", 2, 8))
    await ask(world)
    make_pods(world, "worker", 2, 8)
    await world.host.kube.seen()
    world.oracle.waits.add("*")
    world.clock.advance(START_TIMEOUT_S + 1)
    await turn(world)
    assert await nominated(world) == {"train-worker-0": "", "train-worker-1": ""}


async def test_a_node_that_could_not_be_named_is_named_by_a_later_pass(
    world: KubernetesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = fail_patches(world, monkeypatch, 2)
    put_job(world, task("worker", 2, 8))
    await ask(world)
    make_pods(world, "worker", 2, 8)
    await world.host.kube.seen()
    assert await nominated(world) == {}
    await turn(world)
    assert sorted((await nominated(world)).values()) == world.decided_nodes(KEY)
    await turn(world)
    await world.host.native.writer.drain()
    assert (len(failures), len(world.host.kube.patches)) == (2, 2)


async def test_a_node_that_can_never_be_named_is_tried_a_few_times(
    world: KubernetesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = fail_patches(world, monkeypatch, 1_000)
    put_job(world, task("worker", 1, 8))
    await ask(world)
    make_pods(world, "worker", 1, 8)
    for _ in range(2 * NOMINATIONS):
        await turn(world)
        await world.host.native.writer.drain()
    assert len(failures) == NOMINATIONS


async def test_a_pod_that_is_gone_leaves_nothing_behind(world: KubernetesWorld) -> None:
    put_job(world, task("worker", 2, 8))
    await ask(world)
    make_pods(world, "worker", 2, 8)
    await world.host.kube.seen()
    gang = world.host.native.pods.book.gangs[KEY]
    assert len(gang.nominated) == 2
    world.host.kube.remove_pod(next(iter(world.host.kube.pods)))
    await world.host.kube.seen()
    assert gang.nominated.keys() == gang.pods.keys()
    assert len(gang.nominated) == 1


# --- why it waits ---------------------------------------------------------------------------------------------------


async def test_a_group_that_waits_says_why_once(world: KubernetesWorld) -> None:
    world.oracle.waits.add("*")
    put_job(world, task("worker", 2, 8))
    for _ in range(3):
        assert await ask(world) == REJECT
        world.clock.advance(2)
    (message,) = await told(world)
    assert message.startswith("Placewise: ")


async def test_a_group_with_pods_says_it_on_them(world: KubernetesWorld) -> None:
    world.oracle.waits.add("*")
    put_group(world, {"minMember": 1})
    make_pods(world, "worker", 1, 8, owner=None)
    await turn(world)
    assert await told(world) == []
    assert [event["involvedObject"]["kind"] for event in world.host.kube.events] == ["Pod"]


# --- pods that do not come ------------------------------------------------------------------------------------------


async def test_what_is_held_for_pods_that_do_not_come_is_held_once(world: KubernetesWorld) -> None:
    put_job(world, task("worker", 2, 8))
    assert await ask(world) == PERMIT
    set_phase(world, "Inqueue")  # Volcano asks about it no more
    world.clock.advance(START_TIMEOUT_S + 1)
    for _ in range(3):
        await turn(world)
        world.clock.advance(2)
    assert world.oracle.held == {}
    make_pods(world, "worker", 2, 8)
    await turn(world)
    assert list(world.oracle.held) == [KEY]
    assert sorted((await nominated(world)).values()) == world.decided_nodes(KEY)


async def test_a_group_that_volcano_asks_about_again_is_decided_again(world: KubernetesWorld) -> None:
    put_job(world, task("worker", 2, 8))
    await ask(world)
    world.clock.advance(START_TIMEOUT_S + 1)
    await turn(world)
    assert world.oracle.held == {}
    assert await ask(world) == PERMIT
    assert list(world.oracle.held) == [KEY]


@pytest.mark.parametrize("is_watched", [True, False])
async def test_what_was_withdrawn_and_is_not_asked_about_is_forgotten_unless_it_is_shown(
    world: KubernetesWorld, is_watched: bool
) -> None:
    put_job(world, task("worker", 2, 8))
    if not is_watched:
        world.host.kube.served = set()
        world.start_adapter()
    await ask(world)
    world.clock.advance(START_TIMEOUT_S + 1)
    await turn(world)
    (gang,) = world.host.native.pods.book.gangs.values()
    assert not gang.templates
    await turn(world)
    assert len(world.host.native.pods.book.gangs) == 1
    gang.asked_at_s -= GROUP_FORGOTTEN_S + 1
    await turn(world)
    assert len(world.host.native.pods.book.gangs) == (1 if is_watched else 0)


async def test_what_was_withdrawn_and_is_deleted_is_forgotten(world: KubernetesWorld) -> None:
    put_job(world, task("worker", 2, 8))
    await ask(world)
    world.clock.advance(START_TIMEOUT_S + 1)
    await turn(world)
    world.host.kube.remove_object(VOLCANO_JOBS, "train")
    world.host.kube.remove_object(VOLCANO_GROUPS, GROUP)
    await turn(world)
    assert world.host.native.pods.book.gangs == {}


# --- quotas ---------------------------------------------------------------------------------------------------------


async def put_queue(world: KubernetesWorld, name: str = "small", **capability: Any) -> None:
    world.host.kube.served.add(QUEUES_PATH)
    world.host.kube.put_object(QUEUES_PATH, {"metadata": {"name": name}, "spec": {"capability": capability}})
    world.start_adapter()
    await world.loop.run_pass(full=True)


def put_in_queue(
    world: KubernetesWorld, name: str, gpus: int, queue: str = "small", minimum: dict[str, Any] | None = None
) -> None:
    minimum = minimum or {"requests.nvidia.com/gpu": gpus, "nvidia.com/gpu": gpus}
    least = {"minMember": 1, "queue": queue, "minResources": minimum}
    world.host.kube.put_object(VOLCANO_GROUPS, {"metadata": {"name": name, "uid": f"{name:8}-uid"}, "spec": least})


async def facts_of(world: KubernetesWorld, name: str) -> GroupFacts:
    facts = await world.host.native.find_group(GangRef(Source.VOLCANO, "default", name))
    assert facts is not None
    return facts


@pytest.mark.parametrize("is_waiting", [True, False])
async def test_nothing_is_asked_for_beyond_the_quota_of_a_queue(world: KubernetesWorld, is_waiting: bool) -> None:
    await put_queue(world, **{"nvidia.com/gpu": "8"})
    if is_waiting:
        world.oracle.waits.add("*")
    for name in ("first", "second"):
        put_in_queue(world, name, 8)
    assert await ask(world, "first") == (REJECT if is_waiting else PERMIT)
    assert await ask(world, "second") == REJECT
    assert {job.id.split("/")[1] for request in world.asked("admit_or_wait") for job in request.jobs} == {"first"}
    (message,) = await told(world, "second")
    assert "queue small may use 8 nvidia.com/gpu" in message


async def test_a_queue_that_has_room_again_is_asked_for(
    world: KubernetesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placewise_kubernetes.gang.volcano.queues.SUM_AGE_S", 0.0)
    await put_queue(world, **{"nvidia.com/gpu": "8"})
    for name in ("first", "second"):
        put_in_queue(world, name, 8)
    await ask(world, "first")
    assert await ask(world, "second") == REJECT
    world.host.kube.remove_object(VOLCANO_GROUPS, "first")
    await turn(world)
    assert await ask(world, "second") == PERMIT


async def test_a_group_that_waits_for_its_queue_says_so_once_whatever_others_of_it_do(
    world: KubernetesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placewise_kubernetes.gang.volcano.queues.SUM_AGE_S", 0.0)
    await put_queue(world, **{"nvidia.com/gpu": "8"})
    for name, gpus in (("large", 8), ("first", 4), ("second", 2)):
        put_in_queue(world, name, gpus)
    assert await ask(world, "first") == PERMIT
    assert await ask(world, "large") == REJECT
    assert await ask(world, "second") == PERMIT
    assert await ask(world, "large") == REJECT
    assert len(await told(world, "large")) == 1


@pytest.mark.parametrize("unread", [{}, {"limits.cpu": "nonsense", "count/pods": "nonsense"}])
async def test_a_groups_sum_is_read_as_its_demand_is(world: KubernetesWorld, unread: dict[str, str]) -> None:
    await put_queue(world, **{"nvidia.com/gpu": "8"})
    for name in ("first", "second"):
        put_in_queue(world, name, 8, minimum={"requests.nvidia.com/gpu": 8, **unread})
    assert [await ask(world, name) for name in ("first", "second")] == [PERMIT, REJECT]


async def test_a_group_whose_sum_becomes_unreadable_holds_up_no_other(
    world: KubernetesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placewise_kubernetes.gang.volcano.queues.SUM_AGE_S", 0.0)
    await put_queue(world, **{"nvidia.com/gpu": "16"})
    for name in ("first", "second"):
        put_in_queue(world, name, 8)
    assert await ask(world, "first") == PERMIT
    put_in_queue(world, "first", 8, minimum={"nvidia.com/gpu": "nonsense"})
    assert await ask(world, "second") == PERMIT


@pytest.mark.parametrize("after_s", [0.0, 1.0])
async def test_a_gang_counts_once_however_old_the_sums_are(world: KubernetesWorld, after_s: float) -> None:
    await put_queue(world, **{"nvidia.com/gpu": "16"})
    for name in ("first", "second"):
        put_in_queue(world, name, 8)
    await world.host.kube.seen()
    native, clock = world.host.native, Clock()
    native.queues = QueueMirror(native.pods.book, clock)
    native.queues.change({"metadata": {"name": "small"}, "spec": {"capability": {"nvidia.com/gpu": "16"}}})
    first, second = await facts_of(world, "first"), await facts_of(world, "second")
    assert native.queues.why_full(first) == ""
    clock.advance(after_s)
    native.open_group(GangRef(Source.VOLCANO, "default", "first"), first)
    assert native.queues.why_full(second) == ""
    native.open_group(GangRef(Source.VOLCANO, "default", "second"), second)
    assert native.queues.why_full(second) != ""


async def test_a_group_that_names_no_queue_is_in_the_default_one(world: KubernetesWorld) -> None:
    await put_queue(world, "default", **{"nvidia.com/gpu": "8"})
    for name in ("first", "second"):
        put_in_queue(world, name, 8, "")
    assert [await ask(world, name) for name in ("first", "second")] == [PERMIT, REJECT]


@pytest.mark.parametrize("capability", [{}, {"nvidia.com/gpu": "64"}, {"cpu": "nonsense"}])
async def test_a_queue_with_room_or_without_a_quota_holds_up_nobody(
    world: KubernetesWorld, capability: dict[str, str]
) -> None:
    await put_queue(world, **capability)
    for name in ("first", "second"):
        put_in_queue(world, name, 8)
        assert await ask(world, name) == PERMIT


# --- the description of a job -----------------------------------------------------------------------------------------


async def test_what_a_vcjob_says_of_its_job_is_told_of_its_pods_too(world: KubernetesWorld) -> None:
    """Volcano copies a vcjob's annotations to its PodGroup, and not to its pods."""
    metadata = {"name": GROUP, "uid": JOB_UID, "ownerReferences": [OWNER], "annotations": {names.MODEL: "resnet50"}}
    put_job(world, task("worker", 2, 8))
    group = {"metadata": metadata, "spec": {"minMember": 2}, "status": {"phase": "Inqueue"}}
    world.host.kube.put_object(VOLCANO_GROUPS, group)
    make_pods(world, "worker", 2, 8)
    await turn(world)
    assert world.asked("place")[-1].jobs[0].model == "resnet50"
