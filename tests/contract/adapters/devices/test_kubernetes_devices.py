"""Pods that claim devices: decided like any others, left to their scheduler, or reported with their exact GPUs."""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.contract.adapters.test_gates_conformance import GatedScheduler, preferred_nodes
from tests.contract.adapters.test_kubernetes_conformance import PODS, KubernetesScheduler, KubernetesWorld, small_world
from tests.e2e.kubernetes.devices.kubernetes_devices import (
    DRIVER,
    allocated,
    bare_node,
    claim,
    claiming,
    claiming_gang,
    device_class,
    gpu,
    mig,
    request,
    resource_slice,
)
from tests.e2e.kubernetes.kubernetes_cluster import fake_node, gang, pod

from placewise_client.adapter.native import Stage
from placewise_kubernetes.gang.devices.mirrors import CLAIMS_PATH, CLASSES_PATH, SLICES_PATH
from placewise_kubernetes.gang.gang import BY_CLAIM
from placewise_kubernetes.gang.spec import GangRef, GangRules, GroupFacts, Manage, Source
from placewise_kubernetes.kube import names

Document = dict[str, Any]


class Claiming(KubernetesScheduler):
    """Nodes of 8 GPUs by slices, and a scheduler that allocates claims, the last free devices first, before it binds.

    It stands for the resource claim controller, too: none of these pods has claims of a template.
    """

    async def add_nodes(self, count: int, gpus: int) -> None:
        self.kube.served |= {SLICES_PATH, CLAIMS_PATH, CLASSES_PATH}
        self.kube.put_object(CLASSES_PATH, device_class())
        for index in range(1, count + 1):
            self.kube.add_node(bare_node(f"n{index}"))
            self.kube.put_object(SLICES_PATH, resource_slice(f"n{index}", [gpu(number) for number in range(gpus)]))
        await self.kube.seen()

    async def make(self, pods: list[Document], *, gpus: int = 1, claims: list[Document] | None = None) -> str:
        """Makes pods, each with its claim. Returns the key of the gang."""
        for document, one in zip(pods, claims or [claim("", request(gpus)) for _ in pods], strict=True):
            one["metadata"]["name"] = document["metadata"]["name"]
            self.kube.put_object(CLAIMS_PATH, one)
        made = [self.kube.add_pod(document) for document in pods]
        return await self._made(pods[0]["metadata"]["labels"].get(names.JOB, pods[0]["metadata"]["name"]), made)

    async def run_scheduler(self) -> None:
        await self.kube.seen()
        for path, document in list(self.kube.pods.items()):
            spec = document["spec"]
            if spec.get("nodeName") or spec["schedulerName"] != "default-scheduler" or spec.get("schedulingGates"):
                continue
            if nodes := await self._offered(document):
                self.allocate(document, nodes[0])
                self.kube.bind(path, nodes[0], {})
        await self.kube.seen()

    def allocate(self, document: Document, node: str) -> list[str]:
        """The devices, as the claim has them then."""
        one = copy.deepcopy(self.claim(document))
        wanted = one["spec"]["devices"]["requests"][0]["exactly"]["count"]
        chosen = self.left(node)[-wanted:]
        self.kube.put_object(CLAIMS_PATH, allocated(one, node, list(chosen), document["metadata"]["uid"]))
        return chosen

    def claim(self, document: Document) -> Document:
        return self.kube.groups[
            f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{document['metadata']['name']}"
        ]

    def left(self, node: str) -> list[str]:
        taken = {
            found["device"]
            for item in self.kube.groups.values()
            for found in item.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
            if found["pool"] == node
        }
        return [name for name in (f"gpu-{number}" for number in range(8)) if name not in taken]

    def _feasible(self, document: Document) -> list[str]:
        wanted = self.claim(document)["spec"]["devices"]["requests"][0]["exactly"]["count"]
        return [name for name in self.kube.nodes if len(self.left(name)) >= wanted]


class ClaimingGated(Claiming, GatedScheduler):
    """The same, with pods that our gate holds."""

    def __init__(self) -> None:
        GatedScheduler.__init__(self)

    async def _offered(self, document: Document) -> list[str]:
        preferred = preferred_nodes(document)
        return sorted(self._feasible(document), key=lambda node: node not in preferred)


MODES: dict[str, Callable[[], Claiming]] = {
    "extender": lambda: Claiming("default-scheduler"),
    "gates": ClaimingGated,
}


