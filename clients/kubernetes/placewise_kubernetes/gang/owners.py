"""Gangs of controllers that label their pods: JobSet, Kubeflow, LeaderWorkerSet, RayCluster, a site's own. Pure.

A table of labels names the gang, the pod's role and, if the controller writes it on the pod, the size. Otherwise the
size is in the controller's own object, which is read once. Pods that come only after another one is ready do not count:
they cannot be placed together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
        given = {name: value for name, value in known.items() if value}
        return dataclasses.replace(pod, gang=".".join([kind.lower(), *values]), annotations=given | {**pod.annotations})
    return pod


def _job_set(spec: Mapping[str, Any]) -> dict[str, int]:
    jobs = spec.get("replicatedJobs") or ()
    is_in_order = (spec.get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder"
    first = [job for i, job in enumerate(jobs) if not job.get("dependsOn") and not (is_in_order and i)]
    return {job["name"].lower(): _parallel(job) * int(job.get("replicas", 1)) for job in first}


def _parallel(job: Mapping[str, Any]) -> int:
    spec = (job.get("template") or {}).get("spec") or {}
    parallelism = int(spec.get("parallelism", 1))
    return min(parallelism, int(spec.get("completions") or parallelism))


def _kubeflow(spec: Mapping[str, Any]) -> dict[str, int]:
    replicas: Mapping[str, Any] = next((value for key, value in spec.items() if key.endswith("ReplicaSpecs")), {})
    waits = spec.get("launcherCreationPolicy") == "WaitForWorkersReady"
    return {
        role.lower(): int((of_role or {}).get("replicas", 1))
        for role, of_role in replicas.items()
        if not (waits and role == "Launcher")
    }


def _ray(spec: Mapping[str, Any]) -> dict[str, int]:
    groups = spec.get("workerGroupSpecs") or ()
    workers = {
        group["groupName"].lower(): int(group.get("replicas", 0)) * int(group.get("numOfHosts", 1)) for group in groups
    }
    return {_RAY_HEAD: 1, **workers}


@dataclass(frozen=True, slots=True)
class OwnerObject:
    """Where the API serves the object, and how its spec is read: pods by role."""

    root: str
    plural: str
    roles: Callable[[Mapping[str, Any]], dict[str, int]]


def _training(version: str, *kinds: str) -> dict[str, OwnerObject]:
    root = f"kubeflow.org/{version}"
    return {f"{root}/{kind}": OwnerObject(f"/apis/{root}", f"{kind.lower()}s", _kubeflow) for kind in kinds}


_JOB_SET = "jobset.x-k8s.io/v1alpha2/JobSet"
OBJECTS: Mapping[str, OwnerObject] = MappingProxyType(
    {
        _JOB_SET: OwnerObject("/apis/jobset.x-k8s.io/v1alpha2", "jobsets", _job_set),
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
    """Uid of that object; empty if the pod does not tell it."""
    if uid := pod.labels.get(_JOB_SET_UID):
        return uid
    return pod.owner.uid if pod.owner is not None and f"{pod.owner.api}/{pod.owner.kind}" in OBJECTS else ""
