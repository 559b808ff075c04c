"""`placewise-kubernetes doctor`: tries the adapter's rights, nodes, certificates and service. Changes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace

from placewise.v1.cluster_pb2 import GetClusterRequest, Node
from placewise_client import NotFoundError, PlacewiseError
from placewise_client.aio import AsyncClient
from placewise_kubernetes.app import service_target
from placewise_kubernetes.config import KubernetesConfig
from placewise_kubernetes.faces.server import server_tls
from placewise_kubernetes.gang.devices.inventory import Devices
from placewise_kubernetes.gang.devices.mirrors import CLAIMS_PATH, CLASSES_PATH, SLICES_PATH
from placewise_kubernetes.gang.devices.slices import read_slice
from placewise_kubernetes.gang.groups import WATCHED_PATHS
from placewise_kubernetes.gang.spec import Source
from placewise_kubernetes.kube.client import KubeAccess, KubeClient, KubeError, KubeUnreachableError
from placewise_kubernetes.kube.paths import CORE
from placewise_kubernetes.kube.quantity import parse_quantity
from placewise_kubernetes.kube.watch import NOT_FOUND

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_GATES_SINCE = (1, 30)  # scheduling gates are stable, and a validating policy can guard the right to patch pods
_TIMEOUT_S = 5.0
_DROPPED = "the API server drops spec.schedulingGroup in silence, and such pods are no gang"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `text`: what it saw."""

    name: str
    is_good: bool
    text: str

    def __str__(self) -> str:
        return f"{'ok  ' if self.is_good else 'FAIL'}  {self.name}: {self.text}"


@dataclass(frozen=True, slots=True)
class Right:
    """A verb on a resource of an API group, in one namespace or in all, on one object or on any."""

    verb: str
    resource: str
    group: str = ""
    part: str = ""
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        of = f"{self.resource}.{self.group}" if self.group else self.resource
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.verb} {of}{'/' + self.part if self.part else ''}{where}"

    def review(self) -> dict[str, object]:
        """The question to the API server whether we have it."""
        what = {"verb": self.verb, "resource": self.resource, "group": self.group, "subresource": self.part}
        return {"spec": {"resourceAttributes": what | {"namespace": self.namespace, "name": self.name}}}


def needed_rights(config: KubernetesConfig) -> list[Right]:
    """The rights that this configuration needs, without those on groups of pods and on controllers, which may be
    absent."""
    rights = [Right(verb, kind) for kind in ("nodes", "pods") for verb in ("list", "watch")]
    rights += [Right("patch", "pods", part="status"), Right("create", "events"), Right("get", "jobs", "batch")]
    if config.listen.is_bind_served or config.rules.own_scheduler:
        rights += [Right("create", "pods", part="binding"), Right("get", "pods")]
    if config.gates.is_enabled:
        rights += [Right("patch", "pods"), Right("get", "storageclasses", "storage.k8s.io")]
        rights += [Right("get", kind) for kind in ("persistentvolumeclaims", "persistentvolumes")]
    if config.lease:
        namespace, _, name = config.lease.partition("/")
        lease = Right("create", "leases", "coordination.k8s.io", namespace=namespace)
        rights += [lease, *[replace(lease, verb=verb, name=name) for verb in ("get", "patch")]]
    return rights


async def examine(config: KubernetesConfig, access: KubeAccess) -> AsyncIterator[Finding]:
    """Every check, one after the other; one that fails does not end the others."""
    async with KubeClient(access) as client:
        checks: list[tuple[str, Callable[[], Awaitable[str]]]] = [
            ("API server", lambda: _version(client, config)),
            ("rights", lambda: _rights(client, config)),
            ("native groups", lambda: _native_groups(client)),
            ("StatefulSets", lambda: _stateful_sets(client)),
            ("nodes", lambda: _nodes(client, config)),
            ("devices", lambda: _devices(client, config)),
            ("certificates", lambda: _certificates(config)),
            ("decision service", lambda: _service(config)),
        ]
        for name, check in checks:
            yield await _finding(name, check)


class _ConcernError(Exception):
    """A check that did not pass."""


async def _finding(name: str, check: Callable[[], Awaitable[str]]) -> Finding:
    try:
        return Finding(name, True, await check())
    except (_ConcernError, KubeError, KubeUnreachableError, PlacewiseError, ValueError, OSError) as error:
        return Finding(name, False, str(error) or type(error).__name__)