@pytest.fixture(params=MODES)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[KubernetesWorld]:
    async with small_world(MODES[request.param]()) as world:
        yield world


@pytest.fixture
async def asked() -> AsyncIterator[KubernetesWorld]:
    """By the extender alone."""
    async with small_world(MODES["extender"]()) as world:
        yield world


@pytest.fixture
async def gated() -> AsyncIterator[KubernetesWorld]:
    async with small_world(ClaimingGated()) as world:
        yield world


def host_of(world: KubernetesWorld) -> Claiming:
    assert isinstance(world.host, Claiming)
    return world.host


def indices(world: KubernetesWorld, key: str) -> dict[str, list[int]]:
    """GPUs by node, as the start of the job was reported."""
    (started,) = [event for event in world.events(key) if event.placement]
    return {task.node: list(task.gpu_indices) for task in started.placement}


async def test_a_gang_with_claims_runs_where_it_was_decided(world: KubernetesWorld) -> None:
    host = host_of(world)
    key = await host.make(claiming_gang("g", 2), gpus=8)
    await world.step()
    assert await host.where(key) == world.decided_nodes(key)
    assert world.kinds(key)[-1] == "STARTED"
    (asked,) = world.asked("place")
    assert [group.demand.gpus for job in asked.jobs for group in job.groups] == [8.0]


async def test_a_start_is_reported_with_the_gpus_that_the_claim_holds(world: KubernetesWorld) -> None:
    host = host_of(world)
    key = await host.make(claiming_gang("g", 1), gpus=2)
    await world.step()
    (node,) = world.decided_nodes(key)
    assert indices(world, key) == {node: [6, 7]}  # decided were the first two


async def test_a_start_is_reported_when_the_allocation_is_seen(asked: KubernetesWorld) -> None:
    """Two watches: the pod may be shown with its node before its claim is shown as allocated."""
    host = host_of(asked)
    key = await host.make(claiming_gang("g", 1), gpus=2)
    await asked.loop.run_pass(full=True)
    (node,) = asked.decided_nodes(key)
    host.kube.bind(f"{PODS}/g-0", node, {})
    await host.kube.seen()
    await asked.loop.run_pass(full=True)
    assert "STARTED" not in asked.kinds(key)
    host.allocate(host.kube.pods[f"{PODS}/g-0"], node)
    await host.kube.seen()
    await asked.loop.run_pass(full=False)
    assert indices(asked, key) == {node: [6, 7]}


async def test_claims_of_others_take_their_exact_devices(asked: KubernetesWorld) -> None:
    host = host_of(asked)
    key = await host.make([claiming(pod("alone", gpus=0), "alone")], gpus=3)
    made = host.kube.pods[f"{PODS}/alone"]
    host.allocate(made, "n2")
    host.kube.bind(f"{PODS}/alone", "n2", {})
    await host.kube.seen()
    await asked.loop.run_pass(full=False)
    assert indices(asked, key) == {"n2": [5, 6, 7]}


async def test_a_device_that_somebody_has_a_part_of_is_no_gpu_of_the_node(asked: KubernetesWorld) -> None:
    host = host_of(asked)
    slices = resource_slice("n1", [*(gpu(number) for number in range(8)), mig(0, 3)], generation=2)
    host.kube.put_object(SLICES_PATH, slices)
    host.kube.put_object(CLAIMS_PATH, allocated(claim("part"), "n1", ["gpu-3-mig-0"], "somebody"))
    await host.kube.seen()
    await asked.loop.run_pass(full=False)
    assert [found.index for found in asked.oracle.nodes["n1"].gpus] == [0, 1, 2, 4, 5, 6, 7]


async def test_a_driver_that_leaves_takes_its_gpus_along(asked: KubernetesWorld) -> None:
    host_of(asked).kube.remove_object(SLICES_PATH, f"n1-{DRIVER}")
    await host_of(asked).kube.seen()
    await asked.loop.run_pass(full=False)
    assert (asked.oracle.nodes["n1"].capacity.gpus, asked.oracle.nodes["n2"].capacity.gpus) == (0, 8)


LEFT = {
    "admin_access": request(adminAccess=True),
    "mig": request(selectors=[{"cel": {"expression": "device.attributes['gpu.nvidia.com'].type == 'mig'"}}]),
    "device_capacity": request(capacity={"requests": {"memory": "10Gi"}}),
    "other_devices": request(deviceClassName="parts"),
}


