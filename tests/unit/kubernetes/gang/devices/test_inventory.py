"""GPUs by slices and claims: those that a node offers, and those that a pod asks for or holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.e2e.kubernetes.devices.kubernetes_devices import (
    CLASS,
    MIG_CLASS,
    allocated,
    bare_node,
    claim,
    claiming,
    device_class,
    gpu,
    mig,
    request,
    resource_slice,
    result,
)
from tests.e2e.kubernetes.kubernetes_cluster import fake_node, pod

from placewise.v1.cluster_pb2 import Node
from placewise_kubernetes.gang.devices import inventory
from placewise_kubernetes.gang.devices.claims import read_claim, read_class
from placewise_kubernetes.gang.devices.inventory import Devices
from placewise_kubernetes.gang.devices.slices import read_slice
from placewise_kubernetes.gang.spec import GangRules
from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.nodes import NodeReader
from placewise_kubernetes.kube.objects import Pod, parse_pod

RULES = GangRules()
GPU = RULES.gpu_resources[0]
FOUR = [gpu(number) for number in range(4)]
Document = dict[str, Any]


def devices(*documents: Document) -> Devices:
    """Of one node, unless slices are given; both of NVIDIA's classes are installed."""
    found = Devices(RULES)
    slices = [item for item in documents if item["kind"] == "ResourceSlice"] or [resource_slice("n1", FOUR)]
    claims = [item for item in documents if item["kind"] == "ResourceClaim"]
    classes = {CLASS: device_class(), MIG_CLASS: device_class(MIG_CLASS, kind="mig")}
    classes |= {item["metadata"]["name"]: item for item in documents if item["kind"] == "DeviceClass"}
    for item in classes.values():
        found.note_class(("", item["metadata"]["name"]), read_class(item))
    for item in slices:
        found.note_slice(("", item["metadata"]["name"]), read_slice(item))
    for item in claims:
        found.note_claim(("default", item["metadata"]["name"]), read_claim(item))
    return found


def node(found: Devices, document: Document | None = None) -> Node:
    return found.arrange(NodeReader(RULES.gpu_resources).read(document or bare_node("n1")))


def free(found: Devices) -> list[int]:
    """Indices of the GPUs that the node offers."""
    return [item.index for item in node(found).gpus]


def completed(found: Devices, document: Document, *, uid: str = "p", on: str = "", phase: str = "Pending") -> Pod:
    document["metadata"] |= {"uid": uid, "namespace": "default"}
    document["spec"]["nodeName"] = on
    document["status"] = document.get("status", {}) | {"phase": phase}
    found.note_pod(parse_pod(document))
    return found.complete(parse_pod(document))


def gpus(found: Pod) -> float:
    return found.requests.get(GPU, 0.0)


# --- nodes ---------------------------------------------------------------------------------------------------------


def test_a_node_has_the_gpus_of_its_slices() -> None:
    found = node(devices())
    assert [(item.index, item.model, item.memory_gib) for item in found.gpus] == [
        (number, "NVIDIA H100 80GB HBM3", 80.0) for number in range(4)
    ]
    assert found.capacity.gpus == 4
    assert found.labels[names.GPU_SOURCE] == names.BY_CLAIM


def test_gpus_of_slices_and_of_a_device_plugin_are_not_counted_twice() -> None:
    assert node(devices(), fake_node("n1", gpus=4)).capacity.gpus == 4


def test_a_node_without_slices_keeps_those_of_its_device_plugin() -> None:
    plain = NodeReader(RULES.gpu_resources).read(fake_node("n2", gpus=8))
    found = devices().arrange(plain)
    assert (found.capacity.gpus, found.labels[names.GPU_SOURCE]) == (8, names.BY_PLUGIN)
    assert Devices(RULES).arrange(plain) is plain


def test_a_tainted_device_is_left_out_and_the_others_keep_their_indices() -> None:
    sick = gpu(1, taints=[{"key": "sick", "effect": "NoSchedule"}])
    slices = resource_slice("n1", [gpu(0), sick, gpu(2)])
    assert free(devices(slices)) == [0, 2]
    held = allocated(claim("c"), "n1", ["gpu-1"], "p")
    assert free(devices(slices, held)) == [0, 1, 2]  # the pod that holds it is counted on it


