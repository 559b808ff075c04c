"""Native PodGroups on a real kube-apiserver and kube-scheduler with the feature gate, and gangs without it."""

from __future__ import annotations

import asyncio
import urllib.error
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.kubernetes.gates.kubernetes_gates import guarded
from tests.e2e.kubernetes.gates.test_kubernetes_gates import gated, until
from tests.e2e.kubernetes.kubernetes_cluster import ControlPlane, free_port, pod
from tests.e2e.kubernetes.kubernetes_fixtures import cluster, placewise, watched
from tests.e2e.kubernetes.kubernetes_recorder import Recorder
from tests.e2e.kubernetes.kubernetes_scenario import PODS, AdapterProcess, Watched, finish, names_of
from tests.e2e.kubernetes.kubernetes_service import PlacewiseServer, running_jobs
from tests.e2e.kubernetes.test_kubernetes_manifests import examined

pytestmark = [pytest.mark.e2e, pytest.mark.e2e_heavy, pytest.mark.timeout(300)]

__all__ = ["cluster", "placewise", "watched"]

GROUPS = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"
SERVED = {"features": "GenericWorkload=true", "apis": "scheduling.k8s.io/v1beta1=true"}
UID_LENGTH = 8
IN_VAIN_S = 3.0


@pytest.fixture(scope="module", params=[SERVED], ids=["served"])
def plane(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """With the chart's rights and policies for gates; only pods with a job label get one."""
    with guarded(tmp_path_factory, **request.param) as control:
        yield control


class Way:
    """One way to start pods: the adapter's configuration, kube-scheduler's, and the pods' own words."""

    def __init__(self, name: str, plane: ControlPlane, recorder: Recorder, cluster: str) -> None:
        self.name = name
        self.plane = plane
        self.recorder = recorder
        self.cluster = cluster
        self.adapter = AdapterProcess(plane, free_port(), name=f"adapter-{free_port()}")

    async def start(self, **gates: Any) -> None:
        config = {"gates": {"is_enabled": True} | gates} if self.name == "gates" else {}
        self.adapter.start(self.recorder.target, cluster=self.cluster, **config)
        await self.adapter.ready()

    def start_scheduler(self) -> None:
        config = {"extenders": [self.adapter.extender()]} if self.name == "extender" else {}
        self.plane.start_scheduler("kube-scheduler", config)

    def members(self, group: str, count: int, gpus: int = 8) -> list[dict[str, Any]]:
        scheduler = "placewise" if self.name == "own" else "default-scheduler"
        labels = {"placewise.dev/job": group} if self.name == "gates" else {}
        made = [pod(f"{group}-{index}", gpus=gpus, labels=labels, scheduler=scheduler) for index in range(count)]
        for document in made:
            document["spec"]["schedulingGroup"] = {"podGroupName": group}
        return made

    def decided(self, name: str) -> Counter[str]:
        (found,) = (nodes for job, nodes in self.recorder.decided.items() if job.split("/")[1] == name)
        return found


@pytest.fixture(params=["extender", "own", "gates"])
async def way(
    request: pytest.FixtureRequest, plane: ControlPlane, placewise: PlacewiseServer, cluster: str
) -> AsyncIterator[Way]:
    async with Recorder(placewise.http_target) as recorder:
        way = Way(request.param, plane, recorder, cluster)
        way.start_scheduler()
        yield way
        plane.stop_process("kube-scheduler")
        with suppress(KeyError):
            way.adapter.stop()
        remove_groups(plane)


def remove_groups(plane: ControlPlane) -> None:
    """With their finalizers: the controller that takes these away is not run."""
    with suppress(urllib.error.HTTPError):  # not served
        plane.request("DELETE", GROUPS)
        for item in plane.request("GET", GROUPS)["items"]:
            path = f"{GROUPS}/{item['metadata']['name']}"
            plane.request("PATCH", path, {"metadata": {"finalizers": None}}, "application/merge-patch+json")


def make_group(plane: ControlPlane, name: str, policy: dict[str, Any]) -> str:
    """Its uid."""
    body = {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": policy},
    }
    return str(plane.request("POST", GROUPS, body)["metadata"]["uid"])


def of_size(count: int) -> dict[str, Any]:
    return {"gang": {"minCount": count}}


def occupy(plane: ControlPlane, node: str) -> None:
    """A pod of somebody else that takes the whole node."""
    plane.request("POST", PODS, pod("rival", gpus=8, scheduler="nobody"))
    target = {"target": {"apiVersion": "v1", "kind": "Node", "name": node}}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "rival"}} | target
    plane.request("POST", f"{PODS}/rival/binding", binding)


def vacate(plane: ControlPlane) -> None:
    plane.request("DELETE", f"{PODS}/rival", {"gracePeriodSeconds": 0})