@pytest.mark.parametrize("reason", LEFT)
async def test_other_requests_are_left_to_the_scheduler_and_counted(reason: str, world: KubernetesWorld) -> None:
    host = host_of(world)
    key = await host.make(claiming_gang("g", 2), claims=[claim("c", LEFT[reason]) for _ in range(2)])
    await world.loop.run_pass(full=True)
    await world.step()
    assert len(await host.where(key)) == 2
    assert world.asked("place") == []
    assert host.native.opener.undecided.labels(reason)._value.get() == 2


async def test_a_pod_is_decided_when_its_claim_is_made(world: KubernetesWorld) -> None:
    host = host_of(world)
    (document,) = claiming_gang("g", 1)
    host.kube.add_pod(document)
    await host.kube.seen()
    await world.loop.run_pass(full=True)
    assert world.asked("place") == []
    host.kube.put_object(CLAIMS_PATH, claim("g-0", request(2)))
    await host.kube.seen()
    await world.loop.run_pass(full=False)
    assert len(world.asked("place")) == 1


async def test_a_pod_that_claims_gpus_is_one_that_asks_for_gpus() -> None:
    """With `manage: gpu`, also if its claim is made after it."""
    host = Claiming("default-scheduler")
    host.rules = dataclasses.replace(host.rules, manage=Manage.GPU)
    async with small_world(host) as world:
        host.kube.add_pod(claiming(pod("alone", gpus=0), "alone"))
        host.kube.add_pod(claiming(pod("other", gpus=0), "other"))
        await host.kube.seen()
        host.kube.put_object(CLAIMS_PATH, claim("alone"))
        host.kube.put_object(CLAIMS_PATH, claim("other", request(deviceClassName="nic")))
        await host.kube.seen()
        await world.loop.run_pass(full=False)
        (job,) = [job for asked in world.asked("place") for job in asked.jobs]
        assert job.id.startswith("default/alone/")


async def test_a_pod_that_claims_gpus_of_a_class_that_comes_later_is_one_that_asks_for_gpus() -> None:
    host = Claiming("default-scheduler")
    host.rules = dataclasses.replace(host.rules, manage=Manage.GPU, device_classes=())
    async with small_world(host) as world:
        host.kube.add_pod(claiming(pod("alone", gpus=0), "alone"))
        await host.kube.seen()
        host.kube.put_object(CLAIMS_PATH, claim("alone", request(deviceClassName="site")))
        await host.kube.seen()
        host.kube.put_object(CLASSES_PATH, device_class("site", extendedResourceName="nvidia.com/gpu"))
        await host.kube.seen()
        await world.loop.run_pass(full=False)
        assert len(world.asked("place")) == 1


async def test_a_decision_is_dropped_when_another_pod_comes_for_the_same_claim(asked: KubernetesWorld) -> None:
    host = host_of(asked)
    host.kube.put_object(CLAIMS_PATH, claim("c", request(2)))
    gangs = []
    for name in "pq":
        made = host.kube.add_pod(claiming(claiming_gang(name, 1)[0], "c"))
        await host.kube.seen()
        await asked.loop.run_pass(full=False)
        gangs.append(host.native.pods.book.gang_of(made["metadata"]["uid"]))
        assert gangs[0] is not None
        assert gangs[0].stage is (Stage.APPLIED if name == "p" else Stage.RELEASED)
    assert gangs[1] is not None
    assert gangs[1].stage is Stage.RELEASED


async def test_an_index_that_no_message_can_hold_ends_no_watch(asked: KubernetesWorld) -> None:
    host = host_of(asked)
    odd = gpu(0)
    odd["attributes"]["index"] = {"int": 5_000_000_000}
    host.kube.put_object(SLICES_PATH, resource_slice("n1", [odd], generation=2))
    await host.kube.seen()
    await asked.loop.run_pass(full=False)
    assert [found.index for found in asked.oracle.nodes["n1"].gpus] == [0]


