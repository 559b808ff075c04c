"""Whole-gang first fit, for pods of our own scheduler name while the service is away.

No policy: it only keeps work flowing. It never splits a gang.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from placewise.v1.cluster_pb2 import Node
from placewise_kubernetes.kube.objects import Pod
from placewise_kubernetes.kube.quantity import GIB

# Amounts come from text and are summed as floats.
_SLACK = 1e-6


def first_fit(
    pods: Iterable[Pod],
    nodes: Sequence[Node],
    in_use: Mapping[str, Mapping[str, float]],
    gpu_resources: Iterable[str],
) -> dict[str, str] | None:
    """Node by pod uid for all pods, or None if they do not fit together.

    `in_use` is requests by node and resource name; fullest nodes come first, so that gangs stay together.
    """
    gpu_names = frozenset(gpu_resources)
    free = {node.id: _free(node, in_use.get(node.id, {}), gpu_names) for node in nodes if node.state == Node.READY}
    labels = {node.id: node.labels for node in nodes}
    order = sorted(free, key=lambda name: (free[name]["gpus"], name))
    chosen: dict[str, str] = {}
    for pod in pods:
        demand = _amounts(pod.requests, gpu_names)
        name = next((name for name in order if _fits(demand, free[name]) and _selects(pod, labels[name])), None)
        if name is None:
            return None
        for resource, amount in demand.items():
            free[name][resource] -= amount
        chosen[pod.uid] = name
    return chosen


def have_room(
    wanted: Mapping[str, Mapping[str, float]],
    nodes: Iterable[Node],
    in_use: Mapping[str, Mapping[str, float]],
    gpu_resources: Iterable[str],
) -> bool:
    """Whether every node has room for the requests; by node and resource name."""
    gpu_names = frozenset(gpu_resources)
    return all(
        _fits(_amounts(wanted[node.id], gpu_names), _free(node, in_use.get(node.id, {}), gpu_names)) for node in nodes
    )


def _free(node: Node, used: Mapping[str, float], gpu_names: frozenset[str]) -> dict[str, float]:
    free = {
        "cpu": node.capacity.cpu_cores,
        "memory": node.capacity.memory_gib * GIB,
        "gpus": node.capacity.gpus,
        **node.capacity.extended,
    }
    for resource, amount in _amounts(used, gpu_names).items():
        free[resource] = free.get(resource, 0.0) - amount
    return free


def _amounts(requests: Mapping[str, float], gpu_names: frozenset[str]) -> dict[str, float]:
    amounts: dict[str, float] = {}
    for name, amount in requests.items():
        key = "gpus" if name in gpu_names else name
        if key != "ephemeral-storage" and amount:
            amounts[key] = amounts.get(key, 0.0) + amount
    return amounts


def _fits(demand: Mapping[str, float], free: Mapping[str, float]) -> bool:
    return all(free.get(resource, 0.0) + _SLACK >= amount for resource, amount in demand.items())


def _selects(pod: Pod, labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in pod.node_selector.items())