def test_a_device_that_one_pod_holds_whole_is_taken_by_that_pod_alone() -> None:
    found = devices(allocated(claim("c"), "n1", ["gpu-2"], "p"))
    assert free(found) == [0, 1, 2, 3]
    holder = completed(found, claiming(pod("p", gpus=0), "c"), on="n1")
    assert (gpus(holder), holder.gpu_indices) == (1.0, (2,))


HELD: Mapping[str, tuple[list[Document], Document, list[int]]] = {
    "mig": (
        [*FOUR, mig(0, 1), mig(1, 1)],
        allocated(claim("c", request(deviceClassName=MIG_CLASS)), "n1", ["gpu-1-mig-0"], "p"),
        [0, 2, 3],
    ),
    "time_slicing": (
        FOUR,
        allocated(
            claim("c", config=[{"opaque": {"parameters": {"sharing": {"strategy": "TimeSlicing"}}}}]),
            "n1",
            ["gpu-3"],
            "p",
        ),
        [0, 1, 2],
    ),
    "mps": (
        FOUR,
        allocated(
            claim("c", config=[{"opaque": {"parameters": {"sharing": {"strategy": "MPS"}}}}]), "n1", ["gpu-3"], "p"
        ),
        [0, 1, 2],
    ),
    "one claim of several pods": (FOUR, allocated(claim("c"), "n1", ["gpu-0"], "p", "q"), [1, 2, 3]),
    "a share by capacity": (
        FOUR,
        allocated(claim("c"), "n1", [result("n1", "gpu-1", shareID="s", consumedCapacity={"memory": "1Gi"})], "p"),
        [0, 2, 3],
    ),
    "a shared device is no whole one": (
        [gpu(0), gpu(1, allowMultipleAllocations=True)],
        allocated(claim("c"), "n1", [result("n1", "gpu-1", shareID="s")], "p"),
        [0],
    ),
    "a partition": (
        [
            gpu(0, consumesCounters=[{"counterSet": "set-0", "counters": {"memory": {"value": "80Gi"}}}]),
            gpu(1, consumesCounters=[{"counterSet": "set-1", "counters": {"memory": {"value": "80Gi"}}}]),
            {"name": "part", "consumesCounters": [{"counterSet": "set-0", "counters": {"memory": {"value": "1Gi"}}}]},
        ],
        allocated(claim("c", request(deviceClassName="parts")), "n1", ["part"], "p"),
        [1],
    ),
}


@pytest.mark.parametrize("kind", HELD)
def test_what_is_held_in_another_way_is_taken_from_the_node(kind: str) -> None:
    published, holder, left = HELD[kind]
    slices = resource_slice("n1", published)
    assert free(devices(slices, holder)) == left
    used = completed(devices(slices, holder), claiming(pod("p", gpus=0), "c"), on="n1")
    assert (gpus(used), used.gpu_indices) == (0.0, ())  # counted once: on the node


def test_what_is_allocated_to_no_pod_is_taken_from_the_node() -> None:
    assert free(devices(allocated(claim("c"), "n1", ["gpu-0"]))) == [1, 2, 3]


def test_access_for_administration_takes_nothing() -> None:
    """By the API's rule such a device can be allocated to others as well."""
    held = [result("n1", f"gpu-{number}", adminAccess=True) for number in range(4)]
    assert free(devices(allocated(claim("c", request(adminAccess=True)), "n1", held, "p"))) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "asked",
    [
        request(allocationMode="All", count=None),
        {"name": "gpus", "firstAvailable": [{"name": "a", "deviceClassName": CLASS, "count": 3}]},
    ],
)
def test_whole_devices_are_counted_however_they_were_asked_for(asked: Document) -> None:
    found = devices(allocated(claim("c", asked), "n1", ["gpu-0", "gpu-1", "gpu-3"], "p"))
    holder = completed(found, claiming(pod("p", gpus=0), "c"), on="n1")
    assert (gpus(holder), holder.gpu_indices) == (3.0, (0, 1, 3))


