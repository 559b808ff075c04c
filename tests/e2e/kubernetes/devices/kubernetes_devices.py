"""Objects of resource.k8s.io for tests: slices of GPUs, classes, claims, and pods that use them."""

from __future__ import annotations

from typing import Any

from tests.e2e.kubernetes.kubernetes_cluster import fake_node, gang

API = "resource.k8s.io/v1"
DRIVER = "gpu.nvidia.com"
CLASS = "gpu.nvidia.com"
MIG_CLASS = "mig.nvidia.com"
Document = dict[str, Any]


def bare_node(name: str, **options: Any) -> Document:
    """A node that counts no GPUs itself."""
    document = fake_node(name, **options)
    for amounts in ("capacity", "allocatable"):
        document["status"][amounts] = {
            key: value for key, value in document["status"][amounts].items() if key != "nvidia.com/gpu"
        }
    return document


def gpu(number: int, **fields: Any) -> Document:
    """A whole GPU as NVIDIA's driver publishes it."""
    attributes = {
        "type": {"string": "gpu"},
        "uuid": {"string": f"GPU-{number}"},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
    }
    capacity = {"memory": {"value": "80Gi"}}
    return {"name": f"gpu-{number}", "attributes": attributes, "capacity": capacity} | fields


def mig(number: int, parent: int, **fields: Any) -> Document:
    """A MIG device of a GPU."""
    attributes = {
        "type": {"string": "mig"},
        "uuid": {"string": f"MIG-{number}"},
        "parentUUID": {"string": f"GPU-{parent}"},
        "profile": {"string": "1g.10gb"},
    }
    return {"name": f"gpu-{parent}-mig-{number}", "attributes": attributes} | fields


def resource_slice(
    node: str, devices: list[Document], *, name: str = "", generation: int = 1, count: int = 1, driver: str = DRIVER
) -> Document:
    """A ResourceSlice of the node's pool, which is named as the node."""
    return {
        "apiVersion": API,
        "kind": "ResourceSlice",
        "metadata": {"name": name or f"{node}-{driver}"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": count},
            "devices": devices,
        },
    }


def device_class(name: str = CLASS, *, kind: str = "gpu", **spec: Any) -> Document:
    """A DeviceClass as NVIDIA's driver installs it."""
    expression = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == '{kind}'"
    selectors = [{"cel": {"expression": expression}}]
    return {
        "apiVersion": API,
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": selectors} | spec,
    }


def request(count: int = 1, **fields: Any) -> Document:
    """A request for so many devices of a class."""
    exactly = {"deviceClassName": CLASS, "allocationMode": "ExactCount", "count": count} | fields
    return {"name": "gpus", "exactly": {key: value for key, value in exactly.items() if value is not None}}


def claim(name: str, *requests: Document, **devices: Any) -> Document:
    """A ResourceClaim."""
    return {
        "apiVersion": API,
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": list(requests or [request()])} | devices},
    }


def result(node: str, device: str, **fields: Any) -> Document:
    """One device of an allocation."""
    return {"request": "gpus", "driver": DRIVER, "pool": node, "device": device} | fields


def allocated(document: Document, node: str, devices: list[Document | str], *uids: str) -> Document:
    """The claim with these devices, reserved for the pods with these uids."""
    results = [result(node, device) if isinstance(device, str) else device for device in devices]
    users = [{"resource": "pods", "name": uid, "uid": uid} for uid in uids]
    return document | {"status": {"allocation": {"devices": {"results": results}}, "reservedFor": users}}


def claiming(document: Document, claim_name: str) -> Document:
    """The pod with a claim by name."""
    document["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimName": claim_name}]
    document["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpus"}]
    return document


def claiming_gang(name: str, size: int, **options: Any) -> list[Document]:
    """Pods of one gang that request no extended resource; pod NAME-0 uses the claim NAME-0, and so on."""
    return [claiming(pod, pod["metadata"]["name"]) for pod in gang(name, size, gpus=0, **options)]
