"""Gated pods that come one after another, and nodes that fill between a decision and the last gate."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.e2e.kubernetes.gates.kubernetes_gates import GATE, plane
from tests.e2e.kubernetes.gates.test_kubernetes_gates import adapter, decided, recorder
from tests.e2e.kubernetes.kubernetes_cluster import ControlPlane, gang, pod
from tests.e2e.kubernetes.kubernetes_fixtures import cluster, placewise, watched
from tests.e2e.kubernetes.kubernetes_recorder import Recorder
from tests.e2e.kubernetes.kubernetes_scenario import PODS, AdapterProcess, Watched, names_of
from tests.e2e.kubernetes.kubernetes_service import PlacewiseServer, running_jobs

pytestmark = [pytest.mark.e2e, pytest.mark.e2e_heavy, pytest.mark.timeout(300)]

__all__ = ["adapter", "cluster", "placewise", "plane", "recorder", "watched"]

SETS = "/apis/apps/v1/namespaces/default/statefulsets"
LWS = "leaderworkerset.sigs.k8s.io"


def stateful_set(name: str, size: int, gpus: int) -> list[dict[str, Any]]:
    """Its controller makes each pod once the one before it is ready."""
    return [_owned(document, "apps/v1", "StatefulSet", name) for document in gang(name, size, gpus=gpus)]


def leader_worker_set(name: str, size: int, gpus: int) -> list[dict[str, Any]]:
    """Its controller makes the workers once their leader is ready. The pods have none of our labels."""
    labels = {f"{LWS}/name": name, f"{LWS}/group-index": "0"}
    pods = [
        pod(
            f"{name}-0-{index}" if index else f"{name}-0",
            gpus=gpus,
            labels=labels,
            annotations={f"{LWS}/size": str(size)},
        )
        for index in range(size)
    ]
    for document in pods:
        document["spec"]["schedulingGates"] = [{"name": GATE}]
    return [_owned(document, "apps/v1", "StatefulSet", name) for document in pods]


def _owned(document: dict[str, Any], version: str, kind: str, name: str) -> dict[str, Any]:
    reference = {"apiVersion": version, "kind": kind, "name": name, "uid": f"uid-of-{name}", "controller": True}
    document["metadata"]["ownerReferences"] = [reference]
    return document


@pytest.mark.parametrize("kind", [stateful_set, leader_worker_set])
async def test_pods_that_come_one_after_another_are_decided_as_one_gang(
    kind: Any, adapter: AdapterProcess, watched: Watched, recorder: Recorder, cluster: str
) -> None:
    await _start(adapter, recorder, cluster)
    pods = kind("row", 4, 4)
    for number, document in enumerate(pods):
        await watched.create([document])
        await watched.until_bound([document["metadata"]["name"]])
        assert sum(_only(recorder.decided).values()) == 4, f"after pod {number}"
    assert Counter(watched.node[name] for name in names_of(pods)) == _only(recorder.decided)
    assert _only(recorder.answers) == 1


async def test_a_node_that_fills_meanwhile_has_the_gang_decided_again(
    adapter: AdapterProcess, plane: ControlPlane, watched: Watched, recorder: Recorder, cluster: str
) -> None:
    """The first pod of two runs on its node when somebody else's pod takes the other's."""
    await _start(adapter, recorder, cluster)
    first, second = stateful_set("late", 2, 8)
    await watched.create([first])
    await watched.until_bound(names_of([first]))
    [taken] = [node for node in decided(recorder, "late") if node != watched.node["late-0"]]
    other = pod("other", gpus=8)
    other["spec"]["nodeName"] = taken
    plane.request("POST", PODS, other)
    await watched.create([second])
    await watched.until_bound(names_of([second]), limit_s=60)
    assert watched.node["late-1"] not in (taken, watched.node["late-0"])


async def test_the_rest_of_a_stateful_set_is_held_while_its_first_pod_runs(
    adapter: AdapterProcess,
    plane: ControlPlane,
    watched: Watched,
    placewise: PlacewiseServer,
    recorder: Recorder,
    cluster: str,
) -> None:
    """Its size is that of the object; nothing on its pods says one. The test makes the pods, as no controller runs."""
    await _start_impatient(adapter, recorder, cluster)
    pods = declared_set(plane, "held", 3)
    await watched.create(pods[:1])
    await watched.until_bound(["held-0"])
    await asyncio.sleep(2 * IMPATIENT["reserve_ttl_s"])
    adapter.kill()
    await _start_impatient(adapter, recorder, cluster)
    rival = gang("rival", 28, gpus=8)
    await watched.create(rival)
    await asyncio.sleep(2 * IMPATIENT["reserve_ttl_s"])
    assert set(watched.node) == {"held-0"}
    [running] = (await running_jobs(placewise, cluster)).values()
    assert running == decided(recorder, "held")
    for document in pods[1:]:
        await watched.create([document])
        await watched.until_bound([document["metadata"]["name"]])
    assert watched.on_nodes("held") == decided(recorder, "held")
    assert [count for job, count in recorder.answers.items() if "/held/" in job] == [1]


def declared_set(plane: ControlPlane, name: str, replicas: int) -> list[dict[str, Any]]:
    """Makes a StatefulSet; its pods, which are still to be created."""
    pods = gang(name, replicas, gpus=8)
    labels = pods[0]["metadata"]["labels"]
    template = {"metadata": {"labels": labels}, "spec": pods[0]["spec"] | {"restartPolicy": "Always"}}
    spec = {"serviceName": name, "replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    made = plane.request("POST", SETS, {"metadata": {"name": name}, "spec": spec})
    for document in pods:
        document["metadata"]["annotations"] = {}
        _owned(document, "apps/v1", "StatefulSet", name)
        document["metadata"]["ownerReferences"][0]["uid"] = made["metadata"]["uid"]
    return pods


IMPATIENT = {"start_timeout_s": 2.0, "reserve_ttl_s": 3.0}


async def _start_impatient(adapter: AdapterProcess, recorder: Recorder, cluster: str) -> None:
    adapter.start(recorder.target, cluster=cluster, gates={"is_enabled": True}, adapter=IMPATIENT)
    await adapter.ready()


async def _start(adapter: AdapterProcess, recorder: Recorder, cluster: str) -> None:
    rules = {"manage": "gpu"}
    timeout = {"start_timeout_s": 5.0}
    adapter.start(recorder.target, cluster=cluster, gates={"is_enabled": True}, rules=rules, adapter=timeout)
    await adapter.ready()


def _only(by_job: dict[str, Any]) -> Any:
    [found] = by_job.values()
    return found