def told(found: Devices) -> tuple[Any, Any]:
    """The nodes and the pods that have to look again; None for all."""
    nodes: list[Any] = [set()]
    pods: list[Any] = [set()]
    found.tell_nodes, found.tell_pods = nodes.append, pods.append
    found.tell()
    return nodes[-1], pods[-1]


def test_who_has_to_look_again_is_told() -> None:
    found = devices()
    assert told(found) == (None, None)
    completed(found, claiming(pod("p", gpus=0), "c"))
    found.note_claim(("default", "c"), read_claim(claim("c")))
    assert told(found) == (set(), {"p"})
    found.note_claim(("default", "c"), read_claim(allocated(claim("c"), "n1", ["gpu-0"], "p")))
    assert told(found) == ({"n1"}, {"p"})
    found.note_slice(("", "x"), read_slice(resource_slice("n1", FOUR, name="x", generation=2)))
    assert told(found) == ({"n1"}, {"p"})
    found.forget("p")
    assert told(found) == ({"n1"}, set())
    found.note_claim(("default", "c"), None)
    assert told(found) == ({"n1"}, set())
    assert told(found) == (set(), set())


def test_a_class_that_changes_concerns_the_pods_that_name_it() -> None:
    found = devices(claim("c"), claim("d", request(deviceClassName="nic")))
    for name, used in {"p": "c", "q": "d"}.items():
        completed(found, claiming(pod(name, gpus=0), used), uid=name)
    completed(found, pod("r", gpus=1), uid="r")
    told(found)
    found.note_class(("", CLASS), read_class(device_class(CLASS)))  # as it is
    assert told(found) == (set(), set())
    found.note_class(("", "nic"), read_class(device_class("nic")))
    assert told(found) == (set(), {"q"})
    found.note_class(("", CLASS), read_class(device_class(CLASS, extendedResourceName=GPU)))
    assert told(found) == (set(), {"p", "r"})


def test_the_other_users_of_a_claim_are_told_of_a_new_one() -> None:
    found = devices(claim("c"))
    completed(found, claiming(pod("p", gpus=0), "c"))
    told(found)
    completed(found, claiming(pod("q", gpus=0), "c"), uid="q")
    assert told(found) == (set(), {"p"})
    found.forget("q")
    assert told(found) == (set(), {"p"})


def test_a_held_device_is_offered_only_if_the_service_counts_it_on_its_holder() -> None:
    found = devices(allocated(claim("c", request(2)), "n1", ["gpu-1", "gpu-2"], "p"))
    found.is_counted = lambda uid, name, index: (uid, name, index) == ("p", "n1", 2)
    assert free(found) == [0, 2, 3]


def test_as_long_as_claims_cannot_be_read_nothing_is_offered() -> None:
    found = devices()
    found.is_served = lambda: False
    assert free(found) == []


def test_slices_that_make_no_node_take_only_their_own_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    found = devices()

    def fail(*_: object) -> None:
        raise ValueError("odd")

    found._pools.whole_on = fail  # type: ignore[method-assign,assignment]
    said: list[str] = []
    monkeypatch.setattr(inventory.log, "exception", lambda text, *_: said.append(text))
    assert free(found) == []
    assert "its slices cannot be read" in said[0]


def test_a_gpu_that_is_passed_to_a_virtual_machine_is_taken() -> None:
    """NVIDIA's driver lists it twice, under the same PCI address."""
    address = {"resource.kubernetes.io/pciBusID": {"string": "0000:01:00.0"}}
    whole, other = gpu(0), gpu(1)
    whole["attributes"] |= address
    virtual = {"name": "gpu-vfio-0", "attributes": {"type": {"string": "vfio"}} | address}
    held = allocated(claim("c", request(deviceClassName="vfio.gpu.nvidia.com")), "n1", ["gpu-vfio-0"], "p")
    assert free(devices(resource_slice("n1", [whole, other, virtual]), held)) == [1]


SHARING = [{"opaque": {"parameters": {"sharing": {"strategy": "TimeSlicing"}}}}]


