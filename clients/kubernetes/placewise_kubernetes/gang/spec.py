"""The gang of a pod, and the gang's demands. Pure: reads pods and the facts of their group."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from placewise.v1.cluster_pb2 import Assignment
from placewise.v1.job_pb2 import Job, TaskGroup
from placewise_client.adapter.native import End
from placewise_kubernetes.gang.owners import DEFAULT_OWNERS, OwnerLabels, described, owner_object
from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.objects import Owner, Pod, parse_pod
from placewise_kubernetes.kube.quantity import raise_amounts, resources_from
from placewise_kubernetes.kube.topology import HardTopology

PARAMETER_SERVER_ROLES = ("ps", "parameter-server", "parameterserver", "server")
# The contract's limit: an annotation may hold any number, and must not stop the gangs of others.
MOST_COUNT = 2**31 - 1
_MOST_NUMBER = 1e15
ARCHITECTURES = {
    "single": Job.SINGLE,
    "ps": Job.PARAMETER_SERVER,
    "parameter-server": Job.PARAMETER_SERVER,
    "all-reduce": Job.ALL_REDUCE,
    "pipeline": Job.PIPELINE,
}
TOGETHER = {"none": Job.NONE, "node": Job.NODE, "rack": Job.RACK}
PRIORITIES = {"urgent": Job.URGENT, "prior": Job.PRIOR, "normal": Job.NORMAL}


class Source(enum.Enum):
    """What made these pods a gang."""

    LABEL = "label"
    NATIVE = "native-pod-group"
    """Of `scheduling.k8s.io`: kube-scheduler starts its pods together, or none of them."""
    POD_GROUP = "pod-group"
    VOLCANO = "volcano"
    BATCH_JOB = "batch-job"
    OWNER = "owner"
    VOLCANO_JOB = "vcjob"
    """Never a gang's own: Volcano makes a PodGroup for it."""
    SINGLE = "single"


# Gangs of these have a PodGroup of their name.
POD_GROUPS = (Source.NATIVE, Source.POD_GROUP, Source.VOLCANO)


class Manage(enum.StrEnum):
    """The pods that Placewise decides for."""

    LABELLED = "labelled"
    """Only those that carry the job label."""
    GROUPS = "groups"
    """Those, and every pod of a PodGroup."""
    GPU = "gpu"
    """Those, and every pod that asks for a GPU."""


_ID_AGAIN = re.compile(r"(?:^|/)([0-9A-Za-z-]{1,8}\.r[1-9][0-9]{0,5})$")


@dataclass(frozen=True, slots=True)
class GangRef:
    """Name of a gang."""

    source: Source
    namespace: str
    name: str
    kind: str = ""
    """Of the object of an owner: a key of owners.OBJECTS."""


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """The facts of a group object (PodGroup, batch Job); empty without one."""

    uid: str = ""
    roles: Mapping[str, int] = field(default_factory=dict)
    queue: str = ""
    priority_class: str = ""
    created_s: float = 0.0
    annotations: Mapping[str, str] = field(default_factory=dict)
    min_resources: Mapping[str, str] = field(default_factory=dict)
    """The group's total demand, as quantities; from Volcano's PodGroups."""
    owner: Owner | None = None
    """The controller that made the group."""
    templates: Mapping[str, Pod] = field(default_factory=dict)
    """Pods as the group's vcjob, or another controller, will make them, by role."""
    topology: HardTopology | None = None
    """HyperNodes that the group may not cross; from Volcano's PodGroups."""
    is_in_order: bool = False
    """The controller makes some pods only when others are ready; `templates` are of its roles."""
    is_basic: bool = False
    """A native PodGroup whose pods start one by one: they are no gang."""
    is_admitted: bool = field(default=False, compare=False)
    """Volcano has let the group in and has not started it yet."""

    @property
    def uids(self) -> tuple[str, ...]:
        """Uids that may name the gang, the one that lives longest first: a vcjob's PodGroup goes when it completes."""
        return tuple(uid for uid in (self.owner.uid if self.owner else "", self.uid) if uid)


