"""The watches of ResourceSlices, ResourceClaims and DeviceClasses. They note one object after the other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from placewise_kubernetes.gang.devices.claims import ClaimKey, read_claim, read_class
from placewise_kubernetes.gang.devices.inventory import Devices
from placewise_kubernetes.gang.devices.slices import read_slice
from placewise_kubernetes.kube.client import KubeClient
from placewise_kubernetes.kube.watch import Reflector

log = logging.getLogger(__name__)

T = TypeVar("T")

ROOT = "/apis/resource.k8s.io/v1"
SLICES_PATH = f"{ROOT}/resourceslices"
CLAIMS_PATH = f"{ROOT}/resourceclaims"
CLASSES_PATH = f"{ROOT}/deviceclasses"


class ObjectMirror(Generic[T]):
    """A sink that tells `note` each object as it is now, or None for one that is gone or cannot be read.

    `tell` is called once after all changes of a list.
    """

    def __init__(
        self,
        parse: Callable[[Mapping[str, Any]], T],
        note: Callable[[ClaimKey, T | None], None],
        tell: Callable[[], None],
    ) -> None:
        self._parse = parse
        self._note = note
        self._tell = tell
        self._keys: set[ClaimKey] = set()

    def read(self, item: Mapping[str, Any]) -> tuple[ClaimKey, T | None]:
        """The object's key, and the object."""
        key = _key(item)
        try:
            return key, self._parse(item)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s is ignored, it cannot be read: %r", "/".join(filter(None, key)), error)
            return key, None

    def replace(self, items: Iterable[tuple[ClaimKey, T | None]]) -> None:
        found = dict(items)
        for key in self._keys - found.keys():
            self._put(key, None)
        for key, item in found.items():
            self._put(key, item)
        self._tell()

    def change(self, item: Mapping[str, Any]) -> None:
        self._put(*self.read(item))
        self._tell()

    def remove(self, item: Mapping[str, Any]) -> None:
        self._put(_key(item), None)
        self._tell()

    def _put(self, key: ClaimKey, item: T | None) -> None:
        (self._keys.discard if item is None else self._keys.add)(key)
        self._note(key, item)


def _key(item: Mapping[str, Any]) -> ClaimKey:
    metadata = item["metadata"]
    return metadata.get("namespace") or "", metadata["name"]


def device_reflectors(client: KubeClient, devices: Devices) -> tuple[Reflector, ...]:
    """The watches that feed `devices`; classes come first, as claims are judged by them."""
    tell = devices.tell
    classes = Reflector(client, CLASSES_PATH, ObjectMirror(read_class, devices.note_class, tell), may_be_absent=True)
    slices = Reflector(client, SLICES_PATH, ObjectMirror(read_slice, devices.note_slice, tell), may_be_absent=True)
    claims = Reflector(client, CLAIMS_PATH, ObjectMirror(read_claim, devices.note_claim, tell), may_be_absent=True)
    devices.is_served = lambda: not (slices.is_absent or claims.is_absent)
    return classes, slices, claims
