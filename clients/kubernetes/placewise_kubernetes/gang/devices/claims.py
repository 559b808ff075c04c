"""ResourceClaims and DeviceClasses: the requests of a claim, and the devices that it holds. Pure.

Placewise decides for claims of a number of whole GPUs. Of any other claim it names the reason why its scheduler alone
places the pod.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from placewise_kubernetes.gang.devices.slices import DeviceId, PoolId

ClaimKey = tuple[str, str]
# The CEL expression by which NVIDIA's class of MIG devices, and requests for them, select these.
_MIG = re.compile(r"\.type\s*==\s*['\"]mig['\"]")
_STRATEGIES = {"TimeSlicing": "time_slicing", "MPS": "mps"}
OTHER_DEVICES = "other_devices"
MIG = "mig"


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """One DeviceClass. `resource` is the extended resource that pods may name instead. `unjudged` as in Request."""

    name: str
    resource: str = ""
    is_mig: bool = False
    unjudged: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a claim. `unjudged`: why it is left to the scheduler; empty if it is for `count` devices alone."""

    device_class: str = ""
    count: int = 0
    unjudged: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """A device of an allocation. `is_share`: the claim holds only a part of it."""

    device: DeviceId
    is_share: bool = False

    @property
    def pool(self) -> PoolId:
        """The device's."""
        return self.device[:2]


@dataclass(frozen=True, slots=True)
class Claim:
    """One ResourceClaim. `consumers` are the uids of the pods that it is reserved for."""

    key: ClaimKey
    requests: tuple[Request, ...] = ()
    unjudged: str = ""
    is_allocated: bool = False
    results: tuple[Result, ...] = ()
    consumers: frozenset[str] = frozenset()
    is_shared: bool = False
    """Several may use its devices at a time, in turns or side by side."""

    @property
    def is_of_one_pod(self) -> bool:
        """Whether its devices are all held by one pod, alone."""
        return len(self.consumers) == 1 and not self.is_shared


def read_class(document: Mapping[str, Any]) -> DeviceClass:
    """A v1.DeviceClass. Raises KeyError, TypeError, AttributeError: it is none."""
    spec = document.get("spec") or {}
    return DeviceClass(
        name=document["metadata"]["name"],
        resource=spec.get("extendedResourceName") or "",
        is_mig=_selects_mig(spec),
        unjudged=_sharing(spec.get("config") or ()),
    )


def read_claim(document: Mapping[str, Any]) -> Claim:
    """A v1.ResourceClaim. Raises KeyError, TypeError, ValueError, AttributeError: it is none."""
    metadata, status = document["metadata"], document.get("status") or {}
    devices = document["spec"].get("devices") or {}
    allocation = status.get("allocation") or {}
    allocated = allocation.get("devices") or {}
    sharing = _sharing([*(devices.get("config") or ()), *(allocated.get("config") or ())])
    users = (user for user in status.get("reservedFor") or () if user.get("resource") == "pods")
    return Claim(
        key=(metadata.get("namespace") or "default", metadata["name"]),
        requests=tuple(map(_read_request, devices.get("requests") or ())),
        unjudged=sharing or ("device_constraints" if devices.get("constraints") else ""),
        is_allocated=bool(allocation),
        results=tuple(_read_results(allocated.get("results") or ())),
        consumers=frozenset(user["uid"] for user in users),
        is_shared=bool(sharing),
    )


def _read_request(document: Mapping[str, Any]) -> Request:
    if document.get("firstAvailable"):
        return Request(unjudged="first_available")
    asked = document.get("exactly") or {}
    found = {
        "admin_access": asked.get("adminAccess"),
        "all_devices": asked.get("allocationMode") == "All",
        "device_capacity": asked.get("capacity"),
        MIG: _selects_mig(asked),
        "device_selectors": asked.get("selectors"),
    }
    reason = next((reason for reason, holds in found.items() if holds), "")
    return Request(asked.get("deviceClassName") or "", int(asked.get("count") or 1), reason)


def _read_results(results: Iterable[Mapping[str, Any]]) -> Iterable[Result]:
    """Access for administration holds nothing: by the API's rule the device can be allocated beside it."""
    for result in results:
        if not result.get("adminAccess"):
            is_share = bool(result.get("shareID") or result.get("consumedCapacity"))
            yield Result((result["driver"], result["pool"], result["device"]), is_share)


def _selects_mig(document: Mapping[str, Any]) -> bool:
    expressions = ((selector.get("cel") or {}).get("expression") or "" for selector in document.get("selectors") or ())
    return any(_MIG.search(expression) for expression in expressions)


def _sharing(config: Iterable[Mapping[str, Any]]) -> str:
    """The first way of sharing a device in a driver's own parameters, as a reason; empty if there is none."""
    for item in config:
        parameters = (item.get("opaque") or {}).get("parameters") or {}
        strategy = (parameters.get("sharing") or {}).get("strategy")
        if strategy:
            return _STRATEGIES.get(str(strategy), "shared_devices")
    return ""
