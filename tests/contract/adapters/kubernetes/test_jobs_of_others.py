"""Jobs of which somebody else says when they run: nothing is decided ahead of their pods, held for them, or written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.contract.adapters.test_gates_conformance import GatedScheduler
from tests.contract.adapters.test_kubernetes_conformance import KubernetesScheduler, KubernetesWorld, small_world
from tests.contract.adapters.test_kubernetes_jobs import job_of, make_job
from tests.e2e.kubernetes.kubernetes_cluster import gang

from placewise_kubernetes.gang.spec import GangRules

OWN, ASKS, GATES = GangRules().own_scheduler, "default-scheduler", "gates"
QUEUED = {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team"}}}
SUSPENDED = {"spec": {"suspend": True}}


@pytest.fixture(params=[ASKS, OWN, GATES])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[KubernetesWorld]:
    """Pods start by the extender, by our own scheduler name, or by gates."""
    host = GatedScheduler() if request.param == GATES else KubernetesScheduler(request.param)
    async with small_world(host) as world:
        yield world


def changed(job: dict[str, Any], *changes: dict[str, Any]) -> dict[str, Any]:
    for change in changes:
        for part, values in change.items():
            job[part] |= values
    return job


def pods_of(world: KubernetesWorld) -> list[dict[str, Any]]:
    return gang("g", 2, gpus=8, scheduler=OWN if world.host._scheduler == OWN else ASKS)


@pytest.mark.parametrize(
    "changes",
    [
        [SUSPENDED],
        [QUEUED],
        [QUEUED, SUSPENDED],
        [{"spec": {"managedBy": "kueue.x-k8s.io/multikueue"}}],
        [{"spec": {"managedBy": "corp.example/controller"}}],
    ],
)
async def test_nothing_is_held_for_it_and_it_is_not_written(
    world: KubernetesWorld, changes: list[dict[str, Any]]
) -> None:
    pods = pods_of(world)
    await make_job(world, changed(job_of(pods), *changes), pods)
    await world.step()
    assert world.asked("place") == []
    assert world.oracle.held == {}
    assert world.host.kube.patches == []
    assert world.host.kube.posted == []


async def test_pods_that_kueue_has_let_in_are_decided_and_their_job_is_not_written(world: KubernetesWorld) -> None:
    pods = pods_of(world)
    job = changed(job_of(pods), QUEUED, SUSPENDED)
    await make_job(world, job, pods)
    await make_job(world, changed(job, {"spec": {"suspend": False}}), pods)
    assert world.asked("place") == []
    for document in pods:
        world.host.kube.add_pod(document)
    await world.host.kube.seen()
    await world.step()
    await world.step()
    (key,) = world.oracle.held
    nodes = sorted(document["spec"]["nodeName"] for document in world.host.kube.pods.values())
    assert nodes == world.decided_nodes(key)
    assert [path for path, _ in world.host.kube.patches if "/jobs/" in path] == []


@pytest.mark.parametrize("world", [OWN, ASKS], indirect=True)
async def test_the_job_controllers_own_name_changes_nothing(world: KubernetesWorld) -> None:
    pods = pods_of(world)
    await make_job(world, job_of(pods, managedBy="kubernetes.io/job-controller"), pods)
    assert len(world.asked("place")) == 1


async def test_a_job_that_is_suspended_before_its_pods_come_holds_nothing_more(world: KubernetesWorld) -> None:
    pods = pods_of(world)
    job = job_of(pods)
    await make_job(world, job, pods)
    await make_job(world, changed(job, SUSPENDED), pods)
    assert world.oracle.held == {}
    assert world.host.kube.patches == []


async def test_a_job_that_is_suspended_while_it_runs_holds_nothing_once_its_pods_are_gone(
    world: KubernetesWorld,
) -> None:
    pods = pods_of(world)
    job = job_of(pods)
    await make_job(world, job, pods)
    for document in pods:
        world.host.kube.add_pod(document)
    await world.host.kube.seen()
    await world.step()
    await world.step()
    await make_job(world, changed(job, SUSPENDED), pods)
    for path in list(world.host.kube.pods):
        world.host.kube.remove_pod(path)
    await world.host.kube.seen()
    await world.step()
    assert world.oracle.held == {}
    assert [path for path, _ in world.host.kube.patches if "/jobs/" in path] == []
