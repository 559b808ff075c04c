"""REST payloads of every supported version become the same records, and records become the right questions."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from placewise.v1.cluster_pb2 import Node
from placewise.v1.job_pb2 import Job
from placewise_client.adapter.native import End, Stage
from placewise_slurm.records import SlurmJob
from placewise_slurm.shares import divisible_task
from placewise_slurm.translate import (
    SiteNames,
    blocked_by,
    is_elastic,
    is_outranked,
    stage,
    to_job,
    to_native,
    to_node,
)
from placewise_slurm.versions import VERSIONS, Update

CASES = Path(__file__).parents[2] / "cases" / "slurm"
STRUCTURED = tuple(VERSIONS)[1:]
HELD = SlurmJob(
    7, "PENDING", is_held=True, partition="main", admin_comment="placewise:held", tres_per_node="gres:gpu:2", cpus=4
)


def payload(version: str) -> dict[str, Any]:
    return json.loads((CASES / f"{version}.json").read_text())


def test_jobs_of_22_05() -> None:
    jobs = [VERSIONS["v0.0.38"].job(raw) for raw in payload("v0.0.38")["jobs"]]
    assert [stage(job) for job in jobs] == [Stage.WAITING, Stage.RUNNING, Stage.ENDED]
    assert {to_job(job, SiteNames()).user for job in jobs} == {"placewise-e2e"}


@pytest.mark.parametrize("version", STRUCTURED)
def test_jobs_as_each_later_version_sends_them(version: str) -> None:
    """The first three are of the same kinds as those of 22.05, and mean the same."""
    older = [VERSIONS["v0.0.38"].job(raw) for raw in payload("v0.0.38")["jobs"]]
    held, running, ended, ending, by_task = (VERSIONS[version].job(raw) for raw in payload(version)["jobs"])
    assert [stage(job) for job in (held, running, ended)] == [stage(job) for job in older]
    for job, before in zip((held, running, ended), older, strict=True):
        assert job.comment == before.comment
        assert job.user == before.user == to_job(job, SiteNames()).user == "placewise-e2e"
        assert job.gres_detail == before.gres_detail
        assert (bool(job.start_time_s), bool(job.end_time_s)) == (bool(before.start_time_s), bool(before.end_time_s))
        assert to_job(job, SiteNames()).groups == to_job(before, SiteNames()).groups
    assert held.admin_comment == "placewise:held"
    assert held.tres_per_task == "cpu=2"  # which are no GPUs
    assert (ending.state, stage(ending)) == ("COMPLETING", Stage.RUNNING)
    (group,) = to_job(by_task, SiteNames()).groups
    assert (by_task.tasks, by_task.max_nodes, group.demand.gpus) == (4, 2, 4)
    assert set(group.node_selector) == {"partition/main", "feature/ib"}


@pytest.mark.parametrize("version", STRUCTURED)
def test_gpus_of_the_whole_job_count_beside_processors_of_a_task(version: str) -> None:
    job = VERSIONS[version].job({**payload(version)["jobs"][0], "tres_per_node": "", "tres_per_job": "gres/gpu:a100:4"})
    (group,) = to_job(job, SiteNames()).groups
    assert (group.count, group.demand.gpus, group.gpu_model) == (2, 2, "a100")
    assert is_elastic(dataclasses.replace(job, max_nodes=4))


@pytest.mark.parametrize("version", list(VERSIONS))
def test_nodes_of_every_version(version: str) -> None:
    node = to_node(VERSIONS[version].node(payload(version)["nodes"][0]), SiteNames())
    assert (node.id, node.capacity.gpus, node.capacity.cpu_cores, node.state) == ("n1", 8, 16, Node.READY)


@pytest.mark.parametrize("version", STRUCTURED)
def test_a_drained_node_with_features(version: str) -> None:
    raw = payload(version)["nodes"][1]
    node = to_node(VERSIONS[version].node({**raw, "gres": "gpu:a100:8(S:0-1)"}), SiteNames())
    assert node.state == Node.DRAINING
    assert {gpu.model for gpu in node.gpus} == {"a100"}
    assert node.labels == {"feature/ib": "true", "feature/a100": "true", "partition/main": "true"}


def test_updates_are_written_as_each_version_wants_them() -> None:
    change = Update(False, ["n2", "n3"], "gres:gpu:2")
    assert VERSIONS["v0.0.38"].update(change) == {
        "hold": False,
        "nodelist": "n2,n3",
        "nodes": "2-2",
        "gres": "gres:gpu:2",
    }
    for version in STRUCTURED:
        assert VERSIONS[version].update(change) == {
            "hold": False,
            "required_nodes": ["n2", "n3"],
            "minimum_nodes": 2,
            "maximum_nodes": 2,
            "tres_per_node": "gres/gpu:2",
        }
    assert VERSIONS["v0.0.38"].update(Update(True)) == {"hold": True}
    assert VERSIONS["v0.0.38"].update(Update(False, ())) == {"hold": False, "nodelist": ""}
    for version in STRUCTURED:  # an empty list would change nothing
        assert VERSIONS[version].update(Update(False, ())) == {"hold": False, "required_nodes": [""]}


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, Stage.WAITING),
        ({"is_held": False}, Stage.RELEASED),
        ({"reason": "launch failed requeued held"}, Stage.RELEASED),
        ({"reason": "JobHoldMaxRequeue"}, Stage.RELEASED),
        ({"is_held": False, "required_nodes": "n1"}, Stage.APPLIED),
        ({"required_nodes": "n1"}, Stage.WAITING),
        ({"admin_comment": ""}, None),
        ({"admin_comment": "placewise:watched", "is_held": False}, Stage.WAITING),
        ({"state": "RUNNING", "admin_comment": ""}, Stage.RUNNING),
        ({"state": "CONFIGURING"}, Stage.RUNNING),
        ({"state": "REQUEUED"}, Stage.WAITING),
        ({"state": "TIMEOUT"}, Stage.ENDED),
    ],
)
def test_stages(changes: dict[str, Any], wanted: Stage | None) -> None:
    assert stage(dataclasses.replace(HELD, **changes)) is wanted


@pytest.mark.parametrize(
    ("state", "end"),
    [("COMPLETED", End.FINISHED), ("CANCELLED", End.CANCELLED), ("TIMEOUT", End.FAILED), ("NODE_FAIL", End.FAILED)],
)
def test_ends(state: str, end: End) -> None:
    native = to_native(dataclasses.replace(HELD, state=state), SiteNames())
    assert native is not None
    assert native.end is end


def test_a_gang_has_one_task_per_node() -> None:
    job = to_job(dataclasses.replace(HELD, min_nodes=3, cpus=12, memory_per_cpu_mib=512), SiteNames())
    (group,) = job.groups
    assert (group.count, group.max_per_node) == (3, 1)
    assert (group.demand.cpu_cores, group.demand.gpus, group.demand.memory_gib) == (4, 2, 2)


def test_a_job_has_its_partition_as_queue_and_its_user() -> None:
    job = to_job(dataclasses.replace(HELD, user="ada"), SiteNames())
    assert (job.queue, job.user) == ("main", "ada")


def test_a_node_range_is_elastic_and_a_cpu_job_is_not() -> None:
    elastic = to_job(dataclasses.replace(HELD, max_nodes=4), SiteNames())
    assert (elastic.elastic.min_gpus, elastic.elastic.max_gpus, len(elastic.groups)) == (2, 8, 0)
    assert not to_job(dataclasses.replace(HELD, max_nodes=4, tres_per_node=""), SiteNames()).HasField("elastic")


def test_gpus_for_the_whole_job_are_split_over_its_nodes() -> None:
    job = to_job(dataclasses.replace(HELD, tres_per_node="", tres_per_job="gres:gpu:8", min_nodes=2), SiteNames())
    assert job.groups[0].demand.gpus == 4


def test_gpus_of_tasks_are_counted_per_node() -> None:
    asked = dataclasses.replace(
        HELD, tres_per_node="", tres_per_task="gres:gpu:a100:2", tasks=5, min_nodes=2, max_nodes=4
    )
    (group,) = to_job(asked, SiteNames()).groups  # not elastic: the number of tasks is fixed
    assert (group.count, group.demand.gpus, group.gpu_model) == (2, 6, "a100")


@pytest.mark.parametrize(
    ("features", "labels"),
    [
        ("", {"partition/main"}),
        ("a100", {"partition/main", "feature/a100"}),
        ("a100&ib", {"partition/main", "feature/a100", "feature/ib"}),
        ("a100|v100", {"partition/main"}),
        ("[rack1*2&rack2]", {"partition/main"}),
    ],
)
def test_a_job_goes_to_nodes_of_its_partition_with_its_features(features: str, labels: set[str]) -> None:
    (group,) = to_job(dataclasses.replace(HELD, features=features), SiteNames()).groups
    assert dict(group.node_selector) == dict.fromkeys(labels, "true")


def test_priority_comes_from_qos_then_partition() -> None:
    names = SiteNames(priorities={"high": "urgent", "main": "prior"})
    assert to_job(dataclasses.replace(HELD, qos="high"), names).priority == Job.URGENT
    assert to_job(HELD, names).priority == Job.PRIOR
    assert to_job(HELD, SiteNames()).priority == Job.NORMAL


def test_what_slurm_does_not_know_is_in_the_comment() -> None:
    job = to_job(
        dataclasses.replace(HELD, comment="placewise model=VGG-16,epochs=90 batch=64 samples=nan"), SiteNames()
    )
    assert (job.model, job.total_epochs, job.batch_size, job.dataset_size) == ("VGG-16", 90, 64, 0)
    absurd = to_job(dataclasses.replace(HELD, comment="batch=1e300 samples=1e300 epochs=x"), SiteNames())
    assert (absurd.batch_size, absurd.dataset_size, absurd.total_epochs) == (2**31 - 1, 2**53, 0)


def test_the_comment_may_say_where_all_nodes_are_and_beside_whom() -> None:
    job = to_job(dataclasses.replace(HELD, comment="keep_together=Rack exclusive_network=yes"), SiteNames())
    assert (job.keep_together, job.exclusive_network) == (Job.RACK, True)
    job = to_job(dataclasses.replace(HELD, comment="keep_together=aisle exclusive_network=no"), SiteNames())
    assert (job.keep_together, job.exclusive_network) == (Job.KEEP_TOGETHER_UNSPECIFIED, False)


def test_a_feature_names_the_rack_of_a_node() -> None:
    version = STRUCTURED[0]
    node = dataclasses.replace(VERSIONS[version].node(payload(version)["nodes"][1]), features=("ib", "rack-b7"))
    racks = [to_node(node, SiteNames(rack_prefix=prefix)).rack for prefix in ("rack-", "", "row-")]
    assert racks == ["rack-b7", "", ""]


def test_a_gpu_type_is_a_model_unless_the_site_types_every_gpu() -> None:
    asked = dataclasses.replace(HELD, tres_per_node="gres:gpu:a100:2")
    assert to_job(asked, SiteNames()).groups[0].gpu_model == "a100"
    typed = dataclasses.replace(HELD, tres_per_node="gres:gpu:g1:1")
    assert to_job(typed, SiteNames(), ("g0", "g1")).groups[0].gpu_model == ""


@pytest.mark.parametrize(
    ("comment", "scales"),
    [
        ("divisible=100 serial=5 kind=render", (100, 5, "render")),
        ("divisible=inf", None),
        ("divisible=-1", None),
        ("divisible=many", None),
        ("", None),
    ],
)
def test_divisible_jobs(comment: str, scales: tuple[float, float, str] | None) -> None:
    task = divisible_task(dataclasses.replace(HELD, comment=comment))
    assert (task and (task.parallel_scale, task.serial_scale, task.kind)) == scales


@pytest.mark.parametrize(
    ("reason", "text", "wanted"),
    [
        ("QOSMaxJobsPerUserLimit", "QOSMaxJobsPerUserLimit", "QOSMaxJobsPerUserLimit"),
        ("QOSGrpGRES", "QOSGrpGRES", "QOSGrpGRES"),
        ("InvalidQOS", "InvalidQOS", "InvalidQOS"),
        ("AssocGrpCpuLimit", "AssocGrpCpuLimit", "AssocGrpCpuLimit"),
        ("AssociationJobLimit", "AssociationJobLimit", "AssociationJobLimit"),
        ("MaxGRESPerAccount", "MaxGRESPerAccount", "MaxGRESPerAccount"),
        ("AccountNotAllowed", "AccountNotAllowed", "AccountNotAllowed"),
        ("Licenses", "Licenses", "Licenses"),
        ("Reservation", "Reservation", "Reservation"),
        ("ReservationDeleted", "ReservationDeleted", "ReservationDeleted"),
        ("PartitionTimeLimit", "PartitionTimeLimit", "PartitionTimeLimit"),
        ("PartitionNodeLimit", "PartitionNodeLimit", "PartitionNodeLimit"),
        ("DeadLine", "DeadLine", "DeadLine"),
        (
            "ReqNodeNotAvail",
            "ReqNodeNotAvail, Reserved for maintenance",
            "ReqNodeNotAvail, Reserved for maintenance",
        ),
        ("Resources", "Resources", ""),
        ("Priority", "Priority", ""),
        ("ReqNodeNotAvail", "ReqNodeNotAvail, UnavailableNodes:n1", ""),
        ("None", "None", ""),
    ],
)
def test_what_keeps_a_job_from_starting_is_a_rule_or_a_place(reason: str, text: str, wanted: str) -> None:
    assert blocked_by(dataclasses.replace(HELD, reason=reason, reason_text=text)) == wanted


@pytest.mark.parametrize(
    ("reason", "text", "others", "wanted"),
    [
        ("Priority", "Priority", 5, True),
        ("Priority", "Priority", 7, True),
        ("Priority", "Priority", 4, False),
        ("Priority", "Priority", -1, False),
        ("Resources", "Resources", 7, False),
        ("ReqNodeNotAvail", "ReqNodeNotAvail, May be reserved for other job", -1, True),
        ("ReqNodeNotAvail", "ReqNodeNotAvail, UnavailableNodes:n1", 7, False),
    ],
)
def test_a_job_is_outranked_by_others_that_wait_and_by_what_its_nodes_are_kept_for(
    reason: str, text: str, others: int, wanted: bool
) -> None:
    assert is_outranked(dataclasses.replace(HELD, reason=reason, reason_text=text, priority=5), others) is wanted