@dataclass(frozen=True, slots=True)
class GangRules:
    """How pods are read; from the configuration."""

    manage: Manage = Manage.GROUPS
    gpu_resources: tuple[str, ...] = ("nvidia.com/gpu", "amd.com/gpu")
    device_drivers: tuple[str, ...] = ("gpu.nvidia.com", "gpu.amd.com")
    """Drivers whose ResourceSlices list GPUs."""
    device_classes: tuple[str, ...] = ("gpu.nvidia.com", "gpu.amd.com")
    """DeviceClasses of whole GPUs. One whose extendedResourceName is in gpu_resources need not be named."""
    own_scheduler: str = "placewise"
    default_queue: str = "default"
    priority_classes: Mapping[str, str] = field(default_factory=dict)
    owners: Mapping[str, OwnerLabels] = field(default_factory=lambda: DEFAULT_OWNERS)
    """Controllers whose pods are gangs, by their labels."""
    is_bound_early: bool = True
    """Pods of our own scheduler name that a controller makes are bound as they come, once all of the gang is reserved;
    False: none is bound before all exist."""
    is_whole: bool = False
    """Asks with all of a pod's requests, also those that no policy weighs. The section `gates` sets it."""
    is_job_watched: bool = True
    """Gangs of batch Jobs with the job label in their pod template are decided when the Job is made, not at a pod."""

    def is_managed(self, pod: Pod) -> bool:
        """Whether Placewise decides for this pod."""
        if pod.scheduler == self.own_scheduler:
            return True
        if pod.setting(names.IGNORE).lower() == "true":
            return False
        if names.JOB in pod.labels:
            return True
        if self.manage is not Manage.LABELLED and _pod_group(pod) is not None:
            return True
        return self.manage is Manage.GPU and any(pod.requests.get(name) for name in self.gpu_resources)

    def pod(self, document: Mapping[str, Any]) -> Pod:
        """A v1.Pod, with what its controller's labels tell of its gang. Raises ValueError and KeyError as parse_pod."""
        return described(parse_pod(document), self.owners)

    def reference(self, pod: Pod) -> GangRef:
        """The gang of a pod; a pod without one is a gang of its own.

        A native PodGroup counts before the job label: the pod's scheduler starts the PodGroup, whatever its labels say.
        """
        if names.JOB in pod.labels and not pod.group:
            return GangRef(Source.LABEL, pod.namespace, pod.labels[names.JOB])
        return _pod_group(pod) or (GangRef(Source.OWNER, pod.namespace, pod.gang) if pod.gang else single(pod))

    def group_object(self, pod: Pod) -> GangRef | None:
        """The object that has to be read for the gang's size and name; None if the pod says both, or is alone."""
        if (pod.group or names.JOB not in pod.labels) and (group := _pod_group(pod)) is not None:
            return group
        if pod.setting(names.GANG):
            return None
        if (names.JOB in pod.labels or pod.gang) and (found := owner_object(pod)) is not None:
            kind, name = found
            return GangRef(Source.OWNER, pod.namespace, name, kind)
        if names.JOB not in pod.labels:
            return None
        if pod.owner is not None and pod.owner.kind == "Job":
            return GangRef(Source.BATCH_JOB, pod.namespace, pod.owner.name)
        return None

    def has_say(self, facts: GroupFacts) -> bool:
        """Whether Placewise decides for a Volcano group that has no pods yet."""
        if self.manage is Manage.LABELLED and names.JOB not in facts.annotations:
            return False
        if any(pod.device_claims for pod in facts.templates.values()):
            return False  # the claims, and with them the demands, are made after the pods
        return facts.annotations.get(names.IGNORE, "").lower() != "true"

    def queue(self, pod: Pod | None, facts: GroupFacts) -> str:
        """Queue of a gang: the pod's own word, the group's, the configured default."""
        own = pod.setting(names.QUEUE) if pod else ""
        return own or facts.annotations.get(names.QUEUE) or facts.queue or self.default_queue

    def priority(self, pod: Pod | None, facts: GroupFacts) -> Job.Priority:
        """Service class: the pod's own setting, else by the configuration's table of priority classes."""
        word = (pod.setting(names.PRIORITY) if pod else "") or facts.annotations.get(names.PRIORITY, "")
        if not word:
            priority_class = (pod.priority_class if pod else "") or facts.priority_class
            word = self.priority_classes.get(priority_class, "")
        return PRIORITIES.get(word.lower(), Job.PRIORITY_UNSPECIFIED)


