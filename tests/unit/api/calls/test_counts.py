"""Limits are checked on the message: every list and map of every request, before anything is built."""

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor
from tests.fakes.engine import running_engine
from tests.fakes.servers.faces import faces

from placewise.v1 import cluster_pb2
from placewise.v1.cluster_pb2 import Assignment, JobEvent, Node, ReportJobEventsRequest, ReportNodesRequest
from placewise.v1.decision_pb2 import AdmitOrWaitRequest, PartitionRequest, PlaceRequest, ShareProgress
from placewise.v1.job_pb2 import CoRun, GpuSharing, Job, Resources, Subtask, TaskGroup
from placewise_core.domain.errors import InvalidRequestError
from placewise_core.domain.validate import Limits
from placewise_service.api.calls import counts
from placewise_service.api.calls.rpcs import RPCS
from placewise_service.api.convert import convert_in
from placewise_service.settings import LimitSettings

LIMITS = Limits(jobs=40, tasks_per_gang=40, subtasks=40, nodes=40, gpus_per_node=40, events=40, items=2000)
PAD = "x" * 3000


def lists_of(descriptor: Descriptor) -> Iterator[tuple[str, str]]:
    for field in descriptor.fields:
        if field.is_repeated:
            yield descriptor.name, field.name
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            yield from lists_of(field.message_type)


def test_every_list_and_map_of_every_request_has_a_limit() -> None:
    found = {pair for rpc in RPCS.values() for pair in lists_of(rpc.request.DESCRIPTOR)}
    assert found == {(message, field) for message, field, _ in counts.TABLE}


def place(**fields: Any) -> PlaceRequest:
    return PlaceRequest(cluster=PAD, jobs=[Job(id="j", **fields)])


TOO_MANY = [
    (PlaceRequest(cluster=PAD, jobs=[Job()] * 41), "jobs"),
    (AdmitOrWaitRequest(cluster=PAD, jobs=[Job()] * 41), "jobs"),
    (AdmitOrWaitRequest(cluster=PAD, place=PlaceRequest(jobs=[Job()] * 41)), "place.jobs"),
    (place(groups=[TaskGroup()] * 41), "jobs[0].groups"),
    (place(subtasks=[Subtask()] * 41), "jobs[0].subtasks"),
    (place(subtasks=[Subtask(after=["a"] * 41)]), "jobs[0].subtasks[0].after"),
    (place(subtasks=[Subtask(profile={f"{i}": 1.0 for i in range(257)})]), "jobs[0].subtasks[0].profile"),
    (place(gpu_sharing=GpuSharing(co_runs=[CoRun()] * 65)), "jobs[0].gpu_sharing.co_runs"),
    (
        place(groups=[TaskGroup(), TaskGroup(demand=Resources(extended={f"{i}": 1.0 for i in range(257)}))]),
        "jobs[0].groups[1].demand.extended",
    ),
    (
        place(groups=[TaskGroup(node_selector={f"{i}": "" for i in range(257)})]),
        "jobs[0].groups[0].node_selector",
    ),
    (ReportNodesRequest(cluster=PAD, nodes=[Node()] * 41), "nodes"),
    (ReportNodesRequest(cluster=PAD, nodes=[Node(gpus=[{}] * 41)]), "nodes[0].gpus"),
    (ReportNodesRequest(cluster=PAD, nodes=[Node(labels={f"{i}": "" for i in range(257)})]), "nodes[0].labels"),
    (ReportJobEventsRequest(cluster=PAD, events=[JobEvent()] * 41), "events"),
    (ReportJobEventsRequest(cluster=PAD, events=[JobEvent(placement=[Assignment()] * 41)]), "events[0].placement"),
    (PartitionRequest(cluster=PAD, progress=[ShareProgress()] * 1601), "progress"),
    (PartitionRequest(cluster=PAD, units=[""] * 1601), "units"),
    (
        cluster_pb2.UpdateClusterSettingsRequest(
            cluster=PAD, settings=cluster_pb2.ClusterSettings(queues=[cluster_pb2.QueueSettings()] * 1001)
        ),
        "settings.queues",
    ),
]


