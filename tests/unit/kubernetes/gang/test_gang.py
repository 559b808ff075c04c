"""Pods, gangs and nodes as the adapter reads them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from placewise.v1.cluster_pb2 import Assignment, Node
from placewise.v1.job_pb2 import Job, Resources, TaskGroup
from placewise_client.adapter.native import End, Placement, Stage
from placewise_client.adapter.sections import ConfigError
from placewise_core.domain.validate import Limits, check_node
from placewise_kubernetes.config import parse_config
from placewise_kubernetes.gang.book import GangBook
from placewise_kubernetes.gang.fit import first_fit
from placewise_kubernetes.gang.gang import Gang, native_job
from placewise_kubernetes.gang.gpus import GpuLedger
from placewise_kubernetes.gang.groups import facts_of
from placewise_kubernetes.gang.mirror import NodeMirror
from placewise_kubernetes.gang.spec import (
    GangRef,
    GangRules,
    GroupFacts,
    Manage,
    Source,
    build_job,
    parse_roles,
    tasks_by_role,
)
from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.nodes import NodeReader
from placewise_kubernetes.kube.objects import Owner, Pod, parse_pod
from placewise_kubernetes.kube.quantity import parse_quantity, pod_requests, resources_from
from placewise_service.api.convert import convert_in

RULES = GangRules()
GPU = "nvidia.com/gpu"


def make_pod(name: str, role: str = "", **options: Any) -> Pod:
    labels = {names.JOB: options.pop("job", "train")} | ({names.ROLE: role} if role else {})
    notes = {names.GANG: options.pop("gang", "4")} | options.pop("annotations", {})
    requests = options.pop("requests", {"cpu": 2.0, "memory": 2.0**30, GPU: 1.0})
    return Pod("ns", name, f"uid-{name}", labels=labels, annotations=notes, requests=requests, **options)


@pytest.mark.parametrize(
    ("text", "value"),
    [("500m", 0.5), ("2", 2.0), ("64Gi", 64 * 2.0**30), ("1e3", 1000.0), ("1E", 1e18), ("1.5k", 1500.0), (0.25, 0.25)],
)
def test_quantities(text: object, value: float) -> None:
    assert parse_quantity(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "abc", "1Zi", "1 Gi", "--1", None])
def test_what_is_no_quantity_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_quantity(text)


def test_requests_follow_the_rule_of_the_api() -> None:
    spec = {
        "containers": [
            {"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2", GPU: "1"}}},
            {"resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}},
        ],
        "initContainers": [
            {"restartPolicy": "Always", "resources": {"requests": {"cpu": "250m"}}},
            {"resources": {"requests": {"cpu": "3", "memory": "512Mi"}}},
        ],
        "overhead": {"cpu": "100m"},
    }
    # max(1.5 + 0.25 running, 3 + 0.25 starting) + 0.1
    assert pod_requests(spec) == {"cpu": pytest.approx(3.35), GPU: 1.0, "memory": 2.0**30}


def test_requests_of_a_whole_pod_stand_for_those_of_its_containers() -> None:
    """GPUs stay its containers' own: a pod as a whole has none."""
    container = {"resources": {"requests": {"cpu": "1", "memory": "1Gi", GPU: "1"}}}
    spec = {
        "containers": [container, container],
        "resources": {"requests": {"cpu": "8"}, "limits": {"cpu": "9", "memory": "4Gi"}},
        "overhead": {"cpu": "100m"},
    }
    assert pod_requests(spec) == {"cpu": pytest.approx(8.1), "memory": 2.0**31, GPU: 2.0}


def test_resources_know_gpus_by_their_configured_names() -> None:
    amounts = {"cpu": "4", "memory": "2Gi", GPU: "2", "example.com/fpga": "1", "pods": "110", "hugepages-2Mi": "0"}
    expected = Resources(cpu_cores=4, memory_gib=2, gpus=2, extended={"example.com/fpga": 1})
    assert resources_from(amounts, (GPU,)) == expected