async def _version(client: KubeClient, config: KubernetesConfig) -> str:
    found = await client.get("/version")
    version = (int(found["major"]), int(found["minor"].rstrip("+")))
    if config.gates.is_enabled and version < _GATES_SINCE:
        raise _ConcernError(f"{found['gitVersion']}: gates need 1.30")
    return str(found["gitVersion"])


async def _rights(client: KubeClient, config: KubernetesConfig) -> str:
    needed = needed_rights(config)
    missing = [right for right in needed if not await _has(client, right)]
    if missing:
        raise _ConcernError(f"may not {', '.join(map(str, missing))}")
    return f"has all {len(needed)}"


async def _has(client: KubeClient, right: Right) -> bool:
    answer = await client.create(_REVIEWS, right.review())
    return bool(answer["status"]["allowed"])


async def _native_groups(client: KubeClient) -> str:
    try:
        await client.get(WATCHED_PATHS[Source.NATIVE], limit="1")
    except KubeError as error:
        if error.status == NOT_FOUND:
            return f"not served: {_DROPPED}"
        raise _ConcernError(f"{error}: gangs of spec.schedulingGroup have no size (chart: podGroups.native)") from error
    return "served"


async def _stateful_sets(client: KubeClient) -> str:
    if await _has(client, Right("get", "statefulsets", "apps")):
        return "can be read"
    return "cannot be read: their pods need placewise.dev/gang and placewise.dev/in-order (chart: owners.statefulSet)"


async def _nodes(client: KubeClient, config: KubernetesConfig) -> str:
    nodes, _ = await client.list_all(f"{CORE}/nodes")
    amounts = [node.get("status", {}).get("allocatable", {}) for node in nodes]
    gpus = {
        name: sum(parse_quantity(of.get(name, "0")) for of in amounts) for name in sorted(config.rules.gpu_resources)
    }
    if not any(gpus.values()) and not await _has_slices(client, config):
        raise _ConcernError(f"none of {len(nodes)} offers {' or '.join(gpus)} (rules.gpu_resources)")
    found = ", ".join(f"{count:g} {name}" for name, count in gpus.items() if count)
    return f"{len(nodes)}, with {found or 'GPUs by ResourceSlice alone'}"


async def _devices(client: KubeClient, config: KubernetesConfig) -> str:
    """A cluster need not have any."""
    try:
        gpus = await _gpus_by_slice(client, config)
        for path in (CLAIMS_PATH, CLASSES_PATH):
            await client.get(path, limit="1")
    except KubeError as error:
        if error.status == NOT_FOUND:
            return "the API server does not serve resource.k8s.io/v1: GPUs are those of device plugins"
        raise
    if not gpus:
        return f"no ResourceSlice of {' or '.join(config.rules.device_drivers)}: GPUs are those of device plugins"
    return f"{sum(gpus.values())} GPUs of {len(gpus)} nodes by ResourceSlice: the extender needs no managedResources"


async def _gpus_by_slice(client: KubeClient, config: KubernetesConfig) -> dict[str, int]:
    """GPUs by node."""
    devices = Devices(config.rules)
    slices, _ = await client.list_all(SLICES_PATH, read_slice)
    for item in slices:
        devices.note_slice(("", item.name), item)
    nodes = (devices.arrange(Node(id=name)) for name in {item.node for item in slices})
    return {node.id: len(node.gpus) for node in nodes if node.gpus}


async def _certificates(config: KubernetesConfig) -> str:
    if server_tls(config.listen) is None:
        return "none: callers reach the port in clear"
    return "can be used; callers show one, too" if config.listen.client_ca_path else "can be used"


async def _has_slices(client: KubeClient, config: KubernetesConfig) -> bool:
    try:
        return bool(await _gpus_by_slice(client, config))
    except KubeError:
        return False  # the check of devices says why


async def _service(config: KubernetesConfig) -> str:
    async with AsyncClient(service_target(config.service)) as client:
        try:
            found = await client.get_cluster(
                GetClusterRequest(cluster=config.cluster), timeout_s=_TIMEOUT_S, retry=None
            )
        except NotFoundError:
            return f"answers; it does not know cluster {config.cluster!r} yet, which the adapter will report"
        return f"answers; cluster {config.cluster!r} has {found.node_count} nodes there"
