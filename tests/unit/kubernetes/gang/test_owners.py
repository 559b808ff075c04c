"""Gangs of controllers, on pods of the shapes that these make."""

from collections.abc import Mapping
from typing import Any

import pytest

from placewise_client.adapter.sections import ConfigError
from placewise_kubernetes.config import parse_config
from placewise_kubernetes.gang.book import GangBook
from placewise_kubernetes.gang.groups import facts_of, facts_of_owner, read_group
from placewise_kubernetes.gang.owners import DEFAULT_OWNERS
from placewise_kubernetes.gang.spec import GangRef, GangRules, Source, declared_roles, role_of
from placewise_kubernetes.kube import names

RULES = GangRules()
GPU = "nvidia.com/gpu"
Json = dict[str, Any]


def pod(name: str, labels: Json, owner: Json | None = None, annotations: Json | None = None) -> Json:
    metadata = {"namespace": "ml", "name": name, "uid": f"uid-{name}", "labels": labels, "annotations": annotations}
    references = [{**owner, "controller": True}] if owner else []
    resources = {"requests": {"cpu": "4", GPU: "2"}}
    return {
        "metadata": {**metadata, "ownerReferences": references},
        "spec": {"containers": [{"name": "c", "resources": resources}]},
    }


def owned(api: str, kind: str, name: str, uid: str = "owner-uid") -> Json:
    return {"apiVersion": api, "kind": kind, "name": name, "uid": uid}


def job_set_pod(job: str, index: int, name: str = "train") -> Json:
    labels = {
        "jobset.sigs.k8s.io/jobset-name": name,
        "jobset.sigs.k8s.io/jobset-uid": "set-uid",
        "jobset.sigs.k8s.io/replicatedjob-name": job,
        "jobset.sigs.k8s.io/replicatedjob-replicas": "2",
        "batch.kubernetes.io/job-name": f"{name}-{job}-0",
    }
    return pod(f"{name}-{job}-0-{index}-x", labels, owned("batch/v1", "Job", f"{name}-{job}-0", "job-uid"))


def kubeflow_pod(role: str, index: int, api: str = "kubeflow.org/v1", kind: str = "PyTorchJob") -> Json:
    labels = {
        "training.kubeflow.org/job-name": "bert",
        "training.kubeflow.org/replica-type": role,
        "training.kubeflow.org/replica-index": str(index),
        "training.kubeflow.org/operator-name": "pytorchjob-controller",
    }
    return pod(f"bert-{role}-{index}", labels, owned(api, kind, "bert"))


def mpi_pod(role: str, index: int) -> Json:
    labels = {"training.kubeflow.org/job-name": "hpl", "training.kubeflow.org/job-role": role}
    return pod(f"hpl-{role}-{index}", labels, owned("kubeflow.org/v2beta1", "MPIJob", "hpl"))


def set_of_workers_pod(group: int, worker: int) -> Json:
    labels = {
        "leaderworkerset.sigs.k8s.io/name": "vllm",
        "leaderworkerset.sigs.k8s.io/group-index": str(group),
        "leaderworkerset.sigs.k8s.io/worker-index": str(worker),
    }
    owner = owned("apps/v1", "StatefulSet", f"vllm-{group}" if worker else "vllm", f"set-{group}-{worker > 0}")
    return pod(f"vllm-{group}-{worker}", labels, owner, {"leaderworkerset.sigs.k8s.io/size": "4"})


def ray_pod(group: str, index: int) -> Json:
    labels = {
        "ray.io/cluster": "tune",
        "ray.io/group": group,
        "ray.io/node-type": "head" if group == "headgroup" else "worker",
        "ray.io/is-ray-node": "yes",
    }
    return pod(f"tune-{group}-{index}", labels, owned("ray.io/v1", "RayCluster", "tune"))


def template(gpus: int, **labels: str) -> Json:
    containers = [{"name": "c", "resources": {"requests": {"cpu": "4", GPU: str(gpus)}}}]
    return {"metadata": {"labels": labels}, "spec": {"containers": containers}}


