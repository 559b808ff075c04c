"""Kubernetes quantities ("500m", "64Gi", "1e3") as floats, and pod requests as Resources. Never rounds up."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

from placewise.v1.job_pb2 import Resources

GIB = 2.0**30
MIB = 2.0**20
# Suffixes of the API's quantity format: decimal SI, and binary.
_SCALE = {
    "": 1.0,
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
    "Ki": 2.0**10,
    "Mi": 2.0**20,
    "Gi": 2.0**30,
    "Ti": 2.0**40,
    "Pi": 2.0**50,
    "Ei": 2.0**60,
}
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)([a-zA-Z]*)")
# Amounts that every node has in some form and that no placement policy weighs.
_NOT_EXTENDED = ("cpu", "memory", "pods", "ephemeral-storage", "storage")


def parse_quantity(text: object) -> float:
    """The number a quantity stands for, in its base unit (cores, bytes, pieces).

    Raises:
        ValueError: the text is no quantity.
    """
    return _parse(str(text))


@functools.lru_cache(4096)  # the pods of a cluster ask for few different amounts, again and again
def _parse(text: str) -> float:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match.group(2) not in _SCALE:
        raise ValueError(f"{text!r} is not a quantity")
    return float(match.group(1)) * _SCALE[match.group(2)]


def resources_from(amounts: Mapping[str, Any], gpu_resources: Iterable[str], *, is_whole: bool = False) -> Resources:
    """A resource list (requests, capacity, minResources) as Resources.

    `is_whole`: also the amounts that no policy weighs, as `whole_amounts` gives them.

    Raises:
        ValueError: an amount is no quantity.
    """
    gpu_names = frozenset(gpu_resources)
    skipped = () if is_whole else _NOT_EXTENDED
    result = Resources(
        cpu_cores=parse_quantity(amounts.get("cpu", 0)),
        memory_gib=parse_quantity(amounts.get("memory", 0)) / GIB,
    )
    for name, amount in amounts.items():
        if name in gpu_names:
            result.gpus += parse_quantity(amount)
        elif name not in skipped and name not in ("cpu", "memory") and (is_whole or not name.startswith("hugepages-")):
            result.extended[name] = parse_quantity(amount)
    return result


def whole_amounts(amounts: Mapping[str, Any]) -> dict[str, float]:
    """A resource list with MiB instead of bytes for disks and huge pages: the service takes no such numbers of bytes.

    Raises:
        ValueError: an amount is no quantity.
    """
    return {name: parse_quantity(amount) / (MIB if _is_bytes(name) else 1.0) for name, amount in amounts.items()}


def _is_bytes(name: str) -> bool:
    return name in ("ephemeral-storage", "storage") or name.startswith("hugepages-")


def pod_requests(spec: Mapping[str, Any]) -> dict[str, float]:
    """The resources of a pod by name, by the API's own rule.

    The larger of (sum over containers) and (largest initialisation container, with the sidecars started before it),
    or what the pod requests as a whole, plus the overhead of its runtime class.
    """
    total: dict[str, float] = {}
    for container in spec.get("containers") or ():
        add_amounts(total, _container_requests(container))
    sidecars: dict[str, float] = {}
    peak: dict[str, float] = {}
    for container in spec.get("initContainers") or ():
        requests = _container_requests(container)
        if container.get("restartPolicy") == "Always":
            add_amounts(total, requests)
            add_amounts(sidecars, requests)
            raise_amounts(peak, sidecars)
        else:
            raise_amounts(peak, _sum(sidecars, requests))
    raise_amounts(total, peak)
    # The API server has made them of the pod's limits where only these were given.
    of_pod = (spec.get("resources") or {}).get("requests") or {}
    total |= {name: parse_quantity(amount) for name, amount in of_pod.items()}
    add_amounts(total, {name: parse_quantity(amount) for name, amount in (spec.get("overhead") or {}).items()})
    return total


def _container_requests(container: Mapping[str, Any]) -> dict[str, float]:
    """Requests; a limit without a request counts as one."""
    resources = container.get("resources") or {}
    amounts = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: parse_quantity(amount) for name, amount in amounts.items()}


def add_amounts(total: dict[str, float], amounts: Mapping[str, float]) -> None:
    """Adds to `total` in place."""
    for name, amount in amounts.items():
        total[name] = total.get(name, 0.0) + amount


def _sum(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    result = dict(first)
    add_amounts(result, second)
    return result


def raise_amounts(total: dict[str, float], floor: Mapping[str, float]) -> None:
    """Raises each amount of `total`, in place, to that of `floor`."""
    for name, amount in floor.items():
        total[name] = max(total.get(name, 0.0), amount)
