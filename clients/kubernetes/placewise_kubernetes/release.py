"""Takes our gates away by hand, while the adapter is not there to do it. Pods then go where their scheduler wants."""

from __future__ import annotations

import logging

from placewise_kubernetes.gang.gates.opening import Pin, ungating
from placewise_kubernetes.gang.spec import GangRules
from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.client import STRATEGIC_MERGE_PATCH, KubeAccess, KubeClient, KubeError
from placewise_kubernetes.kube.objects import Pod
from placewise_kubernetes.kube.paths import CORE, object_path

log = logging.getLogger(__name__)

PODS_PATH = f"{CORE}/pods"


async def release(access: KubeAccess, rules: GangRules, job: str = "") -> tuple[int, int]:
    """Takes the gate off every pod that has it, or off those of one job ("NAMESPACE/NAME").

    Returns:
        Pods released, and pods that the API server refused to change.

    Raises:
        KubeError, KubeUnreachableError: the pods could not be listed, or the API server went away.
    """
    async with KubeClient(access) as client:
        items, _ = await client.list_all(PODS_PATH)
        held = [pod for item in items if names.GATE in (pod := rules.pod(item)).gates and _is_of(pod, rules, job)]
        outcomes = [await _release(client, pod) for pod in held]
    return sum(outcomes), len(outcomes) - sum(outcomes)


def _is_of(pod: Pod, rules: GangRules, job: str) -> bool:
    reference = rules.reference(pod)
    return not job or job == f"{reference.namespace}/{reference.name}"


async def _release(client: KubeClient, pod: Pod) -> bool:
    path = object_path(CORE, pod.namespace, "pods", pod.name)
    try:
        await client.patch(path, ungating(pod, "", {names.RELEASED: "true"}, Pin.SOFT), STRATEGIC_MERGE_PATCH)
    except KubeError as error:
        log.warning("%s: %s", pod.path, error)
        return False
    return True