@pytest.mark.parametrize(("message", "field"), TOO_MANY, ids=[field for _, field in TOO_MANY])
def test_too_many_of_one_kind_are_refused_by_the_fields_name(message: Any, field: str) -> None:
    with pytest.raises(InvalidRequestError, match="at most") as refused:
        counts.check_counts(message, LIMITS)
    assert refused.value.metadata["field"] == field
    with pytest.raises(InvalidRequestError, match="at most") as refused_raw:
        counts.check_raw_counts(message.SerializeToString(), type(message), LIMITS)
    assert refused_raw.value.metadata["field"] == field


def test_as_many_as_are_allowed_pass_and_one_more_of_all_together_does_not() -> None:
    nodes = [Node(gpus=[{}] * 40, labels={f"{i}": "" for i in range(9)}) for _ in range(40)]
    allowed = ReportNodesRequest(cluster=PAD, nodes=nodes)  # 40 + 40 · 49 = 2000
    over = ReportNodesRequest(
        cluster=PAD, nodes=[*nodes[1:], Node(gpus=[{}] * 40, labels={f"{i}": "" for i in range(10)})]
    )
    counts.check_counts(allowed, LIMITS)
    counts.check_raw_counts(allowed.SerializeToString(), ReportNodesRequest, LIMITS)
    with pytest.raises(InvalidRequestError, match="2000 entries together"):
        counts.check_counts(over, LIMITS)
    with pytest.raises(InvalidRequestError, match="2000 entries together"):
        counts.check_raw_counts(over.SerializeToString(), ReportNodesRequest, LIMITS)


@pytest.mark.parametrize(
    "raw", [b"\xff" * 400, b"\x1a\xff\xff\xff\xff\x7f" * 90, b"\x1a", b"\x1a\x05a", b"\x0b\x0c" * 99]
)
def test_what_is_no_message_is_left_to_the_parser(raw: bytes) -> None:
    counts.check_raw_counts(raw, PlaceRequest, LIMITS)


def test_numbers_in_one_field_are_counted_once_they_are_parsed() -> None:
    event = JobEvent(placement=[Assignment(gpu_indices=list(range(41)))])
    with pytest.raises(InvalidRequestError, match="at most 40") as refused:
        counts.check_counts(ReportJobEventsRequest(cluster=PAD, events=[event]), LIMITS)
    assert refused.value.metadata["field"] == "events[0].placement[0].gpu_indices"


@pytest.mark.parametrize("carrier", ["REST", "Connect in JSON", "Connect in its binary form"])
@pytest.mark.parametrize(
    ("jobs", "words"),
    [
        ([Job()] * 257, "at most 256 are allowed"),
        ([Job(groups=[TaskGroup()] * 41)], "at most 40 are allowed"),
    ],
    ids=["257 jobs", "41 groups in a job"],
)
@pytest.mark.parametrize(("rpc", "verb"), [("Place", "place"), ("AdmitOrWait", "admitOrWait")])
async def test_of_a_request_with_too_many_jobs_nothing_is_built(
    rpc: str, verb: str, jobs: list[Job], words: str, carrier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Job] = []
    monkeypatch.setattr(convert_in, "job", built.append)
    many = RPCS[rpc].request(cluster="prod", jobs=jobs)
    path = f"/v1/clusters/prod/jobs:{verb}" if carrier == "REST" else RPCS[rpc].path
    if carrier == "Connect in its binary form":
        kind, content = "application/proto", many.SerializeToString()
    else:
        kind, content = "application/json", json_format.MessageToJson(many).encode()
    limits = LimitSettings(tasks_per_gang=40)
    async with running_engine() as engine, faces(engine, limits) as running:  # type: ignore[arg-type]
        response = await running.http.post(path, content=content, headers={"content-type": kind})
    assert response.status_code == 400
    assert words in response.text
    assert not built