@pytest.mark.parametrize(
    ("manage", "pod", "is_managed"),
    [
        (Manage.LABELLED, Pod("ns", "a", "1", labels={names.JOB: "j"}), True),
        (Manage.LABELLED, Pod("ns", "a", "1", annotations={names.VOLCANO_GROUP: "g"}), False),
        (Manage.GROUPS, Pod("ns", "a", "1", annotations={names.VOLCANO_GROUP: "g"}), True),
        (Manage.GROUPS, Pod("ns", "a", "1", labels={names.POD_GROUP_LABELS[0]: "g"}), True),
        (Manage.GROUPS, Pod("ns", "a", "1", requests={GPU: 1.0}), False),
        (Manage.GPU, Pod("ns", "a", "1", requests={GPU: 1.0}), True),
        (Manage.GPU, Pod("ns", "a", "1", requests={"cpu": 1.0}), False),
        (Manage.GPU, Pod("ns", "a", "1", labels={names.JOB: "j", names.IGNORE: "true"}), False),
        (Manage.LABELLED, Pod("ns", "a", "1", scheduler="placewise"), True),
    ],
)
def test_only_what_asked_for_it_is_managed(manage: Manage, pod: Pod, is_managed: bool) -> None:
    assert GangRules(manage=manage).is_managed(pod) is is_managed


def test_the_label_names_the_gang_before_any_group() -> None:
    pod = Pod("ns", "a", "1", labels={names.JOB: "j"}, annotations={names.VOLCANO_GROUP: "g"})
    assert RULES.reference(pod) == GangRef(Source.LABEL, "ns", "j")
    assert RULES.reference(Pod("ns", "a", "1")) == GangRef(Source.SINGLE, "ns", "a")


def test_the_size_is_read_from_the_object_only_where_the_pod_does_not_say_it() -> None:
    owner = Owner("Job", "train", "u")
    assert RULES.group_object(make_pod("a", owner=owner)) is None
    unsaid = Pod("ns", "a", "1", labels={names.JOB: "j"}, owner=owner)
    assert RULES.group_object(unsaid) == GangRef(Source.BATCH_JOB, "ns", "train")


@pytest.mark.parametrize(("text", "roles"), [("4", {"worker": 4}), ("worker=4, ps=1", {"worker": 4, "ps": 1})])
def test_sizes(text: str, roles: dict[str, int]) -> None:
    assert parse_roles(text) == roles


@pytest.mark.parametrize("text", ["0", "x", "worker=-1", ""])
def test_impossible_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 int() and ours
        parse_roles(text)


def test_a_job_carries_what_its_pods_say() -> None:
    notes = {
        names.MODEL: "ResNet-50",
        names.EPOCHS: "90",
        names.PRIORITY: "urgent",
        names.QUEUE: "vision",
        names.BATCH_SIZE: "x",
        names.KEEP_TOGETHER: "rack",
        names.EXCLUSIVE_NETWORK: "true",
    }
    worker = make_pod("w", "worker", annotations=notes, node_selector={"zone": "a"}, created_s=1_700_000_000.0)
    server = make_pod("p", "ps", requests={"cpu": 4.0})
    job = build_job("ns/train/1", {"worker": 2, "ps": 1}, {"worker": worker, "ps": server}, GroupFacts(), RULES)
    assert (job.model, job.total_epochs, job.batch_size, job.queue) == ("ResNet-50", 90, 0, "vision")
    assert job.user == "ns"
    assert (job.keep_together, job.exclusive_network) == (Job.RACK, True)
    assert job.priority == Job.URGENT
    assert job.architecture == Job.PARAMETER_SERVER
    assert job.submit_time.seconds == 1_700_000_000
    workers, servers = job.groups
    assert (workers.role, workers.count, workers.demand.gpus) == (TaskGroup.WORKER, 2, 1)
    assert dict(workers.node_selector) == {"zone": "a"}
    assert (servers.role, servers.count, servers.demand.gpus) == (TaskGroup.PARAMETER_SERVER, 1, 0)


