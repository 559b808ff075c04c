"""Gangs whose pods come one after another, and the small world that they come to."""

from __future__ import annotations

import copy
from contextlib import AbstractAsyncContextManager
from typing import Any

from tests.contract.adapters.suite.adapter_world import SETTINGS
from tests.contract.adapters.test_gates_conformance import GatedScheduler
from tests.contract.adapters.test_kubernetes_conformance import KubernetesScheduler, KubernetesWorld, small_world
from tests.e2e.kubernetes.kubernetes_cluster import pod

from placewise_kubernetes.gang.binding import PLACE_LOST_S
from placewise_kubernetes.gang.gang import Gang
from placewise_kubernetes.gang.spec import GangRules
from placewise_kubernetes.kube import names

OWN, ASKS, GATES = GangRules().own_scheduler, "default-scheduler", "gates"
LONG_S = 10 * max(SETTINGS.start_timeout_s, SETTINGS.reserve_ttl_s)
STATEFUL_SET = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "uid": "11111111-s", "controller": True}
SETS = "/apis/apps/v1/namespaces/default/statefulsets/s"
JOB_SETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets/j"
MPI_JOBS = "/apis/kubeflow.org/v2beta1/namespaces/default/mpijobs/m"


def ordered(world: KubernetesWorld, name: str, **options: Any) -> dict[str, Any]:
    """A pod of the labelled gang `g`."""
    scheduler = OWN if world.host._scheduler == OWN else ASKS
    labels = {names.JOB: "g"} | options.pop("labels", {})
    return pod(name, labels=labels, scheduler=scheduler, **({"gpus": 8} | options))


def owned(document: dict[str, Any], owner: dict[str, Any]) -> dict[str, Any]:
    document["metadata"]["ownerReferences"] = [owner]
    return document


def of_set(world: KubernetesWorld, index: int, **options: Any) -> dict[str, Any]:
    return owned(ordered(world, f"s-{index}", **options), STATEFUL_SET)


def put_stateful_set(world: KubernetesWorld, replicas: int, **spec: Any) -> None:
    metadata = {"name": "s", "namespace": "default", "uid": STATEFUL_SET["uid"]}
    world.host.kube.groups[SETS] = {"metadata": metadata, "spec": {"replicas": replicas, **spec}}


def put_job_set(world: KubernetesWorld, **options: Any) -> None:
    """A driver without a GPU, and then three workers of eight."""
    jobs = [
        {"name": name, "template": {"spec": {"parallelism": pods, "template": template_of(world, gpus, **options)}}}
        for name, pods, gpus in (("driver", 1, 0), ("workers", 3, 8))
    ]
    spec = {"replicatedJobs": jobs, "startupPolicy": {"startupPolicyOrder": "InOrder"}}
    metadata = {"name": "j", "namespace": "default", "uid": "set-uid"}
    world.host.kube.groups[JOB_SETS] = {"metadata": metadata, "spec": spec}


def template_of(world: KubernetesWorld, gpus: int, **spec: Any) -> dict[str, Any]:
    document = ordered(world, "template", gpus=gpus)
    labels = {"labels": document["metadata"]["labels"]}
    return {"metadata": labels, "spec": copy.deepcopy(document["spec"]) | spec}


def of_job_set(world: KubernetesWorld, job: str, index: int, gpus: int) -> dict[str, Any]:
    labels = {
        "jobset.sigs.k8s.io/jobset-name": "j",
        "jobset.sigs.k8s.io/jobset-uid": "set-uid",
        "jobset.sigs.k8s.io/replicatedjob-name": job,
    }
    made = ordered(world, f"j-{job}-0-{index}", gpus=gpus, labels=labels)
    return owned(made, {"apiVersion": "batch/v1", "kind": "Job", "name": f"j-{job}-0", "uid": job, "controller": True})


async def come(world: KubernetesWorld, *documents: dict[str, Any]) -> None:
    """They come, and the adapter and the scheduler look at them."""
    for document in documents:
        world.host.kube.add_pod(document)
    await world.host.kube.seen()
    for _ in range(3):
        await world.step()


def nodes(world: KubernetesWorld) -> dict[str, str]:
    return {
        document["metadata"]["name"]: document["spec"]["nodeName"]
        for document in world.host.kube.pods.values()
        if document["spec"].get("nodeName")
    }


def key_of(world: KubernetesWorld) -> str:
    (key,) = (key for key, gang in world.host.native.pods.book.gangs.items() if gang.ref.name == "g")
    return key


def usable(world: KubernetesWorld) -> list[str]:
    """Nodes that the last group of the question may use, by the labels that the service was told."""
    (question,) = world.asked("place")
    wanted = question.jobs[0].groups[-1].node_selector.items()
    nodes = world.asked("report_nodes")[-1].nodes
    return sorted(node.id for node in nodes if wanted <= dict(node.labels).items())


async def pass_long(world: KubernetesWorld) -> None:
    """Far longer than anything is held for a gang that does not start."""
    world.clock.advance(LONG_S)
    for _ in range(3):
        await world.step()


def world_of(way: str) -> AbstractAsyncContextManager[KubernetesWorld]:
    """Pods start by the extender, by our own scheduler name, or by gates."""
    return small_world(GatedScheduler() if way == GATES else KubernetesScheduler(way))


def gang_of(world: KubernetesWorld) -> Gang:
    return world.host.native.pods.book.gangs[key_of(world)]


def placed(world: KubernetesWorld, key: str) -> list[str]:
    """The nodes on which the service holds something for the gang."""
    return sorted(task.node for task in world.oracle.held[key].assignments)


async def wait_for_places(world: KubernetesWorld) -> None:
    """So long that pods whose places are lost are decided by themselves."""
    await come(world)
    late_s = world.host.native._clock() + 2 * PLACE_LOST_S
    world.host.native._clock = lambda: late_s
    for _ in range(2):
        world.clock.advance(SETTINGS.retry_s)
        await come(world)


async def leave(world: KubernetesWorld, *pods: str) -> None:
    """They are deleted, and the adapter and the scheduler look."""
    for name in pods:
        world.host.kube.remove_pod(f"/api/v1/namespaces/default/pods/{name}")
    await come(world)
