"""The devices that a claim asks for, and those that it holds."""

from __future__ import annotations

from typing import Any

import pytest
from tests.e2e.kubernetes.devices.kubernetes_devices import (
    CLASS,
    DRIVER,
    MIG_CLASS,
    allocated,
    claim,
    device_class,
    request,
    result,
)

from placewise_kubernetes.gang.devices.claims import Request, Result, read_claim, read_class

SHARED = {"opaque": {"driver": DRIVER, "parameters": {"kind": "GpuConfig", "sharing": {"strategy": "MPS"}}}}
FIRST = {"name": "gpus", "firstAvailable": [{"name": "large", "deviceClassName": CLASS}]}
CEL = "device.attributes['gpu.nvidia.com'].productName == 'H100'"
MIG_CEL = f"device.attributes['{DRIVER}'].type == \"mig\""


def test_a_number_of_whole_devices_is_judged() -> None:
    assert read_claim(claim("c", request(3), request())).requests == (Request(CLASS, 3), Request(CLASS, 1))
    assert read_claim(claim("c", {"name": "gpus", "exactly": {"deviceClassName": CLASS}})).requests[0].count == 1


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (FIRST, "first_available"),
        (request(adminAccess=True), "admin_access"),
        (request(allocationMode="All", count=None), "all_devices"),
        (request(capacity={"requests": {"memory": "10Gi"}}), "device_capacity"),
        (request(selectors=[{"cel": {"expression": CEL}}]), "device_selectors"),
        (request(selectors=[{"cel": {"expression": MIG_CEL}}]), "mig"),
    ],
)
def test_a_request_of_another_kind_names_the_reason(asked: dict[str, Any], reason: str) -> None:
    (found,) = read_claim(claim("c", asked)).requests
    assert found.unjudged == reason


@pytest.mark.parametrize(
    ("strategy", "reason"), [("TimeSlicing", "time_slicing"), ("MPS", "mps"), ("Other", "shared_devices")]
)
def test_a_claim_that_sets_up_sharing_names_the_way(strategy: str, reason: str) -> None:
    config = [{"opaque": {"driver": DRIVER, "parameters": {"sharing": {"strategy": strategy}}}}]
    found = read_claim(claim("c", config=config))
    assert (found.unjudged, found.is_shared) == (reason, True)
    assert read_class(device_class(config=config)).unjudged == reason


def test_sharing_may_come_with_the_allocation() -> None:
    document = allocated(claim("c"), "n1", ["gpu-0"], "p")
    document["status"]["allocation"]["devices"]["config"] = [SHARED | {"source": "FromClass"}]
    found = read_claim(document)
    assert found.is_shared
    assert not found.is_of_one_pod


def test_constraints_between_devices_are_not_judged() -> None:
    assert read_claim(claim("c", constraints=[{"matchAttribute": "x/numa"}])).unjudged == "device_constraints"


def test_an_allocation_names_its_devices_and_its_pods() -> None:
    shares = [result("n1", "gpu-1", shareID="x"), result("n1", "gpu-2", consumedCapacity={"memory": "1Gi"})]
    found = read_claim(allocated(claim("c"), "n1", ["gpu-0", *shares, result("n1", "gpu-3", adminAccess=True)], "p"))
    ids = [(DRIVER, "n1", f"gpu-{number}") for number in range(3)]
    assert found.results == (Result(ids[0]), Result(ids[1], is_share=True), Result(ids[2], is_share=True))
    assert found.consumers == {"p"}
    assert found.is_of_one_pod
    assert not read_claim(allocated(claim("c"), "n1", ["gpu-0"], "p", "q")).is_of_one_pod


def test_a_class_names_its_extended_resource_and_its_kind() -> None:
    found = read_class(device_class(extendedResourceName="nvidia.com/gpu"))
    assert (found.resource, found.is_mig, found.unjudged) == ("nvidia.com/gpu", False, "")
    assert read_class(device_class(MIG_CLASS, kind="mig")).is_mig
