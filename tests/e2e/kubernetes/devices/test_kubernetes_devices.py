"""Pods with ResourceClaims on a real kube-apiserver and kube-scheduler, which allocates the claims.

There are no kubelets and no driver: the test publishes the slices. Nor is there a controller of claims: it makes each
claim by its name.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from tests.e2e.kubernetes.devices.kubernetes_devices import (
    MIG_CLASS,
    bare_node,
    claim,
    claiming,
    claiming_gang,
    device_class,
    gpu,
    mig,
    request,
    resource_slice,
)
from tests.e2e.kubernetes.gates.kubernetes_gates import GATE
from tests.e2e.kubernetes.kubernetes_binaries import BinariesUnavailableError, find
from tests.e2e.kubernetes.kubernetes_cluster import ADAPTER_TOKEN, ADAPTER_USER, ControlPlane, free_port, gang, pod
from tests.e2e.kubernetes.kubernetes_fixtures import MANIFESTS, cluster, grant, placewise, watched
from tests.e2e.kubernetes.kubernetes_recorder import Recorder
from tests.e2e.kubernetes.kubernetes_scenario import PODS, AdapterProcess, Watched, events_of, names_of
from tests.e2e.kubernetes.kubernetes_service import PlacewiseServer

from placewise.v1.cluster_pb2 import Cluster, GetClusterRequest, RunningJob
from placewise_client import AsyncClient
from placewise_kubernetes import cli
from placewise_kubernetes.gang.gang import BY_CLAIM
from placewise_kubernetes.kube import names

pytestmark = [pytest.mark.e2e, pytest.mark.e2e_heavy, pytest.mark.timeout(300)]

__all__ = ["cluster", "placewise", "watched"]
NODES = 6
GPUS = 8
ROOT = "/apis/resource.k8s.io/v1"
CLAIMS = f"{ROOT}/namespaces/default/resourceclaims"
# (Pods, GPUs of each): 43 of 48.
SIZES = [(2, 8), (4, 2), (1, 1), (3, 2), (2, 4), (1, 4)]
Devices = set[tuple[str, str]]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Nodes whose GPUs are published as slices; the shipped rights, and the one that gates need."""
    try:
        control = ControlPlane(find(), tmp_path_factory.mktemp("devices"))
    except BinariesUnavailableError as error:
        pytest.skip(str(error))
    try:
        control.start()
        control.request("POST", "/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": "placewise"}})
        grant(control, MANIFESTS)
        grant_patching(control)
        # This class stands for the extended resource, too.
        control.request("POST", f"{ROOT}/deviceclasses", device_class(extendedResourceName="nvidia.com/gpu"))
        control.request("POST", f"{ROOT}/deviceclasses", device_class(MIG_CLASS, kind="mig"))
        for number in range(NODES):
            control.request("POST", "/api/v1/nodes", bare_node(f"n{number}"))
            control.request("POST", f"{ROOT}/resourceslices", resource_slice(f"n{number}", published(number)))
        yield control
    finally:
        control.stop()