def test_an_extended_resource_of_a_class_that_shares_is_left_to_the_scheduler() -> None:
    backed = device_class(extendedResourceName=GPU, config=SHARING)
    assert completed(devices(backed), pod("p", gpus=2)).unjudged == "time_slicing"


def test_shared_devices_behind_an_extended_resource_are_counted_once() -> None:
    backed = device_class(extendedResourceName=GPU)
    held = allocated(claim("x", request(2)), "n1", ["gpu-0", "gpu-3"], "p")
    held["status"]["allocation"]["devices"]["config"] = SHARING
    document = pod("p", gpus=2)
    document["status"] = {"extendedResourceClaimStatus": {"resourceClaimName": "x"}}
    found = devices(backed, held)
    once = completed(found, document, on="n1")
    assert (gpus(once), free(found)) == (0.0, [1, 2])
    assert found.complete(once) == once


# --- pods ----------------------------------------------------------------------------------------------------------


def test_a_pod_asks_for_the_whole_devices_of_its_claims() -> None:
    found = completed(devices(claim("c", request(2))), claiming(pod("p", gpus=0), "c"))
    assert (gpus(found), found.unjudged, found.is_unclaimed) == (2.0, "", False)
    assert found.node_selector == {names.GPU_SOURCE: names.BY_CLAIM}
    assert found.is_by_claim


def test_completing_a_pod_again_changes_nothing() -> None:
    found = devices(claim("c", request(2)))
    once = completed(found, claiming(pod("p", gpus=1), "c"))
    assert gpus(once) == 3.0
    assert found.complete(once) == once


@pytest.mark.parametrize("made", [None, "c"])
def test_a_claim_that_does_not_exist_yet_is_waited_for(made: str | None) -> None:
    document = pod("p", gpus=0)
    document["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": "template"}]
    if made:
        document["status"] = {"resourceClaimStatuses": [{"name": "gpus", "resourceClaimName": made}]}
    assert completed(devices(), document).is_unclaimed
    found = completed(devices(claim("c", request(2))), document)
    assert (found.is_unclaimed, gpus(found)) == ((True, 0.0) if made is None else (False, 2.0))


ASKED: Mapping[str, tuple[Document, str]] = {
    "mig": (claim("c", request(deviceClassName=MIG_CLASS)), "mig"),
    "time-sliced": (
        claim("c", config=[{"opaque": {"parameters": {"sharing": {"strategy": "TimeSlicing"}}}}]),
        "time_slicing",
    ),
    "mps": (claim("c", config=[{"opaque": {"parameters": {"sharing": {"strategy": "MPS"}}}}]), "mps"),
    "a partition, by a class of its own": (claim("c", request(deviceClassName="parts")), "other_devices"),
    "a part of a capacity": (claim("c", request(capacity={"requests": {"memory": "1Gi"}})), "device_capacity"),
    "access for administration": (claim("c", request(adminAccess=True)), "admin_access"),
    "the first that is available": (
        claim("c", {"name": "gpus", "firstAvailable": [{"name": "a", "deviceClassName": CLASS}]}),
        "first_available",
    ),
    "all of a node": (claim("c", request(allocationMode="All", count=None)), "all_devices"),
    "another device beside a GPU": (claim("c", request(), request(deviceClassName="nic")), "other_devices"),
    "allocated to somebody else": (allocated(claim("c"), "n1", ["gpu-0"], "q"), "allocated_claim"),
}


@pytest.mark.parametrize("kind", ASKED)
def test_other_requests_are_left_to_the_scheduler_by_a_reason(kind: str) -> None:
    asked, reason = ASKED[kind]
    assert completed(devices(asked), claiming(pod("p", gpus=0), "c")).unjudged == reason


def test_a_class_that_sets_up_sharing_is_not_judged() -> None:
    config = [{"opaque": {"parameters": {"sharing": {"strategy": "TimeSlicing"}}}}]
    found = devices(device_class(config=config), claim("c"))
    assert completed(found, claiming(pod("p", gpus=0), "c")).unjudged == "time_slicing"