def test_two_roles_that_are_workers_are_told_apart_by_what_they_hold() -> None:
    small, big = Resources(cpu_cores=1), Resources(cpu_cores=8, gpus=4)
    job = Job(
        groups=[
            TaskGroup(role=TaskGroup.WORKER, count=1, demand=small),
            TaskGroup(role=TaskGroup.WORKER, count=2, demand=big),
        ]
    )
    answer = [
        Assignment(task="a", role=TaskGroup.WORKER, node="n1", demand=big),
        Assignment(task="b", role=TaskGroup.WORKER, node="n2", demand=small),
        Assignment(task="c", role=TaskGroup.WORKER, node="n3", demand=big),
    ]
    tasks = tasks_by_role(job, ["launcher", "worker"], answer)
    assert {role: [task.node for task in found] for role, found in tasks.items()} == {
        "launcher": ["n2"],
        "worker": ["n1", "n3"],
    }


def placement(*nodes: str) -> Placement:
    return Placement(tuple(Assignment(task=f"w{n}", role=TaskGroup.WORKER, node=node) for n, node in enumerate(nodes)))


@pytest.mark.parametrize("text", ["inf", "nan", "-5", "1e300", "99999999999", "many", ""])
def test_numbers_that_are_none_do_no_harm(text: str) -> None:
    """An annotation is any user's: its text must neither end the adapter nor be refused with others' events."""
    numbers = (names.EPOCHS, names.BATCH_SIZE, names.DATASET_SIZE, names.SINGLE_GPU_SECONDS, names.MAX_PER_NODE)
    book = GangBook(RULES)
    book.put(make_pod("p", gang=text or "4", annotations=dict.fromkeys(numbers, text)))
    (native,) = book.news(full=True)
    job = native.job
    for value in (job.total_epochs, job.batch_size, job.dataset_size, job.single_gpu_seconds):
        assert 0 <= value <= 1e15
    assert job.groups[0].max_per_node >= 0
    assert job.groups[0].count >= 1


def test_each_pod_is_handed_one_task_and_the_same_at_every_repeat() -> None:
    book = GangBook(RULES)
    pods = [make_pod(f"p{index}") for index in range(4)]
    gang = book.put(pods[0])
    gang.build(RULES)
    gang.mark_applied(placement("n1", "n1", "n2", "n3"))
    for pod in pods[1:]:
        assert book.put(pod) is gang
    first = [gang.task_of(pod) for pod in pods]
    assert sorted(task.node for task in first if task) == ["n1", "n1", "n2", "n3"]
    assert [gang.task_of(pod) for pod in reversed(pods)] == first[::-1]


def test_bound_pods_keep_their_nodes_when_a_gang_is_decided_late() -> None:
    book = GangBook(RULES)
    gang = book.put(make_pod("p0", gang="2"))
    bound = make_pod("p1", gang="2", node="n1")
    book.put(bound)
    gang.build(RULES)
    gang.mark_applied(placement("n1", "n2"))
    task = gang.task_of(make_pod("p0", gang="2"))
    assert task is not None
    assert task.node == "n2"


def test_a_pod_of_a_role_that_its_gang_does_not_name_is_told_all_the_same() -> None:
    book = GangBook(RULES)
    book.put(make_pod("p", gang="worker=1"))
    book.put(make_pod("p", role="chief", gang="worker=1", node="n1"))  # labelled otherwise in between
    (job,) = book.news(full=False)
    assert job.stage is Stage.RUNNING
    assert [group.count for group in job.job.groups] == [1]


def test_a_pod_too_many_is_a_gang_of_its_own() -> None:
    book = GangBook(RULES)
    gang = book.put(make_pod("p0", gang="1"))
    extra = book.put(make_pod("p1", gang="1"))
    assert extra is not gang
    assert extra.size() == 1


def test_an_extender_gang_needs_one_pod_of_each_role_and_an_own_one_needs_all() -> None:
    asked, own = GangBook(RULES), GangBook(RULES)
    gang = asked.put(make_pod("w0", "worker", gang="worker=2,ps=1"))
    assert "no ps pod" in gang.missing()
    asked.put(make_pod("p0", "ps", gang="worker=2,ps=1"))
    assert gang.reported_stage() is Stage.WAITING
    mine = own.put(make_pod("w0", scheduler="placewise", gang="2"))
    assert mine.missing() == ""  # once it may be decided while its pods are being made
    mine.mark_waiting()
    assert mine.missing() == "1 of 2 worker pods of the gang exist"
    own.put(make_pod("w1", scheduler="placewise", gang="2"))
    assert mine.missing() == ""


