"""Gangs that our scheduling gate holds, on a real kube-apiserver and an unchanged kube-scheduler."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest
from tests.e2e.kubernetes.gates.kubernetes_gates import GATE, answer_to_adapter, gates_of, plane
from tests.e2e.kubernetes.kubernetes_cluster import ADAPTER_TOKEN, ControlPlane, free_port, gang, pod
from tests.e2e.kubernetes.kubernetes_fixtures import cluster, placewise, watched
from tests.e2e.kubernetes.kubernetes_recorder import Recorder
from tests.e2e.kubernetes.kubernetes_scenario import (
    PODS,
    AdapterProcess,
    Watched,
    events_of,
    make_batch_job,
    names_of,
)
from tests.e2e.kubernetes.kubernetes_service import PlacewiseServer

from placewise_kubernetes import cli

pytestmark = [pytest.mark.e2e, pytest.mark.e2e_heavy, pytest.mark.timeout(300)]

__all__ = ["cluster", "placewise", "plane", "watched"]


@pytest.fixture
async def recorder(placewise: PlacewiseServer) -> AsyncIterator[Recorder]:
    async with Recorder(placewise.http_target) as running:
        yield running


@pytest.fixture
async def adapter(plane: ControlPlane) -> AsyncIterator[AdapterProcess]:
    process = AdapterProcess(plane, free_port())
    yield process
    with suppress(KeyError):
        process.stop()


async def start(adapter: AdapterProcess, recorder: Recorder, cluster: str, **gates: Any) -> None:
    adapter.start(recorder.target, cluster=cluster, gates={"is_enabled": True} | gates)
    await adapter.ready()


def decided(recorder: Recorder, name: str) -> Counter[str]:
    (found,) = (nodes for job, nodes in recorder.decided.items() if job.split("/")[1] == name)
    return found


async def until(holds: Callable[[], bool], limit_s: float = 20.0) -> None:
    async with asyncio.timeout(limit_s):
        while not await asyncio.to_thread(holds):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def gated(plane: ControlPlane, names: list[str]) -> list[str]:
    """Those of the pods that have our gate."""
    found = {name: plane.request("GET", f"{PODS}/{name}")["spec"].get("schedulingGates", ()) for name in names}
    return [name for name, gates in found.items() if GATE in [gate["name"] for gate in gates]]


@pytest.mark.parametrize("pin", ["soft", "hard"])
async def test_gangs_are_bound_where_they_were_decided(
    pin: str, adapter: AdapterProcess, plane: ControlPlane, watched: Watched, recorder: Recorder, cluster: str
) -> None:
    await start(adapter, recorder, cluster, pin=pin)
    gangs = {f"g{number}": gang(f"g{number}", size, gpus=gpus) for number, (size, gpus) in enumerate(SIZES)}
    for pods in gangs.values():
        await watched.create(pods)
    names = [name for pods in gangs.values() for name in names_of(pods)]
    await watched.until_bound(names, limit_s=60)
    for name in gangs:
        assert watched.on_nodes(name) == decided(recorder, name)
    assert max(recorder.answers.values()) == 1
    assert adapter.metric("placewise_kubernetes_not_decided_total") == 0
    for name in names:
        found = plane.request("GET", f"{PODS}/{name}")["metadata"]["annotations"]
        assert found["placewise.dev/node"] == watched.node[name]
        assert found["placewise.dev/decision"]


SIZES = [(4, 4), (2, 8), (1, 1), (3, 2), (4, 8), (2, 1), (1, 8), (4, 1)]


async def test_a_gang_that_does_not_fit_is_held_whole_and_says_why(
    adapter: AdapterProcess, plane: ControlPlane, watched: Watched, recorder: Recorder, cluster: str
) -> None:
    await start(adapter, recorder, cluster)
    first, second = gang("first", 20, gpus=8), gang("second", 20, gpus=8)
    await watched.create(first)
    await watched.until_bound(names_of(first), limit_s=60)
    await watched.create(second)
    await until(lambda: any("Placewise: waiting" in text for text in events_of(plane, "second-0")))
    conditions = plane.request("GET", f"{PODS}/second-0")["status"]["conditions"]
    by_type = {condition["type"]: condition for condition in conditions}
    assert by_type["placewise.dev/Admitted"]["message"].startswith("waiting")
    assert by_type["PodScheduled"]["reason"] == "SchedulingGated"  # no autoscaler takes it for unschedulable
    assert gated(plane, names_of(second)) == names_of(second)
    for name in names_of(first):
        plane.request("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
    await watched.until_bound(names_of(second), limit_s=60)
    assert watched.on_nodes("second") == decided(recorder, "second")


async def test_without_the_service_gangs_stay_gated(
    adapter: AdapterProcess,
    plane: ControlPlane,
    watched: Watched,
    placewise: PlacewiseServer,
    recorder: Recorder,
    cluster: str,
) -> None:
    await start(adapter, recorder, cluster)
    placewise.end()
    pods = gang("held", 3)
    await watched.create(pods)
    await asyncio.sleep(5)
    assert gated(plane, names_of(pods)) == names_of(pods)
    placewise.launch()
    await watched.until_bound(names_of(pods), limit_s=60)
    assert watched.on_nodes("held") == decided(recorder, "held")


@pytest.mark.parametrize("bound", [0, 1, 5])
async def test_an_adapter_killed_between_its_writes_finishes_the_gang(
    bound: int,
    adapter: AdapterProcess,
    plane: ControlPlane,
    watched: Watched,
    recorder: Recorder,
    cluster: str,
    record_property: Callable[[str, object], None],
) -> None:
    """It is stopped when a pod is nominated and so many are bound; then it is killed."""
    for attempt in range(3):
        name = f"cut{bound}-{attempt}"
        pods = cut_gang(plane, name)
        names = names_of(pods)
        await start(adapter, recorder, cluster, pin="hard")
        await watched.create(pods)
        left = await killed_midway(adapter, plane, watched, names, bound)
        if left == CUT if bound == 0 else 0 < left < CUT:
            break
        delete(plane, names)  # the adapter was through before the sight of the binding stopped it: another gang
    else:
        pytest.fail("the adapter was never stopped midway")
    await start(adapter, recorder, cluster, pin="hard")
    await watched.until_bound(names, limit_s=90)
    assert watched.on_nodes(name) == decided(recorder, name)
    [key] = [job for job in recorder.decided if job.split("/")[1] == name]
    await until(lambda: key in recorder.started)  # while all of its pods exist
    assert recorder.started[key].decision_id
    assert recorder.started[key].reason == ""  # as decided
    record_property("fault", f"adapter killed with {left} of {CUT} pods gated: all bound where they were decided")


CUT = 200


def cut_gang(plane: ControlPlane, name: str) -> list[dict[str, Any]]:
    """Pods of a batch Job that have another gate beside ours."""
    owner = make_batch_job(plane, name, CUT)
    pods = gang(name, CUT, gpus=1)
    for document in pods:
        document["metadata"]["ownerReferences"] = [owner]
        document["spec"]["schedulingGates"] = [{"name": GATE}, {"name": "example.com/last"}]
    return pods


async def killed_midway(
    adapter: AdapterProcess, plane: ControlPlane, watched: Watched, names: list[str], bound: int
) -> int:
    """Stops the adapter once so many of the pods are bound, and kills it. Returns how many are gated then."""
    process = plane._processes[adapter.name]
    stopping = asyncio.create_task(stop_when_bound(plane, watched, process.pid, names, bound))
    await ungate_last(plane, names)
    await stopping
    await asyncio.sleep(0.5)  # writes under way are done by then
    left = len(gated(plane, names))
    adapter.kill()
    print(f"\nkilled with {left} of {len(names)} pods gated")
    return left


def delete(plane: ControlPlane, names: list[str]) -> None:
    for name in names:
        plane.request("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})


async def stop_when_bound(plane: ControlPlane, watched: Watched, pid: int, names: list[str], bound: int) -> None:
    """Sends SIGSTOP as soon as so many of the pods have a node, or as one is nominated."""
    one = f"{PODS}/{names[0]}"
    async with asyncio.timeout(60):
        while len(watched.node.keys() & set(names)) < bound:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        while not bound and "nominatedNodeName" not in (await asyncio.to_thread(plane.request, "GET", one))["status"]:
            pass
    os.kill(pid, signal.SIGSTOP)


async def ungate_last(plane: ControlPlane, names: list[str]) -> None:
    """Takes the other gate of each away, as another controller would."""
    body = {"spec": {"schedulingGates": [{"$patch": "delete", "name": "example.com/last"}]}}
    for name in names:
        path = f"{PODS}/{name}"
        await asyncio.to_thread(plane.request, "PATCH", path, body, "application/strategic-merge-patch+json")


async def test_a_gang_that_no_node_can_take_is_left_to_an_autoscaler(
    adapter: AdapterProcess, plane: ControlPlane, watched: Watched, recorder: Recorder, cluster: str
) -> None:
    await start(adapter, recorder, cluster, scale_up_after_s=3.0)
    pods = gang("large", 2, gpus=16)
    await watched.create(pods)
    await asyncio.sleep(1.5)
    assert gated(plane, names_of(pods)) == names_of(pods)
    await until(lambda: gated(plane, names_of(pods)) == [])
    found = plane.request("GET", f"{PODS}/large-0")
    assert "affinity" not in found["spec"]
    assert found["metadata"]["annotations"]["placewise.dev/released"] == "true"
    await until(lambda: "Unschedulable" in reasons_of(plane, "large-0"))


def reasons_of(plane: ControlPlane, name: str) -> list[str]:
    """Of the pod's conditions."""
    conditions = plane.request("GET", f"{PODS}/{name}")["status"]["conditions"]
    return [condition.get("reason", "") for condition in conditions]