def grant_patching(control: ControlPlane) -> None:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}]
    name, rbac = {"name": "gates"}, "/apis/rbac.authorization.k8s.io/v1"
    control.request("POST", f"{rbac}/clusterroles", {"metadata": name, "rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole"} | name
    user = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": ADAPTER_USER}
    control.request("POST", f"{rbac}/clusterrolebindings", {"metadata": name, "roleRef": role, "subjects": [user]})


def published(number: int) -> list[dict[str, Any]]:
    """The last node has a MIG device of its GPU 7 beside its GPUs."""
    return [*map(gpu, range(GPUS)), *([mig(0, 7)] if number == NODES - 1 else [])]


@pytest.fixture(scope="module")
def adapter(plane: ControlPlane) -> AdapterProcess:
    """The scheduler asks about every pod: pods with claims ask for none of any managed resources."""
    process = AdapterProcess(plane, free_port())
    extender = {key: value for key, value in process.extender().items() if key != "managedResources"}
    plane.start_scheduler("kube-scheduler", {"extenders": [extender]})
    return process


@pytest.fixture
async def started(
    adapter: AdapterProcess, placewise: PlacewiseServer, plane: ControlPlane
) -> AsyncIterator[Callable[..., Any]]:
    """Starts the adapter in a mode; returns the recorder of its answers. Leaves no claims behind."""
    async with Recorder(placewise.http_target) as recorder:

        async def start(cluster: str, mode: str = "extender") -> Recorder:
            adapter.start(recorder.target, cluster=cluster, gates={"is_enabled": mode == "gates"})
            await adapter.ready()
            return recorder

        yield start
        with suppress(KeyError):
            adapter.stop()
        remove_claims(plane)


def remove_claims(plane: ControlPlane) -> None:
    """As their controller would once their pods are gone."""
    plane.request("DELETE", PODS, {"gracePeriodSeconds": 0})
    for item in plane.request("GET", CLAIMS)["items"]:
        path = f"{CLAIMS}/{item['metadata']['name']}"
        free = {"status": {"allocation": None, "reservedFor": None}}
        plane.request("PATCH", f"{path}/status", free, "application/merge-patch+json")
        plane.request("PATCH", path, {"metadata": {"finalizers": None}}, "application/merge-patch+json")
        plane.request("DELETE", path)


async def make(watched: Watched, pods: list[dict[str, Any]], mode: str, *requests: dict[str, Any]) -> None:
    for document in pods:
        if mode == "gates":
            document["spec"]["schedulingGates"] = [{"name": GATE}]
        name = document["metadata"]["name"]
        await asyncio.to_thread(watched.plane.request, "POST", CLAIMS, claim(name, *requests))
    await watched.create(pods)


def allocated(plane: ControlPlane, pods: list[str]) -> Devices:
    """(Node, device) of the claims that the pods use."""
    found: list[tuple[str, str]] = []
    for name in pods:
        status = plane.request("GET", f"{PODS}/{name}")["status"]
        used = (status.get("extendedResourceClaimStatus") or {}).get("resourceClaimName", name)
        results = plane.request("GET", f"{CLAIMS}/{used}")["status"]["allocation"]["devices"]["results"]
        found += [(result["pool"], result["device"]) for result in results]
    assert len(found) == len(set(found))
    return set(found)


async def look(placewise: PlacewiseServer, cluster: str) -> Cluster:
    """The cluster as the service knows it."""
    async with AsyncClient(placewise.target) as client:
        return await client.get_cluster(GetClusterRequest(cluster=cluster, full=True))


def running(seen: Cluster) -> dict[str, Devices]:
    """(Node, device) of each running job, by the name of its gang or pod."""
    return {
        job.job_id.split("/")[1]: {
            (task.node, f"gpu-{index}") for task in job.assignments for index in task.gpu_indices
        }
        for job in seen.jobs
        if job.state == RunningJob.RUNNING
    }


async def until_running(placewise: PlacewiseServer, cluster: str, wanted: dict[str, Devices]) -> None:
    """Waits until the service knows that these run, on these very devices."""
    seen: dict[str, Devices] = {}
    for _ in range(100):
        seen = running(await look(placewise, cluster))
        if seen == wanted:
            return
        await asyncio.sleep(0.1)
    assert seen == wanted


@pytest.mark.parametrize("mode", ["extender", "gates"])
async def test_gangs_with_claims_run_as_decided_on_the_devices_that_are_reported(
    mode: str,
    started: Callable[..., Any],
    plane: ControlPlane,
    watched: Watched,
    placewise: PlacewiseServer,
    cluster: str,
    record_property: Callable[[str, object], None],
) -> None:
    recorder = await started(cluster, mode)
    gangs = {f"g{number}": claiming_gang(f"g{number}", size) for number, (size, _) in enumerate(SIZES)}
    for (name, pods), (_, gpus) in zip(gangs.items(), SIZES, strict=True):
        await make(watched, pods, mode, request(gpus))
        await watched.until_bound(names_of(pods), limit_s=60)
        (decided,) = (nodes for job, nodes in recorder.decided.items() if job.split("/")[1] == name)
        assert watched.on_nodes(name) == decided
    wanted = {name: allocated(plane, names_of(pods)) for name, pods in gangs.items()}
    await until_running(placewise, cluster, wanted)
    elsewhere = [event.job_id for event in recorder.started.values() if event.reason]
    print(f"\n{mode}: {len(gangs)} gangs on their nodes, {len(elsewhere)} with other GPUs of these than decided")
    record_property("gangs with other GPUs of their nodes than decided", len(elsewhere))


@pytest.mark.parametrize("mode", ["extender", "gates"])
async def test_an_extended_resource_that_claims_back_is_counted_once(
    mode: str,
    started: Callable[..., Any],
    plane: ControlPlane,
    watched: Watched,
    placewise: PlacewiseServer,
    cluster: str,
) -> None:
    recorder = await started(cluster, mode)
    pods = gang("backed", 3, gpus=5)
    for document in pods if mode == "gates" else ():
        document["spec"]["schedulingGates"] = [{"name": GATE}]
    await watched.create(pods)
    await watched.until_bound(names_of(pods), limit_s=60)
    (decided,) = recorder.decided.values()
    assert watched.on_nodes("backed") == decided
    wanted = allocated(plane, names_of(pods))
    assert len(wanted) == 15
    await until_running(placewise, cluster, {"backed": wanted})
    assert {node.capacity.gpus for node in (await look(placewise, cluster)).nodes} == {GPUS}


@pytest.mark.parametrize("mode", ["extender", "gates"])
async def test_a_part_of_a_gpu_is_left_to_the_scheduler_and_takes_the_gpu(
    mode: str,
    adapter: AdapterProcess,
    started: Callable[..., Any],
    plane: ControlPlane,
    watched: Watched,
    placewise: PlacewiseServer,
    cluster: str,
) -> None:
    recorder = await started(cluster, mode)
    parts = claiming_gang("part", 1)
    await make(watched, parts, mode, request(deviceClassName=MIG_CLASS))
    await watched.until_bound(["part-0"], limit_s=60)
    assert recorder.decided == {}
    assert adapter.metric('placewise_kubernetes_not_decided_total{reason="mig"}') == 1
    assert allocated(plane, ["part-0"]) == {(f"n{NODES - 1}", "gpu-7-mig-0")}
    for _ in range(100):
        left = {node.id: node.capacity.gpus for node in (await look(placewise, cluster)).nodes}
        if left[f"n{NODES - 1}"] == GPUS - 1:
            break
        await asyncio.sleep(0.1)
    assert left == {f"n{number}": GPUS - (number == NODES - 1) for number in range(NODES)}


async def test_claims_of_pods_that_are_not_ours_take_their_devices(
    started: Callable[..., Any], plane: ControlPlane, watched: Watched, placewise: PlacewiseServer, cluster: str
) -> None:
    recorder = await started(cluster)
    alone = [claiming(pod(f"alone{number}", gpus=0), f"alone{number}") for number in range(5)]
    await make(watched, alone, "extender", request(8))
    await watched.until_bound(names_of(alone), limit_s=60)
    wanted = {name: allocated(plane, [name]) for name in names_of(alone)}
    await until_running(placewise, cluster, wanted)
    ours = claiming_gang("ours", 2)
    await make(watched, ours, "extender", request(4))
    await watched.until_bound(names_of(ours), limit_s=60)
    (decided,) = recorder.decided.values()
    assert watched.on_nodes("ours") == decided
    assert len(decided) == 1
    await until_running(placewise, cluster, wanted | {"ours": allocated(plane, names_of(ours))})


async def test_the_pods_of_a_divisible_task_have_their_shares_and_indices(
    started: Callable[..., Any], plane: ControlPlane, watched: Watched, cluster: str
) -> None:
    """By the real Partition, and written before the gate is gone."""
    await started(cluster, "gates")
    pods = claiming_gang("split", 2, annotations={names.DIVISIBLE: "600"})
    await make(watched, pods, "gates", request(4))
    await watched.until_bound(names_of(pods), limit_s=60)
    found = [plane.request("GET", f"{PODS}/{name}")["metadata"]["annotations"] for name in names_of(pods)]
    assert sum(float(notes[names.SHARE_SCALE]) for notes in found) == pytest.approx(600.0)
    for notes in found:
        units = [f"gpu{index}" for index in notes[names.GPU_INDICES].split(",")]
        assert len(units) == 4
        assert set(notes[names.SHARE_UNIT].split(",")) <= set(units)


async def test_our_own_scheduler_leaves_pods_with_claims_unbound_and_says_why(
    started: Callable[..., Any], plane: ControlPlane, watched: Watched, cluster: str
) -> None:
    recorder = await started(cluster)
    claims, backed = claiming_gang("own", 2, scheduler="placewise"), gang("backed", 1, scheduler="placewise")
    await make(watched, claims, "own")
    await watched.create(backed)
    for name in names_of([*claims, *backed]):
        for _ in range(200):
            if any(BY_CLAIM in text for text in await asyncio.to_thread(events_of, plane, name)):
                break
            await asyncio.sleep(0.1)
        else:
            pytest.fail(f"{name} has no event")
    assert recorder.decided == {}
    assert watched.node == {}


def test_the_doctor_counts_gpus_by_slice(
    plane: ControlPlane, placewise: PlacewiseServer, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path, kubeconfig = tmp_path / "doctor.yaml", tmp_path / "doctor.kubeconfig"
    path.write_text(f"cluster: e2e\nservice: {{targets: ['{placewise.http_target}']}}\n")
    kubeconfig.write_text(str(plane.kubeconfig(ADAPTER_TOKEN)).replace("'", '"'))
    assert cli.main(["doctor", "--config", str(path), "--kubeconfig", str(kubeconfig)]) == 0
    printed = capsys.readouterr().out
    assert f"{NODES * GPUS} GPUs of {NODES} nodes by ResourceSlice" in printed
    assert "needs no managedResources" in printed
