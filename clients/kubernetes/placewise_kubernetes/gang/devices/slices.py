"""ResourceSlices: the devices of each node, from the newest complete generation of each pool. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placewise_kubernetes.kube.constraints import BLOCKING_EFFECTS
from placewise_kubernetes.kube.quantity import GIB, parse_quantity

# (driver, pool, device).
DeviceId = tuple[str, str, str]
PoolId = tuple[str, str]
# As the drivers of NVIDIA and AMD call the model, and as those of Intel and of the Kubernetes project do.
_MODEL_ATTRIBUTES = ("productName", "model")
# A driver that publishes parts of GPUs tells them from whole ones by the attribute "type".
_WHOLE_TYPES = ("gpu", "amdgpu")
# As many GPUs as the service takes on a node: higher indices would have it refuse the node.
_MOST_INDICES = 128


@dataclass(frozen=True, slots=True)
class Device:
    """One device. `index` is its driver's; None if it gives none. `uuid`, `parent` and `pci` tell a part's GPU.

    `counters` are the sets that it draws from: devices that draw from one set exclude each other.
    `is_whole`: nobody else can have a part of it.
    """

    name: str
    model: str = ""
    memory_gib: float = 0.0
    index: int | None = None
    uuid: str = ""
    parent: str = ""
    pci: str = ""
    counters: frozenset[str] = frozenset()
    is_whole: bool = True
    is_tainted: bool = False

    def overlaps(self, other: Device) -> bool:
        """Whether one is the other, a part of it, or draws from the same counters."""
        is_part = bool(self.parent and self.parent == other.uuid) or bool(other.parent and other.parent == self.uuid)
        # A driver may list one GPU twice: for containers, and as a whole PCI device for virtual machines.
        is_twin = bool(self.uuid and self.uuid == other.uuid) or bool(self.pci and self.pci == other.pci)
        is_twin = is_twin and not (self.is_whole and other.is_whole)
        return self.name == other.name or is_part or is_twin or bool(self.counters & other.counters)


@dataclass(frozen=True, slots=True)
class Slice:
    """One ResourceSlice of `count` in its pool's generation."""

    name: str
    driver: str
    pool: str
    node: str
    generation: int
    count: int
    devices: tuple[Device, ...]


def read_slice(document: Mapping[str, Any]) -> Slice:
    """A v1.ResourceSlice. Its node is "" if its devices are not of one node.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is none.
    """
    spec = document["spec"]
    pool = spec["pool"]
    return Slice(
        name=document["metadata"]["name"],
        driver=spec["driver"],
        pool=pool["name"],
        node=spec.get("nodeName") or "",
        generation=int(pool.get("generation") or 0),
        count=int(pool["resourceSliceCount"]),
        devices=tuple(map(_read_device, spec.get("devices") or ())),
    )


def _read_device(document: Mapping[str, Any]) -> Device:
    attributes = {_bare(name): _value(value) for name, value in (document.get("attributes") or {}).items()}
    capacity = {_bare(name): value["value"] for name, value in (document.get("capacity") or {}).items()}
    index = attributes.get("index")
    consumed = document.get("consumesCounters") or ()
    kind, parent = str(attributes.get("type", "")), str(attributes.get("parentUUID", ""))
    is_shared = bool(document.get("allowMultipleAllocations"))
    is_of_whole_type = kind in _WHOLE_TYPES if kind else not consumed
    return Device(
        name=document["name"],
        model=next((str(attributes[name]) for name in _MODEL_ATTRIBUTES if name in attributes), ""),
        memory_gib=max(0.0, parse_quantity(capacity.get("memory", 0)) / GIB),
        index=index if type(index) is int and 0 <= index < _MOST_INDICES else None,
        uuid=str(attributes.get("uuid", "")),
        parent=parent,
        pci=str(attributes.get("pciBusID", "")),
        counters=frozenset(str(item["counterSet"]) for item in consumed),
        is_whole=is_of_whole_type and not parent and not is_shared,
        is_tainted=any(taint.get("effect") in BLOCKING_EFFECTS for taint in document.get("taints") or ()),
    )


def _bare(name: str) -> str:
    """A name without its domain: a driver may leave out its own."""
    return name.rpartition("/")[2]


def _value(attribute: Mapping[str, Any]) -> Any:
    """An attribute has one value, under the name of its type."""
    return next(iter(attribute.values()), "")


