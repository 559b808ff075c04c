"""v1.Node to Node: inventory and state. Never guesses telemetry: the API has none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from placewise.v1.cluster_pb2 import Gpu, Node
from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.constraints import BLOCKING_EFFECTS
from placewise_kubernetes.kube.quantity import parse_quantity, resources_from, whole_amounts

# Usual labels for the GPU model of a node.
GPU_MODEL_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", names.GPU_MODEL)
GPU_MEMORY_LABEL = "nvidia.com/gpu.memory"
RACK_LABELS = (names.RACK, "topology.kubernetes.io/rack")
# The taint by which a site keeps pods without GPUs away from nodes with them; gangs that ask for GPUs tolerate it.
GPU_TAINT_SUFFIX = "/gpu"
MIB_PER_GIB = 1024.0
# The service takes no more of a resource; byte counts exceed it.
MOST_EXTENDED = 2.0**32


@dataclass(frozen=True, slots=True)
class NodeReader:
    """Reads nodes. `tolerated_taints` are keys that the jobs of this cluster tolerate."""

    gpu_resources: tuple[str, ...]
    tolerated_taints: tuple[str, ...] = ()
    is_whole: bool = False
    """Reads the number of pods, disks and huge pages as well."""

    def read(self, document: Mapping[str, Any]) -> Node:
        """A v1.Node as Node.

        Raises:
            ValueError, KeyError: the document is no node.
        """
        metadata, spec, status = document["metadata"], document.get("spec") or {}, document.get("status") or {}
        labels = metadata.get("labels") or {}
        amounts = _raw_amounts(status)
        amounts = whole_amounts(amounts) if self.is_whole else amounts
        capacity = resources_from(amounts, self.gpu_resources, is_whole=self.is_whole)
        node = Node(
            id=metadata["name"],
            capacity=capacity,
            max_jobs_per_gpu=_number(labels.get(names.MAX_JOBS_PER_GPU)) or 1,
            rack=_first(labels, RACK_LABELS),
            state=self._state(spec, status),
            labels=labels,
        )
        node.gpus.extend(_gpus(int(capacity.gpus), labels))
        return node

    def _state(self, spec: Mapping[str, Any], status: Mapping[str, Any]) -> Node.State:
        if not _is_ready(status.get("conditions") or ()):
            return Node.State.DOWN
        if spec.get("unschedulable") or any(self._is_blocking(taint) for taint in spec.get("taints") or ()):
            return Node.State.DRAINING
        return Node.State.READY

    def _is_blocking(self, taint: Mapping[str, Any]) -> bool:
        key = taint.get("key", "")
        if taint.get("effect") not in BLOCKING_EFFECTS or key in self.tolerated_taints:
            return False
        return not str(key).endswith(GPU_TAINT_SUFFIX)


def allocatable(document: Mapping[str, Any]) -> dict[str, float]:
    """The amounts of a v1.Node in their base units. Raises ValueError: one of them is no quantity."""
    return {name: parse_quantity(amount) for name, amount in _raw_amounts(document.get("status") or {}).items()}


def tellable(node: Node) -> Node:
    """The node with as much of each extended resource as the service takes: it would refuse the whole node."""
    too_much = [name for name, amount in node.capacity.extended.items() if amount > MOST_EXTENDED]
    if not too_much:
        return node
    copy = Node()
    copy.CopyFrom(node)
    for name in too_much:
        copy.capacity.extended[name] = MOST_EXTENDED
    return copy


def _raw_amounts(status: Mapping[str, Any]) -> Mapping[str, Any]:
    return status.get("allocatable") or status.get("capacity") or {}


def _is_ready(conditions: Iterable[Mapping[str, Any]]) -> bool:
    return any(condition.get("type") == "Ready" and condition.get("status") == "True" for condition in conditions)


def _gpus(count: int, labels: Mapping[str, str]) -> list[Gpu]:
    model = _first(labels, GPU_MODEL_LABELS)
    memory_gib = _number(labels.get(GPU_MEMORY_LABEL)) / MIB_PER_GIB
    if not model and not memory_gib:
        return []
    return [Gpu(index=index, model=model, memory_gib=memory_gib) for index in range(count)]


def _first(labels: Mapping[str, str], keys: Iterable[str]) -> str:
    return next((labels[key] for key in keys if labels.get(key)), "")


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0