def single(pod: Pod) -> GangRef:
    """A gang of this pod alone."""
    return GangRef(Source.SINGLE, pod.namespace, pod.name)


def role_of(pod: Pod) -> str:
    """The pod's role within its gang."""
    return pod.setting(names.ROLE) or pod.setting(names.VOLCANO_TASK) or names.DEFAULT_ROLE


def parse_roles(text: str) -> dict[str, int]:
    """ "4" or "worker=4,ps=1" as counts by role.

    Raises:
        ValueError: it is neither, or a count is below one.
    """
    roles = {}
    for part in text.split(","):
        role, _, count = part.rpartition("=")
        roles[role.strip() or names.DEFAULT_ROLE] = min(int(count), MOST_COUNT)
    if min(roles.values()) < 1:
        raise ValueError(f"a gang needs at least one pod of each role: {text!r}")
    return roles


def group_settings(annotations: Mapping[str, str]) -> dict[str, str]:
    """A PodGroup's settings of its job, other than role and size."""
    skipped = (names.ROLE, names.GANG)
    return {name: value for name, value in annotations.items() if name.startswith(names.DOMAIN) and name not in skipped}


def count_roles(pods: Iterable[Pod]) -> dict[str, int]:
    """Pods of each role."""
    return Counter(map(role_of, pods))


def first_of_roles(pods: Iterable[Pod], counts: Mapping[str, int]) -> Iterator[Pod]:
    """The first of these pods, as many of each role."""
    left = Counter(counts)
    for pod in pods:
        left[role_of(pod)] -= 1
        if left[role_of(pod)] >= 0:
            yield pod


def widest(pods: Sequence[Pod]) -> Pod:
    """The first of these pods with requests that are enough for each: one role has one demand in a decision."""
    first = pods[0]
    if all(pod.requests == first.requests for pod in pods):
        return first
    requests: dict[str, float] = {}
    for pod in pods:
        raise_amounts(requests, pod.requests)
    return dataclasses.replace(first, requests=requests)


def declared_roles(reference: GangRef, pods: Iterable[Pod], facts: GroupFacts) -> dict[str, int]:
    """How many pods of each role the gang has.

    The annotation wins over the group object. Without either, the existing pods are the gang.
    """
    pods = list(pods)
    if reference.source is Source.SINGLE:
        return {role_of(pod): 1 for pod in pods}
    settings = (pod.setting(names.GANG) for pod in pods)
    for text in itertools.chain(settings, (facts.annotations.get(names.GANG, ""),)):
        if text:
            try:
                return parse_roles(text)
            except ValueError:
                continue
    if facts.roles:
        return _spread(facts.roles, pods)
    return count_roles(pods)


def _spread(roles: Mapping[str, int], pods: Sequence[Pod]) -> dict[str, int]:
    """A group with a total only means the one role of its pods."""
    seen = {role_of(pod) for pod in pods}
    if set(roles) == {names.DEFAULT_ROLE} and len(seen) == 1:
        return {seen.pop(): roles[names.DEFAULT_ROLE]}
    return dict(roles)


def build_job(
    key: str, roles: Mapping[str, int], examples: Mapping[str, Pod], facts: GroupFacts, rules: GangRules
) -> Job:
    """The Job to ask about. `examples` has one pod of every role; its groups come in the order of `roles`."""
    lead = next(iter(examples.values()))
    job = Job(
        id=key,
        model=lead.setting(names.MODEL),
        groups=[_group(role, count, examples[role], rules) for role, count in roles.items()],
        total_epochs=_float(lead, names.EPOCHS),
        batch_size=_int(lead, names.BATCH_SIZE),
        dataset_size=int(_float(lead, names.DATASET_SIZE)),
        single_gpu_seconds=_float(lead, names.SINGLE_GPU_SECONDS),
        priority=rules.priority(lead, facts),
        queue=rules.queue(lead, facts),
        user=lead.setting(names.USER) or lead.namespace,
        keep_together=TOGETHER.get(lead.setting(names.KEEP_TOGETHER).lower(), Job.KEEP_TOGETHER_UNSPECIFIED),
        exclusive_network=lead.setting(names.EXCLUSIVE_NETWORK).lower() == "true",
    )
    job.architecture = _architecture(lead, job)
    created_s = facts.created_s or min((pod.created_s for pod in examples.values() if pod.created_s), default=0.0)
    if created_s:
        job.submit_time.CopyFrom(Timestamp(seconds=int(created_s)))
    return job


