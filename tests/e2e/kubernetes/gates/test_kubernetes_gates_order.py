"""Gated pods that come one after another, and nodes that fill between a decision and the last gate."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.e2e.kubernetes.gates.kubernetes_gates import GATE, plane
from tests.e2e.kubernetes.gates.test_kubernetes_gates import adapter, decided, recorder
from tests.e2e.kubernetes.kubernetes_cluster import ControlPlane, gang, pod
from tests.e2e.kubernetes.kubernetes_fixtures import cluster, placewise, watched
from tests.e2e.kubernetes.kubernetes_recorder import Recorder
from tests.e2e.kubernetes.kubernetes_scenario import PODS, AdapterProcess, Watched, names_of

pytestmark = [pytest.mark.e2e, pytest.mark.e2e_heavy, pytest.mark.timeout(300)]

__all__ = ["adapter", "cluster", "placewise", "plane", "recorder", "watched"]

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


async def _start(adapter: AdapterProcess, recorder: Recorder, cluster: str) -> None:
    rules = {"manage": "gpu"}
    timeout = {"start_timeout_s": 5.0}
    adapter.start(recorder.target, cluster=cluster, gates={"is_enabled": True}, rules=rules, adapter=timeout)
    await adapter.ready()


def _only(by_job: dict[str, Any]) -> Any:
    [found] = by_job.values()
    return found