async def test_none_is_bound_before_all_exist_and_then_all_where_they_were_decided(
    way: Way, watched: Watched, placewise: PlacewiseServer
) -> None:
    await way.start()
    uid = make_group(way.plane, "a", of_size(4))
    pods = way.members("a", 4)
    await watched.create(pods[:3])
    assert way.plane.request("GET", f"{PODS}/a-0")["spec"]["schedulingGroup"] == {"podGroupName": "a"}  # stored
    await asyncio.sleep(IN_VAIN_S)
    assert watched.node == {}
    await watched.create(pods[3:])
    await watched.until_bound(names_of(pods))
    assert watched.on_nodes("a") == way.decided("a")
    key = f"default/a/{uid[:UID_LENGTH]}"
    assert dict(way.recorder.answers) == {key: 1}
    await until(lambda: key in way.recorder.started)
    way.adapter.kill()
    await way.start()
    await until(lambda: way.adapter.metric("placewise_adapter_passes_total") >= 1)
    assert await running_jobs(placewise, way.cluster) == {key: way.decided("a")}
    finish(way.plane, names_of(pods))
    async with asyncio.timeout(20):
        while await running_jobs(placewise, way.cluster):  # noqa: ASYNC110 nobody tells the test
            await asyncio.sleep(0.1)
    assert dict(way.recorder.answers) == {key: 1}


async def test_none_is_bound_before_there_is_room_for_all(way: Way, watched: Watched) -> None:
    occupy(way.plane, "n00")
    await way.start()
    make_group(way.plane, "wide", of_size(30))
    pods = way.members("wide", 30)
    await watched.create(pods)
    await asyncio.sleep(IN_VAIN_S)
    assert set(watched.node) == {"rival"}
    vacate(way.plane)
    await watched.until_bound(names_of(pods), limit_s=60)
    assert watched.on_nodes("wide") == way.decided("wide")


async def test_pods_of_a_basic_group_start_one_by_one(way: Way, watched: Watched) -> None:
    await way.start()
    make_group(way.plane, "loose", {"basic": {}})
    pods = way.members("loose", 2)
    for document in pods:
        if way.name == "gates":
            document["metadata"]["labels"] = {"placewise.dev/job": document["metadata"]["name"]}
        await watched.create([document])
        await watched.until_bound(names_of([document]))
    assert sorted(job.split("/")[1] for job in way.recorder.decided) == ["loose-0", "loose-1"]


@pytest.mark.parametrize("way", ["gates"], indirect=True)
async def test_a_node_that_fills_after_the_gates_are_gone_keeps_the_whole_gang(way: Way, watched: Watched) -> None:
    """All or nothing is kube-scheduler's here: without a PodGroup three of four would run."""
    await way.start(pin="hard")
    make_group(way.plane, "four", of_size(4))
    way.plane.stop_process("kube-scheduler")
    pods = way.members("four", 4)
    await watched.create(pods)
    await until(lambda: gated(way.plane, names_of(pods)) == [])
    occupy(way.plane, min(way.decided("four")))
    way.start_scheduler()
    await asyncio.sleep(IN_VAIN_S)
    assert set(watched.node) == {"rival"}
    vacate(way.plane)
    await watched.until_bound(names_of(pods), limit_s=60)
    assert watched.on_nodes("four") == way.decided("four")


@pytest.mark.parametrize("way", ["extender"], indirect=True)
def test_the_doctor_sees_that_it_is_served(
    way: Way, placewise: PlacewiseServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    examined(way.plane, tmp_path, placewise.http_target)
    assert "ok    native groups: served" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("plane", [{}], indirect=True, ids=["not served"])
@pytest.mark.parametrize("way", ["extender", "own"], indirect=True)
async def test_without_the_feature_gate_pods_are_decided_one_by_one_and_it_is_said(
    way: Way, watched: Watched, placewise: PlacewiseServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    way.adapter.start(way.recorder.target, cluster=way.cluster, rules={"manage": "gpu"})
    await way.adapter.ready()
    pods = way.members("a", 4)
    await watched.create(pods[:3])
    await watched.until_bound(names_of(pods[:3]))  # nobody waits for the fourth
    assert "schedulingGroup" not in way.plane.request("GET", f"{PODS}/a-0")["spec"]
    assert sorted(job.split("/")[1] for job in way.recorder.decided) == ["a-0", "a-1", "a-2"]
    assert "/apis/scheduling.k8s.io/v1beta1/podgroups is not watched" in way.plane.log(way.adapter.name)
    await asyncio.to_thread(examined, way.plane, tmp_path, placewise.http_target)
    assert "native groups: not served: the API server drops spec.schedulingGroup" in capsys.readouterr().out