@pytest.mark.parametrize(
    ("phases", "end"),
    [(["Succeeded"] * 2, End.FINISHED), (["Succeeded", "Failed"], End.FAILED)],
)
def test_how_a_gang_ends(phases: list[str], end: End) -> None:
    book = GangBook(RULES)
    for index, phase in enumerate(phases):
        gang = book.put(make_pod(f"p{index}", gang="2", node="n1", phase=phase))
    assert gang.reported_stage() is Stage.ENDED
    assert native_job(gang, Stage.ENDED, RULES).end is end


def test_a_deleted_gang_is_cancelled_and_forgotten_once_told() -> None:
    book = GangBook(RULES)
    gang = book.put(make_pod("p0", gang="1"))
    book.drop("uid-p0")
    reported = book.news(full=False)
    assert [(job.stage, job.end) for job in reported] == [(Stage.ENDED, End.CANCELLED)]
    assert book.gangs == {}
    again = book.put(Pod("ns", "p0", "other-uid", labels={names.JOB: "train"}))
    assert again.key != gang.key


def test_the_group_tells_the_size_and_sends_the_surplus_away() -> None:
    book = GangBook(RULES)
    pods = [Pod("ns", f"p{n}", f"uid-{n}", labels={names.POD_GROUP_LABELS[0]: "g"}) for n in range(3)]
    gangs = [book.put(pod) for pod in pods]
    assert gangs[0].missing() == "size of the gang is being read"
    facts = facts_of(Source.POD_GROUP, {"metadata": {"uid": "x"}, "spec": {"minMember": 2}})
    book.inform(gangs[0], facts)
    assert len(gangs[0].pods) == 2
    assert book.gang_of("uid-2") is not gangs[0]


@pytest.mark.parametrize(
    ("source", "spec", "roles"),
    [
        (Source.BATCH_JOB, {"parallelism": 4, "completions": 2}, {"worker": 2}),
        (Source.BATCH_JOB, {}, {"worker": 1}),
        (Source.VOLCANO, {"minMember": 3, "minTaskMember": {"ps": 1, "worker": 2}}, {"ps": 1, "worker": 2}),
        (Source.VOLCANO, {"minMember": 3, "minTaskMember": {"ps": 1}}, {"worker": 3}),
        (Source.POD_GROUP, {}, {}),
        (Source.BATCH_JOB, {"parallelism": -3, "completions": -1}, {"worker": 1}),
        (Source.BATCH_JOB, {"parallelism": 10**12}, {"worker": 2**31 - 1}),
        (Source.POD_GROUP, {"minMember": -2}, {}),
        (Source.POD_GROUP, {"minMember": "many", "minTaskMember": {"ps": None}}, {}),
        (Source.VOLCANO, {"minMember": 10**12}, {"worker": 2**31 - 1}),
    ],
)
def test_sizes_from_group_objects(source: Source, spec: dict[str, Any], roles: dict[str, int]) -> None:
    assert facts_of(source, {"spec": spec}).roles == roles


def test_pods_are_read_from_the_api() -> None:
    document = {
        "metadata": {"name": "a", "uid": "u", "creationTimestamp": "2026-11-21T02:00:00Z", "deletionTimestamp": "x"},
        "spec": {"containers": [], "schedulingGates": [{"name": "g"}]},
        "status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]},
    }
    pod = parse_pod(document)
    assert pod.is_deleting
    assert pod.is_gated
    assert pod.is_unschedulable
    assert pod.created_s == 1795226400.0


def node_document(**spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "n1", "labels": {"nvidia.com/gpu.product": "V100", "placewise.dev/rack": "r1"}},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": "63500m", "memory": "512Gi", GPU: "8", "pods": "110"},
            "conditions": [{"type": "Ready", "status": spec.pop("ready", "True")}],
        },
    }