async def test_a_group_without_pods_is_decided_for_nodes_with_a_device_plugin(asked: KubernetesWorld) -> None:
    """Its stand-ins ask as its pods will; also if the slices come after the group."""
    host = host_of(asked)
    slices = {name: resource_slice(name, [gpu(number) for number in range(8)]) for name in host.kube.nodes}
    for name in slices:
        host.kube.remove_object(SLICES_PATH, f"{name}-{DRIVER}")
    host.kube.add_node(fake_node("plug", 8))
    await host.kube.seen()
    asked.oracle.waits.add("*")
    facts = GroupFacts(uid="u1", min_resources={"nvidia.com/gpu": "8"}, roles={"worker": 1})
    gang_now = host.native.open_group(GangRef(Source.VOLCANO, "default", "v"), facts)
    await asked.loop.run_pass(full=True)
    assert dict(gang_now.build(host.rules).groups[0].node_selector) == {}
    for document in slices.values():
        host.kube.put_object(SLICES_PATH, document)
    await host.kube.seen()
    asked.oracle.waits.clear()
    asked.clock.advance(2)
    await asked.loop.run_pass(full=True)
    assert dict(gang_now.build(host.rules).groups[0].node_selector) == {names.GPU_SOURCE: names.BY_PLUGIN}
    assert asked.decided_nodes(gang_now.key) == ["plug"]


async def test_without_the_right_to_read_claims_pods_with_claims_are_left_to_the_scheduler(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    host = KubernetesScheduler("default-scheduler")
    async with small_world(host) as world:
        made = [host.kube.add_pod(document) for document in claiming_gang("g", 2)]
        await host.kube.seen()
        await world.loop.run_pass(full=True)
        gang_now = host.native.pods.book.gang_of(made[0]["metadata"]["uid"])
        assert gang_now is not None
        assert gang_now.stage is Stage.RELEASED
        assert world.asked("place") == []
        assert host.native.opener.undecided.labels("resource_claims")._value.get() == 2
    passed_over = [text for text in caplog.messages if CLAIMS_PATH in text]
    assert len(passed_over) == 1
    assert "looked for every 60 s" in passed_over[0]


@pytest.mark.parametrize("is_extended", [False, True])
async def test_our_own_scheduler_binds_no_pod_whose_devices_kube_scheduler_allocates(is_extended: bool) -> None:
    """A bound pod without its allocation would never start."""
    own = GangRules().own_scheduler
    host = Claiming(own)
    async with small_world(host) as world:
        host.kube.put_object(CLASSES_PATH, device_class(extendedResourceName="nvidia.com/gpu"))
        pods = gang("g", 2, gpus=1, scheduler=own) if is_extended else claiming_gang("g", 2, scheduler=own)
        await host.make(pods)
        await world.loop.run_pass(full=True)
        await world.loop.run_pass(full=True)
        await host.native.writer.drain()
        assert host.kube.bound == []
        assert world.asked("place") == []
        events = [event["message"] for event in host.kube.events]
        assert [BY_CLAIM in note for note in events] == [True, True]


async def test_the_patch_that_takes_the_gate_away_names_the_gpus(gated: KubernetesWorld) -> None:
    """The downward API shows them to the containers as they start."""
    host = host_of(gated)
    key = await host.make(claiming_gang("g", 2), gpus=3)
    await gated.loop.run_pass(full=True)
    opened = {path: body for path, body in host.kube.patches if "spec" in body}
    decided = sorted(",".join(map(str, task.gpu_indices)) for task in gated.oracle.decided[key][-1])
    assert sorted(body["metadata"]["annotations"][names.GPU_INDICES] for body in opened.values()) == decided
    assert len(decided) == 2


async def test_a_new_life_knows_the_devices_of_a_running_gang(world: KubernetesWorld) -> None:
    host = host_of(world)
    key = await host.make(claiming_gang("g", 1), gpus=2)
    await world.step()
    before = len(world.asked("place"))
    world.start_adapter()
    await world.step()
    assert len(world.asked("place")) == before
    (task,) = host.native.pods.book.gangs[key].placement()
    assert list(task.gpu_indices) == [6, 7]


async def test_a_gang_may_get_no_gpu_of_a_device_plugin_for_its_claim(asked: KubernetesWorld) -> None:
    host = host_of(asked)
    await host.make(claiming_gang("g", 1), gpus=2)
    await asked.loop.run_pass(full=True)
    (job,) = asked.asked("place")[0].jobs
    assert dict(job.groups[0].node_selector) == {names.GPU_SOURCE: names.BY_CLAIM}
    assert asked.oracle.nodes["n1"].labels[names.GPU_SOURCE] == names.BY_CLAIM