def _group(role: str, count: int, pod: Pod, rules: GangRules) -> TaskGroup:
    return TaskGroup(
        role=proto_role(role),
        count=count,
        demand=resources_from(pod.requests, rules.gpu_resources, is_whole=rules.is_whole),
        max_per_node=_int(pod, names.MAX_PER_NODE),
        gpu_model=pod.setting(names.GPU_MODEL),
        node_selector=dict(pod.node_selector),
    )


def proto_role(role: str) -> TaskGroup.Role:
    """A pod's role in the contract's terms."""
    return TaskGroup.PARAMETER_SERVER if role.lower() in PARAMETER_SERVER_ROLES else TaskGroup.WORKER


def tasks_by_role(job: Job, roles: Iterable[str], assignments: Sequence[Assignment]) -> dict[str, list[Assignment]]:
    """Cuts a decision into the roles of the gang, in the order of the job's groups.

    Two roles may be one role to the contract (a launcher and its workers): their tasks differ in their demands.
    """
    left = list(assignments)
    result: dict[str, list[Assignment]] = {}
    for role, group in zip(roles, job.groups, strict=True):
        exact = [task for task in left if task.role == group.role and _is_same_demand(task, group)]
        chosen = (exact or [task for task in left if task.role == group.role] or left)[: group.count]
        result[role] = chosen
        left = [task for task in left if not any(task is taken for taken in chosen)]
    return result


def _is_same_demand(task: Assignment, group: TaskGroup) -> bool:
    return not task.HasField("demand") or (
        abs(task.demand.gpus - group.demand.gpus) < 1e-6 and abs(task.demand.cpu_cores - group.demand.cpu_cores) < 1e-3
    )


def _architecture(pod: Pod, job: Job) -> Job.Architecture:
    """The annotation's, if any; else a parameter server shows itself, and several workers reduce together."""
    word = pod.setting(names.ARCHITECTURE).lower()
    if word in ARCHITECTURES:
        return ARCHITECTURES[word]
    if any(group.role == TaskGroup.PARAMETER_SERVER for group in job.groups):
        return Job.PARAMETER_SERVER
    return Job.ALL_REDUCE if sum(group.count for group in job.groups) > 1 else Job.SINGLE


def _pod_group(pod: Pod) -> GangRef | None:
    if pod.group:
        return GangRef(Source.NATIVE, pod.namespace, pod.group)
    if names.VOLCANO_GROUP in pod.annotations:
        return GangRef(Source.VOLCANO, pod.namespace, pod.annotations[names.VOLCANO_GROUP])
    for label in names.POD_GROUP_LABELS:
        if label in pod.labels:
            return GangRef(Source.POD_GROUP, pod.namespace, pod.labels[label])
    return None


def _int(pod: Pod, name: str) -> int:
    return int(min(_float(pod, name), MOST_COUNT))


def _float(pod: Pod, name: str) -> float:
    """A number from an annotation; 0 if it cannot be read or the service would not take it."""
    try:
        value = float(pod.setting(name) or 0)
    except ValueError:
        return 0.0
    return min(value, _MOST_NUMBER) if math.isfinite(value) and value >= 0 else 0.0


def id_again(key: str) -> str:
    """The last part of a gang's key, if all that could name it had named others before; "" for any other."""
    found = _ID_AGAIN.search(key)
    return found[1] if found is not None else ""


def id_notes(key: str) -> dict[str, str]:
    """Annotation by which a later run of the adapter finds such a name again."""
    return {names.GANG_ID: id_again(key)} if id_again(key) else {}


def end_of(pods: Iterable[Pod]) -> tuple[End, str]:
    """How a gang of which no pod runs any more has ended, and why."""
    pods = list(pods)
    for pod in pods:
        if pod.phase == "Failed":
            return End.FAILED, pod.reason or f"{pod.path} failed"
    if pods and all(pod.phase == "Succeeded" for pod in pods):
        return End.FINISHED, ""
    return End.CANCELLED, "pods deleted"