@pytest.mark.parametrize(
    ("spec", "state"),
    [
        ({}, Node.READY),
        ({"unschedulable": True}, Node.DRAINING),
        ({"ready": "Unknown"}, Node.DOWN),
        ({"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}, Node.READY),
        ({"taints": [{"key": "team", "effect": "NoSchedule"}]}, Node.READY),
        ({"taints": [{"key": "maintenance", "effect": "NoExecute"}]}, Node.DRAINING),
        ({"taints": [{"key": "soft", "effect": "PreferNoSchedule"}]}, Node.READY),
    ],
)
def test_node_states(spec: dict[str, Any], state: Node.State) -> None:
    reader = NodeReader((GPU,), tolerated_taints=("team",))
    assert reader.read(node_document(**spec)).state == state


def test_nodes_are_read_from_the_api() -> None:
    node = NodeReader((GPU,)).read(node_document())
    assert node.capacity == Resources(cpu_cores=63.5, memory_gib=512, gpus=8)
    assert [gpu.model for gpu in node.gpus] == ["V100"] * 8
    assert (node.rack, node.max_jobs_per_gpu) == ("r1", 1)


def test_a_resource_counted_in_bytes_does_not_cost_the_node() -> None:
    mirror = NodeMirror(NodeReader((GPU,)), lambda: None)
    document = node_document()
    document["status"]["allocatable"] |= {"example.com/gpu-memory": "80Gi", "example.com/fpga": "2"}
    mirror.change(document)
    reported = (mirror.take(full=True) or [])[0]
    check_node(convert_in.node(reported), "nodes[0]", Limits())
    assert reported.capacity.extended["example.com/fpga"] == 2
    assert reported.capacity.extended["example.com/gpu-memory"] == 2.0**32
    assert mirror.nodes["n1"].capacity.extended["example.com/gpu-memory"] == 80 * 2.0**30


def test_the_fallback_takes_a_gang_whole_or_not_at_all() -> None:
    nodes = [
        Node(id=name, state=Node.READY, capacity=Resources(cpu_cores=8, memory_gib=8, gpus=2)) for name in ("a", "b")
    ]
    pods = [make_pod(f"p{index}") for index in range(4)]
    assert first_fit(pods, nodes, {}, (GPU,)) == {"uid-p0": "a", "uid-p1": "a", "uid-p2": "b", "uid-p3": "b"}
    assert first_fit(pods, nodes, {"a": {GPU: 1.0}}, (GPU,)) is None
    assert first_fit([make_pod("x", node_selector={"zone": "z"})], nodes, {}, (GPU,)) is None


def task_on(node: str, name: str, gpus: int, *indices: int) -> Assignment:
    return Assignment(task=name, node=node, gpu_indices=indices, demand=Resources(gpus=gpus))


def test_pods_placed_by_others_stand_on_gpus_nobody_else_holds() -> None:
    ledger = GpuLedger(lambda _: range(4))
    ledger.hold("decided", [task_on("n1", "w", 2, 0, 2)])
    (first,) = ledger.indexed("foreign", [task_on("n1", "a", 1)])
    assert list(first.gpu_indices) == [1]
    assert ledger.indexed("foreign", [task_on("n1", "a", 1)]) == (first,)
    assert [list(task.gpu_indices) for task in ledger.indexed("other", [task_on("n1", "b", 1)])] == [[3]]
    ledger.release("decided")
    assert [list(task.gpu_indices) for task in ledger.indexed("late", [task_on("n1", "c", 2)])] == [[0, 2]]
    assert ledger.indexed("cpu", [task_on("n1", "d", 0)]) == (task_on("n1", "d", 0),)


@pytest.mark.parametrize("gpus", [10**9, 2**63])
def test_a_pod_that_claims_all_gpus_there_are_takes_no_time(gpus: int) -> None:
    (task,) = GpuLedger(lambda _: range(4)).indexed("absurd", [task_on("n1", "a", gpus)])
    assert list(task.gpu_indices[:4]) == [0, 1, 2, 3]
    assert len(task.gpu_indices) < 1000


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({}, "cluster"),
        ({"cluster": "c", "rulez": {}}, "rulez"),
        ({"cluster": "c", "rules": {"manage": "all"}}, "rules.manage"),
        ({"cluster": "c", "rules": {"priority_classes": {"high": "very"}}}, "priority_classes.high"),
        ({"cluster": "c", "listen": {"host": "0.0.0.0"}}, "certificate_path"),
        ({"cluster": "c", "listen": {"certificate_path": "x"}}, "certificate_path and key_path together"),
        ({"cluster": "c", "listen": 3}, "listen"),
        ({"cluster": "c", "fail_open_s": "soon"}, "fail_open_s"),
        ({"cluster": "c", "adapter": {"batch": 1, "depths": 2}}, "adapter.depths"),
        ({"cluster": 5}, "cluster"),
        ({"cluster": "c", "listen": {"port": "8443"}}, "listen.port"),
        ({"cluster": "c", "adapter": {"batch": 0}}, "adapter.batch"),
        ({"cluster": "c", "adapter": {"decide_budget_s": -1}}, "adapter.decide_budget_s"),
        ({"cluster": "c", "adapter": {"resync_s": float("nan")}}, "adapter.resync_s"),
        ({"cluster": "c", "adapter": {"cluster": "d"}}, "adapter.cluster"),
        ({"cluster": "c", "settings": {"batch": 1}}, "settings"),
        ({"cluster": "c", "rules": {"gpu_resources": [1]}}, "rules.gpu_resources"),
        ({"cluster": "c", "rules": {"priority_classes": ["high"]}}, "rules.priority_classes"),
        ({"cluster": "c", "rules": {"own_scheduler": 7}}, "rules.own_scheduler"),
        ({"cluster": "c", "lease": 5}, "lease"),
    ],
)
def test_bad_configuration_names_its_key(document: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_config(document)


def test_the_default_frees_a_gang_at_once_when_there_is_no_decision() -> None:
    config = parse_config({"cluster": "c"})
    assert config.settings.release_after_s == 0
    assert config.settings.decide_budget_s < config.fail_open_s <= 0.1


def one_gang(**pod: Any) -> Gang:
    return GangBook(RULES).put(make_pod("p0", gang="1", **pod))


def test_a_released_gang_keeps_no_decision_and_is_not_decided_again() -> None:
    gang = one_gang()
    gang.build(RULES)
    gang.mark_applied(placement("n1"))
    gang.mark_released()
    assert (gang.stage, gang.plan, list(gang.planned())) == (Stage.RELEASED, None, [])
    gang.mark_waiting()
    assert gang.stage is Stage.RELEASED


def test_a_gang_that_runs_is_neither_released_nor_decided_again() -> None:
    gang = one_gang(node="n1")
    assert gang.stage is Stage.RUNNING
    gang.mark_released()
    assert gang.stage is Stage.RUNNING


def test_a_gang_that_ended_stays_so() -> None:
    gang = one_gang(node="n1", phase="Succeeded")
    gang.mark_bound()
    gang.mark_released()
    assert gang.stage is Stage.ENDED


async def test_each_answer_wakes_only_the_calls_that_wait_for_it() -> None:
    gang = one_gang()
    gang.answer_callers()
    waiting = asyncio.create_task(gang.answered.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    gang.answer_callers()
    assert await waiting


def test_the_user_of_a_gang_is_the_one_named_on_its_pods() -> None:
    worker = make_pod("w", "worker", annotations={names.USER: "ada"})
    assert build_job("ns/train/1", {"worker": 1}, {"worker": worker}, GroupFacts(), RULES).user == "ada"


def test_pods_that_are_all_over_when_they_are_first_seen_are_one_gang() -> None:
    book = GangBook(RULES)
    gangs = [book.put(make_pod(f"p{index}", gang="2", node="n1", phase="Succeeded")) for index in range(2)]
    assert gangs[0] is gangs[1]
    assert [(job.key, job.end) for job in book.news(full=True)] == [("ns/train/uid-p0", End.FINISHED)]