def replicated(name: str, pods: int, gpus: int, **more: Any) -> Json:
    spec = {"parallelism": pods, "completions": pods, "template": template(gpus)}
    return {"name": name, "template": {"spec": spec}, **more}


JOB_SET = {"replicatedJobs": [replicated("driver", 1, 0), replicated("workers", 4, 2, replicas=2)]}
IN_ORDER = {**JOB_SET, "startupPolicy": {"startupPolicyOrder": "InOrder"}}
REPLICAS = {"Master": {"replicas": 1}, "Worker": {"replicas": 3}}
MPI = {
    "mpiReplicaSpecs": {
        "Launcher": {"replicas": 1, "template": template(0)},
        "Worker": {"replicas": 8, "template": template(2)},
    }
}
RAY = {
    "headGroupSpec": {},
    "workerGroupSpecs": [
        {"groupName": "gpuWorkers", "replicas": 3},
        {"groupName": "tpu", "replicas": 2, "numOfHosts": 4},
    ],
}
SHAPES: Mapping[str, tuple[Json, str, str, tuple[str, str], Json, dict[str, int]]] = {
    # a pod, its gang, its role, the API's path of the object, its spec, the gang's pods by role
    "JobSet": (
        job_set_pod("workers", 3),
        "jobset.train",
        "workers",
        ("/apis/jobset.x-k8s.io/v1alpha2", "jobsets/train"),
        JOB_SET,
        {"driver": 1, "workers": 8},
    ),
    "JobSet in order": (
        job_set_pod("driver", 0),
        "jobset.train",
        "driver",
        ("/apis/jobset.x-k8s.io/v1alpha2", "jobsets/train"),
        IN_ORDER,
        {"driver": 1, "workers": 8},
    ),
    "PyTorchJob": (
        kubeflow_pod("worker", 2),
        "kubeflow.bert",
        "worker",
        ("/apis/kubeflow.org/v1", "pytorchjobs/bert"),
        {"pytorchReplicaSpecs": REPLICAS},
        {"master": 1, "worker": 3},
    ),
    "MPIJob": (
        mpi_pod("worker", 7),
        "kubeflow.hpl",
        "worker",
        ("/apis/kubeflow.org/v2beta1", "mpijobs/hpl"),
        MPI,
        {"launcher": 1, "worker": 8},
    ),
    "MPIJob whose launcher waits": (
        mpi_pod("worker", 0),
        "kubeflow.hpl",
        "worker",
        ("/apis/kubeflow.org/v2beta1", "mpijobs/hpl"),
        {**MPI, "launcherCreationPolicy": "WaitForWorkersReady"},
        {"launcher": 1, "worker": 8},
    ),
    "RayCluster": (
        ray_pod("gpuWorkers", 0),
        "raycluster.tune",
        "gpuworkers",
        ("/apis/ray.io/v1", "rayclusters/tune"),
        RAY,
        {"headgroup": 1, "gpuworkers": 3, "tpu": 8},
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_pod_of_a_controller_is_one_of_its_gang(shape: str) -> None:
    document, gang, role, (root, path), spec, roles = SHAPES[shape]
    read = RULES.pod(document)
    assert RULES.reference(read) == GangRef(Source.OWNER, "ml", gang)
    assert role_of(read) == role
    group = RULES.group_object(read)
    assert group is not None
    plural, name = path.split("/")

    class Api:
        async def get(self, asked: str) -> Json:
            assert asked == f"{root}/namespaces/ml/{plural}/{name}"
            return {"metadata": {"uid": "u", "name": name}, "spec": spec}

    facts = await read_group(Api(), group)  # type: ignore[arg-type]
    assert facts is not None
    assert declared_roles(RULES.reference(read), [read], facts) == roles


@pytest.mark.parametrize(
    ("kind", "spec", "is_in_order", "gpus"),
    [
        ("jobset.x-k8s.io/v1alpha2/JobSet", JOB_SET, False, {}),
        ("jobset.x-k8s.io/v1alpha2/JobSet", IN_ORDER, True, {"driver": 0, "workers": 2}),
        ("kubeflow.org/v2beta1/MPIJob", MPI, False, {}),
        (
            "kubeflow.org/v2beta1/MPIJob",
            {**MPI, "launcherCreationPolicy": "WaitForWorkersReady"},
            True,
            {"launcher": 0, "worker": 2},
        ),
        ("apps/v1/StatefulSet", {"replicas": 3}, True, {}),
        ("apps/v1/StatefulSet", {"replicas": 3, "podManagementPolicy": "Parallel"}, False, {}),
        ("ray.io/v1/RayCluster", RAY, False, {}),
    ],
)
def test_pods_that_come_after_others_are_known_by_their_templates(
    kind: str, spec: Json, is_in_order: bool, gpus: dict[str, int]
) -> None:
    facts = facts_of_owner({"metadata": {"name": "x", "namespace": "ml"}, "spec": spec}, kind)
    assert facts.is_in_order is is_in_order
    assert {role: pod.requests[GPU] for role, pod in facts.templates.items()} == gpus
    assert [role_of(pod) for pod in facts.templates.values()] == list(gpus)


def test_of_a_job_set_only_jobs_that_run_side_by_side_are_a_gang() -> None:
    ready, complete = ({"name": "first", "status": status} for status in ("Ready", "Complete"))
    jobs = [
        replicated("first", 1, 1),
        replicated("beside", 2, 1, dependsOn=[ready]),
        replicated("after", 4, 1, dependsOn=[complete]),
        replicated("last", 4, 1, dependsOn=[{"name": "after", "status": "Ready"}]),
    ]
    spec = {"replicatedJobs": jobs}
    facts = facts_of_owner({"metadata": {"name": "x"}, "spec": spec}, "jobset.x-k8s.io/v1alpha2/JobSet")
    assert (facts.roles, facts.is_in_order) == ({"first": 1, "beside": 2}, True)


@pytest.mark.parametrize(("replicas", "pods"), [(3, 3), (None, 1), (0, 0)])
def test_a_labelled_stateful_set_has_the_size_that_it_declares(replicas: int | None, pods: int) -> None:
    document = pod("db-0", {names.JOB: "db"}, owned("apps/v1", "StatefulSet", "db"))
    group = RULES.group_object(RULES.pod(document))
    assert group == GangRef(Source.OWNER, "ml", "db", "apps/v1/StatefulSet")
    spec = {} if replicas is None else {"replicas": replicas}
    facts = facts_of_owner({"metadata": {"name": "db"}, "spec": spec}, group.kind)
    assert sum(facts.roles.values()) == pods


def test_a_group_of_a_leader_and_its_workers_has_its_size_on_each_pod() -> None:
    pods = [RULES.pod(set_of_workers_pod(1, worker)) for worker in range(2)]
    assert {RULES.reference(each) for each in pods} == {GangRef(Source.OWNER, "ml", "leaderworkerset.vllm.1")}
    assert [RULES.group_object(each) for each in pods] == [None, None]
    assert declared_roles(RULES.reference(pods[0]), pods[:1], facts_of(Source.OWNER, {})) == {"worker": 4}
    assert [each.setting(names.IN_ORDER) for each in pods] == ["true", "true"]


def test_gangs_of_one_name_and_of_other_kinds_are_others() -> None:
    ray, job_set = ray_pod("headgroup", 0), job_set_pod("workers", 0, name="tune")
    assert RULES.reference(RULES.pod(ray)) != RULES.reference(RULES.pod(job_set))


def test_the_users_own_words_count_before_the_controllers() -> None:
    document = kubeflow_pod("worker", 0)
    document["metadata"]["labels"][names.JOB] = "mine"
    document["metadata"]["annotations"] = {names.ROLE: "ps", names.GANG: "ps=1,worker=2"}
    read = RULES.pod(document)
    assert RULES.reference(read) == GangRef(Source.LABEL, "ml", "mine")
    assert (role_of(read), RULES.group_object(read)) == ("ps", None)


def test_a_label_of_ours_on_a_job_set_still_takes_its_size() -> None:
    """Each of its Jobs has a parallelism of its own, which is not the size of the gang."""
    document = job_set_pod("workers", 0)
    document["metadata"]["labels"][names.JOB] = "mine"
    group = RULES.group_object(RULES.pod(document))
    assert group is not None
    assert (group.name, group.kind) == ("train", "jobset.x-k8s.io/v1alpha2/JobSet")


@pytest.mark.parametrize("owner", [None, owned("evil.example/v1", "PyTorchJob", "bert"), owned("v1", "Secret", "s")])
def test_only_known_kinds_are_read_from_the_api(owner: Json | None) -> None:
    """A pod's maker writes its owner."""
    document = kubeflow_pod("worker", 0)
    document["metadata"]["ownerReferences"] = [{**owner, "controller": True}] if owner else []
    assert RULES.group_object(RULES.pod(document)) is None


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("ray.io/v1/RayCluster", {"workerGroupSpecs": [{"replicas": 2}]}),
        ("ray.io/v1/RayCluster", {"workerGroupSpecs": 3}),
        ("jobset.x-k8s.io/v1alpha2/JobSet", {"replicatedJobs": [{"name": "a", "replicas": "two"}]}),
        ("jobset.x-k8s.io/v1alpha2/JobSet", {"replicatedJobs": [{"name": "a", "replicas": [1]}]}),
        ("kubeflow.org/v1/PyTorchJob", {"pytorchReplicaSpecs": ["Worker"]}),
        ("kubeflow.org/v1/PyTorchJob", {}),
        ("apps/v1/StatefulSet", {"replicas": "three"}),
    ],
)
def test_an_object_of_another_shape_has_no_size(kind: str, spec: Json) -> None:
    assert facts_of_owner({"spec": spec}, kind).roles == {}


