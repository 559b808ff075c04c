"""Gangs of controllers that label their pods: JobSet, Kubeflow, LeaderWorkerSet, RayCluster, a site's own. Pure.

A table of labels names the gang, the pod's role and, if the controller writes it on the pod, the size. Otherwise the
size is in the controller's own object, which is read once. Pods that come only after others are ready count, too: their
place is decided with the others'. Pods that come only after others have ended do not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.objects import Pod


@dataclass(frozen=True, slots=True)
class OwnerLabels:
    """One kind of controller. Labels count before annotations."""

    name: tuple[str, ...]
    """Labels whose values together name the gang; a pod that lacks one is not of this kind."""
    role: tuple[str, ...] = ()
    """Labels with the pod's role: the first that it has."""
    size: str = ""
    """Label or annotation with the number of the gang's pods."""
    is_in_order: bool = False
    """The controller may make a pod only when others are ready: none of them waits for the rest."""


DEFAULT_OWNERS: Mapping[str, OwnerLabels] = MappingProxyType(
    {
        "JobSet": OwnerLabels(("jobset.sigs.k8s.io/jobset-name",), ("jobset.sigs.k8s.io/replicatedjob-name",)),
        "Kubeflow": OwnerLabels(
            ("training.kubeflow.org/job-name",),
            ("training.kubeflow.org/replica-type", "training.kubeflow.org/job-role"),
        ),
        # A leader and its workers have one role, as the workers may come only after the leader is ready.
        "LeaderWorkerSet": OwnerLabels(
            ("leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/group-index"),
            size="leaderworkerset.sigs.k8s.io/size",
            is_in_order=True,
        ),
        "RayCluster": OwnerLabels(("ray.io/cluster",), ("ray.io/group",)),
    }
)
_RAY_HEAD = "headgroup"
_JOB_SET_UID = "jobset.sigs.k8s.io/jobset-uid"


def described(pod: Pod, owners: Mapping[str, OwnerLabels]) -> Pod:
    """The pod with the name of its controller's gang, and with role and size as if they stood on it by our names."""
    for kind, labels in owners.items():
        values = [pod.setting(label) for label in labels.name]
        if not all(values):
            continue
        role = next((found for label in labels.role if (found := pod.setting(label))), "")
        known = {names.ROLE: role.lower(), names.GANG: pod.setting(labels.size) if labels.size else ""}
        known[names.IN_ORDER] = "true" if labels.is_in_order else ""
        given = {name: value for name, value in known.items() if value}
        return dataclasses.replace(pod, gang=".".join([kind.lower(), *values]), annotations=given | {**pod.annotations})
    return pod


@dataclass(frozen=True, slots=True)
class GangShape:
    """The pods of a gang as its controller's object declares them.

    `templates` are pod templates by role, as the API has them. `is_in_order`: some pods come only when others are
    ready.
    """

    roles: Mapping[str, int]
    templates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    is_in_order: bool = False


def _job_set(spec: Mapping[str, Any]) -> GangShape:
    jobs = spec.get("replicatedJobs") or ()
    is_in_order = (spec.get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder"
    together = _side_by_side(jobs)
    return GangShape(
        {job["name"].lower(): _parallel(job) * int(job.get("replicas", 1)) for job in together},
        {job["name"].lower(): _pod_template(job) for job in together},
        is_in_order or any(job.get("dependsOn") for job in together),
    )


def _side_by_side(jobs: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Without the jobs that come after the end of another, and those that come after these."""
    later: set[str] = set()
    for job in jobs:
        waits = job.get("dependsOn") or ()
        if any(other.get("status") == "Complete" or other["name"] in later for other in waits):
            later.add(job["name"])
    return [job for job in jobs if job["name"] not in later]


def _pod_template(job: Mapping[str, Any]) -> Mapping[str, Any]:
    return ((job.get("template") or {}).get("spec") or {}).get("template") or {}


def _parallel(job: Mapping[str, Any]) -> int:
    spec = (job.get("template") or {}).get("spec") or {}
    parallelism = int(spec.get("parallelism", 1))
    return min(parallelism, int(spec.get("completions") or parallelism))


def _kubeflow(spec: Mapping[str, Any]) -> GangShape:
    replicas: Mapping[str, Any] = next((value for key, value in spec.items() if key.endswith("ReplicaSpecs")), {})
    return GangShape(
        {role.lower(): int((of_role or {}).get("replicas", 1)) for role, of_role in replicas.items()},
        {role.lower(): (of_role or {}).get("template") or {} for role, of_role in replicas.items()},
        spec.get("launcherCreationPolicy") == "WaitForWorkersReady",
    )


def _ray(spec: Mapping[str, Any]) -> GangShape:
    groups = spec.get("workerGroupSpecs") or ()
    workers = {
        group["groupName"].lower(): int(group.get("replicas", 0)) * int(group.get("numOfHosts", 1)) for group in groups
    }
    return GangShape({_RAY_HEAD: 1, **workers})


def _stateful_set(spec: Mapping[str, Any]) -> GangShape:
    """Its pods are alike: the first of them stands for all."""
    replicas = spec.get("replicas")
    is_in_order = spec.get("podManagementPolicy") != "Parallel"
    return GangShape({names.DEFAULT_ROLE: 1 if replicas is None else int(replicas)}, is_in_order=is_in_order)


@dataclass(frozen=True, slots=True)
class OwnerObject:
    """Where the API serves the object, and how its spec is read."""

    root: str
    plural: str
    shape: Callable[[Mapping[str, Any]], GangShape]


def _training(version: str, *kinds: str) -> dict[str, OwnerObject]:
    root = f"kubeflow.org/{version}"
    return {f"{root}/{kind}": OwnerObject(f"/apis/{root}", f"{kind.lower()}s", _kubeflow) for kind in kinds}


_JOB_SET = "jobset.x-k8s.io/v1alpha2/JobSet"
_STATEFUL_SET = "apps/v1/StatefulSet"
OBJECTS: Mapping[str, OwnerObject] = MappingProxyType(
    {
        _JOB_SET: OwnerObject("/apis/jobset.x-k8s.io/v1alpha2", "jobsets", _job_set),
        _STATEFUL_SET: OwnerObject("/apis/apps/v1", "statefulsets", _stateful_set),
        "ray.io/v1/RayCluster": OwnerObject("/apis/ray.io/v1", "rayclusters", _ray),
        **_training("v1", "PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob", "MPIJob"),
        **_training("v2beta1", "MPIJob"),
    }
)


def owner_object(pod: Pod) -> tuple[str, str] | None:
    """Key in OBJECTS and name of the object with the size of the pod's gang; None if none is known."""
    job_set = pod.labels.get(DEFAULT_OWNERS["JobSet"].name[0])
    if job_set:
        return _JOB_SET, job_set
    key = f"{pod.owner.api}/{pod.owner.kind}" if pod.owner is not None else ""
    return (key, pod.owner.name) if pod.owner is not None and key in OBJECTS else None


def owner_uid(pod: Pod) -> str:
    """Uid of that object; empty if the pod does not tell it, or if its pods are made again under the same uid.

    A StatefulSet outlives its gang. A gang that was made again would have the uid of one that is over after a restart.
    """
    if uid := pod.labels.get(_JOB_SET_UID):
        return uid
    key = f"{pod.owner.api}/{pod.owner.kind}" if pod.owner is not None else ""
    return pod.owner.uid if pod.owner is not None and key in OBJECTS and key != _STATEFUL_SET else ""