def test_one_claim_of_several_waiting_pods_is_not_judged() -> None:
    found = devices(claim("c"))
    assert completed(found, claiming(pod("p", gpus=0), "c"), uid="p").unjudged == ""
    assert completed(found, claiming(pod("q", gpus=0), "c"), uid="q").unjudged == "shared_claim"
    completed(found, claiming(pod("p", gpus=0), "c"), uid="p", phase="Succeeded")  # it uses it no more
    assert completed(found, claiming(pod("q", gpus=0), "c"), uid="q").unjudged == ""
    completed(found, claiming(pod("p", gpus=0), "c"), uid="p")
    found.keep({"q"})
    assert completed(found, claiming(pod("q", gpus=0), "c"), uid="q").unjudged == ""


def test_a_pod_that_only_a_caller_knows_uses_no_claim() -> None:
    found = devices(claim("c"))
    invented = claiming(pod("p", gpus=0), "c")
    invented["metadata"] |= {"uid": "invented", "namespace": "default"}
    found.complete(parse_pod(invented))
    assert completed(found, claiming(pod("q", gpus=0), "c"), uid="q").unjudged == ""


def test_a_class_of_our_extended_resource_is_one_of_gpus() -> None:
    mapped = device_class("site-gpus", extendedResourceName=GPU)
    found = devices(mapped, claim("c", request(2, deviceClassName="site-gpus")))
    assert gpus(completed(found, claiming(pod("p", gpus=0), "c"))) == 2.0


def test_without_the_right_to_read_claims_their_pods_are_left_to_the_scheduler() -> None:
    found = devices()
    found.is_served = lambda: False
    waiting = completed(found, claiming(pod("p", gpus=0), "c"))
    assert (waiting.unjudged, waiting.is_unclaimed) == ("resource_claims", False)
    assert not completed(found, claiming(pod("p", gpus=0), "c"), on="n1").is_unclaimed


def test_a_pod_that_just_got_its_node_waits_for_the_sight_of_its_allocation() -> None:
    found = devices(claim("c"))
    assert completed(found, claiming(pod("p", gpus=0), "c"), on="n1").is_unclaimed
    assert not completed(found, claiming(pod("p", gpus=0), "c"), on="n1", phase="Running").is_unclaimed


def test_an_extended_resource_that_a_claim_backs_is_counted_once() -> None:
    backed = device_class(extendedResourceName=GPU)
    special = allocated(claim("x", request(2)), "n1", ["gpu-0", "gpu-3"], "p")
    document = pod("p", gpus=2)
    document["status"] = {"extendedResourceClaimStatus": {"resourceClaimName": "x"}}
    found = completed(devices(backed, special), document, on="n1")
    assert (gpus(found), found.gpu_indices) == (2.0, (0, 3))
    assert free(devices(backed, special)) == [0, 1, 2, 3]


@pytest.mark.parametrize(("resource", "source"), [(GPU, ""), ("", names.BY_PLUGIN)])
def test_a_pod_without_a_claim_gets_none_of_the_slices_unless_its_resource_is_backed(
    resource: str, source: str
) -> None:
    spec = {"extendedResourceName": resource} if resource else {}
    found = completed(devices(device_class(**spec)), pod("p", gpus=2))
    assert found.node_selector.get(names.GPU_SOURCE, "") == source
    assert found.is_by_claim is bool(resource)


def test_an_implicit_extended_resource_can_be_one_of_gpus() -> None:
    resource = f"deviceclass.resource.kubernetes.io/{CLASS}"
    found = Devices(GangRules(gpu_resources=(GPU, resource)))
    found.note_class(("", CLASS), read_class(device_class()))
    found.note_slice(("", "s"), read_slice(resource_slice("n1", FOUR)))
    document = pod("p", gpus=0)
    document["spec"]["containers"][0]["resources"]["requests"][resource] = "2"
    waiting = completed(found, document)
    assert waiting.is_by_claim
    assert names.GPU_SOURCE not in waiting.node_selector


def test_claims_do_not_change_pods_where_there_are_none() -> None:
    plain = parse_pod(pod("p", gpus=2) | {"metadata": {"name": "p", "uid": "p"}})
    assert Devices(RULES).complete(plain) is plain
