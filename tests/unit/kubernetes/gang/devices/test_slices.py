"""Devices of a node: the newest complete generation of each pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.e2e.kubernetes.devices.kubernetes_devices import DRIVER, gpu, mig, resource_slice

from placewise_kubernetes.gang.devices.slices import Device, DeviceId, Pools, place_in, read_slice

POOL = (DRIVER, "n1")


def device(document: dict[str, Any]) -> Device:
    (found,) = read_slice(resource_slice("n1", [document])).devices
    return found


def pools(*documents: dict[str, Any]) -> Pools:
    found = Pools([DRIVER])
    for document in documents:
        found.put(read_slice(document))
    return found


def names(found: Pools) -> list[str]:
    return [item.name for item in found.devices(POOL)]


def test_a_whole_gpu_has_its_model_and_its_memory() -> None:
    found = device(gpu(3))
    assert (found.name, found.model, found.memory_gib) == ("gpu-3", "NVIDIA H100 80GB HBM3", 80.0)
    assert found.is_whole
    assert not found.is_tainted


def test_attributes_may_carry_the_domain_of_their_driver() -> None:
    attributes = {"gpu.example.com/model": {"string": "LATEST"}, "gpu.example.com/index": {"int": 4}}
    found = device(
        {"name": "gpu-4", "attributes": attributes, "capacity": {"gpu.example.com/memory": {"value": "1Ti"}}}
    )
    assert (found.model, found.index, found.memory_gib) == ("LATEST", 4, 1024.0)


COUNTERS = [{"counterSet": "gpu-0-set", "counters": {"memory": {"value": "10Gi"}}}]


@pytest.mark.parametrize(
    ("document", "is_whole"),
    [
        (gpu(0), True),
        (gpu(0, consumesCounters=COUNTERS), True),  # says itself that it is the whole
        (gpu(0, allowMultipleAllocations=True), False),
        (mig(0, 0), False),
        ({"name": "plain"}, True),
        ({"name": "part", "consumesCounters": COUNTERS}, False),
        ({"name": "amd", "attributes": {"type": {"string": "amdgpu-partition"}}}, False),
    ],
)
def test_parts_and_shared_devices_are_no_whole_gpus(document: dict[str, Any], is_whole: bool) -> None:
    assert device(document).is_whole is is_whole


def test_devices_overlap_by_their_gpu_or_by_a_set_of_counters() -> None:
    assert device(mig(0, 1)).overlaps(device(gpu(1)))
    assert device(gpu(1)).overlaps(device(mig(0, 1)))
    assert not device(mig(0, 1)).overlaps(device(gpu(2)))
    part = device({"name": "part", "consumesCounters": COUNTERS})
    assert part.overlaps(device(gpu(0, consumesCounters=COUNTERS)))


@pytest.mark.parametrize(("effect", "is_tainted"), [("NoSchedule", True), ("NoExecute", True), ("None", False)])
def test_a_taint_that_keeps_pods_off_is_seen(effect: str, is_tainted: bool) -> None:
    assert device(gpu(0, taints=[{"key": "sick", "effect": effect}])).is_tainted is is_tainted


def test_a_new_generation_counts_when_all_of_its_slices_are_there() -> None:
    found = pools(resource_slice("n1", [gpu(0), gpu(1)], name="a"))
    found.put(read_slice(resource_slice("n1", [gpu(0)], name="b", generation=2, count=2)))
    assert names(found) == ["gpu-0", "gpu-1"]
    found.put(read_slice(resource_slice("n1", [gpu(2)], name="a", generation=2, count=2)))  # the old one is overwritten
    assert names(found) == ["gpu-2", "gpu-0"]


def test_while_a_generation_comes_the_last_complete_one_stays() -> None:
    found = pools(resource_slice("n1", [gpu(0), gpu(1)], name="a"))
    found.put(read_slice(resource_slice("n1", [gpu(0)], name="a", generation=2, count=2)))
    assert names(found) == ["gpu-0", "gpu-1"]
    assert found.remove("a") == {"n1"}
    assert not found


def test_a_pool_that_never_was_complete_has_no_devices() -> None:
    found = pools(resource_slice("n1", [gpu(0)], name="a", count=2))
    assert names(found) == []
    assert not found.has_node("n1")


def test_other_drivers_and_devices_of_no_node_are_passed_over() -> None:
    network = resource_slice("n1", [gpu(0)], driver="dra.net")
    everywhere = resource_slice("n1", [gpu(0)])
    everywhere["spec"]["nodeName"] = None
    assert not pools(network, everywhere)


def test_a_slice_may_move_to_another_pool() -> None:
    found = pools(resource_slice("n1", [gpu(0)], name="a"))
    assert found.put(read_slice(resource_slice("n2", [gpu(0)], name="a"))) == {"n1", "n2"}
    assert found.pools_on("n1") == []
    assert found.node_of((DRIVER, "n2")) == "n2"


def indices(named: Mapping[str, int | None], places: dict[DeviceId, int] | None = None) -> dict[str, int]:
    """Of devices with these indices of their driver."""
    places = {} if places is None else places
    place_in(places, {(*POOL, name): Device(name, index=index) for name, index in named.items()}.items())
    return {key[2]: index for key, index in places.items() if key[2] in named}


def test_indices_are_the_numbers_of_the_names() -> None:
    assert indices(dict.fromkeys(("gpu-10", "gpu-9", "gpu-1"))) == {"gpu-1": 1, "gpu-9": 9, "gpu-10": 10}


def test_without_numbers_of_their_own_indices_follow_the_names_in_their_natural_order() -> None:
    assert indices(dict.fromkeys(("10-x", "9-x", "1-x"))) == {"1-x": 0, "9-x": 1, "10-x": 2}


def test_a_place_that_was_given_stays() -> None:
    places: dict[DeviceId, int] = {}
    assert indices(dict.fromkeys("bc"), places) == {"b": 0, "c": 1}
    assert indices(dict.fromkeys("abc"), places) == {"a": 2, "b": 0, "c": 1}
    assert indices(dict.fromkeys("ac"), places) == {"a": 2, "c": 1}
    for number in range(1000):
        indices(dict.fromkeys((f"c{number}x", "c")), places)
    assert (len(places) <= 128, indices({"c": None}, places)["c"]) == (True, 1)


def test_the_drivers_own_indices_win_if_all_have_another_one() -> None:
    assert indices({"a": 5, "b": 2}) == {"a": 5, "b": 2}
    assert indices({"a": 2, "b": 2}) == {"a": 0, "b": 1}


@pytest.mark.parametrize("value", [{"int": 5_000_000_000}, {"int": -1}, {"bool": True}, {"string": "1"}, {"int": 128}])
def test_an_index_that_cannot_be_is_none(value: dict[str, Any]) -> None:
    document = gpu(3)
    document["attributes"]["index"] = value
    found = pools(resource_slice("n1", [document]))
    assert list(found.indices_on("n1").values()) == [3]


def test_a_negative_memory_is_unknown() -> None:
    document = gpu(0, capacity={"memory": {"value": "-5Gi"}})
    assert pools(resource_slice("n1", [document])).devices((DRIVER, "n1"))[0].memory_gib == 0.0


def test_a_pool_of_several_nodes_is_passed_over() -> None:
    """The results of a claim do not say on which node a device is."""
    parts = [resource_slice(f"n{number}", [gpu(number)], name=f"s{number}", count=2) for number in (1, 2)]
    for part in parts:
        part["spec"]["pool"]["name"] = "shared"
    found = pools(*parts)
    assert not found
    assert found.node_of((DRIVER, "shared")) == ""


def test_a_slice_that_is_as_before_is_no_news() -> None:
    found = pools(resource_slice("n1", [gpu(0)], name="a"))
    assert found.put(read_slice(resource_slice("n1", [gpu(0)], name="a"))) == set()
