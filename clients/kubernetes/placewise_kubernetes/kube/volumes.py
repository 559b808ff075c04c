"""Reads which nodes the volumes of a claim may be used on. Never writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placewise_kubernetes.kube.client import KubeClient, KubeError
from placewise_kubernetes.kube.constraints import Term
from placewise_kubernetes.kube.paths import CORE, BadNameError, is_name, object_path

STORAGE = "/apis/storage.k8s.io/v1/storageclasses"


@dataclass(frozen=True, slots=True)
class Volume:
    """`terms` are the node selector of its persistent volume. `is_unjudged`: it restricts no node,
    because it is made where the pod runs, or because it cannot be read."""

    terms: Sequence[Term] = ()
    is_unjudged: bool = False


async def read_volume(client: KubeClient, namespace: str, claim: str) -> Volume | None:
    """The volume of a claim; None while it is being made.

    Raises:
        KubeUnreachableError: the API did not answer.
    """
    try:
        found = await client.get(object_path(CORE, namespace, "persistentvolumeclaims", claim))
        name = found["spec"].get("volumeName") or ""
        if not name:
            return await _unbound(client, found["spec"].get("storageClassName") or "")
        if not is_name(name):
            return Volume(is_unjudged=True)
        volume = await client.get(f"{CORE}/persistentvolumes/{name}")
    except (KubeError, BadNameError):
        return Volume(is_unjudged=True)
    affinity = (volume["spec"].get("nodeAffinity") or {}).get("required") or {}
    return Volume(affinity.get("nodeSelectorTerms") or ())


async def _unbound(client: KubeClient, storage_class: str) -> Volume | None:
    """A claim of a class that waits for its first pod is bound only after the pod has a node."""
    if not is_name(storage_class):
        return Volume(is_unjudged=True)
    found = await client.get(f"{STORAGE}/{storage_class}")
    return Volume(is_unjudged=True) if found.get("volumeBindingMode") == "WaitForFirstConsumer" else None