def place_in(places: dict[DeviceId, int], devices: Iterable[tuple[DeviceId, Device]]) -> None:
    """Adds the index of each device: its driver's, the number at the end of its name, or else the next free place.

    One rule for all devices of a node, the first by which each has another index. Places are given in the order of the
    names ("gpu-10" after "gpu-9"). One that was given stays, also when others come and go: pods hold it.
    """
    ordered = sorted(devices, key=lambda item: [_natural(part) for part in item[0]])
    for numbers in ([device.index for _, device in ordered], [_trailing(device.name) for _, device in ordered]):
        if None not in numbers and len(set(numbers)) == len(ordered):
            places.clear()
            places.update(
                {key: number for (key, _), number in zip(ordered, numbers, strict=True) if number is not None}
            )
            return
    if len(places.keys() | {key for key, _ in ordered}) > _MOST_INDICES:
        for key in places.keys() - {key for key, _ in ordered}:
            del places[key]
    free = itertools.filterfalse(set(places.values()).__contains__, itertools.count())
    places.update(zip([key for key, _ in ordered if key not in places], free, strict=False))


def _trailing(name: str) -> int | None:
    digits = name[len(name.rstrip("0123456789")) :]
    number = int(digits[:6]) if digits.isdecimal() else _MOST_INDICES
    return number if number < _MOST_INDICES else None


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


class Pools:
    """The pools of some drivers. Methods that change it return the nodes whose devices may have changed."""

    def __init__(self, drivers: Iterable[str]) -> None:
        self._drivers = frozenset(drivers)
        self._slices: dict[str, Slice] = {}
        self._by_pool: dict[PoolId, dict[str, Slice]] = {}
        self._complete: dict[PoolId, Sequence[Slice]] = {}
        self._on_node: dict[str, dict[PoolId, None]] = {}
        self._whole: dict[PoolId, dict[DeviceId, Device]] = {}
        self._places: dict[str, dict[DeviceId, int]] = {}

    def __bool__(self) -> bool:
        """Whether a node has GPUs by slices."""
        return bool(self._on_node)

    def put(self, item: Slice) -> set[str]:
        """Adds or updates a slice."""
        if item.driver not in self._drivers or not item.node:
            return self.remove(item.name)
        if self._slices.get(item.name) == item:
            return set()
        changed = self.remove(item.name) if self._moves(item) else set()
        self._slices[item.name] = item
        pool = item.driver, item.pool
        self._by_pool.setdefault(pool, {})[item.name] = item
        return changed | self._settle(pool)

    def remove(self, name: str) -> set[str]:
        """The slice is gone. The devices stay known while another slice of the pool is there."""
        item = self._slices.pop(name, None)
        if item is None:
            return set()
        pool = item.driver, item.pool
        del self._by_pool[pool][name]
        return self._settle(pool)

    def has_node(self, node: str) -> bool:
        """Whether its GPUs are those of slices."""
        return node in self._on_node

    def pools_on(self, node: str) -> list[PoolId]:
        """The node's pools."""
        return list(self._on_node.get(node, ()))

    def node_of(self, pool: PoolId) -> str:
        """The pool's node; "" for an unknown pool, and for one of several nodes: results do not name the node."""
        nodes = {item.node for item in self._complete.get(pool, ())}
        return nodes.pop() if len(nodes) == 1 else ""

    def whole(self, pool: PoolId) -> Mapping[DeviceId, Device]:
        """The whole devices among them."""
        return self._whole.get(pool, {})

    def whole_on(self, node: str) -> dict[DeviceId, Device]:
        """The whole devices of a node."""
        return {key: device for pool in self.pools_on(node) for key, device in self.whole(pool).items()}

    def indices_on(self, node: str) -> Mapping[DeviceId, int]:
        """The index of each whole device of a node."""
        return self._places.get(node, {})

    def devices(self, pool: PoolId) -> list[Device]:
        """All devices of the newest generation that was complete."""
        return [device for item in self._complete.get(pool, ()) for device in item.devices]

    def _moves(self, item: Slice) -> bool:
        known = self._slices.get(item.name)
        return known is not None and (known.driver, known.pool) != (item.driver, item.pool)

    def _settle(self, pool: PoolId) -> set[str]:
        slices = self._by_pool[pool].values()
        before = self.node_of(pool)
        if not slices:
            del self._by_pool[pool]
            self._complete.pop(pool, None)
        for generation in sorted({item.generation for item in slices}, reverse=True):
            of_it = sorted((item for item in slices if item.generation == generation), key=lambda item: item.name)
            if len(of_it) == of_it[0].count:
                self._complete[pool] = of_it
                break
        return self._note_node(pool, before)

    def _note_node(self, pool: PoolId, before: str) -> set[str]:
        after = self.node_of(pool)
        if before and before != after:
            del self._on_node[before][pool]
            if not self._on_node[before]:
                del self._on_node[before]
        if after:
            self._on_node.setdefault(after, {})[pool] = None
        whole = (((*pool, device.name), device) for device in self.devices(pool) if after and device.is_whole)
        self._whole[pool] = dict(whole)
        if not self._whole[pool]:
            del self._whole[pool]
        changed = {node for node in (before, after) if node}
        for node in changed:
            self._index(node)
        return changed

    def _index(self, node: str) -> None:
        if node in self._on_node:
            place_in(self._places.setdefault(node, {}), self.whole_on(node).items())
        else:
            self._places.pop(node, None)
