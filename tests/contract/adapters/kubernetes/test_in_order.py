"""Gangs whose pods come one after another: decided whole, started as they come, and held while the first ones run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.contract.adapters.kubernetes.in_order import (
    ASKS,
    GATES,
    MPI_JOBS,
    OWN,
    come,
    key_of,
    leave,
    nodes,
    of_job_set,
    of_set,
    ordered,
    owned,
    pass_long,
    put_job_set,
    put_stateful_set,
    template_of,
    usable,
    world_of,
)
from tests.contract.adapters.test_gates_conformance import GatedScheduler
from tests.contract.adapters.test_kubernetes_conformance import KubernetesWorld

from placewise_kubernetes.kube import names


@pytest.fixture(params=[ASKS, OWN, GATES])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[KubernetesWorld]:
    async with world_of(request.param) as world:
        yield world


async def test_each_pod_starts_as_it_comes_where_the_one_decision_says(world: KubernetesWorld) -> None:
    put_stateful_set(world, 3)
    started = []
    for index in range(3):
        await come(world, of_set(world, index))
        started.append(f"s-{index}")
        assert sorted(nodes(world)) == started  # none waits for the missing ones
        await pass_long(world)
        assert len(world.oracle.held[key_of(world)].assignments) == 3
    assert sorted(nodes(world).values()) == world.decided_nodes(key_of(world))
    assert len(world.asked("place")) == 1
    assert world.kinds(key_of(world)) == ["STARTED"]
    assert list(world.events(key_of(world))[0].placement) == []  # as decided


async def test_others_do_not_get_what_is_held_for_pods_to_come(world: KubernetesWorld) -> None:
    put_stateful_set(world, 3)
    await come(world, of_set(world, 0))
    await pass_long(world)
    other = await world.host.submit(2, 8)
    await world.step()
    assert await world.host.where(other) == []
    await come(world, of_set(world, 1), of_set(world, 2))
    assert sorted(nodes(world).values()) == world.decided_nodes(key_of(world))
    assert world.oracle.double_placements == []


async def test_a_gang_that_does_not_fit_whole_starts_no_pod(world: KubernetesWorld) -> None:
    await world.host.occupy("n1", 8)
    put_stateful_set(world, 4)
    await come(world, of_set(world, 0))
    assert nodes(world) == {"taken1": "n1"}
    world.host.kube.remove_pod("/api/v1/namespaces/default/pods/taken1")
    await pass_long(world)
    assert list(nodes(world)) == ["s-0"]


async def test_its_end_frees_what_was_held_for_pods_that_never_came(world: KubernetesWorld) -> None:
    put_stateful_set(world, 4)
    await come(world, of_set(world, 0))
    key = key_of(world)
    assert len(world.oracle.held[key].assignments) == 4
    await leave(world, "s-0")
    assert world.oracle.held == {}
    assert world.kinds(key)[-1] == "CANCELLED"


async def test_a_new_life_goes_on_with_the_decision(world: KubernetesWorld) -> None:
    put_stateful_set(world, 3)
    await come(world, of_set(world, 0))
    decided = world.decided_nodes(key_of(world))
    world.start_adapter()
    await world.step()
    await pass_long(world)
    assert len(world.oracle.held[key_of(world)].assignments) == 3
    await come(world, of_set(world, 1), of_set(world, 2))
    assert sorted(nodes(world).values()) == decided
    assert len(world.asked("place")) == 1
    assert world.kinds(key_of(world)) == ["STARTED"]


async def test_later_jobs_of_a_job_set_in_order_are_decided_with_the_first(world: KubernetesWorld) -> None:
    put_job_set(world)
    await come(world, of_job_set(world, "driver", 0, 0))
    (question,) = world.asked("place")
    assert [(group.count, group.demand.gpus) for group in question.jobs[0].groups] == [(1, 0), (3, 8)]
    assert list(nodes(world)) == ["j-driver-0-0"]
    await pass_long(world)
    for index in range(3):
        await come(world, of_job_set(world, "workers", index, 8))
    assert sorted(nodes(world).values()) == world.decided_nodes(key_of(world))
    assert len(world.asked("place")) == 1


async def test_a_launcher_that_waits_for_its_workers_is_decided_with_them(world: KubernetesWorld) -> None:
    replicas = {
        role: {"replicas": count, "template": template_of(world, gpus)}
        for role, count, gpus in (("Launcher", 1, 1), ("Worker", 2, 8))
    }
    spec = {"mpiReplicaSpecs": replicas, "launcherCreationPolicy": "WaitForWorkersReady"}
    metadata = {"name": "m", "namespace": "default", "uid": "m-uid"}
    world.host.kube.groups[MPI_JOBS] = {"metadata": metadata, "spec": spec}
    owner = {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "name": "m", "uid": "m-uid", "controller": True}

    def member(role: str, gpus: int, index: int = 0) -> dict[str, Any]:
        labels = {"training.kubeflow.org/job-name": "m", "training.kubeflow.org/job-role": role}
        return owned(ordered(world, f"m-{role}-{index}", gpus=gpus, labels=labels), owner)

    await come(world, member("worker", 8), member("worker", 8, 1))
    assert len(nodes(world)) == 2
    await pass_long(world)
    await come(world, member("launcher", 1))
    assert sorted(nodes(world).values()) == world.decided_nodes(key_of(world))
    assert len(world.asked("place")) == 1


async def test_a_leader_and_workers_that_come_when_it_is_ready(world: KubernetesWorld) -> None:
    labels = {"leaderworkerset.sigs.k8s.io/name": "l", "leaderworkerset.sigs.k8s.io/group-index": "0"}
    notes = {"leaderworkerset.sigs.k8s.io/size": "3"}
    leader, *workers = [ordered(world, f"l-0-{index}", labels=labels, annotations=notes) for index in range(3)]
    await come(world, leader)
    assert list(nodes(world)) == ["l-0-0"]
    await pass_long(world)
    await come(world, *workers)
    assert sorted(nodes(world).values()) == world.decided_nodes(key_of(world))
    assert len(world.asked("place")) == 1


async def test_bare_pods_say_themselves_that_they_come_one_after_another(world: KubernetesWorld) -> None:
    notes = {names.GANG: "2", names.IN_ORDER: "true"}
    await come(world, ordered(world, "g-0", annotations=notes))
    assert list(nodes(world)) == ["g-0"]
    await pass_long(world)
    await come(world, ordered(world, "g-1", annotations=notes))
    assert sorted(nodes(world).values()) == world.decided_nodes(key_of(world))


@pytest.mark.parametrize("world", [GATES, OWN], indirect=True)
async def test_a_pod_that_kueue_holds_counts_as_not_yet_there(world: KubernetesWorld) -> None:
    put_stateful_set(world, 2)
    await come(world, of_set(world, 0))
    queued = of_set(world, 1)
    world.host.kube.has_gates = False
    ours = [{"name": names.GATE}] if isinstance(world.host, GatedScheduler) else []
    queued["spec"]["schedulingGates"] = [*ours, {"name": "kueue.x-k8s.io/admission"}]
    await come(world, queued)
    patched = [path for path, body in world.host.kube.patches if path.endswith("/s-1") and "spec" in body]
    assert patched == []
    assert [path for path in world.host.kube.posted if path.endswith("/s-1/binding")] == []
    path = "/api/v1/namespaces/default/pods/s-1"
    world.host.kube.pods[path]["spec"]["schedulingGates"] = ours
    await world.host.kube.patch(path, {"metadata": {}})
    await come(world)
    assert sorted(nodes(world).values()) == world.decided_nodes(key_of(world))


@pytest.mark.parametrize("world", [GATES], indirect=True)
async def test_rules_of_pods_to_come_are_judged_before_the_first_starts(world: KubernetesWorld) -> None:
    expression = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1"]}
    terms = [{"matchExpressions": [expression]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    put_job_set(world, affinity={"nodeAffinity": required})
    await come(world, of_job_set(world, "driver", 0, 0))
    assert usable(world) == ["n2", "n3", "n4"]


@pytest.mark.parametrize("world", [GATES], indirect=True)
async def test_a_rule_of_pods_to_come_that_is_not_evaluated_leaves_the_gang_to_its_scheduler(
    world: KubernetesWorld,
) -> None:
    put_job_set(world, topologySpreadConstraints=[{"maxSkew": 1}])
    await come(world, of_job_set(world, "driver", 0, 0))
    assert world.asked("place") == []
    assert list(nodes(world)) == ["j-driver-0-0"]


@pytest.mark.parametrize("world", [GATES], indirect=True)
async def test_volumes_of_pods_to_come_are_read_before_the_first_starts(world: KubernetesWorld) -> None:
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n4"]}]}]
    claim = {"metadata": {"name": "data"}, "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}}
    world.host.kube.groups["/api/v1/namespaces/default/persistentvolumeclaims/data"] = claim
    volume = {"metadata": {"name": "pv"}, "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}}
    world.host.kube.groups["/api/v1/persistentvolumes/pv"] = volume
    put_job_set(world, volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}])
    await come(world, of_job_set(world, "driver", 0, 0))
    assert usable(world) == ["n1", "n2", "n3"]
    assert list(nodes(world)) == ["j-driver-0-0"]
