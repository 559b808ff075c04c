"""Pods of running gangs that cannot have the place that was decided: nothing waits, or is held, for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.contract.adapters.kubernetes.in_order import (
    ASKS,
    GATES,
    JOB_SETS,
    OWN,
    come,
    gang_of,
    key_of,
    leave,
    nodes,
    of_job_set,
    of_set,
    ordered,
    owned,
    pass_long,
    placed,
    put_job_set,
    put_stateful_set,
    template_of,
    wait_for_places,
    world_of,
)
from tests.contract.adapters.test_gates_conformance import GatedScheduler
from tests.contract.adapters.test_kubernetes_conformance import KubernetesWorld, small_world
from tests.e2e.kubernetes.kubernetes_cluster import fake_node, pod
from tests.fakes.schedulers.kubernetes_api import NATIVE_GROUPS

from placewise.v1.cluster_pb2 import Node
from placewise_client.errors import StateUnavailableError
from placewise_kubernetes.gang.gates.opening import GateRules, Pin
from placewise_kubernetes.kube import names

IN_ORDER = {names.GANG: "3", names.IN_ORDER: "true"}
PODS = "/api/v1/namespaces/default/pods"
# Pods for which Placewise does not decide may take any place.
OTHERS = ("default/taken", "default/of-others")


@pytest.fixture(params=[ASKS, OWN, GATES])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[KubernetesWorld]:
    async with world_of(request.param) as world:
        yield world
    assert [pair for pair in world.oracle.double_placements if not pair.startswith(OTHERS)] == []


def put_job_set_of_equals(world: KubernetesWorld, **options: Any) -> None:
    """A driver, and then three workers, of eight GPUs each."""
    put_job_set(world)
    jobs = world.host.kube.groups[JOB_SETS]["spec"]["replicatedJobs"]
    for job in jobs:
        job["template"]["spec"]["template"] = template_of(world, 8, **options)


async def take(world: KubernetesWorld, node: str) -> None:
    """A pod of others has the node."""
    made = world.host.kube.add_pod(pod("of-others", gpus=8))
    world.host.kube.bind(f"{PODS}/of-others", node, made["metadata"])


async def test_a_pod_that_asks_for_more_than_was_decided_is_decided_by_itself(world: KubernetesWorld) -> None:
    put_stateful_set(world, 2)
    await come(world, of_set(world, 0, gpus=4))
    await come(world, of_set(world, 1, gpus=8))
    assert len(nodes(world)) == 2
    assert [len(held.assignments) for held in world.oracle.held.values()] == [1, 1]


async def test_a_rolling_update_to_more_gpus_frees_the_place_of_the_pod_before(world: KubernetesWorld) -> None:
    for node in ("n3", "n4"):
        await world.host.occupy(node, 8)
    put_stateful_set(world, 2)
    note = {names.MAX_PER_NODE: "1"}
    for index in range(2):
        await come(world, of_set(world, index, gpus=4, annotations=note))
    await leave(world, "s-1")
    await come(world, of_set(world, 1, gpus=8, annotations=note))
    await come(world)
    assert nodes(world)["s-1"] == "n1"


async def test_pods_with_an_injected_container_take_the_room_of_those_that_were_declared(
    world: KubernetesWorld,
) -> None:
    put_job_set(world)
    await come(world, of_job_set(world, "driver", 0, 0))
    workers = [of_job_set(world, "workers", index, 8) for index in range(3)]
    for worker in workers:
        worker["spec"]["containers"].append({"name": "proxy", "resources": {"requests": {"cpu": "10m"}}})
    await come(world, *workers)
    await come(world)
    assert len(nodes(world)) == 4


@pytest.mark.parametrize("loss", ["taken", "drained", "gone"])
async def test_a_pod_whose_place_is_lost_is_decided_by_itself_after_a_while(world: KubernetesWorld, loss: str) -> None:
    put_stateful_set(world, 2)
    await come(world, of_set(world, 0))
    key = key_of(world)
    (lost,) = set(world.decided_nodes(key)) - set(nodes(world).values())
    if loss == "taken":
        await world.host.occupy(lost, 8)
    elif loss == "drained":
        await world.host.set_node_state(lost, Node.State.DRAINING)
    else:
        await world.host.lose_node(lost)
    await come(world, of_set(world, 1))
    assert "s-1" not in nodes(world)
    await wait_for_places(world)
    assert nodes(world)["s-1"] not in (lost, nodes(world)["s-0"])
    assert len(world.asked("place")) == 2
    assert placed(world, key) == [nodes(world)["s-0"]]


async def test_a_pod_that_replaces_one_of_a_drained_node_runs_elsewhere(world: KubernetesWorld) -> None:
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "j-uid", "controller": True}

    def member(index: int) -> dict[str, Any]:
        return owned(ordered(world, f"g-{index}", annotations={names.GANG: "2"}), job)

    await come(world, member(0), member(1))
    key, drained = key_of(world), nodes(world)["g-0"]
    await world.host.set_node_state(drained, Node.State.DRAINING)
    await leave(world, "g-0")
    assert len(placed(world, key)) == 2  # for the pod that will replace it
    await come(world, member(2))
    assert "g-2" not in nodes(world)
    await wait_for_places(world)
    assert nodes(world)["g-2"] not in (drained, nodes(world)["g-1"])
    assert placed(world, key) == [nodes(world)["g-1"]]


async def test_a_gang_of_which_no_pod_runs_any_more_is_decided_again_whole(world: KubernetesWorld) -> None:
    put_stateful_set(world, 2)
    for index in range(2):
        await come(world, of_set(world, index))
    key, drained = key_of(world), nodes(world)["s-0"]
    await world.host.set_node_state(drained, Node.State.DRAINING)
    await leave(world, "s-0")
    await come(world, of_set(world, 0))
    await leave(world, "s-1")
    await wait_for_places(world)
    await come(world, of_set(world, 1))
    assert len(nodes(world)) == 2
    assert drained not in nodes(world).values()
    assert world.kinds(key)[-1] == "CANCELLED"
    assert placed(world, key_of(world)) == sorted(nodes(world).values())


async def test_the_service_knows_where_a_pod_runs_that_its_scheduler_has_put_elsewhere() -> None:
    async with world_of(GATES) as world:
        put_stateful_set(world, 2)
        await come(world, of_set(world, 0))
        world.host.kube.add_pod(of_set(world, 1))
        await world.host.kube.seen()
        await world.loop.run_pass(True)
        await world.host.kube.seen()
        world.host.kube.bind(f"{PODS}/s-1", "n1", {})
        await come(world)
        assert placed(world, key_of(world)) == ["n1", "n4"]


async def test_a_pod_that_no_task_matches_uses_one_up(world: KubernetesWorld) -> None:
    """The service has lost its state and decides for other nodes."""
    put_stateful_set(world, 3)
    await come(world, of_set(world, 0))
    world.host.stop()
    for known in (world.oracle.held, world.oracle.answers, world.oracle.questions):
        known.clear()
    for index in range(5, 9):
        world.host.kube.add_node(fake_node(f"n{index}", 8))
    world.start_adapter()
    await come(world)
    await come(world, of_set(world, 1), of_set(world, 2))
    assert gang_of(world).to_come() == []
    assert placed(world, key_of(world)) == sorted(nodes(world).values())


@pytest.mark.parametrize("world", [OWN, ASKS], indirect=True)
async def test_a_gang_in_order_that_got_no_decision_starts_by_itself(world: KubernetesWorld) -> None:
    world.oracle.fail_always = StateUnavailableError("away")
    put_stateful_set(world, 3)
    await come(world, of_set(world, 0))
    await pass_long(world)
    assert list(nodes(world)) == ["s-0"]
    world.oracle.fail_always = None
    await pass_long(world)
    await come(world, of_set(world, 1), of_set(world, 2))
    await come(world)
    assert len(nodes(world)) == 3
    held = [node for key in world.oracle.held for node in placed(world, key)]
    assert sorted(held) == sorted(nodes(world).values())


@pytest.mark.parametrize("world", [GATES], indirect=True)
async def test_what_runs_of_a_gang_that_is_not_evaluated_is_known_to_the_service(world: KubernetesWorld) -> None:
    put_job_set_of_equals(world, topologySpreadConstraints=[{"maxSkew": 1}])
    await come(world, of_job_set(world, "driver", 0, 8))
    await come(world)
    assert placed(world, key_of(world)) == [nodes(world)["j-driver-0-0"]]
    other = await world.host.submit(4, 8)
    await world.step()
    assert other not in world.oracle.decided


async def test_later_pods_of_a_job_set_have_their_places_when_the_first_has_finished(world: KubernetesWorld) -> None:
    put_job_set_of_equals(world)
    await come(world, of_job_set(world, "driver", 0, 8))
    key, drivers = key_of(world), nodes(world)["j-driver-0-0"]
    world.host.kube.set_phase(f"{PODS}/j-driver-0-0", "Succeeded")
    await come(world)
    assert world.kinds(key)[-1] == "STARTED"
    assert placed(world, key) == sorted({"n1", "n2", "n3", "n4"} - {drivers})
    await come(world, *(of_job_set(world, "workers", index, 8) for index in range(3)))
    assert len(nodes(world)) == 4
    assert len(world.asked("place")) == 1
    for index in range(3):
        world.host.kube.set_phase(f"{PODS}/j-workers-0-{index}", "Succeeded")
        await come(world)
    assert world.kinds(key)[-1] == "FINISHED"
    assert world.oracle.held == {}


async def test_a_new_life_knows_the_places_of_a_gang_whose_first_pod_has_finished(world: KubernetesWorld) -> None:
    put_job_set_of_equals(world)
    await come(world, of_job_set(world, "driver", 0, 8))
    key = key_of(world)
    world.host.kube.set_phase(f"{PODS}/j-driver-0-0", "Succeeded")
    await come(world, of_job_set(world, "workers", 0, 8))
    held = placed(world, key)
    assert len(held) == 3
    world.start_adapter()
    await come(world)
    assert placed(world, key_of(world)) == held
    await come(world, *(of_job_set(world, "workers", index, 8) for index in (1, 2)))
    assert key_of(world) == key
    assert placed(world, key) == held
    assert len(nodes(world)) == 4
    assert len(world.oracle.decided[key]) == 1


async def test_a_failed_pod_and_the_one_that_replaces_it_have_one_place(world: KubernetesWorld) -> None:
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "j-uid", "controller": True}
    notes = {names.GANG: "2"}
    await come(world, *(owned(ordered(world, f"g-{index}", annotations=notes), job) for index in range(2)))
    key, decided = key_of(world), sorted(nodes(world).values())
    world.host.kube.set_phase(f"{PODS}/g-0", "Failed")
    await come(world)
    assert placed(world, key) == decided
    await come(world, owned(ordered(world, "g-2", annotations=notes), job))
    assert "g-2" in nodes(world)
    assert placed(world, key) == decided


@pytest.mark.parametrize("end", ["late", "restart", "deleted"])
async def test_later_pods_of_a_gang_that_was_over_are_decided_without_those_that_have_finished(
    world: KubernetesWorld, end: str
) -> None:
    put_job_set_of_equals(world)
    await come(world, of_job_set(world, "driver", 0, 8))
    world.host.kube.set_phase(f"{PODS}/j-driver-0-0", "Succeeded")
    await come(world)
    if end == "late":
        await wait_for_places(world)
    elif end == "restart":
        world.start_adapter()
        await come(world)
    else:
        await leave(world, "j-driver-0-0")
    assert world.oracle.held == {}
    if end == "deleted":
        return
    await world.host.occupy("n1", 8)
    await come(world, *(of_job_set(world, "workers", index, 8) for index in range(3)))
    assert len(nodes(world)) == 5


async def test_after_a_restart_a_lost_place_takes_nothing_back_of_a_gang_that_runs(world: KubernetesWorld) -> None:
    put_stateful_set(world, 3)
    await come(world, of_set(world, 0))
    key = key_of(world)
    lost = world.decided_nodes(key)[1]
    world.host.stop()
    await take(world, lost)
    world.host.kube.add_pod(of_set(world, 1))
    world.start_adapter()
    await come(world)
    assert gang_of(world).plan is not None
    assert len(placed(world, key)) == 3
    await come(world, of_set(world, 2))
    await wait_for_places(world)
    assert lost not in placed(world, key)
    assert len(nodes(world)) == 4


@pytest.mark.parametrize("world", [GATES, OWN], indirect=True)
async def test_a_pod_that_others_hold_keeps_no_sibling_waiting(world: KubernetesWorld) -> None:
    await come(world, ordered(world, "g-0", annotations=IN_ORDER))
    ours = [{"name": names.GATE}] if isinstance(world.host, GatedScheduler) else []
    world.host.kube.has_gates = False
    queued = ordered(world, "g-1", annotations=IN_ORDER)
    queued["spec"]["schedulingGates"] = [*ours, {"name": "kueue.x-k8s.io/admission"}]
    await come(world, queued)
    gang = gang_of(world)
    task = next(gang.task_of(pod) for pod in gang.waiting())
    assert task is not None
    await world.host.occupy(task.node, 8)
    last = ordered(world, "g-2", annotations=IN_ORDER)
    last["spec"]["schedulingGates"] = ours
    await come(world, last)
    assert "g-2" in nodes(world)


class Pinned(GatedScheduler):
    """Pods may use the node that they are pinned to, and no other."""

    gates = GateRules(is_enabled=True, scale_up_after_s=0.0, pin=Pin.HARD)

    async def _offered(self, document: dict[str, Any]) -> list[str]:
        affinity = document["spec"].get("affinity", {}).get("nodeAffinity", {})
        required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {})
        terms = required.get("nodeSelectorTerms", ())
        wanted = [value for term in terms for field in term.get("matchFields", ()) for value in field["values"]]
        return [name for name in sorted(self._feasible(document)) if name in wanted]


async def test_a_pod_pinned_to_a_full_node_keeps_no_sibling_waiting_and_says_why_it_waits() -> None:
    async with small_world(Pinned()) as world:
        await come(world, ordered(world, "g-0", annotations=IN_ORDER))
        world.host.kube.add_pod(ordered(world, "g-1", annotations=IN_ORDER))
        await world.host.kube.seen()
        await world.loop.run_pass(True)
        await world.host.kube.seen()
        (pinned,) = [pod.admitted_to for pod in gang_of(world).waiting()]
        await world.host.occupy(pinned, 8)
        await come(world, ordered(world, "g-2", annotations=IN_ORDER))
        assert "g-2" in nodes(world)
        await wait_for_places(world)
        await world.host.native.writer.drain()
        texts = [event.get("note") or event.get("message") or "" for event in world.host.kube.events]
        assert sum("it is pinned there" in text for text in texts) == 1


async def test_a_claim_that_is_never_bound_is_read_no_more_when_its_gang_is_gone() -> None:
    async with world_of(GATES) as world:
        claim = {"metadata": {"name": "data"}, "spec": {"storageClassName": "c"}, "status": {"phase": "Pending"}}
        world.host.kube.groups["/api/v1/namespaces/default/persistentvolumeclaims/data"] = claim
        storage = {"metadata": {"name": "c"}, "volumeBindingMode": "Immediate"}
        world.host.kube.groups["/apis/storage.k8s.io/v1/storageclasses/c"] = storage
        put_job_set(world, volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}])
        await come(world, of_job_set(world, "driver", 0, 0))
        reading = list(world.host.native.volumes.under_way.values())
        assert len(reading) == 1
        await leave(world, "j-driver-0-0")
        await asyncio.wait_for(reading[0], 5.0)
        await come(world)
        assert world.host.native.volumes.under_way == {}


@pytest.mark.parametrize("world", [OWN], indirect=True)
async def test_pods_of_a_native_group_never_come_one_after_another(world: KubernetesWorld) -> None:
    world.host.kube.served.add(NATIVE_GROUPS)
    world.start_adapter()
    await world.step()
    spec = {"schedulingPolicy": {"gang": {"minCount": 3}}}
    world.host.kube.put_object(NATIVE_GROUPS, {"metadata": {"name": "a", "uid": "11111111-a"}, "spec": spec})
    first = ordered(world, "g-0", annotations={names.IN_ORDER: "true"})
    first["spec"]["schedulingGroup"] = {"podGroupName": "a"}
    await come(world, first)
    await pass_long(world)
    await pass_long(world)
    assert nodes(world) == {}
    assert world.oracle.held == {}


@pytest.mark.parametrize("kind", ["LeaderWorkerSet", "StatefulSet"])
async def test_a_gang_made_again_under_the_same_stateful_set_holds_its_places_through_a_restart(
    world: KubernetesWorld, kind: str
) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "uid": "11111111-s", "controller": True}
    labels = {"leaderworkerset.sigs.k8s.io/name": "l", "leaderworkerset.sigs.k8s.io/group-index": "0"}
    size = {"leaderworkerset.sigs.k8s.io/size": "3"}
    options: dict[str, Any] = {"labels": labels, "annotations": size} if kind == "LeaderWorkerSet" else {}
    put_stateful_set(world, 3)
    for _ in range(2):
        await come(world, *(owned(ordered(world, f"s-{index}", **options), owner) for index in range(3)))
        assert len(nodes(world)) == 3
        key = key_of(world)
        if len(world.oracle.ended) == 0:
            await leave(world, "s-0", "s-1", "s-2")
    world.start_adapter()
    await come(world)
    other = await world.host.submit(2, 8)
    await world.step()
    assert other not in world.oracle.decided
    assert placed(world, key) == sorted(nodes(world).values())