async def test_release_takes_the_gates_of_one_job_or_of_all(
    plane: ControlPlane, watched: Watched, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without any adapter."""
    one, other = gang("one", 2), gang("other", 2)
    await watched.create([*one, *other])
    config, kubeconfig = plane.root / "release.yaml", plane.root / "release.kubeconfig"
    config.write_text("cluster: e2e\ngates: {is_enabled: true}\nlisten: {}\n")
    kubeconfig.write_text(str(plane.kubeconfig(ADAPTER_TOKEN)).replace("'", '"'))
    arguments = ["release", "--config", str(config), "--kubeconfig", str(kubeconfig)]
    assert await asyncio.to_thread(cli.main, [*arguments, "--job", "default/one"]) == 0
    assert gated(plane, names_of([*one, *other])) == names_of(other)
    assert await asyncio.to_thread(cli.main, arguments) == 0
    await watched.until_bound(names_of([*one, *other]))
    assert capsys.readouterr().out.count("2 pods released, 0 refused") == 2


SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
NEAR = {"podAffinityTerm": {"topologyKey": "zone", "labelSelector": {}}, "weight": 1}
UNJUDGED: dict[str, dict[str, Any]] = {
    "pod_affinity": {"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [NEAR]}}},
    "topology_spread": {"topologySpreadConstraints": [SPREAD]},
    "host_ports": {"containers": [{"name": "main", "image": "none", "ports": [{"containerPort": 1, "hostPort": 81}]}]},
    "volume": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "late"}}]},
}


@pytest.mark.parametrize("reason", UNJUDGED)
async def test_rules_that_are_not_evaluated_are_left_to_the_scheduler_and_counted(
    reason: str, adapter: AdapterProcess, plane: ControlPlane, watched: Watched, recorder: Recorder, cluster: str
) -> None:
    if reason == "volume":
        make_late_claim(plane)
    await start(adapter, recorder, cluster)
    pods = gang("odd", 2)
    for document in pods:
        document["spec"] |= UNJUDGED[reason]
    await watched.create(pods)
    await until(lambda: gated(plane, names_of(pods)) == [])
    assert recorder.decided == {}
    counted = f'placewise_kubernetes_not_decided_total{{reason="{reason}"}}'
    await until(lambda: adapter.metric(counted) == 2)
    assert "placewise.dev/node" not in plane.request("GET", f"{PODS}/odd-0")["metadata"]["annotations"]


def make_late_claim(plane: ControlPlane) -> None:
    """A claim whose volume is made where its first pod goes."""
    storage = {"metadata": {"name": "late"}, "provisioner": "none", "volumeBindingMode": "WaitForFirstConsumer"}
    plane.request("POST", "/apis/storage.k8s.io/v1/storageclasses", storage)
    plane.request("POST", "/api/v1/namespaces/default/persistentvolumeclaims", claim("late", storageClassName="late"))


def claim(name: str, **spec: Any) -> dict[str, Any]:
    size = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": name}, "spec": size | spec}


def restricted(kind: str, plane: ControlPlane, document: dict[str, Any]) -> None:
    """Only n07 can take the pod, by this kind of rule."""
    spec = document["spec"]
    if kind == "nodeSelector":
        spec["nodeSelector"] = {"kubernetes.io/hostname": "n07"}
    elif kind == "affinity":
        rule = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n07"]}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    elif kind == "volume":
        spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "here"}}]
        rule = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n07"]}
        terms = {"required": {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}}
        volume = {
            "metadata": {"name": "here"},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "local": {"path": "/data"},
                "nodeAffinity": terms,
                "claimRef": {"namespace": "default", "name": "here"},
            },
        }
        claims = "/api/v1/namespaces/default/persistentvolumeclaims"
        made = plane.request("POST", claims, claim("here", volumeName="here", storageClassName=""))
        volume["spec"]["claimRef"]["uid"] = made["metadata"]["uid"]  # type: ignore[index]
        plane.request("POST", "/api/v1/persistentvolumes", volume)
        for path, phase in ((f"{claims}/here", "Bound"), ("/api/v1/persistentvolumes/here", "Bound")):
            patch = {
                "status": {"phase": phase},
                "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            }
            plane.request("PATCH", path, {"metadata": patch["metadata"]}, "application/merge-patch+json")
            plane.request("PATCH", f"{path}/status", {"status": patch["status"]}, "application/merge-patch+json")
    elif kind == "resources":
        amounts = spec["containers"][0]["resources"]
        for of in ("requests", "limits"):
            amounts[of] = amounts[of] | {"ephemeral-storage": "20Gi"}


@pytest.fixture
def changed_nodes(plane: ControlPlane) -> AsyncIterator[Callable[..., None]]:
    """Changes nodes other than n07 for one test."""
    done: list[str] = []

    def change(part: str, body: dict[str, Any]) -> None:
        for number in range(30):
            if number != 7:
                path = f"/api/v1/nodes/n{number:02d}"
                plane.request("PATCH", path + part, body, "application/merge-patch+json")
                done.append(path)

    yield change  # type: ignore[misc]
    for path in done:
        plane.request("PATCH", path, {"spec": {"taints": None}}, "application/merge-patch+json")
        amounts = {"pods": "200", "ephemeral-storage": None}
        body = {"status": {"allocatable": amounts, "capacity": amounts}}
        plane.request("PATCH", f"{path}/status", body, "application/merge-patch+json")


@pytest.mark.parametrize("kind", ["nodeSelector", "affinity", "volume", "taints", "resources", "pod count"])
async def test_a_decision_obeys_the_rules_of_the_pod(
    kind: str,
    adapter: AdapterProcess,
    plane: ControlPlane,
    watched: Watched,
    recorder: Recorder,
    cluster: str,
    changed_nodes: Callable[..., None],
) -> None:
    """n07 is the fullest node but one that suits: without the rule, a decision would hardly ever name it."""
    await watched.create([document := pod("filler", gpus=4)])
    if kind == "taints":
        changed_nodes("", {"spec": {"taints": [{"key": "site/gpu", "effect": "NoSchedule"}]}})
    if kind == "pod count":
        changed_nodes("/status", {"status": {"allocatable": {"pods": "0"}, "capacity": {"pods": "0"}}})
    if kind == "resources":
        amounts = {"ephemeral-storage": "10Gi"}
        changed_nodes("/status", {"status": {"allocatable": amounts, "capacity": amounts}})
        here = {"ephemeral-storage": "100Gi"}
        body = {"status": {"allocatable": here, "capacity": here}}
        plane.request("PATCH", "/api/v1/nodes/n07/status", body, "application/merge-patch+json")
    document = gang("rules", 1, gpus=2)[0]
    await asyncio.to_thread(restricted, kind, plane, document)
    await start(adapter, recorder, cluster, pin="hard")
    await watched.create([document])
    await watched.until_bound(["rules-0"])
    assert decided(recorder, "rules") == Counter(["n07"]) == watched.on_nodes("rules")


async def test_the_policy_gates_labelled_pods_and_neither_the_system_s_nor_daemons(plane: ControlPlane) -> None:
    assert gates_of(plane, "a", {"placewise.dev/job": "a"}) == [GATE]
    assert gates_of(plane, "b", {}) == []
    made = gang("c", 1)[0]
    for changes in (
        {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u"}]},
        {"annotations": {"placewise.dev/ignore": "true"}},
    ):
        document = made | {"metadata": made["metadata"] | changes}
        assert "schedulingGates" not in plane.request("POST", f"{PODS}?dryRun=All", document)["spec"]
    system = "/api/v1/namespaces/kube-system/pods?dryRun=All"
    assert "schedulingGates" not in plane.request("POST", system, made)["spec"]
    own = gang("e", 1, scheduler="placewise")[0]
    assert "schedulingGates" not in plane.request("POST", f"{PODS}?dryRun=All", own)["spec"]


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "image": ("images", {"spec": {"containers": [{"name": "main", "image": "another"}]}}),
    "image of an init container": ("images", {"spec": {"initContainers": [{"name": "first", "image": "another"}]}}),
    "label": ("labels", {"metadata": {"labels": {"placewise.dev/job": "another"}}}),
    "foreign annotation": ("annotations", {"metadata": {"annotations": {"example.com/note": "changed"}}}),
    "foreign annotation taken away": ("annotations", {"metadata": {"annotations": {"example.com/note": None}}}),
    "foreign annotation added": ("annotations", {"metadata": {"annotations": {"example.com/new": "x"}}}),
    "finalizer": ("finalizers", {"metadata": {"finalizers": ["example.com/x"]}}),
    "owner": (
        "owners",
        {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x"}]}},
    ),
    "foreign gate": ("gate", {"spec": {"schedulingGates": [{"$patch": "delete", "name": "example.com/other"}]}}),
    "toleration": ("tolerations", {"spec": {"tolerations": [{"key": "x", "operator": "Exists"}]}}),
    "nodeSelector": ("nodeSelector", {"spec": {"nodeSelector": {"x": "y"}}}),
    "deadline": ("deadlines", {"spec": {"activeDeadlineSeconds": 60}}),
}


@pytest.fixture
def guarded(plane: ControlPlane) -> str:
    document = gang("guard", 1, annotations={"example.com/note": "as it is"})[0]
    document["spec"]["schedulingGates"] = [{"name": GATE}, {"name": "example.com/other"}]
    document["spec"]["initContainers"] = [{"name": "first", "image": "none"}]
    with suppress(Exception):
        plane.request("DELETE", f"{PODS}/guard-0", {"gracePeriodSeconds": 0})
    plane.request("POST", PODS, document)
    return "guard-0"


@pytest.mark.parametrize("change", REFUSED)
def test_the_guard_refuses(plane: ControlPlane, guarded: str, change: str) -> None:
    says, body = REFUSED[change]
    status, message = answer_to_adapter(plane, guarded, body)
    assert status in (403, 422)
    assert "placewise-kubernetes-guard" in message
    assert says in message


def test_the_guard_refuses_a_phase(plane: ControlPlane, guarded: str) -> None:
    status, message = answer_to_adapter(plane, guarded, {"status": {"phase": "Succeeded"}}, "/status")
    assert (status in (403, 422), "phase" in message) == (True, True)


def test_the_guard_lets_our_own_changes_through(plane: ControlPlane, guarded: str) -> None:
    nominated = {"status": {"nominatedNodeName": "n01"}, "metadata": {"annotations": {"placewise.dev/node": "n01"}}}
    assert answer_to_adapter(plane, guarded, nominated, "/status")[0] == 200
    field = {"key": "metadata.name", "operator": "In", "values": ["n01"]}
    required = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    gates = [{"$patch": "delete", "name": GATE}]
    assert answer_to_adapter(plane, guarded, {"spec": {"affinity": affinity, "schedulingGates": gates}})[0] == 200