def test_the_controllers_uid_names_the_gang_whichever_pod_is_seen_first() -> None:
    def keys(*order: int) -> set[str]:
        book = GangBook(RULES)
        return {book.put(RULES.pod(job_set_pod("workers", index))).key for index in order}

    assert keys(0, 1) == keys(1, 0) == {"ml/jobset.train/set-uid"}


def test_a_site_adds_a_controller_and_takes_one_out() -> None:
    own = {"name": ["corp.example/run"], "role": ["corp.example/part"], "size": "corp.example/pods"}
    rules = parse_config({"cluster": "c", "rules": {"owners": {"Run": own, "RayCluster": None}}}).rules
    labels = {"corp.example/run": "r1", "corp.example/pods": "6"}
    read = rules.pod(pod("a", labels))
    assert rules.reference(read) == GangRef(Source.OWNER, "ml", "run.r1")
    assert declared_roles(rules.reference(read), [read], facts_of(Source.OWNER, {})) == {"worker": 6}
    assert rules.reference(rules.pod(ray_pod("headgroup", 0))).source is Source.SINGLE
    assert rules.owners["JobSet"] == DEFAULT_OWNERS["JobSet"]


@pytest.mark.parametrize(
    ("owners", "words"),
    [
        ("JobSet", "rules.owners: give a section"),
        ({"Run": {"role": ["r"]}}, "rules.owners.Run.name is missing"),
        ({"Run": {"name": []}}, "rules.owners.Run.name: give the labels"),
        ({"Run": {"name": "r"}}, "rules.owners.Run.name: 'r' does not fit"),
    ],
)
def test_a_wrong_row_is_named(owners: object, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_config({"cluster": "c", "rules": {"owners": owners}})
    assert words in str(raised.value)
